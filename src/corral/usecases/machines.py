"""What reports change of a machine, and what people do with one (spec 10: states, cordon). Removal: `removal`.

`set_state`, `judge_inventory` and `judge_conditions` are the site's own acts; the rest are people's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from corral.domain import inventory as inventory_rules
from corral.domain import machines as rules
from corral.domain import reservations
from corral.domain.allocations import legible
from corral.domain.errors import Refusal
from corral.domain.events import Entry
from corral.domain.ids import shown
from corral.domain.inventory import Condition, Gpu, GpuChange, Inventory, pressure
from corral.domain.machines import MachineRef, MachineState, Quarantine
from corral.domain.quotas import Reached
from corral.domain.reservations import Window
from corral.domain.workspaces import Some
from corral.store import clusters as cluster_rows
from corral.store import faults as fault_rows
from corral.store import fleet, reserved
from corral.store import inventory as gpu_rows
from corral.store import machines as rows
from corral.store import sessions as session_rows
from corral.store.transaction import SITE, Actor, Row, Scope, Tx, Wake
from corral.usecases import clusters, quotas, unknown_work
from corral.usecases.context import Context, new_id

Windows = Mapping[str, Sequence[Window]]
"""By machine."""
MAX_CONDITIONS = 20
MAX_GPUS_TOLD = 16
"""GPUs named in one journal entry; the rest are counted."""
SESSIONS_SHOWN = 5

# --- the site's own acts


def set_state(tx: Tx, machine: MachineRef, to: MachineState, *, unseen_since: datetime | None = None) -> bool:
    """Record that a machine reports (Up) or is silent (Down); return whether that is news.

    With `unseen_since` only if nothing was heard of it after that moment.
    """
    was = (MachineState.UP,) if to is MachineState.DOWN else (MachineState.IDLE, MachineState.DOWN)
    fleet.touch(tx, Scope(machine.org_id), machine.cluster_id, [machine.id])
    if not rows.set_state(tx, machine, was, to, unseen_since=unseen_since):
        return False
    tx.record(Entry(f"cluster.node.{to.value}", machine.subject, {"name": machine.name}), SITE)
    return True


def judge_inventory(tx: Tx, machine: MachineRef, inventory: Inventory) -> bool:
    """Save what a machine says it is; return whether placement's view of it changed.

    The inventory that is stored already changes nothing.
    """
    row = rows.get(tx, Scope(machine.org_id), machine.id)
    inventory = inventory_rules.fitted(inventory)
    if row is None or row["inventory_digest"] == inventory.digest:
        return False
    fleet.lock(tx, Scope(machine.org_id), machine.cluster_id)
    reported = inventory_rules.with_unknown(inventory.gpus, unknown_work.held_gpus(row))
    gpus = _save_gpus(tx, machine, reported)
    capacity = {"vcpu": inventory.vcpu, "ram_mib": inventory.ram_mib, "storage_mib": inventory.storage_mib}
    before = {key: row[key] for key in capacity}
    rows.save(
        tx,
        machine,
        {
            **capacity,
            "hostname": inventory.hostname,
            "inventory": inventory.facts,
            "inventory_digest": inventory.digest,
        },
    )
    if before == capacity and not gpus:
        return False
    fleet.touch(tx, Scope(machine.org_id), machine.cluster_id, [machine.id])
    data = {"name": machine.name, "before": before, "after": capacity, **_told_of(gpus)}
    tx.record(Entry("cluster.node.inventory", machine.subject, data), _itself(machine))
    return True


def judge_conditions(tx: Tx, machine: MachineRef, conditions: Sequence[Condition]) -> bool:
    """Save what is wrong with a machine as a whole; return whether that changed.

    Each condition that began or ended is one event; another wording of one that goes on is none.
    """
    row = rows.get(tx, Scope(machine.org_id), machine.id)
    now = [
        {"kind": legible(c.kind, 60), "message": legible(c.message, 300), "blocking": c.blocking}
        for c in conditions[:MAX_CONDITIONS]
    ]
    why = legible(pressure(conditions), 300)
    if row is None or (row["conditions"] == now and row["pressure"] == why):
        return False
    if why != row["pressure"]:
        fleet.touch(tx, Scope(machine.org_id), machine.cluster_id, [machine.id])
    rows.save(tx, machine, {"conditions": now, "pressure": why})
    old = {str(c["kind"]): str(c["message"]) for c in row["conditions"]}
    new = {str(c["kind"]): str(c["message"]) for c in now}
    for kind in sorted(old.keys() ^ new.keys()):
        data = {"name": machine.name, "kind": kind, "began": kind in new, "reason": new.get(kind, old.get(kind))}
        tx.record(Entry("cluster.node.condition", machine.subject, data), _itself(machine))
    return True


def _save_gpus(tx: Tx, machine: MachineRef, reported: Sequence[Gpu]) -> Sequence[GpuChange]:
    kept = gpu_rows.of_machine(tx, machine)
    changes = inventory_rules.judge_gpus([row.kept for row in kept], reported)
    ids = {(row.kept.gpu.vendor, row.kept.gpu.uuid): row.id for row in kept}
    gpu_rows.add(tx, machine, {new_id(tx.now): change.now for change in changes if change.was is None})
    for change in changes:
        gpu = change.now.gpu
        if change.was is not None:
            gpu_rows.save(tx, machine, ids[(gpu.vendor, gpu.uuid)], change.now)
    return changes


def _told_of(changes: Sequence[GpuChange]) -> dict[str, Any]:
    more = len(changes) - MAX_GPUS_TOLD
    told = {"gpus": [_told(change) for change in changes[:MAX_GPUS_TOLD]]}
    return {**told, "gpus_left_out": more} if more > 0 else told


def _told(change: GpuChange) -> dict[str, Any]:
    was, now = change.was, change.now
    return {
        "uuid": now.gpu.uuid,
        "model": now.gpu.model,
        "before": None if was is None else "replaced" if was.gone else was.gpu.state.value,
        "after": "replaced" if now.gone else now.gpu.state.value,
        "reason": now.gpu.detail,
    }


def _itself(machine: MachineRef) -> Actor:
    return Actor("machine", machine.id, machine.name)


# --- what people see


@dataclass(frozen=True)
class Machine:
    """A machine as an admin sees it. `row` is its row of `machines` with `last_seen`."""

    row: Row
    gpus: gpu_rows.Summary
    closed: str
    """Why no new work lands on it ("" = it may)."""
    reserved: str = ""
    """For whom it is reserved now, and until when ("" = for nobody in particular)."""


@dataclass(frozen=True)
class Running:
    """A workload that holds something of a machine."""

    workload_id: str
    name: str
    kind: str
    state: str
    workspace: str
    gpus: int


@dataclass(frozen=True)
class Details:
    machine: Machine
    gpus: Sequence[Row]
    """GPUs that were not replaced, each with `workload` and `workspace` that hold it (None: free)."""
    running: Sequence[Running]
    sessions: Sequence[Row]
    """The latest few, newest first."""
    windows: Sequence[Window]
    """Reservations that cover it and are not over, soonest first."""
    faults: Mapping[fault_rows.Identity, Sequence[Row]]
    """Latched, of its GPUs."""


@dataclass(frozen=True)
class Affected:
    """Who and what an act on a machine touches."""

    name: str
    running: Sequence[Running]
    workspaces: Some
    """Those that may use the machine."""


@dataclass(frozen=True)
class Offered:
    """A machine as a workspace's members see it."""

    row: Row
    gpus: gpu_rows.Summary
    status: str
    reserved: str = ""
    """The reservation to come that only work with a time limit may come before ("" = none)."""


