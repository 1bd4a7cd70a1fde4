"""Rows of webhooks. Their secrets are sealed; a removed one stays, because its deliveries name it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import func, insert, select, update

from corral.store.tables.alerts import alert_rules, webhooks
from corral.store.tables.orgs import orgs
from corral.store.transaction import Row, Scope, Tx

_C = webhooks.c


def add(tx: Tx, scope: Scope, values: Mapping[str, Any]) -> None:
    tx.run(insert(webhooks).values(org_id=scope.org, created_at=tx.now, **values))


def listed(tx: Tx, scope: Scope, after: str | None, limit: int) -> Sequence[Row]:
    """Return the organisation's webhooks, the oldest first, from after the id `after`."""
    query = select(webhooks).where(_C.org_id == scope.org, _C.removed_at.is_(None)).order_by(_C.id).limit(limit)
    return tx.all(query if after is None else query.where(_C.id > after))


def get(tx: Tx, scope: Scope, id: str) -> Row | None:
    return tx.one(select(webhooks).where(_C.org_id == scope.org, _C.id == id, _C.removed_at.is_(None)))


def locked(tx: Tx, scope: Scope, id: str) -> Row | None:
    """Return a webhook, locked until the transaction ends. What is delivered to it may still be written down."""
    mine = select(webhooks).where(_C.org_id == scope.org, _C.id == id, _C.removed_at.is_(None))
    return tx.one(mine.with_for_update(key_share=True))


def lock_all(tx: Tx, ids: Collection[str]) -> Mapping[str, Row]:
    """Return webhooks of any tenant by id, locked in one order until the transaction ends."""
    query = select(webhooks).where(_C.id.in_(list(ids)), _C.removed_at.is_(None)).order_by(_C.id)
    return {row["id"]: row for row in tx.all(query.with_for_update(key_share=True))}


def count(tx: Tx, scope: Scope) -> int:
    """Return how many there are. Meant for under the organisation's lock."""
    mine = (_C.org_id == scope.org, _C.removed_at.is_(None))
    return int(tx.scalar(select(func.count()).select_from(webhooks).where(*mine)))


def change(tx: Tx, scope: Scope, id: str, values: Mapping[str, Any]) -> None:
    tx.run(update(webhooks).where(_C.org_id == scope.org, _C.id == id).values(**values))


def rules_of(tx: Tx, scope: Scope, id: str) -> Sequence[str]:
    """Return the names of the alert rules that tell by a webhook."""
    mine = (alert_rules.c.org_id == scope.org, alert_rules.c.webhook_id == id, alert_rules.c.removed_at.is_(None))
    return [row["name"] for row in tx.all(select(alert_rules.c.name).where(*mine).order_by(alert_rules.c.name))]


def told_of_events(tx: Tx, org_ids: Collection[str]) -> Sequence[Row]:
    """Return the enabled webhooks of living organisations that are told of events (id, org_id, types, created_at)."""
    query = select(_C.id, _C.org_id, _C.types, _C.created_at).join(orgs, orgs.c.id == _C.org_id)
    enabled = (_C.enabled, _C.removed_at.is_(None), orgs.c.removed_at.is_(None))
    rows = tx.all(query.where(_C.org_id.in_(list(org_ids)), *enabled))
    return [row for row in rows if row["types"]]
