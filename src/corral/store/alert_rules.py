"""Rows of alert rules: who is told of which kinds. Their targets are sealed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Select, and_, func, insert, or_, select, update

from corral.store.tables.alerts import alert_rules, webhooks
from corral.store.tables.clusters import tenancies
from corral.store.tables.orgs import orgs
from corral.store.transaction import Row, Scope, Tx

_C = alert_rules.c


def _shown() -> Select[Any]:
    """With the short name of its cluster and the name of its webhook."""
    here = and_(tenancies.c.cluster_id == _C.cluster_id, tenancies.c.org_id == _C.org_id)
    return (
        select(alert_rules, tenancies.c.slug.label("cluster"), webhooks.c.name.label("webhook"))
        .outerjoin(tenancies, here)
        .outerjoin(webhooks, webhooks.c.id == _C.webhook_id)
        .where(_C.removed_at.is_(None))
    )


def add(tx: Tx, scope: Scope, values: Mapping[str, Any]) -> None:
    tx.run(insert(alert_rules).values(org_id=scope.org, created_at=tx.now, **values))


def listed(tx: Tx, scope: Scope, after: str | None, limit: int) -> Sequence[Row]:
    """Return the organisation's rules, the oldest first, from after the id `after`."""
    query = _shown().where(_C.org_id == scope.org).order_by(_C.id).limit(limit)
    return tx.all(query if after is None else query.where(_C.id > after))


def get(tx: Tx, scope: Scope, id: str) -> Row | None:
    return tx.one(_shown().where(_C.org_id == scope.org, _C.id == id))


def lock(tx: Tx, scope: Scope, id: str) -> None:
    """Lock a rule until the transaction ends. What is delivered by it may still be written down."""
    tx.one(select(_C.id).where(_C.org_id == scope.org, _C.id == id).with_for_update(key_share=True))


def count(tx: Tx, scope: Scope) -> int:
    """Return how many there are. Meant for under the organisation's lock."""
    mine = (_C.org_id == scope.org, _C.removed_at.is_(None))
    return int(tx.scalar(select(func.count()).select_from(alert_rules).where(*mine)))


def change(tx: Tx, scope: Scope, id: str, values: Mapping[str, Any]) -> None:
    tx.run(update(alert_rules).where(_C.org_id == scope.org, _C.id == id).values(**values))


def enabled(tx: Tx, scope: Scope) -> Sequence[Row]:
    """Return the rules that tell somebody now: enabled, by an enabled webhook or a target of their own."""
    able = and_(webhooks.c.enabled, webhooks.c.removed_at.is_(None))
    return tx.all(
        select(_C.id, _C.kinds, _C.cluster_id, _C.webhook_id, _C.created_at)
        .join(orgs, orgs.c.id == _C.org_id)
        .outerjoin(webhooks, webhooks.c.id == _C.webhook_id)
        .where(_C.org_id == scope.org, _C.enabled, _C.removed_at.is_(None), orgs.c.removed_at.is_(None))
        .where(or_(_C.webhook_id.is_(None), able))
        .order_by(_C.id)
    )
