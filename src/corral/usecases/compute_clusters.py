"""Compute clusters as their people see and end them (spec 20). Creating them is in `placement`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from corral.domain import compute_clusters as rules
from corral.domain.errors import Refusal, not_found
from corral.domain.events import Subject
from corral.domain.ids import shown
from corral.domain.permissions import may_terminate
from corral.domain.workloads import ENDED, Kind, State
from corral.store import allocations, connections, fleet, journal, workloads
from corral.store.transaction import Row, Wake
from corral.usecases import ssh_keys, workload_life
from corral.usecases.context import Context
from corral.usecases.workload_life import Life

KIND = Kind.COMPUTE_CLUSTER.value
HISTORY = 200
"""Entries of a compute cluster's history that are shown."""


@dataclass(frozen=True)
class MachineTraits:
    """What people see of the machine beside what runs on it."""

    id: str
    name: str
    network_mbps: int | None = None
    storage_quota: str | None = None
    """How the storage limit is enforced there: "loop" or "none"."""

    @classmethod
    def of(cls, id: str, name: str, row: Row | None) -> MachineTraits:
        return cls(id, name, row["network_mbps"], row["storage_quota"]) if row is not None else cls(id, name)


@dataclass(frozen=True)
class Around:
    """What is shown of a compute cluster that stands in other rows than its own."""

    cluster: str
    machine: MachineTraits | None
    gpus: Sequence[Mapping[Any, Any]]
    """`uuid` and `model` of each, in PCI bus order."""
    has_key: bool
    """A key of the caller is attached."""


@dataclass(frozen=True)
class Change:
    """One entry of a history."""

    at: datetime
    type: str
    state: str | None
    step: str | None
    reason: str | None
    by: str


@dataclass(frozen=True)
class ComputeCluster:
    """A compute cluster. Amounts are what it was given, or while it waits what was asked for (None: the fair share)."""

    id: str
    name: str
    state: State
    state_since: datetime
    step: str
    step_since: datetime | None
    reason: str
    wanted: str
    seen: str
    cluster: str
    machine: MachineTraits | None
    gpu_model: str | None
    gpus: int
    gpu_uuids: Sequence[str]
    vcpu: int | None
    ram_mib: int | None
    storage_mib: int | None
    image: str
    created_by: str
    created_at: datetime
    placed_at: datetime | None
    time_limit_s: int | None
    must_end_by: datetime | None
    drives: Sequence[str]
    restart_policy: str
    stop_asked_at: datetime | None
    stop_reason: str | None
    ended_at: datetime | None
    queued: bool
    has_key: bool
    oom_kills: int
    restarts: int
    exit_code: int | None


def built(row: Mapping[Any, Any], held: Mapping[Any, Any] | None, around: Around) -> ComputeCluster:
    """Put a compute cluster together from its workload's row, its newest allocation's, and what is around."""
    ask, got = row["ask"], held if held is not None else row["ask"]
    models = {gpu["model"] for gpu in around.gpus}
    return ComputeCluster(
        **{name: row[name] for name in ("id", "name", "state_since", "step", "step_since", "reason", "wanted", "seen")},
        **{name: row[name] for name in ("image", "created_at", "time_limit_s", "must_end_by", "stop_asked_at")},
        restart_policy=row["restart_policy"],
        drives=ask.get("drives", ()),
        **{name: row[name] for name in ("stop_reason", "ended_at", "queued")},
        **{name: got[name] for name in ("gpus", "vcpu", "ram_mib", "storage_mib")},
        state=State(row["state"]),
        cluster=around.cluster,
        machine=around.machine,
        gpu_model=", ".join(sorted(models)) or ask["gpu_model"],
        gpu_uuids=[gpu["uuid"] for gpu in around.gpus],
        created_by=row["maker"],
        placed_at=held["placed_at"] if held is not None else None,
        has_key=around.has_key,
        oom_kills=held.get("oom_kills", 0) if held is not None else 0,
        restarts=held.get("restarts", 0) if held is not None else 0,
        exit_code=held.get("exit_code") if held is not None else None,
    )


@dataclass(frozen=True)
class Wanted:
    """Which compute clusters to list; ended ones only when they are asked for."""

    state: State | None = None
    name: str | None = None
    include_ended: bool = False


def listed(ctx: Context, want: Wanted, after: str | None, limit: int) -> list[ComputeCluster]:
    """Return the workspace's compute clusters, newest first, from after the id `after`."""
    asked = workloads.Wanted(KIND, want.state.value if want.state else None, want.name, want.include_ended)
    return _built(ctx, workloads.listed(ctx.tx, ctx.scope, ctx.workspace.id, asked, after, limit))