def listed(ctx: Context, cluster: str, want: rows.Wanted, after: str | None, limit: int) -> Sequence[Machine]:
    """Return the organisation's machines in a cluster, by name. Errors: `NOT_FOUND`."""
    cluster_id = clusters.find(ctx, cluster)["cluster_id"]
    found = rows.listed(ctx.tx, ctx.scope, cluster_id, want, after, limit)
    return _machines(ctx, found)


def one(ctx: Context, cluster: str, name: str) -> Details:
    """Return all about a machine. Errors: `NOT_FOUND`, `NODE_NOT_FOUND`."""
    row = find(ctx, cluster, name)
    ref = rows.ref_of(row)
    return Details(
        _seen(ctx, row),
        gpu_rows.with_holders(ctx.tx, ref),
        running(ctx, ref),
        rows.sessions_of(ctx.tx, ref, SESSIONS_SHOWN),
        reserved.windows_on(ctx.tx, ctx.scope, [row]).get(ref.id, ()),
        fault_rows.live_on(ctx.tx, ref),
    )


def of_workspace(ctx: Context, after: tuple[str, str] | None, limit: int) -> Sequence[Offered]:
    """Return the machines of the workspace's pools, by name, each with what keeps work away."""
    return offered(ctx, rows.of_workspace(ctx.tx, ctx.scope, ctx.workspace.id, after, limit))


def offered(ctx: Context, found: Sequence[Row]) -> Sequence[Offered]:
    """Return machines (rows of a list) as the workspace's members see them."""
    summaries = gpu_rows.summaries(ctx.tx, ctx.scope, [row["id"] for row in found])
    full = quotas.reached(ctx)
    windows = reserved.first_against(ctx.tx, ctx.scope, ctx.workspace.id, found)
    return [
        _offered(ctx, row, summaries.get(row["id"], gpu_rows.EMPTY), full.get(row["cluster_id"], Reached()), windows)
        for row in found
    ]


def contact(ctx: Context) -> str:
    """Return whom to ask for more: the organisation's contact line, else the site's."""
    return ctx.org.contact or cluster_rows.site_contact(ctx.tx)


# --- what people do


def affected(ctx: Context, cluster: str, name: str) -> Affected:
    """Return who and what an act on this machine touches; changes nothing. Errors: `NOT_FOUND`, `NODE_NOT_FOUND`."""
    return affected_by(ctx, find(ctx, cluster, name))


