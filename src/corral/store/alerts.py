"""Rows of alerts. Only the one follower of the journal writes them; at most one of a condition is open."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import and_, delete, insert, select, update

from corral.store.tables.alerts import alerts
from corral.store.transaction import Row, Scope, Tx

_C = alerts.c


@dataclass(frozen=True)
class Filter:
    """What to show; None: no restriction. `workspaces`: ids, only alerts about these (a member's view)."""

    open: bool | None = None
    kind: str | None = None
    machine: str | None = None
    workspaces: Collection[str] | None = None


def newest_of(tx: Tx, scope: Scope, kind: str, about: str) -> Row | None:
    """Return the newest alert of a condition."""
    mine = (_C.org_id == scope.org, _C.kind == kind, _C.about == about)
    return tx.one(select(alerts).where(*mine).order_by(_C.id.desc()).limit(1))


def add(tx: Tx, scope: Scope, values: Mapping[str, Any]) -> None:
    tx.run(insert(alerts).values(org_id=scope.org, **values))


def save(tx: Tx, scope: Scope, id: str, values: Mapping[str, Any]) -> None:
    tx.run(update(alerts).where(_C.org_id == scope.org, _C.id == id).values(**values))


def open_of_machine(tx: Tx, scope: Scope, machine_id: str) -> Sequence[Row]:
    return tx.all(select(alerts).where(_C.org_id == scope.org, _C.machine_id == machine_id, _C.closed_at.is_(None)))


def due(tx: Tx, until: datetime, limit: int) -> Sequence[Row]:
    """Return every tenant's alerts whose opening is to be told by `until`, the longest waiting first."""
    return tx.all(select(alerts).where(_C.tell_at <= until).order_by(_C.tell_at, _C.id).limit(limit))


def next_due(tx: Tx) -> datetime | None:
    """Return when the next opening is to be told."""
    row = tx.one(select(_C.tell_at).where(_C.tell_at.is_not(None)).order_by(_C.tell_at).limit(1))
    return None if row is None else row["tell_at"]


def open_of_kinds(tx: Tx, kinds: Collection[str]) -> Sequence[Row]:
    """Return every tenant's open alerts of some kinds."""
    return tx.all(select(alerts).where(_C.closed_at.is_(None), _C.kind.in_(list(kinds))))


def newest_first(tx: Tx, scope: Scope, want: Filter, before: str | None, limit: int) -> Sequence[Row]:
    """Return alerts, the newest first, with ids below `before`."""
    terms = [_C.org_id == scope.org]
    if want.open is not None:
        terms.append(_C.closed_at.is_(None) if want.open else _C.closed_at.is_not(None))
    if want.kind is not None:
        terms.append(_C.kind == want.kind)
    if want.machine is not None:
        terms.append(_C.machine_id == want.machine)
    if want.workspaces is not None:
        terms.append(_C.workspace_id.in_(list(want.workspaces)))
    if before is not None:
        terms.append(_C.id < before)
    return tx.all(select(alerts).where(and_(*terms)).order_by(_C.id.desc()).limit(limit))


def forget_closed(tx: Tx, before: datetime, limit: int) -> bool:
    """Forget some alerts that closed before a time; return whether more may be due."""
    old = select(_C.id).where(_C.closed_at < before).limit(limit)
    return tx.run(delete(alerts).where(_C.id.in_(old.scalar_subquery()))) == limit
