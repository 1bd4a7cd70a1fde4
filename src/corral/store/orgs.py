"""Rows of organisations, their members, workspaces and the people in them."""

from __future__ import annotations

from sqlalchemy import RowMapping, and_, select

from corral.store.tables.orgs import members, orgs, workspace_members, workspaces
from corral.store.transaction import Scope, Tx


def with_role(tx: Tx, slug: str, user_id: str) -> RowMapping | None:
    """Return the organisation and the user's role in it (None: not a member)."""
    return tx.one(
        select(orgs, members.c.role)
        .outerjoin(members, and_(members.c.org_id == orgs.c.id, members.c.user_id == user_id))
        .where(orgs.c.slug == slug)
    )


def workspace_with_part(tx: Tx, scope: Scope, slug: str, user_id: str) -> RowMapping | None:
    """Return a live workspace and the user's part in it (None: not in it)."""
    return tx.one(
        select(workspaces, workspace_members.c.part)
        .outerjoin(
            workspace_members,
            and_(workspace_members.c.workspace_id == workspaces.c.id, workspace_members.c.user_id == user_id),
        )
        .where(workspaces.c.org_id == scope.org, workspaces.c.slug == slug, workspaces.c.removed_at.is_(None))
    )
