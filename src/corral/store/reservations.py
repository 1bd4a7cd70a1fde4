"""Rows of reservations: windows, and what and whom they are for. What they cover: `store/reserved.py`.

A row stays when its window is over; one that was removed is found nowhere any more but in the journal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, RowMapping, Select, and_, exists, func, insert, or_, select, tuple_, update

from corral.domain.reservations import State
from corral.store.tables.machines import machines
from corral.store.tables.orgs import workspaces
from corral.store.tables.reservations import reservation_machines, reservation_workspaces, reservations
from corral.store.tables.users import users
from corral.store.transaction import Scope, Tx

_R = reservations.c


@dataclass(frozen=True)
class For:
    """What a reservation names by id: machines, and the workspaces it is for."""

    machines: Collection[str] = ()
    workspaces: Collection[str] = ()


def add(tx: Tx, scope: Scope, values: Mapping[str, Any], whom: For) -> None:
    """Keep a new reservation. `values`: id, cluster_id, pool, starts_at, ends_at, reason, created_by."""
    tx.run(insert(reservations).values(org_id=scope.org, created_at=tx.now, **values))
    row = {"org_id": scope.org, "reservation_id": values["id"]}
    if whom.machines:
        tx.run(insert(reservation_machines), [{**row, "machine_id": id} for id in sorted(whom.machines)])
    if whom.workspaces:
        tx.run(insert(reservation_workspaces), [{**row, "workspace_id": id} for id in sorted(whom.workspaces)])


def get(tx: Tx, scope: Scope, cluster_id: str, id: str) -> RowMapping | None:
    """Return a reservation with its maker's `login`; None for one that was removed."""
    return tx.one(_of(scope, cluster_id).where(_R.id == id))


def count_live(tx: Tx, scope: Scope, cluster_id: str) -> int:
    """Return how many are not over. Meant for under the tenancy's lock."""
    return int(tx.scalar(select(func.count()).select_from(reservations).where(*live(tx, scope, cluster_id))))


@dataclass(frozen=True)
class Wanted:
    """Which reservations to list. `state` None: those that are not over."""

    state: State | None = None
    pool: str | None = None
    """Of this pool, or of a machine that carries it now."""
    machine: RowMapping | None = None
    """Covering this machine (its row) now."""


def listed(
    tx: Tx, scope: Scope, cluster_id: str, want: Wanted, after: tuple[datetime, str] | None, limit: int
) -> Sequence[RowMapping]:
    """Return reservations with their maker's `login`, soonest first; those that are over latest first.

    `after`: start and id of the one before the page.
    """
    query = _of(scope, cluster_id).where(*_in_state(tx, want.state), *_about(want))
    past = want.state is State.PAST
    if after is not None:
        start, id = after
        later, same = (_R.starts_at < start, _R.id < id) if past else (_R.starts_at > start, _R.id > id)
        query = query.where(or_(later, and_(_R.starts_at == start, same)))
    order = (_R.starts_at.desc(), _R.id.desc()) if past else (_R.starts_at, _R.id)
    return tx.all(query.order_by(*order).limit(limit))


def _of(scope: Scope, cluster_id: str) -> Select[Any]:
    return (
        select(reservations, users.c.login)
        .join(users, users.c.id == _R.created_by)
        .where(_R.org_id == scope.org, _R.cluster_id == cluster_id, _R.removed_at.is_(None))
    )


def _in_state(tx: Tx, state: State | None) -> list[ColumnElement[bool]]:
    if state is State.UPCOMING:
        return [_R.starts_at > tx.now]
    if state is State.ACTIVE:
        return [_R.starts_at <= tx.now, _R.ends_at > tx.now]
    return [_R.ends_at <= tx.now] if state is State.PAST else [_R.ends_at > tx.now]


def _about(want: Wanted) -> list[ColumnElement[bool]]:
    terms: list[ColumnElement[bool]] = []
    if want.pool is not None:
        carried = select(reservation_machines.c.machine_id).join(
            machines, machines.c.id == reservation_machines.c.machine_id
        )
        carried = carried.where(machines.c.pool == want.pool, machines.c.removed_at.is_(None))
        terms.append(or_(_R.pool == want.pool, exists(carried.where(_its_machine()))))
    if want.machine is not None:
        named = select(reservation_machines.c.machine_id).where(
            reservation_machines.c.machine_id == want.machine["id"], _its_machine()
        )
        terms.append(or_(exists(named), and_(_R.pool == want.machine["pool"], _R.pool != "")))
    return terms


