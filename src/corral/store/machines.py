"""Rows of machines: what placement, sessions and people ask of them. Their GPUs: `store/inventory.py`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    RowMapping,
    Select,
    and_,
    bindparam,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)

from corral.domain.machines import MachineRef, MachineState
from corral.domain.workspaces import Some
from corral.store.access import covers
from corral.store.inventory import holding
from corral.store.tables.access import access, access_pools
from corral.store.tables.clusters import tenancies
from corral.store.tables.machines import liveness, machine_sessions, machines
from corral.store.tables.orgs import workspaces
from corral.store.tables.workloads import allocations, workloads
from corral.store.transaction import Scope, Tx
from corral.store.workspaces import some

_WITH_LAST_SEEN = select(machines, liveness.c.last_seen).outerjoin(liveness, liveness.c.machine_id == machines.c.id)
# What a fleet that comes back asks thousands of times: built once, not at each call.
_BY_ID = _WITH_LAST_SEEN.where(machines.c.org_id == bindparam("org"), machines.c.id == bindparam("id"))
_DATA_LOCATION = select(
    *(machines.c[name] for name in ("data_path", "data_mount", "data_max_bytes", "data_generation", "quarantine"))
).where(machines.c.org_id == bindparam("org"), machines.c.id == bindparam("id"), machines.c.removed_at.is_(None))
_SAVE = update(machines).where(machines.c.id == bindparam("its_id"), machines.c.org_id == bindparam("its_org"))


def ref_of(row: RowMapping) -> MachineRef:
    """Return which machine a row of `machines` is."""
    return MachineRef(row["id"], row["org_id"], row["cluster_id"], row["name"])


def get(tx: Tx, scope: Scope, id: str) -> RowMapping | None:
    """Return a machine by its id, removed ones too, with `last_seen` (None: never heard)."""
    return tx.one(_BY_ID, {"id": id, "org": scope.org})


def by_name(tx: Tx, scope: Scope, cluster_id: str, name: str) -> RowMapping | None:
    """Return the enrolled machine of that name, with `last_seen`."""
    return tx.one(
        _WITH_LAST_SEEN.where(
            machines.c.org_id == scope.org,
            machines.c.cluster_id == cluster_id,
            machines.c.name == name,
            machines.c.removed_at.is_(None),
        )
    )


def by_key(tx: Tx, key_hash: bytes) -> RowMapping | None:
    """Return whose credential this is; a removed machine's tombstone too (`removed_at` is set then)."""
    return tx.one(select(machines).where(machines.c.key_hash == key_hash))


def names(tx: Tx, scope: Scope, cluster_id: str, base: str) -> set[str]:
    """Return the enrolled machines' names that are `base` or begin with `base-`."""
    rows = tx.all(
        select(machines.c.name).where(
            machines.c.org_id == scope.org,
            machines.c.cluster_id == cluster_id,
            machines.c.removed_at.is_(None),
            (machines.c.name == base) | machines.c.name.startswith(f"{base}-", autoescape=True),
        )
    )
    return {row["name"] for row in rows}


def enrolled(tx: Tx, scope: Scope, cluster_id: str) -> int:
    """Return how many machines of the organisation are enrolled in the cluster."""
    query = select(func.count()).where(
        machines.c.org_id == scope.org, machines.c.cluster_id == cluster_id, machines.c.removed_at.is_(None)
    )
    return int(tx.scalar(query))


def add(tx: Tx, ref: MachineRef, key_hash: bytes, values: Mapping[str, Any]) -> None:
    """Enrol a machine; `values` are its labels, host name, address and release. It is Idle and has nothing yet."""
    tx.run(
        insert(machines).values(
            id=ref.id,
            org_id=ref.org_id,
            cluster_id=ref.cluster_id,
            name=ref.name,
            key_hash=key_hash,
            state=MachineState.IDLE.value,
            state_since=tx.now,
            inventory={},
            conditions=[],
            joined_at=tx.now,
            **values,
        )
    )


def set_state(
    tx: Tx, ref: MachineRef, was: Collection[MachineState], to: MachineState, *, unseen_since: datetime | None = None
) -> bool:
    """Change the state of a machine that is in one of `was`; return whether it was.

    With `unseen_since` only if nothing was heard of it after that moment: liveness reads
    last-seen again in the same statement, so a report that comes between wins. A last-seen in
    the future (the wall clock stepped back) says nothing.
    """
    terms = [
        machines.c.id == ref.id,
        machines.c.org_id == ref.org_id,
        machines.c.removed_at.is_(None),
        machines.c.state.in_([state.value for state in was]),
    ]
    if unseen_since is not None:
        heard = exists().where(
            liveness.c.machine_id == machines.c.id,
            liveness.c.last_seen > unseen_since,
            liveness.c.last_seen <= tx.now,
        )
        terms.append(~heard)
    return tx.run(update(machines).where(*terms).values(state=to.value, state_since=tx.now)) == 1


def data_location(tx: Tx, ref: MachineRef) -> RowMapping | None:
    """Return what an enrolled machine is told of its data location (`data_*`), and its `quarantine`."""
    return tx.one(_DATA_LOCATION, {"id": ref.id, "org": ref.org_id})


