"""Rows of break-glass: for how long the operator may look into an organisation, and why."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import RowMapping, Select, insert, select, update

from corral.store.tables.break_glass import break_glass as table
from corral.store.tables.users import users
from corral.store.transaction import Scope, Tx


def add(tx: Tx, scope: Scope, id: str, user_id: str, reason: str, expires_at: datetime) -> None:
    row = {"id": id, "org_id": scope.org, "user_id": user_id, "reason": reason}
    tx.run(insert(table).values(**row, created_at=tx.now, expires_at=expires_at))


def live(tx: Tx, scope: Scope, user_id: str) -> RowMapping | None:
    """Return what lets this operator look into the organisation now."""
    return tx.one(_shown(scope).where(table.c.user_id == user_id, *_live(tx)).order_by(table.c.id))


def get(tx: Tx, scope: Scope, id: str) -> RowMapping | None:
    """Return one with its maker's `login`."""
    return tx.one(_shown(scope).where(table.c.id == id))


def listed(tx: Tx, scope: Scope, before: str | None, limit: int) -> Sequence[RowMapping]:
    """Return all there ever were with their maker's `login`, newest first, from before the id `before`."""
    query = _shown(scope).order_by(table.c.id.desc()).limit(limit)
    return tx.all(query if before is None else query.where(table.c.id < before))


def end(tx: Tx, scope: Scope, id: str) -> bool:
    """End one that lives; False when it was over before."""
    return (
        tx.run(update(table).where(table.c.org_id == scope.org, table.c.id == id, *_live(tx)).values(_ended(tx))) == 1
    )


def end_all(tx: Tx, scope: Scope) -> Sequence[str]:
    """End all that live in an organisation that goes; return whose they were."""
    alive = (table.c.org_id == scope.org, *_live(tx))
    whose = [row["user_id"] for row in tx.all(select(table.c.user_id).where(*alive))]
    tx.run(update(table).where(*alive).values(_ended(tx)))
    return whose


def _ended(tx: Tx) -> dict[str, Any]:
    return {"ended_at": tx.now}


def _live(tx: Tx) -> list[Any]:
    return [table.c.ended_at.is_(None), table.c.expires_at > tx.now]


def _shown(scope: Scope) -> Select[Any]:
    return select(table, users.c.login).join(users, users.c.id == table.c.user_id).where(table.c.org_id == scope.org)