def _its_machine() -> ColumnElement[bool]:
    return reservation_machines.c.reservation_id == _R.id


def live(tx: Tx, scope: Scope, cluster_id: str) -> list[ColumnElement[bool]]:
    """Return what holds of the reservations of a cluster that are not over."""
    return [_R.org_id == scope.org, _R.cluster_id == cluster_id, _R.ended_at.is_(None), _R.ends_at > tx.now]


def workspaces_of(tx: Tx, scope: Scope, ids: Collection[str]) -> Mapping[str, Mapping[str, str]]:
    """Return for each reservation whom it is for: short names by id, in order. A workspace that was removed is
    nobody any more; another may have its name."""
    rows = tx.all(
        select(reservation_workspaces.c.reservation_id, workspaces.c.id, workspaces.c.slug)
        .join(workspaces, workspaces.c.id == reservation_workspaces.c.workspace_id)
        .where(reservation_workspaces.c.org_id == scope.org, reservation_workspaces.c.reservation_id.in_(list(ids)))
        .where(workspaces.c.removed_at.is_(None))
        .order_by(workspaces.c.slug)
    )
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for row in rows:
        found[row["reservation_id"]][row["id"]] = row["slug"]
    return found


def named(tx: Tx, scope: Scope, ids: Collection[str]) -> Mapping[str, Sequence[RowMapping]]:
    """Return for each reservation the enrolled machines that it names: `id`, `name`, `pool`, by name."""
    rows = tx.all(
        select(reservation_machines.c.reservation_id, machines.c.id, machines.c.name, machines.c.pool)
        .join(machines, machines.c.id == reservation_machines.c.machine_id)
        .where(
            reservation_machines.c.org_id == scope.org,
            reservation_machines.c.reservation_id.in_(list(ids)),
            machines.c.removed_at.is_(None),
        )
        .order_by(machines.c.name)
    )
    found: dict[str, list[RowMapping]] = defaultdict(list)
    for row in rows:
        found[row["reservation_id"]].append(row)
    return found


def remove(tx: Tx, scope: Scope, id: str) -> None:
    """Take a reservation away: from now on it closes nothing."""
    tx.run(update(reservations).where(_R.org_id == scope.org, _R.id == id).values(removed_at=tx.now, ended_at=tx.now))


# --- edges


class Due(NamedTuple):
    """A window of some tenant with an edge to be told; sorts in the order in which tenancies are locked."""

    cluster_id: str
    org_id: str
    id: str


def due(tx: Tx, after: Due | None, limit: int) -> list[Due]:
    """Return windows, of every tenant, whose beginning or end has come and was not told."""
    key = tuple_(_R.cluster_id, _R.org_id, _R.id)
    query = (
        select(_R.cluster_id, _R.org_id, _R.id)
        .where(_R.ended_at.is_(None), or_(and_(_R.began_at.is_(None), _R.starts_at <= tx.now), _R.ends_at <= tx.now))
        .order_by(*key)
        .limit(limit)
    )
    return [Due(**row) for row in tx.all(query if after is None else query.where(key > tuple_(*after)))]


def begin(tx: Tx, scope: Scope, id: str) -> bool:
    """Mark a window that has begun; False when that was told already, or it was removed."""
    mine = and_(_R.org_id == scope.org, _R.id == id, _R.began_at.is_(None), _R.ended_at.is_(None))
    return tx.run(update(reservations).where(mine, _R.starts_at <= tx.now).values(began_at=tx.now)) == 1


def end(tx: Tx, scope: Scope, id: str) -> bool:
    """Mark a window that is over; False when that was told already, or it was removed."""
    mine = and_(_R.org_id == scope.org, _R.id == id, _R.ended_at.is_(None))
    return tx.run(update(reservations).where(mine, _R.ends_at <= tx.now).values(ended_at=tx.now)) == 1
