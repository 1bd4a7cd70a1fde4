"""What reservations cover: machines by name and by pool, what runs there, and other reservations of them.

A pool is judged by what machines carry now; so is every question here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, RowMapping, Select, exists, false, func, or_, select

from corral.domain.reservations import Window, whom
from corral.domain.workspaces import Some
from corral.store import reservations as rows
from corral.store.access import covers
from corral.store.inventory import holding
from corral.store.tables.access import access_pools
from corral.store.tables.machines import machines
from corral.store.tables.orgs import workspace_members, workspaces
from corral.store.tables.reservations import reservation_machines, reservations
from corral.store.tables.workloads import allocations, workloads
from corral.store.transaction import Scope, Tx
from corral.store.workspaces import some

_R, _M = reservations.c, machines.c
FEW = 1_001
"""The longest page and one more. Of more machines than this, no list of ids is sent: databases take only so long ones.
"""


@dataclass(frozen=True)
class Covered:
    """Enrolled machines of a cluster: those named, by id, and those that carry the pool."""

    scope: Scope
    cluster_id: str
    pool: str | None = None
    named: Collection[str] = field(default_factory=tuple)

    def terms(self) -> list[ColumnElement[bool]]:
        """Return what holds of these machines."""
        by_name = _M.id.in_(list(self.named)) if self.named else false()
        by_pool = _M.pool == self.pool if self.pool else false()
        mine = [_M.org_id == self.scope.org, _M.cluster_id == self.cluster_id, _M.removed_at.is_(None)]
        return [*mine, or_(by_name, by_pool)]


@dataclass(frozen=True)
class Seer:
    """Who looks. `user_id` None: an admin, who sees every machine and all work."""

    user_id: str | None = None

    def machines(self) -> list[ColumnElement[bool]]:
        """Return what holds of the machines that they may know of: a member's are of their workspaces' pools."""
        if self.user_id is None:
            return []
        granted = (
            select(access_pools.c.pool)
            .join(workspace_members, workspace_members.c.workspace_id == access_pools.c.workspace_id)
            .where(
                workspace_members.c.user_id == self.user_id,
                access_pools.c.cluster_id == _M.cluster_id,
                covers(_M.pool),
                workspace_members.c.org_id == _M.org_id,
            )
        )
        return [exists(granted)]

    def work(self) -> list[ColumnElement[bool]]:
        """Return what holds of the allocations that they may know of: a member's are of their workspaces."""
        if self.user_id is None:
            return []
        return [allocations.c.workspace_id.in_(self._theirs())]

    def workspaces(self) -> list[ColumnElement[bool]]:
        """Return what holds of the workspaces that they may know of."""
        return [] if self.user_id is None else [workspaces.c.id.in_(self._theirs())]

    def _theirs(self) -> Select[Any]:
        return select(workspace_members.c.workspace_id).where(workspace_members.c.user_id == self.user_id)


def machines_called(tx: Tx, scope: Scope, cluster_id: str, names: Collection[str]) -> Mapping[str, str]:
    """Return the ids of the enrolled machines of these names, by name."""
    mine = [_M.org_id == scope.org, _M.cluster_id == cluster_id, _M.removed_at.is_(None), _M.name.in_(list(names))]
    return {row["name"]: row["id"] for row in tx.all(select(_M.id, _M.name).where(*mine))} if names else {}


def workspaces_called(tx: Tx, scope: Scope, slugs: Collection[str]) -> Mapping[str, str]:
    """Return the ids of the workspaces of these short names, by short name, in order."""
    mine = [workspaces.c.org_id == scope.org, workspaces.c.removed_at.is_(None), workspaces.c.slug.in_(list(slugs))]
    query = select(workspaces.c.id, workspaces.c.slug).where(*mine).order_by(workspaces.c.slug)
    return {row["slug"]: row["id"] for row in tx.all(query)} if slugs else {}


def machines_of(tx: Tx, what: Covered, who: Seer, limit: int) -> Sequence[RowMapping]:
    """Return the machines: `id`, `name`, `pool`, by name."""
    query = select(_M.id, _M.name, _M.pool).where(*what.terms(), *who.machines())
    return tx.all(query.order_by(_M.name).limit(limit))


def count(tx: Tx, what: Covered) -> int:
    return int(tx.scalar(select(func.count()).select_from(machines).where(*what.terms())))


def ids(tx: Tx, what: Covered) -> list[str]:
    """Return the ids of all of the machines."""
    return [row["id"] for row in tx.all(select(_M.id).where(*what.terms()).order_by(_M.id))]


def common(tx: Tx, one: Covered, other: Covered, limit: int) -> list[str]:
    """Return the names of machines that are among both, in order."""
    query = select(_M.name).where(*one.terms(), *other.terms()).order_by(_M.name).limit(limit)
    return [row["name"] for row in tx.all(query)]