def show(ctx: Context, name: str) -> ComputeCluster:
    """Return the compute cluster of that live name, else of that id, else the last that ended. Errors: `NOT_FOUND`."""
    return _built(ctx, [_row(ctx, name)])[0]


def _built(ctx: Context, rows: Sequence[Row]) -> list[ComputeCluster]:
    """As many questions for a page of them as for one."""
    tx, ids = ctx.tx, [row["id"] for row in rows]
    # What waits to be placed again has nothing of the machine that it lost.
    held = allocations.of_workloads(tx, ctx.scope, [row["id"] for row in rows if not row["queued"]])
    gpus = allocations.held_gpus(tx, ctx.scope, [one["id"] for one in held.values()])
    traits = workloads.machine_traits(tx, [ctx.scope], [one["machine_id"] for one in held.values()])
    slugs = workloads.cluster_slugs(tx, ctx.scope)
    mine = workloads.with_keys_of(tx, ctx.scope, ctx.user.id, ids)
    found = []
    for row in rows:
        one = held.get(row["id"])
        machine = MachineTraits.of(one["machine_id"], one["machine_name"], traits[one["machine_id"]]) if one else None
        around = Around(slugs[row["cluster_id"]], machine, gpus[one["id"]] if one else (), row["id"] in mine)
        found.append(built(row, one, around))
    return found


def _row(ctx: Context, name: str) -> Row:
    row = workloads.find(ctx.tx, ctx.scope, ctx.workspace.id, KIND, name)
    if row is None:
        raise not_found()
    return row


def history(ctx: Context, id: str) -> list[Change]:
    """Return what happened to a compute cluster (its id from `show`), oldest first."""
    want = journal.Filter(view="event", workload=id)
    rows = journal.newest_first(ctx.tx, ctx.scope, want, before=None, limit=HISTORY)
    return [
        Change(row["at"], row["type"], data.get("after"), data.get("step"), data.get("reason"), row["actor_name"])
        for row in reversed(rows)
        for data in (row["data"],)
    ]


# ---- its end


@dataclass(frozen=True)
class Stopping:
    """What terminating stops, or would stop."""

    cluster: ComputeCluster
    stops: Sequence[str]
    """In words, for the dialog that asks for the name."""


def terminate(ctx: Context, name: str, *, dry_run: bool = False) -> Stopping:
    """Tell a compute cluster to stop; asked again, nothing more happens. Errors: `NOT_FOUND`, `FORBIDDEN`.

    What it holds is free when its machine says that it is gone, not before.
    """
    row = _row(ctx, name)
    if ctx.role is None or not may_terminate(ctx.role, ctx.part, row["created_by"] == ctx.user.id):
        raise Refusal(
            "FORBIDDEN", f"Only {row['maker']}, a lead of the workspace or an admin may terminate '{row['name']}'."
        )
    if not dry_run and State(row["state"]) not in ENDED:
        fleet.lock(ctx.tx, ctx.scope, row["cluster_id"])
        row = _row(ctx, row["id"])  # again, under the lock
        if State(row["state"]) not in ENDED and row["stop_asked_at"] is None:
            life = _life(ctx, row)
            workload_life.ask_stop(ctx.tx, life, ctx.actor, f"terminated by {ctx.user.login}")
            row = _row(ctx, row["id"])
    cluster = _built(ctx, [row])[0]
    return Stopping(cluster, _stops(cluster))


def _stops(cluster: ComputeCluster) -> list[str]:
    if cluster.state in ENDED:
        return []
    if cluster.machine is None:
        return [f"'{cluster.name}' leaves the queue"]
    held = f"{cluster.gpus} GPUs, {cluster.vcpu} vCPU"
    return [
        f"everything that runs inside '{cluster.name}' on {cluster.machine.name} ({held})",
        "its storage is deleted",
    ]


def _life(ctx: Context, row: Row) -> Life:
    held = allocations.of_workloads(ctx.tx, ctx.scope, [row["id"]]).get(row["id"])
    live = held if held is not None and held["released_at"] is None else None
    return Life(
        row["id"],
        row["org_id"],
        row["cluster_id"],
        row["workspace_id"],
        row["name"],
        State(row["state"]),
        live["id"] if live is not None else None,
        live["machine_id"] if live is not None else None,
    )


# ---- keys


def own_keys(ctx: Context, named: Sequence[str]) -> list[str]:
    """Return the ids of the caller's own keys of these names, ids or fingerprints. Errors: `INVALID_REQUEST`."""
    rules.check_keys("ssh_keys", named)
    return ssh_keys.resolve(ctx, named)


