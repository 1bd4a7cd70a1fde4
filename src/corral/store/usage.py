"""What allocations used, summed by the database: by what was asked, and always by cluster, GPU model and piece of time.

Prices are of a cluster, a model and a time, so each sum that comes out has one price. A sum of amounts times
seconds may be larger than a database's integer; it is taken in two halves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    CompoundSelect,
    Select,
    and_,
    case,
    column,
    func,
    literal,
    or_,
    select,
    tuple_,
    type_coerce,
    union_all,
    values,
)
from sqlalchemy.sql.selectable import CTE, Subquery

from corral.domain.usage import DAY_S, By, Period, Used
from corral.store.tables.clusters import tenancies
from corral.store.tables.orgs import members, workspaces
from corral.store.tables.users import users
from corral.store.tables.workloads import allocations, workloads
from corral.store.transaction import Row, Scope, Tx

_A, _W = allocations.c, workloads.c
_SECOND = 1_000_000
_HALF = 2**24
_AMOUNTS = ("gpus", "vcpu", "ram_mib", "storage_mib")
Key = tuple[str | int, ...]


@dataclass(frozen=True)
class Want:
    """Which allocations, and how to sum them. None: no restriction. `after`: the key of the last group seen."""

    pieces: Sequence[Period]
    by: Sequence[By] = ()
    workspaces: Collection[str] | None = None
    maker: str | None = None
    clusters: Collection[str] | None = None
    after: Key | None = None


@dataclass(frozen=True)
class Sum:
    """What one group used of one GPU model ("": of machines without any) of one cluster in one piece of time."""

    key: Key
    cluster_id: str
    model: str
    start: int
    used: Used


KEYS: dict[By, tuple[str, ...]] = {
    By.WORKSPACE: ("workspace", "workspace_id"),
    By.USER: ("user", "user_id"),
    By.WORKLOAD: ("workload", "workload_id"),
    By.MODEL: ("model",),
    By.CLUSTER: ("cluster", "cluster_id"),
    By.DAY: ("day",),
}
"""What each grouping sorts by: what people call it, then its id. A day is counted from the epoch."""


def key_names(by: Sequence[By]) -> list[str]:
    return [name for one in by for name in KEYS[one]]


def sums(tx: Tx, scope: Scope, want: Want) -> Iterator[Sum]:
    """Yield sums in the order of their groups' keys, read from the database as they are asked for."""
    if not want.pieces:
        return
    names = key_names(want.by)
    found = tx.conn.execute(_query(scope, want), execution_options={"yield_per": 1000})
    try:
        for row in found.mappings():
            key = tuple(row[f"key_{name}"] for name in names)
            yield Sum(key, row["cluster_id"], row["gpu_model"], row["start"], _used(row))
    finally:
        found.close()


def _used(row: Row) -> Used:
    gpus, vcpu, ram, storage = (int(row[f"{name}_high"]) * _HALF + int(row[f"{name}_low"]) for name in _AMOUNTS)
    return Used(gpus, vcpu, ram, storage)


def _query(scope: Scope, want: Want) -> Select[Any]:
    """Sum first, by ids; then find out what they are called."""
    summed = _summed(scope, want).subquery("summed")
    query, keys = select(summed), []
    for one in want.by:
        query, found = _named(query, summed, scope, one)
        keys += [column.label(f"key_{name}") for name, column in zip(KEYS[one], found, strict=True)]
    if want.after is not None:
        query = query.where(tuple_(*(key.element for key in keys)) > tuple_(*map(literal, want.after)))
    return query.add_columns(*keys).order_by(*(key.element for key in keys), summed.c.start)