def carrying(tx: Tx, scope: Scope, cluster_id: str, pools: Collection[str]) -> Mapping[str, int]:
    """Return how many enrolled machines carry each of these pools (those that none carries are left out)."""
    if not pools:
        return {}
    found = tx.all(
        select(_M.pool, func.count().label("machines"))
        .where(
            _M.org_id == scope.org,
            _M.cluster_id == cluster_id,
            _M.removed_at.is_(None),
            _M.pool.in_(sorted(pools)),
        )
        .group_by(_M.pool)
    )
    return {row["pool"]: row["machines"] for row in found}


def visible(tx: Tx, scope: Scope, machine_ids: Collection[str], who: Seer) -> set[str]:
    """Return those of the machines that the seer may know of."""
    if who.user_id is None:
        return set(machine_ids)
    query = select(_M.id).where(_M.org_id == scope.org, _M.id.in_(sorted(machine_ids)), *who.machines())
    return {row["id"] for row in tx.all(query)}


# --- work


@dataclass(frozen=True)
class Stays:
    """Work of workspaces but `spared` that is not sure to have ended at `until` (None: whatever is there)."""

    spared: Collection[str] = ()
    until: datetime | None = None

    def terms(self) -> list[ColumnElement[bool]]:
        terms: list[ColumnElement[bool]] = []
        if self.spared:
            terms.append(allocations.c.workspace_id.not_in(list(self.spared)))
        if self.until is not None:
            terms.append(or_(allocations.c.must_end_by.is_(None), allocations.c.must_end_by > self.until))
        return terms


def work_on(tx: Tx, what: Covered, stays: Stays, who: Seer, limit: int) -> Sequence[RowMapping]:
    """Return work that holds something of the machines: `machine`, `workspace`, `name`, `kind`, `state`, `gpus`,
    `must_end_by`."""
    query = (
        _holding(what, stays)
        .with_only_columns(
            _M.name.label("machine"),
            workspaces.c.slug.label("workspace"),
            workloads.c.name,
            workloads.c.kind,
            workloads.c.state,
            allocations.c.gpus,
            allocations.c.must_end_by,
        )
        .join(workloads, workloads.c.id == allocations.c.workload_id)
        .join(workspaces, workspaces.c.id == allocations.c.workspace_id)
        .where(*who.work())
        .order_by(_M.name, workspaces.c.slug, workloads.c.name, allocations.c.id)
    )
    return tx.all(query.limit(limit))


def count_work(tx: Tx, what: Covered, stays: Stays) -> int:
    return int(tx.scalar(_holding(what, stays).with_only_columns(func.count())))


def _holding(what: Covered, stays: Stays) -> Select[Any]:
    return (
        select(allocations.c.id)
        .join(machines, _M.id == allocations.c.machine_id)
        .where(
            *what.terms(),
            *stays.terms(),
            holding(),
        )
    )


def kept_out(tx: Tx, what: Covered, spared: Collection[str], who: Seer) -> Some:
    """Return the workspaces (a member: of theirs), but those `spared`, that are granted one of the machines."""
    pools = select(_M.pool).where(*what.terms()).distinct().subquery()
    granted = (
        select(access_pools.c.workspace_id)
        .join(pools, covers(pools.c.pool))
        .where(access_pools.c.cluster_id == what.cluster_id)
    )
    query = select(workspaces.c.slug).where(
        workspaces.c.org_id == what.scope.org,
        workspaces.c.removed_at.is_(None),
        workspaces.c.id.in_(granted),
        workspaces.c.id.not_in(list(spared)),
    )
    return some(tx, query.where(*who.workspaces()))


# --- other reservations


def overlapping(tx: Tx, what: Covered, window: tuple[datetime, datetime], limit: int) -> Sequence[RowMapping]:
    """Return live reservations that have one of the machines, or the same pool, for some of the time [start, end)."""
    theirs = select(_M.id).where(*what.terms())
    named = select(reservation_machines.c.machine_id).where(
        reservation_machines.c.reservation_id == _R.id, reservation_machines.c.machine_id.in_(theirs)
    )
    carried = _R.pool.in_(theirs.with_only_columns(_M.pool))
    same = or_(exists(named), carried, _R.pool == what.pool) if what.pool else or_(exists(named), carried)
    start, end = window
    query = select(reservations).where(
        *rows.live(tx, what.scope, what.cluster_id), _R.starts_at < end, _R.ends_at > start, same
    )
    return tx.all(query.order_by(_R.starts_at, _R.id).limit(limit))


def covered_by(tx: Tx, scope: Scope, row: RowMapping) -> Covered:
    """Return what a reservation covers."""
    named = rows.named(tx, scope, [row["id"]]).get(row["id"], ())
    return Covered(scope, row["cluster_id"], row["pool"], [machine["id"] for machine in named])


def windows_on(
    tx: Tx, scope: Scope, machines: Sequence[Mapping[Any, Any]], *, begun: bool = False
) -> Mapping[str, tuple[Window, ...]]:
    """Return the windows that are not over of each machine (rows with `id`, `pool`, `cluster_id`), soonest first.

    `begun`: only those that now is in, which cost nothing where many are to come.
    """
    live = _live_of(tx, scope, machines, begun=begun)
    return _on(tx, scope, machines, live, lambda ids: _naming(tx, scope, ids, machines)) if live else {}


