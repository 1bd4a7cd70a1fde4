"""Rows of workloads: what was asked, where it stands, and the queue of those that wait."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    and_,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)

from corral.store import fleet
from corral.store.tables.clusters import tenancies
from corral.store.tables.machines import machines
from corral.store.tables.orgs import members, workspaces
from corral.store.tables.users import ssh_keys, users
from corral.store.tables.workloads import allocations, workload_ssh_keys, workloads
from corral.store.transaction import Row, Scope, Tx
from corral.store.types import UtcTime

_W, _A = workloads.c, allocations.c
_SAVE = update(workloads).where(_W.org_id == bindparam("its_org"), _W.id == bindparam("its_id"), _W.ended_at.is_(None))

_UNQUEUE = _SAVE.where(_W.queued)
_OF_THE_QUEUE = frozenset({"queued", "queue_no", "ended_at"})


@dataclass(frozen=True)
class Wanted:
    """Which workloads of a workspace to list; None: any."""

    kind: str
    state: str | None = None
    name: str | None = None
    include_ended: bool = False


def _shown() -> Select[Any]:
    return select(workloads, users.c.login.label("maker")).join(users, users.c.id == _W.created_by)


def listed(tx: Tx, scope: Scope, workspace_id: str, want: Wanted, after: str | None, limit: int) -> Sequence[Row]:
    """Return workloads with their maker's login, newest first, from after the id `after`."""
    terms: list[ColumnElement[bool]] = [
        _W.org_id == scope.org,
        _W.workspace_id == workspace_id,
        _W.kind == want.kind,
    ]
    if want.state is not None:
        terms.append(_W.state == want.state)
    elif not want.include_ended:
        terms.append(_W.ended_at.is_(None))
    if want.name is not None:
        terms.append(_W.name == want.name)
    if after is not None:
        terms.append(_W.id < after)
    return tx.all(_shown().where(*terms).order_by(_W.id.desc()).limit(limit))


def find(tx: Tx, scope: Scope, workspace_id: str, kind: str, name: str) -> Row | None:
    """Return the workload of that name: the live one, else that of this id, else the last that ended."""
    return tx.one(
        _shown()
        .where(
            _W.org_id == scope.org,
            _W.workspace_id == workspace_id,
            _W.kind == kind,
            or_(_W.name == name, _W.id == name),
        )
        .order_by(and_(_W.name == name, _W.ended_at.is_(None)).desc(), (_W.id == name).desc(), _W.id.desc())
        .limit(1)
    )


def get(tx: Tx, scope: Scope, id: str) -> Row | None:
    return tx.one(select(workloads).where(_W.org_id == scope.org, _W.id == id))


def live_names(tx: Tx, scope: Scope, workspace_id: str, kind: str, names: Collection[str]) -> set[str]:
    """Return which of `names` are taken."""
    rows = tx.all(
        select(_W.name).where(
            _W.org_id == scope.org,
            _W.workspace_id == workspace_id,
            _W.kind == kind,
            _W.name.in_(list(names)),
            _W.ended_at.is_(None),
        )
    )
    return {row["name"] for row in rows}


# What waits is remembered elsewhere (`Fleets`), so it is written only here, where that is always said.