def _named(query: Select[Any], summed: Subquery, scope: Scope, by: By) -> tuple[Select[Any], list[ColumnElement[Any]]]:
    """Return the query with what gives `by` its name, and the columns that it sorts by."""
    s = summed.c
    if by is By.WORKSPACE:
        return query.join(workspaces, workspaces.c.id == s.workspace_id), [workspaces.c.slug, s.workspace_id]
    if by is By.USER:
        return query.join(users, users.c.id == s.user_id), [users.c.login, s.user_id]
    if by is By.WORKLOAD:
        return query.join(workloads, _W.id == s.workload_id), [_W.name, s.workload_id]
    if by is By.CLUSTER:
        mine = and_(tenancies.c.cluster_id == s.cluster_id, tenancies.c.org_id == scope.org)
        return query.join(tenancies, mine), [tenancies.c.slug, s.cluster_id]
    return query, [s.gpu_model if by is By.MODEL else s.start // DAY_S]


def _summed(scope: Scope, want: Want) -> Select[Any]:
    # Read once, not once for each piece.
    held, piece = _held(scope, want).cte("held").prefix_with("MATERIALIZED"), _pieces(want.pieces)
    ended = or_(held.c.released.is_(None), held.c.released >= piece.c.ended)
    seconds = case((ended, piece.c.ended), else_=held.c.released) - case(
        (held.c.placed > piece.c.start, held.c.placed), else_=piece.c.start
    )
    groups = [held.c.cluster_id, held.c.gpu_model, piece.c.start]
    groups += [held.c[f"{one.value}_id"] for one in want.by if one in (By.WORKSPACE, By.USER, By.WORKLOAD)]
    amounts: list[ColumnElement[int]] = []
    for name in _AMOUNTS:
        product = held.c[name] * seconds
        amounts += [
            func.sum(product // _HALF).label(f"{name}_high"),
            func.sum(product % _HALF).label(f"{name}_low"),
        ]
    overlap = and_(held.c.placed < piece.c.ended, or_(held.c.released.is_(None), held.c.released > piece.c.start))
    return select(*groups, *amounts).join_from(held, piece, overlap).group_by(*groups)


def _pieces(pieces: Sequence[Period]) -> CTE:
    columns = column("start", BigInteger), column("ended", BigInteger)
    return values(*columns, name="piece").data([(piece.start, piece.end) for piece in pieces]).cte("piece")


def _held(scope: Scope, want: Want) -> CompoundSelect[Any]:
    """The allocations that may count, with the seconds in which they were placed and released."""
    start, end = want.pieces[0].start, want.pieces[-1].end
    released = type_coerce(_A.released_at, BigInteger)
    live, ended = _A.released_at.is_(None), released >= (start + 1) * _SECOND
    # Two, each by its own end of the index: what was over before the period is not looked at.
    return union_all(*(_some(scope, want, end).where(some) for some in (live, ended)))


def _some(scope: Scope, want: Want, end: int) -> Select[Any]:
    placed, released = type_coerce(_A.placed_at, BigInteger), type_coerce(_A.released_at, BigInteger)
    query = select(
        _A.cluster_id,
        _A.workspace_id,
        _A.workload_id,
        _A.gpu_model,
        *(type_coerce(_A[name], BigInteger).label(name) for name in _AMOUNTS),
        (placed // _SECOND).label("placed"),
        (released // _SECOND).label("released"),
    ).where(
        _A.org_id == scope.org,
        placed < end * _SECOND,
    )
    if By.USER in want.by or want.maker is not None:
        query = query.add_columns(_W.created_by.label("user_id")).join(workloads, _W.id == _A.workload_id)
    if want.maker is not None:
        query = query.where(_W.created_by == want.maker)
    if want.workspaces is not None:
        query = query.where(_A.workspace_id.in_(list(want.workspaces)))
    if want.clusters is not None:
        query = query.where(_A.cluster_id.in_(list(want.clusters)))
    return query


# What filters name. Removed workspaces, left clusters and people who are gone keep their usage, so they are found too.


def workspace_id(tx: Tx, scope: Scope, name: str) -> str | None:
    """Return the id of the workspace of that short name (the live one, else the last removed) or id."""
    w = workspaces.c
    named = select(w.id).where(w.org_id == scope.org, or_(w.slug == name, w.id == name))
    found: str | None = tx.scalar(named.order_by(w.removed_at.is_(None).desc(), w.removed_at.desc()).limit(1))
    return found


def maker_id(tx: Tx, scope: Scope, name: str) -> str | None:
    """Return the id of the person of that login or id who is a member or made something here."""
    member = select(members.c.user_id).where(members.c.org_id == scope.org, members.c.user_id == users.c.id)
    made = select(_W.id).where(_W.org_id == scope.org, _W.created_by == users.c.id)
    named = select(users.c.id).where(or_(users.c.login == name, users.c.id == name))
    found: str | None = tx.scalar(named.where(or_(member.exists(), made.exists())))
    return found
