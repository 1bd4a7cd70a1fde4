"""The outbox: what is to be told to whom, kept from the transaction that decided it until it was taken or given up."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Table, and_, delete, func, insert, or_, select, update

from corral.store.tables.alerts import alert_rules, deliveries, webhooks
from corral.store.transaction import Row, Scope, Tx

_C = deliveries.c
_WAITS = _C.next_at.is_not(None)


def add(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add deliveries that are due now: id, org_id, target_id, type, body; webhook_id, rule_id, alert_id, event_seq."""
    if rows:
        tx.run(insert(deliveries), [{**row, "created_at": tx.now, "next_at": tx.now} for row in rows])


def waiting(tx: Tx, target_id: str, most: int) -> int:
    """Return how many deliveries of a target wait, counted up to `most`."""
    some = select(_C.id).where(_C.target_id == target_id, _WAITS).limit(most).subquery()
    return int(tx.scalar(select(func.count()).select_from(some)))


def heads(tx: Tx) -> Sequence[Row]:
    """Return every target for which something waits: when the first of that is due, and whether it is `able`.

    Goes from target to target by the index, so what waits behind the first costs nothing.
    """
    targets = select(func.min(_C.target_id).label("target_id")).where(_WAITS).cte("targets", recursive=True)
    another = deliveries.alias()
    waits = another.c.next_at.is_not(None)
    further = select(func.min(another.c.target_id)).where(waits, another.c.target_id > targets.c.target_id)
    targets = targets.union_all(select(further.scalar_subquery()).where(targets.c.target_id.is_not(None)))
    first = select(func.min(another.c.next_at)).where(waits, another.c.target_id == targets.c.target_id)
    return tx.all(
        select(
            func.coalesce(webhooks.c.org_id, alert_rules.c.org_id).label("org_id"),
            targets.c.target_id,
            webhooks.c.id.is_not(None).label("by_webhook"),
            first.scalar_subquery().label("next_at"),
            or_(_told(webhooks), _told(alert_rules)).label("able"),
        )
        .outerjoin(webhooks, webhooks.c.id == targets.c.target_id)
        .outerjoin(alert_rules, alert_rules.c.id == targets.c.target_id)
        .where(targets.c.target_id.is_not(None))
    )


def due_ids(tx: Tx, target_id: str, limit: int) -> Sequence[str]:
    """Return the ids of what is due to a target, the longest waiting first."""
    mine = (_C.target_id == target_id, _C.next_at <= tx.now)
    return [row["id"] for row in tx.all(select(_C.id).where(*mine).order_by(_C.next_at, _C.id).limit(limit))]


def load(tx: Tx, ids: Collection[str]) -> Sequence[Row]:
    """Return deliveries that wait, with what is needed to send them."""
    return tx.all(
        select(
            *(_C.id, _C.org_id, _C.target_id, _C.body, _C.attempts),
            *(webhooks.c.url, webhooks.c.secret, alert_rules.c.target),
        )
        .outerjoin(webhooks, webhooks.c.id == _C.webhook_id)
        .outerjoin(alert_rules, alert_rules.c.id == _C.rule_id)
        .where(_C.id.in_(list(ids)), _WAITS)
        .order_by(_C.next_at, _C.id)
    )


def _told(table: Table) -> ColumnElement[bool]:
    return and_(table.c.enabled, table.c.removed_at.is_(None))


def save(tx: Tx, id: str, values: Mapping[str, Any]) -> None:
    """Write down how a delivery went, unless it was dropped meanwhile."""
    tx.run(update(deliveries).where(_C.id == id, _WAITS).values(**values))


def drop_waiting(tx: Tx, target_id: str, why: str) -> None:
    """Give up all that waits for a target."""
    tx.run(update(deliveries).where(_C.target_id == target_id, _WAITS).values(next_at=None, error=why, body=""))


def of_webhook(tx: Tx, scope: Scope, webhook_id: str, before: str | None, limit: int) -> Sequence[Row]:
    """Return what was, or is to be, delivered to a webhook, the newest first, with ids below `before`."""
    query = select(deliveries).where(_C.org_id == scope.org, _C.webhook_id == webhook_id)
    query = query.order_by(_C.id.desc()).limit(limit)
    return tx.all(query if before is None else query.where(_C.id < before))


def test_waits(tx: Tx, target_id: str) -> bool:
    mine = (_C.target_id == target_id, _WAITS, _C.type == "test")
    return tx.one(select(_C.id).where(*mine).limit(1)) is not None


def forget_done(tx: Tx, before: datetime, limit: int) -> bool:
    """Forget some of what was taken or given up, and was made before a time; return whether more may be due."""
    old = select(_C.id).where(_C.created_at < before, _C.next_at.is_(None)).order_by(_C.created_at).limit(limit)
    return tx.run(delete(deliveries).where(_C.id.in_(old.scalar_subquery()))) == limit
