"""Rows of organisations and their members, and which workspaces a person sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Integer, RowMapping, Select, and_, bindparam, delete, func, insert, or_, select, update

from corral.store.tables.orgs import members, orgs, workspace_members, workspaces
from corral.store.tables.users import users
from corral.store.transaction import Scope, Tx

_WITH_ROLE = (
    select(orgs, members.c.role)
    .outerjoin(members, and_(members.c.org_id == orgs.c.id, members.c.user_id == bindparam("user")))
    .where(orgs.c.removed_at.is_(None))
)
_BY_SLUG = _WITH_ROLE.where(orgs.c.slug == bindparam("slug"))
_OF_USER = (
    _WITH_ROLE.where(members.c.role.is_not(None), orgs.c.slug > bindparam("after"))
    .order_by(orgs.c.slug)
    .limit(bindparam("most", type_=Integer))
)
_WORKSPACE = (
    select(workspaces, workspace_members.c.part)
    .outerjoin(
        workspace_members,
        and_(workspace_members.c.workspace_id == workspaces.c.id, workspace_members.c.user_id == bindparam("user")),
    )
    .where(
        workspaces.c.org_id == bindparam("org"),
        workspaces.c.slug == bindparam("slug"),
        workspaces.c.removed_at.is_(None),
    )
)


def with_role(tx: Tx, slug: str, user_id: str) -> RowMapping | None:
    """Return the organisation and the user's role in it (None: not a member)."""
    return tx.one(_BY_SLUG, {"user": user_id, "slug": slug})


def of_user(tx: Tx, user_id: str, after: str | None, limit: int) -> Sequence[RowMapping]:
    """Return the organisations the user is a member of with their role, by short name, from after `after`."""
    return tx.all(_OF_USER, {"user": user_id, "after": after or "", "most": limit})


def listed(tx: Tx, user_id: str, after: str | None, limit: int) -> Sequence[RowMapping]:
    """Return every organisation of the site with the user's role, for the operator."""
    return _page(tx, _WITH_ROLE.params(user=user_id), orgs.c.slug, after, limit)


def workspace_with_part(tx: Tx, scope: Scope, slug: str, user_id: str) -> RowMapping | None:
    """Return a live workspace and the user's part in it (None: not in it)."""
    return tx.one(_WORKSPACE, {"user": user_id, "org": scope.org, "slug": slug})


def workspaces_of_user(tx: Tx, scope: Scope, user_id: str) -> Sequence[str]:
    """Return the ids of the live workspaces that the user is in."""
    rows = tx.all(
        select(workspaces.c.id)
        .join(workspace_members, workspace_members.c.workspace_id == workspaces.c.id)
        .where(
            workspaces.c.org_id == scope.org,
            workspaces.c.removed_at.is_(None),
            workspace_members.c.user_id == user_id,
        )
    )
    return [row["id"] for row in rows]


def lock(tx: Tx, scope: Scope) -> RowMapping | None:
    """Lock the organisation's row until the transaction ends; None when it is gone. The first lock of all."""
    return tx.one(
        select(orgs).where(orgs.c.id == scope.org, orgs.c.removed_at.is_(None)).with_for_update(key_share=True)
    )


def get(tx: Tx, id: str) -> RowMapping | None:
    """Return a live organisation by its id: for the operator, who names something of it by an id."""
    return tx.one(select(orgs).where(orgs.c.id == id, orgs.c.removed_at.is_(None)))


def add(tx: Tx, id: str, slug: str, name: str, contact: str) -> bool:
    """Make an organisation; False when the short name is taken."""
    row = {"id": id, "slug": slug, "name": name, "contact": contact, "created_at": tx.now}
    return tx.insert_unless_taken(insert(orgs).values(**row))


def change(tx: Tx, scope: Scope, **values: str) -> None:
    tx.run(update(orgs).where(orgs.c.id == scope.org).values(**values))


def set_machine_limit(tx: Tx, scope: Scope, machines: int | None) -> None:
    """Set the organisation's own machine limit on the hosted cluster (None: the site's). Under its lock."""
    tx.run(update(orgs).where(orgs.c.id == scope.org).values(machine_limit=machines))


def remove(tx: Tx, scope: Scope) -> None:
    """Take away its people and mark it and its workspaces removed; the rows stay, for the audit."""
    tx.run(delete(workspace_members).where(workspace_members.c.org_id == scope.org))
    tx.run(delete(members).where(members.c.org_id == scope.org))
    gone = {"removed_at": tx.now}
    tx.run(update(workspaces).where(workspaces.c.org_id == scope.org, workspaces.c.removed_at.is_(None)).values(gone))
    tx.run(update(orgs).where(orgs.c.id == scope.org).values(gone))


def role_of(tx: Tx, scope: Scope, user_id: str) -> str | None:
    role = tx.scalar(select(members.c.role).where(members.c.org_id == scope.org, members.c.user_id == user_id))
    return None if role is None else str(role)


def owners(tx: Tx, scope: Scope) -> int:
    query = select(func.count()).select_from(members).where(members.c.org_id == scope.org, members.c.role == "owner")
    return int(tx.scalar(query))


def memberships(tx: Tx, user_id: str) -> Sequence[str]:
    """Return the ids of the organisations a person is a member of."""
    return [row["org_id"] for row in tx.all(select(members.c.org_id).where(members.c.user_id == user_id))]


def members_listed(tx: Tx, scope: Scope, after: str | None, limit: int) -> Sequence[RowMapping]:
    """Return members with login and name, by login, from after `after`."""
    return _page(tx, _members(scope), users.c.login, after, limit)


def member(tx: Tx, scope: Scope, user: str) -> RowMapping | None:
    """Return one member, by login or id."""
    return tx.one(_members(scope).where(or_(users.c.login == user, users.c.id == user)))


def add_member(tx: Tx, scope: Scope, user_id: str, role: str) -> None:
    tx.run(insert(members).values(org_id=scope.org, user_id=user_id, role=role, joined_at=tx.now))


def set_role(tx: Tx, scope: Scope, user_id: str, role: str) -> None:
    tx.run(update(members).where(members.c.org_id == scope.org, members.c.user_id == user_id).values(role=role))


def remove_member(tx: Tx, scope: Scope, user_id: str) -> None:
    """Take a person out of the organisation and out of its workspaces."""
    for table in (workspace_members, members):
        tx.run(delete(table).where(table.c.org_id == scope.org, table.c.user_id == user_id))


def _members(scope: Scope) -> Select[Any]:
    return (
        select(members, users.c.login, users.c.name, users.c.operator)
        .join(users, users.c.id == members.c.user_id)
        .where(members.c.org_id == scope.org)
    )


def _page(tx: Tx, query: Select[Any], key: Any, after: str | None, limit: int) -> Sequence[RowMapping]:
    return tx.all((query if after is None else query.where(key > after)).order_by(key).limit(limit))
