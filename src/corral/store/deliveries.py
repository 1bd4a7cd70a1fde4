"""The outbox: what is to be told to whom, kept from the transaction that decided it until it was taken or given up."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Table, and_, delete, func, insert, or_, select, update

from corral.store.tables.alerts import alert_rules, deliveries, webhooks
from corral.store.transaction import Row, Scope, Tx

_C = deliveries.c


def add(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add deliveries that are due now: id, org_id, target_id, type, body; webhook_id, rule_id, alert_id, event_seq."""
    if rows:
        tx.run(insert(deliveries), [{**row, "created_at": tx.now, "next_at": tx.now} for row in rows])


def waiting(tx: Tx, target_id: str, most: int) -> int:
    """Return how many deliveries of a target wait, counted up to `most`."""
    some = select(_C.id).where(_C.target_id == target_id, _C.next_at.is_not(None)).limit(most).subquery()
    return int(tx.scalar(select(func.count()).select_from(some)))


def due(tx: Tx, full: Collection[str], limit: int) -> Sequence[Row]:
    """Return what is due, the longest waiting first, of targets that are not `full`; with what is needed to send it."""
    first = select(_C.id).where(_C.next_at <= tx.now)
    if full:
        first = first.where(_C.target_id.not_in(list(full)))
    first = first.order_by(_C.next_at, _C.id).limit(limit)
    return tx.all(
        select(
            *(_C.id, _C.org_id, _C.target_id, _C.type, _C.body, _C.attempts, _C.created_at, _C.webhook_id, _C.rule_id),
            *(webhooks.c.url, webhooks.c.secret, alert_rules.c.target),
            or_(_told(webhooks), _told(alert_rules)).label("able"),
        )
        .outerjoin(webhooks, webhooks.c.id == _C.webhook_id)
        .outerjoin(alert_rules, alert_rules.c.id == _C.rule_id)
        .where(_C.id.in_(first.scalar_subquery()))
        .order_by(_C.next_at, _C.id)
    )


def _told(table: Table) -> ColumnElement[bool]:
    return and_(table.c.enabled, table.c.removed_at.is_(None))


def next_due(tx: Tx) -> datetime | None:
    """Return when the next delivery is due."""
    row = tx.one(select(_C.next_at).where(_C.next_at.is_not(None)).order_by(_C.next_at).limit(1))
    return None if row is None else row["next_at"]


def save(tx: Tx, id: str, values: Mapping[str, Any]) -> None:
    """Write down how a delivery went, unless it was dropped meanwhile."""
    tx.run(update(deliveries).where(_C.id == id, _C.next_at.is_not(None)).values(**values))


def drop_waiting(tx: Tx, target_id: str, why: str) -> None:
    """Give up all that waits for a target."""
    mine = and_(_C.target_id == target_id, _C.next_at.is_not(None))
    tx.run(update(deliveries).where(mine).values(next_at=None, error=why))


def of_webhook(tx: Tx, scope: Scope, webhook_id: str, before: str | None, limit: int) -> Sequence[Row]:
    """Return what was, or is to be, delivered to a webhook, the newest first, with ids below `before`."""
    query = select(deliveries).where(_C.org_id == scope.org, _C.webhook_id == webhook_id)
    query = query.order_by(_C.id.desc()).limit(limit)
    return tx.all(query if before is None else query.where(_C.id < before))


def test_waits(tx: Tx, target_id: str) -> bool:
    mine = (_C.target_id == target_id, _C.next_at.is_not(None), _C.type == "test")
    return tx.one(select(_C.id).where(*mine).limit(1)) is not None


def forget_done(tx: Tx, before: datetime) -> int:
    """Forget what was taken or given up, and was made before a time."""
    return tx.run(delete(deliveries).where(_C.created_at < before, _C.next_at.is_(None)))
