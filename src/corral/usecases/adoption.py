"""Work that a machine runs and this site does not know: a restored database (design decision 2).

What is unambiguous is adopted as it runs; nothing is stopped. The rest stays unknown: its machine is
in quarantine, asks again with every report, and is adopted then if what stood in the way is gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from corral.domain import ids
from corral.domain import quotas as rules
from corral.domain.access import may_use
from corral.domain.allocations import MAX_ADOPTED_GENERATION, Desired, bounded, legible
from corral.domain.asks import PlacementAsk
from corral.domain.compute_clusters import MAX_DRIVES
from corral.domain.events import Entry, Subject
from corral.domain.machines import MachineRef
from corral.domain.resources import Ask, Resources
from corral.domain.workloads import Kind, State, sure_end
from corral.store import access, allocations, fleet, machines, quotas, workloads
from corral.store.transaction import Actor, Row, Scope, Tx, Wake


@dataclass(frozen=True)
class Adoption:
    """What became of each: ids adopted, and (id, why not) of the rest."""

    adopted: Sequence[str]
    ambiguous: Sequence[tuple[str, str]]


class _Ambiguous(Exception):
    """Why something cannot be adopted by itself; for people."""


def adopt(tx: Tx, machine: MachineRef, described: Sequence[Desired], *, behind: bool) -> Adoption:
    """Adopt what is unambiguous of what the machine describes. Locks the tenancy.

    `behind`: a back-up was put back, so there may be workloads that this site never knew. Else a machine's
    word makes none: only what waits here is believed to run there.
    """
    adopted, ambiguous = [], []
    if described:
        fleet.lock(tx, Scope(machine.org_id), machine.cluster_id)
    for work in described:
        try:
            _adopt(tx, machine, work, behind)
        except _Ambiguous as why:
            ambiguous.append((work.id, str(why)))
        else:
            adopted.append(work.id)
    return Adoption(adopted, ambiguous)


def _adopt(tx: Tx, machine: MachineRef, work: Desired, behind: bool) -> None:
    scope = Scope(machine.org_id)
    known = workloads.get(tx, scope, work.workload)
    if known is None and not behind:
        raise _Ambiguous("no back-up was put back, and this site never had its workload")
    _check_owner(tx, machine, work)
    _check_access(tx, machine, work)
    gpus = _gpus(tx, scope, machine, work)
    model = gpus[0]["model"] if gpus else ""
    _check_quota(tx, machine, work, model)
    fleet.touch(tx, scope, machine.cluster_id, [machine.id])
    name = _revive(tx, scope, machine, work) if known is None else _unqueue(tx, scope, known, machine, work)
    ends = _ends(tx, work)
    workloads.save(tx, scope, work.workload, must_end_by=ends)
    held = {
        **_place(machine, work),
        "id": work.id,
        "machine_id": machine.id,
        "workload_id": work.workload,
        "generation": work.generation + 1,
        "gpus": len(gpus),
        "gpu_model": model,
        "vcpu": work.resources.vcpu,
        "ram_mib": work.resources.ram_mib,
        "storage_mib": work.resources.storage_mib,
        "placed_at": tx.now,
        "ran_at": tx.now,
        "must_end_by": ends,
        "stop_asked_at": tx.now if work.stop else None,
        "seen_gpus": [],
    }
    holds = [
        {"allocation_id": work.id, "gpu_id": gpu["id"], "org_id": scope.org, "machine_id": machine.id} for gpu in gpus
    ]
    allocations.insert_many(tx, [held], holds)
    tx.wake(Wake.DESIRED, machine.id)
    subject = Subject(machine.org_id, machine.cluster_id, work.workspace, machine.id, work.workload)
    by = Actor("machine", machine.id, machine.name)
    tx.record(Entry("cluster.node.unknown_work", subject, {"name": name, "change": "adopted"}), by)


def _place(machine: MachineRef, work: Desired) -> dict[str, Any]:
    return {"org_id": machine.org_id, "cluster_id": machine.cluster_id, "workspace_id": work.workspace}


def _check_owner(tx: Tx, machine: MachineRef, work: Desired) -> None:
    """Its organisation and workspace must be the machine's, and its ids new here."""
    if work.org != machine.org_id or workloads.workspace(tx, Scope(machine.org_id), work.workspace) is None:
        raise _Ambiguous("its workspace does not exist here")
    if work.kind != Kind.COMPUTE_CLUSTER.value:
        raise _Ambiguous("its kind of workload is not known to this release")
    if work.generation > MAX_ADOPTED_GENERATION:
        raise _Ambiguous("its generation cannot be one of this site's")
    if not ids.is_uuid(work.id) or not ids.is_uuid(work.workload) or allocations.exists(tx, work.id):
        raise _Ambiguous("its id cannot be used here")


