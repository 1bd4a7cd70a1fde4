"""Rows of allocations, their holds on GPUs, and their provisioning log."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import and_, bindparam, case, func, insert, or_, select, update

from corral.store.tables.machines import gpus, machines
from corral.store.tables.orgs import members, workspace_members
from corral.store.tables.users import ssh_keys
from corral.store.tables.workloads import allocation_log, allocations, gpu_holds, workload_ssh_keys, workloads
from corral.store.transaction import Row, Scope, Tx

_A, _W = allocations.c, workloads.c

_WITH_WORKLOAD = (
    _W.kind,
    _W.name,
    _W.image,
    _W.state,
    _W.step,
    _W.wanted,
    _W.seen,
    _W.stop_reason,
    _W.ask,
    _W.restart_policy,
)


# What every report of news and every push asks: built once, not at each call.
_JOINED = select(allocations, *_WITH_WORKLOAD).join(workloads, _W.id == _A.workload_id)
_ON_MACHINE = and_(_A.org_id == bindparam("org"), _A.machine_id == bindparam("machine"))
_LIVE_ON = _JOINED.where(_ON_MACHINE, _A.released_at.is_(None)).order_by(_A.placed_at, _A.id)
_LINGERING_ON = _JOINED.where(_ON_MACHINE, _A.lingers_since.is_not(None))
_BY_IDS = select(allocations).where(_ON_MACHINE, _A.id.in_(bindparam("ids", expanding=True)))
_HELD_GPUS = (
    select(gpu_holds.c.allocation_id, gpus.c.id, gpus.c.uuid, gpus.c.model, gpus.c.slot, gpus.c.memory_mib)
    .join(gpus, gpus.c.id == gpu_holds.c.gpu_id)
    .where(gpu_holds.c.org_id == bindparam("org"), gpu_holds.c.allocation_id.in_(bindparam("ids", expanding=True)))
    .order_by(gpus.c.slot, gpus.c.uuid)
)
_WK = workload_ssh_keys.c
_USABLE_KEYS = (
    select(_WK.workload_id, ssh_keys.c.public_key)
    .join(workloads, _W.id == _WK.workload_id)
    .join(ssh_keys, ssh_keys.c.id == _WK.key_id)
    .join(members, and_(members.c.org_id == _W.org_id, members.c.user_id == ssh_keys.c.user_id))
    .outerjoin(
        workspace_members,
        and_(workspace_members.c.workspace_id == _W.workspace_id, workspace_members.c.user_id == ssh_keys.c.user_id),
    )
    .where(
        _W.org_id == bindparam("org"),
        _WK.workload_id.in_(bindparam("ids", expanding=True)),
        or_(workspace_members.c.user_id.is_not(None), members.c.role.in_(("owner", "admin"))),
    )
    .order_by(_WK.workload_id, ssh_keys.c.created_at, ssh_keys.c.id)
)
_SAVE = update(allocations).where(_A.org_id == bindparam("its_org"), _A.id == bindparam("its_id"))


def live_on(tx: Tx, scope: Scope, machine_id: str) -> Sequence[Row]:
    """Return what holds something of a machine, oldest first, each with its workload's name and state."""
    return tx.all(_LIVE_ON, {"org": scope.org, "machine": machine_id})


def lingering_on(tx: Tx, scope: Scope, machine_id: str) -> Sequence[Row]:
    """Return released allocations that the machine still runs."""
    return tx.all(_LINGERING_ON, {"org": scope.org, "machine": machine_id})


def with_drives_on(tx: Tx, scope: Scope, machine_id: str) -> list[str]:
    """Return the names of live workloads on a machine that have drives there, in order."""
    return sorted(row["name"] for row in live_on(tx, scope, machine_id) if row["ask"].get("drives"))


def by_ids(tx: Tx, scope: Scope, machine_id: str, ids: Collection[str]) -> Sequence[Row]:
    """Return those of `ids` that were ever placed on this machine."""
    if not ids:
        return ()
    return tx.all(_BY_IDS, {"org": scope.org, "machine": machine_id, "ids": list(ids)})


def exists(tx: Tx, id: str) -> bool:
    """Return whether any organisation has an allocation of this id: ids are never used twice."""
    return tx.scalar(select(_A.id).where(_A.id == id)) is not None


def of_workloads(tx: Tx, scope: Scope, workload_ids: Collection[str]) -> dict[str, Row]:
    """Return each workload's live allocation, or else its newest, with its machine's name, state and inventory."""
    if not workload_ids:
        return {}
    live_first = case((_A.released_at.is_(None), 0), else_=1)
    order = (live_first, _A.placed_at.desc(), _A.id.desc())
    newest = func.row_number().over(partition_by=_A.workload_id, order_by=order)
    ranked = (
        select(_A.id, newest.label("rank"))
        .where(_A.org_id == scope.org, _A.workload_id.in_(list(workload_ids)))
        .subquery()
    )
    rows = tx.all(
        select(
            allocations,
            machines.c.name.label("machine_name"),
            machines.c.state.label("machine_state"),
            machines.c.state_since.label("machine_state_since"),
        )
        .join(machines, machines.c.id == _A.machine_id)
        .join(ranked, ranked.c.id == _A.id)
        .where(_A.org_id == scope.org, ranked.c.rank == 1)
    )
    return {row["workload_id"]: row for row in rows}