def keys(ctx: Context, name: str) -> Sequence[Row]:
    """Return the attached keys: `id`, `name`, `fingerprint`, `user_id`, `login` of the owner."""
    return connections.attached_keys(ctx.tx, ctx.scope, _row(ctx, name)["id"])


def attach(ctx: Context, name: str, named: Sequence[str]) -> Sequence[Row]:
    """Attach the caller's own keys; those attached already stay.

    Errors: `NOT_FOUND`, `NOT_ACTIVE`, `INVALID_REQUEST`.
    """
    row = _unended(ctx, name)
    there = {key["id"] for key in connections.attached_keys(ctx.tx, ctx.scope, row["id"])}
    fresh = [key for key in own_keys(ctx, named) if key not in there]
    if fresh:
        workloads.attach(ctx.tx, [(ctx.scope, row["id"], key) for key in fresh])
        _keys_changed(ctx, row, fresh, "attached")
    return connections.attached_keys(ctx.tx, ctx.scope, row["id"])


def detach(ctx: Context, name: str, named: Sequence[str]) -> Sequence[Row]:
    """Detach keys: one's own; a lead or admin anybody's. Open sessions of their owners are judged again at once.

    Errors: `NOT_FOUND`, `NOT_ACTIVE`, `FORBIDDEN`, `INVALID_REQUEST`.
    """
    row = _unended(ctx, name)
    there = connections.attached_keys(ctx.tx, ctx.scope, row["id"])
    gone = [_attached(ctx, there, wanted) for wanted in named]
    others = [key for key in gone if key["user_id"] != ctx.user.id]
    if others and (ctx.role is None or not may_terminate(ctx.role, ctx.part, is_maker=False)):
        raise Refusal("FORBIDDEN", f"Key {shown(others[0]['name'])} is not yours. A lead or an admin may detach it.")
    if gone:
        ids = sorted({key["id"] for key in gone})
        workloads.detach(ctx.tx, ctx.scope, row["id"], ids)
        _keys_changed(ctx, row, ids, "detached")
    return connections.attached_keys(ctx.tx, ctx.scope, row["id"])


def _attached(ctx: Context, there: Sequence[Row], wanted: str) -> Row:
    """A name means the caller's own key before another's."""
    for key in sorted(there, key=lambda key: key["user_id"] != ctx.user.id):
        if wanted in (key["name"], key["id"], key["fingerprint"]):
            return key
    raise Refusal("INVALID_REQUEST", f"keys: no key {shown(wanted)} is attached. List those that are.", field="keys")


def _unended(ctx: Context, name: str) -> Row:
    """Return the row of what has not ended, locked against what its machine reports meanwhile."""
    row = _row(ctx, name)
    fleet.lock(ctx.tx, ctx.scope, row["cluster_id"])
    row = _row(ctx, row["id"])
    if State(row["state"]) in ENDED:
        raise Refusal("NOT_ACTIVE", f"'{row['name']}' has ended. Create another one.", state=row["state"])
    return row


def _keys_changed(ctx: Context, row: Row, key_ids: Sequence[str], how: str) -> None:
    life = _life(ctx, row)
    if life.allocation_id is not None and life.machine_id is not None and row["stop_asked_at"] is None:
        allocations.next_generation(ctx.tx, ctx.scope, [life.allocation_id])
        ctx.wake(Wake.DESIRED, life.machine_id)
    ctx.wake(Wake.STREAMS, row["id"])
    subject = Subject(ctx.org.id, row["cluster_id"], row["workspace_id"], None, row["id"])
    ctx.record("workload.ssh_keys", subject, name=row["name"], change=how, keys=list(key_ids))


# ---- logs


@dataclass(frozen=True)
class Log:
    """`lines` of the provisioning log, or of the container's own output if it has ended.

    `live`: the container may still be asked itself.
    """

    lines: Sequence[str]
    live: bool = False


def provisioning_log(ctx: Context, name: str) -> Log:
    """Return what its machine said while preparing it. Errors: `NOT_FOUND`."""
    held = _newest(ctx, name)
    return Log([line["text"] for line in allocations.log_of(ctx.tx, ctx.scope, held["id"])] if held is not None else [])


def container_log(ctx: Context, name: str) -> Log:
    """Return the kept end of its container's output; `live` while there is a container to ask. Errors: `NOT_FOUND`."""
    held = _newest(ctx, name)
    if held is None:
        return Log([])
    return Log(held["log_tail"].splitlines(), live=held["released_at"] is None and held["seen_state"] == "running")


def _newest(ctx: Context, name: str) -> Row | None:
    row = _row(ctx, name)
    return allocations.of_workloads(ctx.tx, ctx.scope, [row["id"]]).get(row["id"])
