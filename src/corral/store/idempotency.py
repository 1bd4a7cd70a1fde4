"""Rows of answers given under an `Idempotency-Key`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import RowMapping, delete, insert, select, tuple_

from corral.store.tables.site import idempotency
from corral.store.transaction import Tx


def get(tx: Tx, user_id: str, key: str) -> RowMapping | None:
    return tx.one(select(idempotency).where(idempotency.c.user_id == user_id, idempotency.c.key == key))


def put(tx: Tx, user_id: str, key: str, route: str, body_hash: bytes, status: int, answer: dict[str, Any]) -> bool:
    """Keep an answer. False when the same request, sent at the same time, came first."""
    return tx.insert_unless_taken(
        insert(idempotency).values(
            user_id=user_id,
            key=key,
            route=route,
            body_hash=body_hash,
            status=status,
            answer=answer,
            created_at=tx.now,
        )
    )


def drop(tx: Tx, user_id: str, key: str, older_than: datetime) -> None:
    """Forget an answer whose day is over."""
    mine = (idempotency.c.user_id == user_id) & (idempotency.c.key == key)
    tx.run(delete(idempotency).where(mine, idempotency.c.created_at < older_than))


def drop_older(tx: Tx, moment: datetime, limit: int) -> bool:
    """Forget some answers from before a time; return whether more may be due."""
    old = select(idempotency.c.user_id, idempotency.c.key).where(idempotency.c.created_at < moment).limit(limit)
    key = tuple_(idempotency.c.user_id, idempotency.c.key)
    return tx.run(delete(idempotency).where(key.in_(old))) == limit