def save(tx: Tx, ref: MachineRef, values: Mapping[str, Any]) -> None:
    """Write columns of an enrolled machine. What placement judges by needs `fleet.touch` first."""
    tx.run(_SAVE, {**values, "its_id": ref.id, "its_org": ref.org_id})


@dataclass(frozen=True)
class Wanted:
    """Which machines to list. `pools` None = every pool."""

    state: MachineState | None = None
    pools: Collection[str] | None = None


def listed(tx: Tx, scope: Scope, cluster_id: str, want: Wanted, after: str | None, limit: int) -> Sequence[RowMapping]:
    """Return enrolled machines by name, from after `after`, with `last_seen` and without `inventory`."""
    query = (
        for_lists()
        .where(machines.c.org_id == scope.org, machines.c.cluster_id == cluster_id, machines.c.removed_at.is_(None))
        .order_by(machines.c.name)
        .limit(limit)
    )
    if want.state is not None:
        query = query.where(machines.c.state == want.state.value)
    if want.pools is not None:
        query = query.where(machines.c.pool.in_(list(want.pools)))
    return tx.all(query if after is None else query.where(machines.c.name > after))


def for_lists() -> Any:
    """Without the inventory (it is large, and only a machine's own page shows it) and what no list shows."""
    columns = [column for column in machines.c if column.name not in _NOT_IN_LISTS]
    return select(*columns, liveness.c.last_seen).outerjoin(liveness, liveness.c.machine_id == machines.c.id)


_NOT_IN_LISTS = frozenset(
    ("inventory", "inventory_digest", "key_hash", "session_epoch", "fleet_version", "removed_at", "org_id")
)


def running_on(tx: Tx, ref: MachineRef) -> Sequence[RowMapping]:
    """Return what runs on the machine, what has not stopped there yet included.

    Each with `workload_id`, `name`, `kind`, `state`, `workspace` and `gpus` (how many).
    """
    return tx.all(
        select(
            workloads.c.id.label("workload_id"),
            workloads.c.name,
            workloads.c.kind,
            workloads.c.state,
            workspaces.c.slug.label("workspace"),
            allocations.c.gpus,
        )
        .join(allocations, allocations.c.workload_id == workloads.c.id)
        .join(workspaces, workspaces.c.id == allocations.c.workspace_id)
        .where(
            allocations.c.org_id == ref.org_id,
            allocations.c.machine_id == ref.id,
            holding(),
        )
        .order_by(workspaces.c.slug, workloads.c.name)
    )


def sessions_of(tx: Tx, ref: MachineRef, limit: int) -> Sequence[RowMapping]:
    """Return the machine's latest sessions, newest first."""
    return tx.all(
        select(machine_sessions)
        .where(machine_sessions.c.machine_id == ref.id)
        .order_by(machine_sessions.c.epoch.desc())
        .limit(limit)
    )


def workspaces_that_may_use(tx: Tx, scope: Scope, cluster_id: str, pool: str) -> Some:
    """Return the workspaces that are granted a machine of this pool."""
    return some(tx, _able(scope, cluster_id, pool))


def able_of(tx: Tx, scope: Scope, cluster_id: str, pool: str, slugs: Collection[str]) -> set[str]:
    """Return those of the workspaces, by short name, that are granted a machine of this pool."""
    query = _able(scope, cluster_id, pool).where(workspaces.c.slug.in_(sorted(slugs)))
    return {row["slug"] for row in tx.all(query)} if slugs else set()


def _able(scope: Scope, cluster_id: str, pool: str) -> Select[Any]:
    granted = _grants().where(access.c.org_id == scope.org, access.c.cluster_id == cluster_id, covers(literal(pool)))
    return select(workspaces.c.slug).where(
        workspaces.c.org_id == scope.org,
        workspaces.c.removed_at.is_(None),
        workspaces.c.id.in_(granted.with_only_columns(access.c.workspace_id)),
    )


def of_workspace(
    tx: Tx, scope: Scope, workspace_id: str, after: tuple[str, str] | None, limit: int
) -> Sequence[RowMapping]:
    """Return the enrolled machines whose pools the workspace is granted, by name and id, with their `cluster`."""
    query = (
        for_lists()
        .add_columns(tenancies.c.slug.label("cluster"))
        .join(tenancies, and_(tenancies.c.cluster_id == machines.c.cluster_id, tenancies.c.org_id == scope.org))
        .where(*usable_by(scope, workspace_id))
        .order_by(machines.c.name, machines.c.id)
        .limit(limit)
    )
    if after is None:
        return tx.all(query)
    name, id = after
    return tx.all(query.where(or_(machines.c.name > name, and_(machines.c.name == name, machines.c.id > id))))


def usable_by(scope: Scope, workspace_id: str) -> list[ColumnElement[bool]]:
    """Return what holds of the enrolled machines whose pools the workspace is granted."""
    pools = select(access_pools.c.pool).where(
        access_pools.c.workspace_id == workspace_id, access_pools.c.cluster_id == machines.c.cluster_id
    )
    granted = exists(pools.where(covers(machines.c.pool)))
    return [machines.c.org_id == scope.org, machines.c.removed_at.is_(None), granted]


def _grants() -> Select[Any]:
    return select(access).join(
        access_pools,
        and_(access_pools.c.workspace_id == access.c.workspace_id, access_pools.c.cluster_id == access.c.cluster_id),
    )
