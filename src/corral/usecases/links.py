"""One-time links: what each kind does when it is used (spec 50, "First user of a fresh site"; spec 05).

The operator's link makes the operator, an invitation makes or joins a member, a login link
lets somebody in who lost their password. A link is used by one conditional statement.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from corral.domain import secrets
from corral.domain import users as rules
from corral.domain.errors import Refusal
from corral.domain.events import Subject
from corral.domain.permissions import Role
from corral.domain.secrets import Secret
from corral.store import links as rows
from corral.store import orgs as org_rows
from corral.store import users as user_rows
from corral.store.transaction import Actor, Row, Scope, Wake
from corral.usecases.context import Context


@dataclass(frozen=True)
class NewLink:
    """The one answer that has the secret (`text`)."""

    id: str
    text: str
    expires_at: datetime


@dataclass(frozen=True)
class Person:
    """Who uses a link: wishes of somebody new, or the id of somebody who has proven who they are."""

    login: str | None = None
    name: str | None = None
    password_hash: str | None = None
    """Of the password they want."""
    proven: str | None = None
    """By their password."""
    bearer: str | None = None
    """By an API token, which they go on using."""


def make(ctx: Context, purpose: str, ttl: timedelta, **values: Any) -> NewLink:
    """Make a link (`values`: user_id, org_id, role, login)."""
    secret = secrets.make(secrets.LINK, os.urandom(secrets.RANDOM_BYTES))
    made = NewLink(ctx.new_id(), secret.text, ctx.now + ttl)
    row = {"purpose": purpose, "created_by": ctx.user.id, "expires_at": made.expires_at, **values}
    rows.add(ctx.tx, made.id, secret.hash, row)
    return made


def look(ctx: Context, secret: Secret, login: str | None) -> Row | None:
    """Return the person who must first prove by password that the link's `login` is theirs, if any.

    Errors: as `use`, so that nobody hashes a password for a dead link.
    """
    row = _live(ctx, secret)
    wanted = login or row["login"]
    if row["purpose"] != rows.INVITATION or not wanted:
        return None
    return user_rows.by_login(ctx.tx, rules.login(wanted))


def use(ctx: Context, secret: Secret, person: Person) -> Row:
    """Use a link and return the row of the person it let in.

    Errors: `UNAUTHENTICATED` (unknown), `LINK_USED`, `LINK_EXPIRED`, `FORBIDDEN` (meant for somebody else),
    `NAME_TAKEN` (the login), `CONFLICT` (a member already), `INVALID_NAME`, `INVALID_REQUEST`.
    """
    row = rows.by_secret(ctx.tx, secret.hash)
    if row is None:
        raise unknown()
    if row["org_id"] is not None and org_rows.lock(ctx.tx, Scope(row["org_id"])) is None:
        raise _expired("Its organisation was removed.")
    if row["user_id"] is not None:
        user_rows.lock(ctx.tx, row["user_id"])  # before the link, as whoever changes a password does
    if not rows.use(ctx.tx, secret.hash):
        _live(ctx, secret)
        raise unknown()
    return _PURPOSES[row["purpose"]](ctx, row, person)


def unknown() -> Refusal:
    return Refusal(
        "UNAUTHENTICATED", "This link is unknown: mistyped, cut short, or replaced by a newer one. Ask for a new one."
    )


def as_user(ctx: Context, row: Row) -> Context:
    """Return the context with that person as the one who acts."""
    actor = Actor("user", row["id"], row["login"], ctx.actor.address, ctx.actor.request_id)
    return replace(ctx, actor=actor, user_or_none=None)


def set_password(ctx: Context, user_id: str, hash: str, keep_token: str = "") -> None:
    """Set a password and end every other login of that person. The caller records it."""
    user_rows.change(ctx.tx, user_id, password_hash=hash)
    user_rows.revoke_logins(ctx.tx, user_id, but=keep_token)
    rows.revoke_login_links(ctx.tx, user_id)
    ctx.wake(Wake.STREAMS, user_id)


def _live(ctx: Context, secret: Secret) -> Row:
    """Return a link that may still be used. Errors: `UNAUTHENTICATED`, `LINK_USED`, `LINK_EXPIRED`."""
    row = rows.by_secret(ctx.tx, secret.hash)
    if row is None:
        raise unknown()
    if row["used_at"] is not None:
        raise Refusal("LINK_USED", "This link was used already, and works once. Ask for a new one.")
    if row["revoked_at"] is not None:
        raise _expired("It was revoked.")
    if row["expires_at"] <= ctx.now:
        raise _expired("Its time is over.")
    return row


def _make_operator(ctx: Context, row: Row, person: Person) -> Row:
    if user_rows.has_operator(ctx.tx):
        raise _expired("The site has an operator.")
    user = _new_user(ctx, person, operator=True)
    as_user(ctx, user).record("user.logged_in", Subject(), via="link", operator=True)
    return user


def _log_in(ctx: Context, row: Row, person: Person) -> Row:
    user = user_rows.lock(ctx.tx, row["user_id"])
    if user is None:
        raise unknown()
    if person.bearer or (person.login and rules.login_or_none(person.login) != user["login"]):
        raise Refusal(
            "FORBIDDEN",
            "This link lets in the person it was made for. Use it without --login and while logged in as nobody else.",
        )
    if row["org_id"] is not None:
        _check_only_here(ctx, row["org_id"], user)
    if person.password_hash is not None:
        set_password(ctx, user["id"], person.password_hash)
    changed = person.password_hash is not None
    as_user(ctx, user).record("user.logged_in", Subject(), via="link", password_changed=changed)
    return user


def _check_only_here(ctx: Context, org_id: str, user: Row) -> None:
    """An owner's link must not take over somebody who has meanwhile joined another organisation."""
    if user["operator"] or list(org_rows.memberships(ctx.tx, user["id"])) != [org_id]:
        raise _expired("Its owner is not a member of that organisation alone any more.")