def affected_by(ctx: Context, row: Row) -> Affected:
    """Return the same of the machine of this row."""
    able = rows.workspaces_that_may_use(ctx.tx, ctx.scope, row["cluster_id"], row["pool"])
    return Affected(row["name"], running(ctx, rows.ref_of(row)), able)


def cordon(ctx: Context, cluster: str, name: str, reason: str | None) -> Machine:
    """Stop new work landing on a machine; what runs there keeps running. Cordoned already: the new reason counts."""
    reason = rules.cordon_reason(reason)
    row = locked(ctx, cluster, name)
    if row["cordon_reason"] != reason:
        ref = rows.ref_of(row)
        rows.save(ctx.tx, ref, {"cordon_reason": reason, "cordoned_by": ctx.actor.name, "cordoned_at": ctx.now})
        ctx.record("cluster.node.cordoned", ref.subject, name=ref.name, before=row["cordon_reason"], reason=reason)
    return again(ctx, row)


def uncordon(ctx: Context, cluster: str, name: str) -> Machine:
    """Let new work land on a machine again; one that is not cordoned stays as it is."""
    row = locked(ctx, cluster, name)
    if row["cordon_reason"] is not None:
        ref = rows.ref_of(row)
        rows.save(ctx.tx, ref, {"cordon_reason": None, "cordoned_by": None, "cordoned_at": None})
        ctx.record("cluster.node.uncordoned", ref.subject, name=ref.name, before=row["cordon_reason"])
    return again(ctx, row)


def release_quarantine(ctx: Context, cluster: str, name: str) -> Machine:
    """Decide that a suspected clone, or a machine with unknown work, takes new work again.

    The unknown work goes on and keeps its GPUs; other unknown work closes the machine anew.
    """
    row = locked(ctx, cluster, name)
    if row["quarantine"] is not None:
        ref = rows.ref_of(row)
        accepted = unknown_work.accept(ctx.tx, ref, row) if row["quarantine"] == Quarantine.UNKNOWN_WORK.value else 0
        rows.save(ctx.tx, ref, {"quarantine": None, "quarantine_reason": None, "behind": False})
        session_rows.forget(ctx.tx, ref)  # the copy that stays must not look like one that comes back
        ctx.wake(Wake.DESIRED, ref.id)
        ctx.record(
            "cluster.node.quarantine_released",
            ref.subject,
            name=ref.name,
            before=row["quarantine"],
            reason=row["quarantine_reason"],
            **({"accepted": accepted} if accepted else {}),
        )
    return again(ctx, row)


def find(ctx: Context, cluster: str, name: str) -> Row:
    cluster_id = clusters.find(ctx, cluster)["cluster_id"]
    row = rows.by_name(ctx.tx, ctx.scope, cluster_id, name)
    if row is None:
        raise Refusal("NODE_NOT_FOUND", f"There is no machine {shown(name)} in this cluster. Check the name.")
    return row


def locked(ctx: Context, cluster: str, name: str) -> Row:
    """Return the machine as it stands under the tenancy's lock, marked as changed for placement."""
    found = find(ctx, cluster, name)
    fleet.touch(ctx.tx, ctx.scope, found["cluster_id"], [found["id"]])
    return find(ctx, cluster, name)


def again(ctx: Context, row: Row) -> Machine:
    """Return the machine as it is after a change."""
    after = rows.get(ctx.tx, ctx.scope, row["id"])
    assert after is not None, "machines are never deleted"
    return _seen(ctx, after)


def _seen(ctx: Context, row: Row) -> Machine:
    return _machines(ctx, [row])[0]


def _machines(ctx: Context, found: Sequence[Row]) -> list[Machine]:
    summaries = gpu_rows.summaries(ctx.tx, ctx.scope, [row["id"] for row in found])
    windows = reserved.windows_on(ctx.tx, ctx.scope, found, begun=True)
    machines = []
    for row in found:
        mine = windows.get(row["id"], ())
        closed = rules.closed_because(_standing(row)) or reservations.closed_to_all(mine, ctx.now)
        gpus = summaries.get(row["id"], gpu_rows.EMPTY)
        machines.append(Machine(row, gpus, closed, reservations.now_in_words(mine, ctx.now)))
    return machines


def _offered(ctx: Context, row: Row, gpus: gpu_rows.Summary, quota: Reached, windows: Windows) -> Offered:
    mine, me, now = windows.get(row["id"], ()), ctx.workspace.id, ctx.now
    closed = rules.closed_because(_standing(row)) or reservations.refused_by(mine, me, now, sure_end=now)
    status = rules.status_text(closed, gpus.counts, quota.on(gpus.counts.total, gpus.models))
    return Offered(row, gpus, status, "" if closed else reservations.refused_by(mine, me, now, sure_end=None))


def _standing(row: Row) -> rules.Standing:
    return rules.Standing(MachineState(row["state"]), row["cordon_reason"], row["quarantine"], row["pressure"])


def running(ctx: Context, ref: MachineRef) -> list[Running]:
    return [
        Running(row["workload_id"], row["name"], row["kind"], row["state"], row["workspace"], row["gpus"])
        for row in rows.running_on(ctx.tx, ref)
    ]
