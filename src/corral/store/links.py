"""Rows of one-time links: the operator's, invitations, and login links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, RowMapping, and_, insert, select, update

from corral.store.tables.users import links, users
from corral.store.transaction import Scope, Tx

OPERATOR, LOGIN, INVITATION = "operator", "login", "invitation"


def add(tx: Tx, id: str, secret_hash: bytes, values: Mapping[str, Any]) -> None:
    """Keep a link's hash (`values`: purpose, user_id, org_id, role, login, created_by, expires_at)."""
    tx.run(insert(links).values(id=id, secret_hash=secret_hash, created_at=tx.now, **values))


def by_secret(tx: Tx, secret_hash: bytes) -> RowMapping | None:
    """Return a link, whatever became of it."""
    return tx.one(select(links).where(links.c.secret_hash == secret_hash))


def use(tx: Tx, secret_hash: bytes) -> bool:
    """Mark a live link as used: one conditional statement, so of many at once exactly one succeeds."""
    query = update(links).where(links.c.secret_hash == secret_hash, _live(tx)).values(used_at=tx.now)
    return tx.run(query) == 1


def invitations(tx: Tx, scope: Scope, after: str | None, limit: int) -> Sequence[RowMapping]:
    """Return live invitations with who made them (`by`), oldest first, from after id `after`."""
    query = (
        select(links, users.c.login.label("by"))
        .outerjoin(users, users.c.id == links.c.created_by)
        .where(links.c.org_id == scope.org, links.c.purpose == INVITATION, _live(tx))
    )
    return tx.all((query if after is None else query.where(links.c.id > after)).order_by(links.c.id).limit(limit))


def revoke_invitation(tx: Tx, scope: Scope, id: str) -> RowMapping | None:
    """Revoke a live invitation; None when there is no such one."""
    mine = and_(links.c.org_id == scope.org, links.c.purpose == INVITATION, links.c.id == id, _live(tx))
    return tx.one(update(links).where(mine).values(revoked_at=tx.now).returning(links.c.login, links.c.role))


def revoke_of_org(tx: Tx, scope: Scope) -> None:
    """Revoke every live link that an organisation gave out."""
    tx.run(update(links).where(links.c.org_id == scope.org, _live(tx)).values(revoked_at=tx.now))


def revoke_all(tx: Tx) -> None:
    """Revoke every live link of the site."""
    tx.run(update(links).where(_live(tx)).values(revoked_at=tx.now))


def revoke_operator_links(tx: Tx) -> None:
    """Revoke live links that make the operator."""
    tx.run(update(links).where(links.c.purpose == OPERATOR, _live(tx)).values(revoked_at=tx.now))


def revoke_login_links(tx: Tx, user_id: str) -> None:
    """Revoke a person's live login links."""
    mine = and_(links.c.purpose == LOGIN, links.c.user_id == user_id)
    tx.run(update(links).where(mine, _live(tx)).values(revoked_at=tx.now))


def _live(tx: Tx) -> ColumnElement[bool]:
    return and_(links.c.used_at.is_(None), links.c.revoked_at.is_(None), links.c.expires_at > tx.now)