def _check_access(tx: Tx, machine: MachineRef, work: Desired) -> None:
    """A machine makes no work in a workspace that may not use it."""
    scope = Scope(machine.org_id)
    pools = access.pools(tx, scope, work.workspace).get(machine.cluster_id, ())
    row = machines.get(tx, scope, machine.id)
    if row is None or not may_use(pools, row["pool"]):
        raise _Ambiguous("its workspace may not use this machine")


def _gpus(tx: Tx, scope: Scope, machine: MachineRef, work: Desired) -> Sequence[Row]:
    """Return the rows of its GPUs; they and its other resources must be free."""
    found = fleet.free_gpus(tx, scope, machine.id, work.gpus)
    if len(found) != len(work.gpus) or len(set(work.gpus)) != len(work.gpus):
        raise _Ambiguous("one of its GPUs is not on this machine, or belongs to other work")
    if len({gpu["model"] for gpu in found}) > 1:
        raise _Ambiguous("its GPUs are of several models")
    need, free = work.resources, fleet.free_on(tx, scope, machine.id)
    if min(need.vcpu, need.ram_mib, need.storage_mib) < 0 or not _fits(need, free):
        raise _Ambiguous("its vCPU, RAM or storage is more than this machine has free")
    return found


def _fits(need: Resources, free: Resources) -> bool:
    return need.vcpu <= free.vcpu and need.ram_mib <= free.ram_mib and need.storage_mib <= free.storage_mib


def _check_quota(tx: Tx, machine: MachineRef, work: Desired, model: str) -> None:
    """It counts like anything else; what waits does not count before what runs already."""
    scope = Scope(machine.org_id)
    quota = quotas.of_workspace(tx, scope, work.workspace).get(machine.cluster_id)
    if quota is None:
        return  # without access it is refused before
    live = quotas.live(tx, scope, work.workspace).get(machine.cluster_id, Counter())
    hours = quotas.ledger(tx, scope, work.workspace, machine.cluster_id)
    standing = rules.Standing(quota, live, rules.Before(tx.now), hours)
    want = PlacementAsk(Ask(len(work.gpus)), sure_end=sure_end(_ends(tx, work)))
    over = standing.over(rules.amounts(len(work.gpus), model, work.resources)) or standing.over_hours(want)
    if over is not None:
        raise _Ambiguous(rules.explain(over))


def _ends(tx: Tx, work: Desired) -> datetime | None:
    """Return when its time limit is over."""
    return None if work.seconds_left is None else tx.now + timedelta(seconds=bounded(work.seconds_left))


def _unqueue(tx: Tx, scope: Scope, known: Row, machine: MachineRef, work: Desired) -> str:
    """It was waiting when the back-up was made, and was placed after that."""
    place = _place(machine, work)
    if not known["queued"] or known["ended_at"] is not None or any(known[name] != id for name, id in place.items()):
        raise _Ambiguous("its workload is known here, and does not wait for a machine")
    state = {"state": State.ACTIVE.value, "state_since": tx.now, "step": "", "reason": ""}
    workloads.unqueue(tx, scope, machine.cluster_id, {work.workload: state})
    return str(known["name"])


def _revive(tx: Tx, scope: Scope, machine: MachineRef, work: Desired) -> str:
    """Make its workload's row again, under a name that is free; the organisation's first owner answers for it."""
    owner = workloads.an_owner(tx, scope)
    if owner is None:
        raise _Ambiguous("its organisation has no owner")
    base = work.name if ids.SLUG.fullmatch(work.name) else "adopted"
    tries = {base, *(f"{base[:58].rstrip('-')}-{number}" for number in range(2, 100))}
    taken = workloads.live_names(tx, scope, work.workspace, work.kind, tries)
    name = base if base not in taken else ids.unique_name(base[:58].rstrip("-"), taken)
    amounts = {"gpus": len(work.gpus), **_amounts(work.resources), "machine": machine.name}
    row = {
        **_place(machine, work),
        "id": work.workload,
        "kind": work.kind,
        "name": name,
        "state": State.ACTIVE.value,
        "state_since": tx.now,
        "image": legible(work.image, 300),
        "ask": {**amounts, "pool": None, "gpu_model": None, "drives": _drives(work)},
        "created_by": owner,
        "created_at": tx.now,
        "stop_asked_at": tx.now if work.stop else None,
    }
    workloads.insert_many(tx, [row])
    keys = workloads.keys_with_text(tx, scope, work.authorized_keys)
    workloads.attach(tx, [(scope, work.workload, key) for key in keys])
    return name


def _drives(work: Desired) -> list[str]:
    """Return its drives' names, without what no drive can be called."""
    return [name for name in dict.fromkeys(work.drives) if ids.SLUG.fullmatch(name)][:MAX_DRIVES]


def _amounts(given: Resources) -> dict[str, int]:
    return {"vcpu": given.vcpu, "ram_mib": given.ram_mib, "storage_mib": given.storage_mib}