def first_against(
    tx: Tx, scope: Scope, workspace_id: str, machines: Sequence[Mapping[Any, Any]]
) -> Mapping[str, tuple[Window, ...]]:
    """Return of the windows of each machine that are not for a workspace the first that names it and the first of its
    pool: no later one says more of when it is closed."""
    live = _live_of(tx, scope, machines, begun=False)
    theirs = rows.workspaces_of(tx, scope, [row["id"] for row in live])
    against = [row for row in live if workspace_id not in theirs.get(row["id"], {})]
    return _on(tx, scope, machines, against, lambda ids: _first_naming(tx, scope, ids, machines)) if against else {}


def _on(
    tx: Tx,
    scope: Scope,
    machines: Sequence[Mapping[Any, Any]],
    live: Sequence[RowMapping],
    naming: Callable[[Sequence[str]], Mapping[str, set[str]]],
) -> Mapping[str, tuple[Window, ...]]:
    """Return the windows on each machine of some reservations: those that name it, and those of its pool."""
    windows = _windows(tx, scope, live)
    by_name = naming(list(windows))
    by_pool: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in live:
        if row["pool"]:
            by_pool[(row["cluster_id"], row["pool"])].add(row["id"])
    found = {}
    for machine in machines:
        its = by_name.get(machine["id"], set()) | by_pool.get((machine["cluster_id"], machine["pool"]), set())
        if its:
            found[machine["id"]] = tuple(sorted((windows[id] for id in its), key=lambda one: (one.start, one.id)))
    return found


def _live_of(tx: Tx, scope: Scope, machines: Sequence[Mapping[Any, Any]], *, begun: bool) -> list[RowMapping]:
    """Return live reservations of the machines' clusters; of few machines only what may cover one of them."""
    terms: list[ColumnElement[bool]] = [_R.starts_at <= tx.now] if begun else []
    if len(machines) <= (1 if begun else FEW):  # of windows that now is in, a machine has one: all of them are few
        named = select(reservation_machines.c.reservation_id).where(
            reservation_machines.c.machine_id.in_([machine["id"] for machine in machines])
        )
        terms.append(or_(_R.id.in_(named), _R.pool.in_(sorted({machine["pool"] for machine in machines}))))
    clusters = sorted({machine["cluster_id"] for machine in machines})
    found = (tx.all(select(reservations).where(*rows.live(tx, scope, cluster_id), *terms)) for cluster_id in clusters)
    return [row for rows_of_cluster in found for row in rows_of_cluster]


def _windows(tx: Tx, scope: Scope, live: Sequence[RowMapping]) -> dict[str, Window]:
    theirs = rows.workspaces_of(tx, scope, [row["id"] for row in live])
    found = {}
    for row in live:
        its = theirs.get(row["id"], {})
        found[row["id"]] = Window(
            row["id"], row["starts_at"], row["ends_at"], frozenset(its), whom(list(its.values())), row["reason"]
        )
    return found


def _naming(
    tx: Tx, scope: Scope, reservation_ids: Collection[str], machines: Sequence[Mapping[Any, Any]]
) -> dict[str, set[str]]:
    """Return by machine which of the reservations name it."""
    named = reservation_machines.c
    # By one of the two lists: a database that tries each of one with each of the other takes seconds.
    if len(machines) <= FEW and (len(machines) <= len(reservation_ids) or len(reservation_ids) > FEW):
        which = named.machine_id.in_([machine["id"] for machine in machines])
    else:
        which = named.reservation_id.in_(list(reservation_ids))
    query = select(named.machine_id, named.reservation_id).where(named.org_id == scope.org, which)
    found: dict[str, set[str]] = defaultdict(set)
    wanted = frozenset(reservation_ids)
    for row in tx.all(query):
        if row["reservation_id"] in wanted:
            found[row["machine_id"]].add(row["reservation_id"])
    return found


def _first_naming(
    tx: Tx, scope: Scope, reservation_ids: Collection[str], machines: Sequence[Mapping[Any, Any]]
) -> dict[str, set[str]]:
    """Return by machine the soonest of the reservations that name it."""
    named = reservation_machines.c
    nth = func.row_number().over(partition_by=named.machine_id, order_by=(_R.starts_at, _R.id))
    each = (
        select(named.machine_id, named.reservation_id, nth.label("nth"))
        .join(reservations, _R.id == named.reservation_id)
        .where(named.org_id == scope.org, named.reservation_id.in_(list(reservation_ids)))
        .subquery()
    )
    here = {machine["id"] for machine in machines}
    found = tx.all(select(each.c.machine_id, each.c.reservation_id).where(each.c.nth == 1))
    return {row["machine_id"]: {row["reservation_id"]} for row in found if row["machine_id"] in here}