def _join(ctx: Context, row: Row, person: Person) -> Row:
    scope = Scope(row["org_id"])
    _check_maker(ctx, scope, row)
    known = person.proven or person.bearer
    user = user_rows.lock(ctx.tx, known) if known else _new_user(ctx, _invited(person, row), operator=False)
    if user is None:
        raise unknown()
    if row["login"] and row["login"] != user["login"]:
        raise Refusal("FORBIDDEN", "This invitation is meant for another login. Ask for one of your own.")
    if org_rows.role_of(ctx.tx, scope, user["id"]) is not None:
        raise Refusal("CONFLICT", "You are a member of this organisation already. There is nothing to accept.")
    org_rows.add_member(ctx.tx, scope, user["id"], row["role"])
    as_user(ctx, user).record("org.member.joined", Subject(org=scope.org), login=user["login"], role=row["role"])
    return user


def _invited(person: Person, row: Row) -> Person:
    return person if person.login or not row["login"] else replace(person, login=row["login"])


def _check_maker(ctx: Context, scope: Scope, row: Row) -> None:
    """An invitation is worth what its maker may still do: an owner's, or the operator's where no owner is left."""
    if org_rows.role_of(ctx.tx, scope, row["created_by"]) == Role.OWNER.value:
        return
    maker = user_rows.by_id(ctx.tx, row["created_by"])
    if maker is not None and maker["operator"] and org_rows.owners(ctx.tx, scope) == 0:
        return
    raise _expired("Whoever made it may not invite people any more.")


def _new_user(ctx: Context, person: Person, *, operator: bool) -> Row:
    if person.bearer or person.proven:
        raise Refusal("FORBIDDEN", "This link makes somebody new. Use it without a token.")
    if not person.login:
        raise Refusal("INVALID_REQUEST", "login: choose the login that you want to have.", field="login")
    login = rules.login(person.login)
    name = rules.person_name(person.name or login)
    id = ctx.new_id()
    values = {"name": name, "password_hash": person.password_hash, "operator": operator}
    if not user_rows.add(ctx.tx, id, login, values):
        raise Refusal("NAME_TAKEN", f"The login '{login}' is taken. Choose another; the link still works.")
    made = user_rows.by_id(ctx.tx, id)
    assert made is not None
    return made


def _expired(why: str) -> Refusal:
    return Refusal("LINK_EXPIRED", f"This link does not work any more. {why} Ask for a new one.")


_PURPOSES = {rows.OPERATOR: _make_operator, rows.LOGIN: _log_in, rows.INVITATION: _join}
