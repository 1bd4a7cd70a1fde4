"""Rows of workspaces, the people in them, and what lives in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import RowMapping, Select, delete, func, insert, select, update

from corral.domain.workspaces import LISTED, Some
from corral.store.tables.machines import machines
from corral.store.tables.orgs import workspace_members, workspaces
from corral.store.tables.users import users
from corral.store.tables.workloads import workloads
from corral.store.transaction import Scope, Tx


def listed(tx: Tx, scope: Scope, user_id: str | None, after: str | None, limit: int) -> Sequence[RowMapping]:
    """Return live workspaces by short name, from after `after`; those of one person when `user_id` is given."""
    query = select(workspaces).where(workspaces.c.org_id == scope.org, workspaces.c.removed_at.is_(None))
    if user_id is not None:
        query = query.join(workspace_members, workspace_members.c.workspace_id == workspaces.c.id).where(
            workspace_members.c.user_id == user_id
        )
    if after is not None:
        query = query.where(workspaces.c.slug > after)
    return tx.all(query.order_by(workspaces.c.slug).limit(limit))


def by_slug(tx: Tx, scope: Scope, slug: str) -> RowMapping | None:
    return tx.one(
        select(workspaces).where(
            workspaces.c.org_id == scope.org, workspaces.c.slug == slug, workspaces.c.removed_at.is_(None)
        )
    )


def is_live(tx: Tx, scope: Scope, id: str) -> bool:
    """Return whether the workspace still exists."""
    query = select(workspaces.c.id).where(
        workspaces.c.org_id == scope.org, workspaces.c.id == id, workspaces.c.removed_at.is_(None)
    )
    return tx.one(query) is not None


def add(tx: Tx, scope: Scope, id: str, slug: str, name: str) -> bool:
    """Make a workspace; False when the short name is taken."""
    row = {"id": id, "org_id": scope.org, "slug": slug, "name": name, "created_at": tx.now}
    return tx.insert_unless_taken(insert(workspaces).values(**row))


def rename(tx: Tx, scope: Scope, id: str, name: str) -> None:
    tx.run(update(workspaces).where(workspaces.c.org_id == scope.org, workspaces.c.id == id).values(name=name))


def remove(tx: Tx, scope: Scope, id: str) -> None:
    """Take the people out and mark it removed; its row stays, for the audit, and its short name is free again."""
    tx.run(
        delete(workspace_members).where(workspace_members.c.org_id == scope.org, workspace_members.c.workspace_id == id)
    )
    tx.run(update(workspaces).where(workspaces.c.org_id == scope.org, workspaces.c.id == id).values(removed_at=tx.now))


def members_listed(tx: Tx, scope: Scope, id: str, after: str | None, limit: int) -> Sequence[RowMapping]:
    """Return the people in a workspace with their part, by login, from after `after`."""
    query = (
        select(workspace_members, users.c.login, users.c.name)
        .join(users, users.c.id == workspace_members.c.user_id)
        .where(workspace_members.c.org_id == scope.org, workspace_members.c.workspace_id == id)
    )
    if after is not None:
        query = query.where(users.c.login > after)
    return tx.all(query.order_by(users.c.login).limit(limit))


def part_of(tx: Tx, scope: Scope, id: str, user_id: str) -> str | None:
    part = tx.scalar(
        select(workspace_members.c.part).where(
            workspace_members.c.org_id == scope.org,
            workspace_members.c.workspace_id == id,
            workspace_members.c.user_id == user_id,
        )
    )
    return None if part is None else str(part)


def set_part(tx: Tx, scope: Scope, id: str, user_id: str, part: str) -> None:
    """Put a member of the organisation into the workspace, or change their part in it."""
    changed = tx.run(
        update(workspace_members)
        .where(
            workspace_members.c.org_id == scope.org,
            workspace_members.c.workspace_id == id,
            workspace_members.c.user_id == user_id,
        )
        .values(part=part)
    )
    if not changed:
        row = {"org_id": scope.org, "workspace_id": id, "user_id": user_id, "part": part, "since": tx.now}
        tx.run(insert(workspace_members).values(**row))


def remove_member(tx: Tx, scope: Scope, id: str, user_id: str) -> bool:
    """Take somebody out of the workspace; False when they were not in it."""
    return bool(
        tx.run(
            delete(workspace_members).where(
                workspace_members.c.org_id == scope.org,
                workspace_members.c.workspace_id == id,
                workspace_members.c.user_id == user_id,
            )
        )
    )


def live_workloads(tx: Tx, scope: Scope, id: str | None, cluster_id: str | None, limit: int) -> Sequence[str]:
    """Return names of live workloads of a workspace (None: of every one) in a cluster (None: in every one)."""
    query = select(workloads.c.name).where(workloads.c.org_id == scope.org, workloads.c.ended_at.is_(None))
    if id is not None:
        query = query.where(workloads.c.workspace_id == id)
    if cluster_id is not None:
        query = query.where(workloads.c.cluster_id == cluster_id)
    return [row["name"] for row in tx.all(query.order_by(workloads.c.name).limit(limit))]


def count_machines(tx: Tx, scope: Scope) -> int:
    """Return how many machines the organisation has enrolled, in every cluster."""
    query = select(func.count()).select_from(machines)
    return int(tx.scalar(query.where(machines.c.org_id == scope.org, machines.c.removed_at.is_(None))))


def some(tx: Tx, query: Select[Any]) -> Some:
    """Return the first, by short name, of the workspaces that a query for their `slug` finds, and how many more."""
    counted = query.add_columns(func.count().over().label("all")).order_by(workspaces.c.slug).limit(LISTED)
    rows = tx.all(counted)
    return Some([row["slug"] for row in rows], int(rows[0]["all"]) - len(rows) if rows else 0)
