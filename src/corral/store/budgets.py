"""Rows of workspaces' budgets, and of the thresholds that were reached: each once in a month."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import RowMapping, Select, and_, delete, insert, select, update

from corral.store.tables.orgs import workspaces
from corral.store.tables.prices import budget_crossings, budgets
from corral.store.transaction import Scope, Tx

_B, _X = budgets.c, budget_crossings.c


def _live() -> Select[Any]:
    """Budgets of workspaces that still exist, with their short name."""
    return (
        select(budgets, workspaces.c.slug)
        .join(workspaces, and_(workspaces.c.id == _B.workspace_id, workspaces.c.org_id == _B.org_id))
        .where(workspaces.c.removed_at.is_(None))
    )


def listed(tx: Tx, scope: Scope, after: str | None, limit: int) -> Sequence[RowMapping]:
    """Return the organisation's budgets by their workspace's short name, from after `after`."""
    query = _live().where(_B.org_id == scope.org).order_by(workspaces.c.slug).limit(limit)
    return tx.all(query if after is None else query.where(workspaces.c.slug > after))


def get(tx: Tx, scope: Scope, workspace_id: str) -> RowMapping | None:
    return tx.one(_live().where(_B.org_id == scope.org, _B.workspace_id == workspace_id))


def lock(tx: Tx, scope: Scope, workspace_id: str) -> RowMapping | None:
    """Return a budget, which nobody changes until the transaction ends."""
    mine = _live().where(_B.org_id == scope.org, _B.workspace_id == workspace_id)
    return tx.one(mine.with_for_update(of=budgets, key_share=True))


def put(tx: Tx, scope: Scope, workspace_id: str, values: Mapping[str, Any]) -> None:
    """Set a budget; the organisation is locked."""
    mine = update(budgets).where(_B.org_id == scope.org, _B.workspace_id == workspace_id)
    if not tx.run(mine.values(changed_at=tx.now, **values)):
        row = {"org_id": scope.org, "workspace_id": workspace_id, "changed_at": tx.now}
        tx.run(insert(budgets).values(**row, **values))


def remove(tx: Tx, scope: Scope, workspace_id: str) -> None:
    tx.run(delete(budgets).where(_B.org_id == scope.org, _B.workspace_id == workspace_id))


def orgs_with_budgets(tx: Tx, after: str | None, limit: int) -> Sequence[str]:
    """Return ids of organisations that have a budget: for the site's own pass over all of them."""
    query = select(_B.org_id).distinct().order_by(_B.org_id).limit(limit)
    return [row["org_id"] for row in tx.all(query if after is None else query.where(_B.org_id > after))]


def crossed(tx: Tx, scope: Scope, workspace_ids: Collection[str], months: Collection[str]) -> set[tuple[str, str, int]]:
    """Return what was said already: (workspace, month, percent) each."""
    rows = tx.all(
        select(_X.workspace_id, _X.month, _X.percent).where(
            _X.org_id == scope.org, _X.workspace_id.in_(list(workspace_ids)), _X.month.in_(list(months))
        )
    )
    return {(row["workspace_id"], row["month"], row["percent"]) for row in rows}


def cross(tx: Tx, scope: Scope, workspace_id: str, month: str, percent: int) -> bool:
    """Write down that a threshold was reached; False when it was already."""
    row = {"org_id": scope.org, "workspace_id": workspace_id, "month": month, "percent": percent, "at": tx.now}
    return tx.insert_unless_taken(insert(budget_crossings).values(**row))
