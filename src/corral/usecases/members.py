"""Members of an organisation: their roles, their going, and login links for those who lost their password (spec 05)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from corral.domain import orgs as rules
from corral.domain import users
from corral.domain.errors import Refusal, not_found
from corral.domain.events import Subject
from corral.domain.permissions import Role
from corral.store import links
from corral.store import orgs as rows
from corral.store.transaction import Row
from corral.usecases import desired, orgs
from corral.usecases import links as link_acts
from corral.usecases.context import Context
from corral.usecases.links import NewLink


@dataclass(frozen=True)
class Member:
    user_id: str
    login: str
    name: str
    role: str
    joined_at: datetime


def listed(ctx: Context, after: str | None, limit: int) -> Sequence[Member]:
    """Return the members by login."""
    return [_member(row) for row in rows.members_listed(ctx.tx, ctx.scope, after, limit)]


def set_role(ctx: Context, user: str, role: Role) -> Member:
    """Give a member (login or id) a role. Errors: `NOT_FOUND`, `FORBIDDEN`, `LAST_OWNER`."""
    row = _locked(ctx, user, role)
    if row["role"] != role.value:
        rules.check_owner_stays(Role(row["role"]), role, rows.owners(ctx.tx, ctx.scope))
        rows.set_role(ctx.tx, ctx.scope, row["user_id"], role.value)
        ctx.record("org.member.role", Subject(org=ctx.org.id), login=row["login"], before=row["role"], after=role.value)
        desired.wake_user(ctx.tx, ctx.scope, row["user_id"])
    return _member(_one(ctx, row["user_id"]))


def remove(ctx: Context, user: str) -> None:
    """Take a member out of the organisation and its workspaces. Errors: `NOT_FOUND`, `FORBIDDEN`, `LAST_OWNER`.

    Their tokens stay theirs but see nothing of the organisation from now on; open streams close.
    """
    row = _locked(ctx, user, Role.MEMBER)
    rules.check_owner_stays(Role(row["role"]), None, rows.owners(ctx.tx, ctx.scope))
    rows.remove_member(ctx.tx, ctx.scope, row["user_id"])
    ctx.record("org.member.removed", Subject(org=ctx.org.id), login=row["login"], role=row["role"])
    desired.wake_user(ctx.tx, ctx.scope, row["user_id"])


def login_link(ctx: Context, user: str) -> NewLink:
    """Make a one-time link for a member who lost their password; it replaces an older one.

    Errors: `NOT_FOUND`; `FORBIDDEN` for the operator and for people of another organisation too:
    an owner must not take them over.
    """
    row = _locked(ctx, user, Role.MEMBER)
    if row["operator"] or list(rows.memberships(ctx.tx, row["user_id"])) != [ctx.org.id]:
        raise Refusal(
            "FORBIDDEN",
            f"'{row['login']}' is known outside this organisation too, so no owner makes them a login link. "
            "They change their password with a token of theirs.",
        )
    links.revoke_login_links(ctx.tx, row["user_id"])
    made = link_acts.make(ctx, links.LOGIN, users.LOGIN_LINK_TTL, user_id=row["user_id"], org_id=ctx.org.id)
    ctx.record("user.link", Subject(org=ctx.org.id), login=row["login"])
    return made


def _locked(ctx: Context, user: str, wanted: Role) -> Row:
    """Return the member, under the organisation's lock, when the caller may still set this role."""
    orgs.locked(ctx)
    row = _one(ctx, user)
    mine = rows.role_of(ctx.tx, ctx.scope, ctx.user.id)
    if mine is None:
        raise not_found()
    rules.check_role_change(Role(mine), Role(row["role"]), wanted)
    return row


def _one(ctx: Context, user: str) -> Row:
    row = rows.member(ctx.tx, ctx.scope, user.lower())
    if row is None:
        raise not_found()
    return row


def _member(row: Row) -> Member:
    return Member(row["user_id"], row["login"], row["name"], row["role"], row["joined_at"])