def held_gpus(tx: Tx, scope: Scope, allocation_ids: Collection[str]) -> dict[str, list[Row]]:
    """Return, for each allocation, the GPUs it was given, in PCI bus order."""
    if not allocation_ids:
        return {}
    rows = tx.all(_HELD_GPUS, {"org": scope.org, "ids": list(allocation_ids)})
    found: dict[str, list[Row]] = {id: [] for id in allocation_ids}
    for row in rows:
        found[row["allocation_id"]].append(row)
    return found


def usable_keys(tx: Tx, scope: Scope, workload_ids: Collection[str]) -> dict[str, list[str]]:
    """Return, for each workload, the public keys attached to it whose owners may connect at this moment.

    That is: members of the workload's workspace, and owners and admins of its organisation.
    """
    if not workload_ids:
        return {}
    rows = tx.all(_USABLE_KEYS, {"org": scope.org, "ids": list(workload_ids)})
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row["workload_id"], []).append(row["public_key"])
    return found


def insert_many(tx: Tx, rows: Sequence[Mapping[str, Any]], holds: Sequence[Mapping[str, Any]]) -> None:
    """Add allocations and their holds. The unique index refuses a GPU that is held already."""
    if rows:
        tx.run(insert(allocations), rows)
    if holds:
        tx.run(insert(gpu_holds), holds)


def save(tx: Tx, scope: Scope, id: str, **values: Any) -> int:
    """Write columns of an allocation; return whether there is one."""
    return tx.run(_SAVE, {**values, "its_org": scope.org, "its_id": id})


def next_generation(tx: Tx, scope: Scope, ids: Collection[str], **values: Any) -> None:
    """Say that what these allocations should be has changed."""
    if ids:
        tx.run(
            update(allocations)
            .where(_A.org_id == scope.org, _A.id.in_(list(ids)))
            .values(generation=_A.generation + 1, **values)
        )


def release(tx: Tx, scope: Scope, ids: Collection[str], reason: str) -> None:
    """Give back everything these allocations hold. `reason`: confirmed | failed | lost."""
    listed = list(ids)
    tx.run(
        update(allocations)
        .where(_A.org_id == scope.org, _A.id.in_(listed), _A.released_at.is_(None))
        .values(released_at=tx.now, release_reason=reason, mismatch_since=None)
    )
    tx.run(
        update(gpu_holds)
        .where(
            gpu_holds.c.org_id == scope.org,
            gpu_holds.c.allocation_id.in_(listed),
            gpu_holds.c.released_at.is_(None),
        )
        .values(released_at=tx.now)
    )


def live_with_keys_of(tx: Tx, scope: Scope, user_id: str) -> Sequence[Row]:
    """Return live, unstopped allocations of workloads to which a key of this user is attached."""
    return tx.all(
        select(_A.id, _A.machine_id, _A.workload_id)
        .join(workload_ssh_keys, workload_ssh_keys.c.workload_id == _A.workload_id)
        .join(ssh_keys, ssh_keys.c.id == workload_ssh_keys.c.key_id)
        .where(
            _A.org_id == scope.org,
            ssh_keys.c.user_id == user_id,
            _A.released_at.is_(None),
            _A.stop_asked_at.is_(None),
        )
        .distinct()
        .order_by(_A.id)
    )


def log_ends(tx: Tx, scope: Scope, ids: Collection[str]) -> dict[str, int]:
    """Return the number of the last stored provisioning log line of each."""
    if not ids:
        return {}
    return {
        row["allocation_id"]: row["n"]
        for row in tx.all(
            select(allocation_log.c.allocation_id, func.max(allocation_log.c.n).label("n"))
            .join(allocations, _A.id == allocation_log.c.allocation_id)
            .where(_A.org_id == scope.org, allocation_log.c.allocation_id.in_(list(ids)))
            .group_by(allocation_log.c.allocation_id)
        )
    }


def add_log(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        tx.run(insert(allocation_log), rows)


def log_of(tx: Tx, scope: Scope, allocation_id: str) -> Sequence[Row]:
    """Return an allocation's provisioning log, in order."""
    return tx.all(
        select(allocation_log.c.n, allocation_log.c.text, allocation_log.c.at)
        .join(allocations, _A.id == allocation_log.c.allocation_id)
        .where(_A.org_id == scope.org, allocation_log.c.allocation_id == allocation_id)
        .order_by(allocation_log.c.n)
    )