def insert_many(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        tx.run(insert(workloads), rows)
    for org, cluster in sorted({(row["org_id"], row["cluster_id"]) for row in rows if row.get("queued")}):
        fleet.queue_changed(tx, Scope(org), cluster)


def save(tx: Tx, scope: Scope, id: str, **values: Any) -> int:
    """Write columns of a workload that has not ended; return whether there was one.

    Errors: `TypeError` for what only `insert_many`, `unqueue`, `requeue` and `end` write.
    """
    if not _OF_THE_QUEUE.isdisjoint(values):
        raise TypeError("a workload enters and leaves the queue, and ends, by functions of their own")
    return tx.run(_SAVE, {**values, "its_org": scope.org, "its_id": id})


def unqueue(tx: Tx, scope: Scope, cluster_id: str, placed: Mapping[str, Mapping[str, Any]]) -> None:
    """Take workloads out of the queue, and write columns of each. Errors: `LookupError` if one does not wait."""
    for id, values in placed.items():
        if tx.run(_UNQUEUE, {**values, "queued": False, "queue_no": None, "its_org": scope.org, "its_id": id}) == 0:
            raise LookupError(f"workload {id} does not wait any more")
    if placed:
        fleet.queue_changed(tx, scope, cluster_id)


def requeue(tx: Tx, scope: Scope, cluster_id: str, id: str, **values: Any) -> int:
    """Let a placed workload wait again, and write columns of it; return whether there was one that had not ended.

    It stands where it would if it had waited since it was created: of one number the earlier id comes first.
    """
    waits = and_(_W.org_id == scope.org, _W.cluster_id == cluster_id, _W.queued.is_(True), _W.ended_at.is_(None))
    before = tx.scalar(select(func.max(_W.queue_no)).where(waits, _W.id < id))
    first = tx.scalar(select(func.min(_W.queue_no)).where(waits))
    number = before if before is not None else first if first is not None else 1
    found = tx.run(_SAVE, {**values, "queued": True, "queue_no": number, "its_org": scope.org, "its_id": id})
    if found:
        fleet.queue_changed(tx, scope, cluster_id)
    return found


def end(tx: Tx, scope: Scope, cluster_id: str, id: str, **values: Any) -> int:
    """Write that a workload has ended, whether it waited or not; return whether there was one that had not."""
    left = {"queued": False, "queue_no": None, "its_org": scope.org, "its_id": id}
    if tx.run(_UNQUEUE, left):
        fleet.queue_changed(tx, scope, cluster_id)
    return tx.run(_SAVE, {**values, "ended_at": tx.now, "its_org": scope.org, "its_id": id})


def queue(tx: Tx, scope: Scope, cluster_id: str) -> Sequence[Row]:
    """Return what waits for capacity in a tenancy, first come first."""
    return tx.all(
        select(workloads)
        .where(
            _W.org_id == scope.org,
            _W.cluster_id == cluster_id,
            _W.queued.is_(True),
            _W.ended_at.is_(None),
        )
        .order_by(_W.queue_no, _W.id)
    )


def tenancies_with_queue(tx: Tx) -> Sequence[Row]:
    """Return where something waits (`cluster_id`, `org_id`) and the tenancy's `version`.

    For the placement worker, of all tenants.
    """
    waiting = select(_W.cluster_id, _W.org_id).where(_W.queued.is_(True), _W.ended_at.is_(None)).distinct().subquery()
    here = and_(tenancies.c.cluster_id == waiting.c.cluster_id, tenancies.c.org_id == waiting.c.org_id)
    return tx.all(
        select(tenancies.c.cluster_id, tenancies.c.org_id, tenancies.c.version)
        .join(waiting, here)
        .order_by(tenancies.c.cluster_id, tenancies.c.org_id)
    )


def _unended() -> Select[Any]:
    return (
        select(
            _W.id.label("workload_id"),
            _W.org_id,
            _W.cluster_id,
            _W.workspace_id,
            _W.name,
            _W.state,
            _W.wanted,
            _W.seen,
            _A.id.label("allocation_id"),
            _A.machine_id,
            _A.stop_asked_at,
            _A.must_end_by,
            _A.mismatch_since,
            _A.seen_state,
            machines.c.name.label("machine_name"),
            machines.c.state.label("machine_state"),
            machines.c.state_since.label("machine_state_since"),
        )
        .join(workloads, _W.id == _A.workload_id)
        .join(machines, machines.c.id == _A.machine_id)
        .where(_A.released_at.is_(None), _W.ended_at.is_(None))
        .order_by(_W.cluster_id, _W.org_id, _W.id)
    )


# The clock's pass asks these each second, of all tenants. Each begins at a small index of its own, so what is as it
# should be costs nothing.

_MOMENT = bindparam("moment", type_=UtcTime())
_DOWN = select(machines.c.id).where(
    machines.c.state == literal_column("'down'"), machines.c.removed_at.is_(None), machines.c.state_since <= _MOMENT
)
_OUT_OF_SYNC = select(_W.id).where(_W.state == literal_column("'out_of_sync'"))
_NOT_YET_DIFFERING = _unended().where(_W.state.in_(("provisioning", "active")))
_OVERDUE = _unended().where(_A.must_end_by <= _MOMENT, _A.stop_asked_at.is_(None))
_DIFFERING = (
    _NOT_YET_DIFFERING.where(_A.mismatch_since <= _MOMENT),
    _NOT_YET_DIFFERING.where(_A.stop_asked_at <= _MOMENT),
    _NOT_YET_DIFFERING.where(_A.machine_id.in_(_DOWN)),
)
_MATCHING = _unended().where(
    _A.workload_id.in_(_OUT_OF_SYNC),
    _A.mismatch_since.is_(None),
    _A.stop_asked_at.is_(None),
    _A.seen_state == "running",
    machines.c.state == "up",
)


def overdue(tx: Tx) -> Sequence[Row]:
    """Return what is past its time limit and was not told to stop."""
    return tx.all(_OVERDUE, {"moment": tx.now})


def differing_since(tx: Tx, moment: datetime) -> Sequence[Row]:
    """Return what differs since `moment` or before and is not Out of Sync yet."""
    found = {row["allocation_id"]: row for ask in _DIFFERING for row in tx.all(ask, {"moment": moment})}
    return sorted(found.values(), key=lambda row: (row["cluster_id"], row["org_id"], row["workload_id"]))


def matching_again(tx: Tx) -> Sequence[Row]:
    """Return what is Out of Sync though its machine is Up and reports it as asked."""
    return tx.all(_MATCHING)


def attach(tx: Tx, keys: Sequence[tuple[Scope, str, str]]) -> None:
    """Attach keys: (whose workload, the workload, the key) each."""
    if keys:
        tx.run(
            insert(workload_ssh_keys),
            [{"org_id": scope.org, "workload_id": workload, "key_id": key} for scope, workload, key in keys],
        )


def detach(tx: Tx, scope: Scope, workload_id: str, key_ids: Collection[str]) -> None:
    tx.run(
        delete(workload_ssh_keys).where(
            workload_ssh_keys.c.org_id == scope.org,
            workload_ssh_keys.c.workload_id == workload_id,
            workload_ssh_keys.c.key_id.in_(list(key_ids)),
        )
    )


def with_keys_of(tx: Tx, scope: Scope, user_id: str, workload_ids: Collection[str]) -> set[str]:
    """Return which of the workloads have a key of this user attached."""
    if not workload_ids:
        return set()
    rows = tx.all(
        select(workload_ssh_keys.c.workload_id)
        .join(ssh_keys, ssh_keys.c.id == workload_ssh_keys.c.key_id)
        .where(
            workload_ssh_keys.c.org_id == scope.org,
            workload_ssh_keys.c.workload_id.in_(list(workload_ids)),
            ssh_keys.c.user_id == user_id,
        )
    )
    return {row["workload_id"] for row in rows}


def keys_with_text(tx: Tx, scope: Scope, texts: Collection[str]) -> list[str]:
    """Return the ids of the organisation's members' keys that are these public keys."""
    if not texts:
        return []
    rows = tx.all(
        select(ssh_keys.c.id)
        .join(members, and_(members.c.user_id == ssh_keys.c.user_id, members.c.org_id == scope.org))
        .where(ssh_keys.c.public_key.in_(list(texts)))
    )
    return [row["id"] for row in rows]


def workspace(tx: Tx, scope: Scope, id: str) -> Row | None:
    """Return a live workspace."""
    return tx.one(
        select(workspaces).where(
            workspaces.c.org_id == scope.org, workspaces.c.id == id, workspaces.c.removed_at.is_(None)
        )
    )


def an_owner(tx: Tx, scope: Scope) -> str | None:
    """Return the organisation's longest-serving owner: who answers for adopted work whose maker is not known."""
    owner: str | None = tx.scalar(
        select(members.c.user_id)
        .where(members.c.org_id == scope.org, members.c.role == "owner")
        .order_by(members.c.joined_at, members.c.user_id)
        .limit(1)
    )
    return owner


def last_queue_no(tx: Tx, scope: Scope, cluster_id: str) -> int:
    """Return the number of the last of those that wait (0: none does)."""
    number = tx.scalar(
        select(func.max(_W.queue_no)).where(
            _W.org_id == scope.org, _W.cluster_id == cluster_id, _W.queued.is_(True), _W.ended_at.is_(None)
        )
    )
    return int(number or 0)


def all_queued(tx: Tx) -> frozenset[str]:
    """Return the ids of all of the site that wait: its own process asks, for every tenant alike."""
    return frozenset(row["id"] for row in tx.all(select(_W.id).where(_W.queued, _W.ended_at.is_(None))))


def machine_traits(tx: Tx, scopes: Collection[Scope], machine_ids: Collection[str]) -> dict[str, Row]:
    """Return of each machine of these organisations what people see beside a workload on it."""
    if not machine_ids:
        return {}
    rows = tx.all(
        select(
            machines.c.id,
            machines.c.inventory["network_mbps"].as_integer().label("network_mbps"),
            machines.c.inventory["storage_quota"].as_string().label("storage_quota"),
        ).where(machines.c.org_id.in_([scope.org for scope in scopes]), machines.c.id.in_(set(machine_ids)))
    )
    return {row["id"]: row for row in rows}


def cluster_slugs(tx: Tx, scope: Scope) -> dict[str, str]:
    """Return the short name of each cluster the organisation has ever used, by id."""
    rows = tx.all(select(tenancies.c.cluster_id, tenancies.c.slug).where(tenancies.c.org_id == scope.org))
    return {row["cluster_id"]: row["slug"] for row in rows}
