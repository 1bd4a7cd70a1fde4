"""Logging in: by password, or by a one-time link that works exactly once (spec 05, spec 50).

A password is judged between two transactions, never inside one: argon2 is slow on purpose
and must not hold up anybody's write. Every refusal is audited.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

from corral.domain import secrets
from corral.domain import users as rules
from corral.domain.errors import Refusal
from corral.domain.events import Subject
from corral.store import orgs as org_rows
from corral.store import users as rows
from corral.store.transaction import Actor, Row
from corral.usecases import links, passwords, tokens
from corral.usecases.attempts import Attempts
from corral.usecases.context import Context, User
from corral.usecases.identity import Caller, identify

ORGS_SHOWN = 1000


class Doors(Protocol):
    """Where an anonymous act enters; each call is a transaction of its own."""

    caller: Caller

    def read(self) -> AbstractContextManager[Context]: ...

    def write(self) -> AbstractContextManager[Context]: ...


@dataclass(frozen=True)
class Membership:
    slug: str
    name: str
    role: str


@dataclass(frozen=True)
class LoggedIn:
    """Who logged in. `token` None: they came with a token of their own and go on with it."""

    token: str | None
    user: User
    orgs: Sequence[Membership]


@dataclass(frozen=True)
class LinkAsk:
    """What somebody sends with a link: its secret, and who they are or want to be."""

    link: str
    login: str | None = None
    name: str | None = None
    password: str | None = None


def by_password(doors: Doors, attempts: Attempts, login: str, password: str) -> LoggedIn:
    """Log in. Errors: `UNAUTHENTICATED` (the same for unknown people), `RATE_LIMITED`, `UNAVAILABLE`."""
    known = rules.login_or_none(login)
    address = doors.caller.address
    with doors.read() as ctx:
        attempts.charge(known or "-", address, ctx.now)
        row = rows.by_login(ctx.tx, known) if known else None
    hash = row["password_hash"] if row is not None else None
    if not passwords.matches(hash, password) or row is None:
        with doors.write() as ctx:
            _refused(ctx, known, "password")
        raise _wrong_password()
    with doors.write() as ctx:
        logged_in = _accept(ctx, row["id"], hash)
    attempts.forgive(known or "-", address)
    return logged_in


def by_link(doors: Doors, attempts: Attempts, ask: LinkAsk) -> LoggedIn:
    """Use a one-time link. Errors: `UNAUTHENTICATED` (unknown), `LINK_USED`, `LINK_EXPIRED`, `RATE_LIMITED` …"""
    with doors.read() as ctx:
        attempts.charge("", doors.caller.address, ctx.now)
    try:
        logged_in = _by_link(doors, attempts, ask)
    except Refusal as refusal:
        if refusal.code in ("UNAUTHENTICATED", "FORBIDDEN", "LINK_USED", "LINK_EXPIRED"):
            with doors.write() as ctx:
                _refused(ctx, rules.login_or_none(ask.login or ""), "link")
        raise
    attempts.forgive("", doors.caller.address)
    return logged_in


def change_password(doors: Doors, attempts: Attempts, present: str | None, wanted: str) -> None:
    """Set one's own password; other logins end. Errors: `INVALID_REQUEST`, `UNAUTHENTICATED` (the present one)."""
    with doors.read() as ctx:
        row = _one(ctx, ctx.user.id)
        if row["password_hash"] is not None:
            attempts.charge(ctx.user.login, doors.caller.address, ctx.now)
    hash = row["password_hash"]
    if hash is not None and not passwords.matches(hash, present or ""):
        with doors.write() as ctx:
            _refused(ctx, ctx.user.login, "password")
        raise Refusal("FORBIDDEN", "The present password is not this one. Send it as `present`.", field="present")
    new = passwords.hashed(wanted)
    with doors.write() as ctx:
        if _one(ctx, ctx.user.id)["password_hash"] != hash:
            raise Refusal("CONFLICT", "The password was changed meanwhile. Log in again.")
        links.set_password(ctx, ctx.user.id, new, keep_token=ctx.token_id)
        ctx.record("user.password", Subject())
    attempts.forgive(row["login"], doors.caller.address)


def memberships(ctx: Context, user_id: str) -> Sequence[Membership]:
    """Return the organisations somebody is a member of, by short name."""
    found = org_rows.of_user(ctx.tx, user_id, None, ORGS_SHOWN)
    return [Membership(row["slug"], row["name"], row["role"]) for row in found]


def _by_link(doors: Doors, attempts: Attempts, ask: LinkAsk) -> LoggedIn:
    secret = secrets.parse(secrets.LINK, ask.link.rpartition("#")[2].partition("&")[0])
    if secret is None:
        raise links.unknown()
    with doors.read() as ctx:
        bearer = identify(ctx.tx, doors.caller) if doors.caller.token else None
        expected = links.look(ctx, secret, ask.login) if bearer is None else None
    if bearer is not None and "all" not in bearer.scopes:
        raise Refusal(
            "FORBIDDEN", "This API token is too narrow to accept an invitation. Log in and use the link then."
        )
    person = links.Person(ask.login, ask.name, bearer=bearer.user.id if bearer else None)
    if expected is not None:
        attempts.charge(expected["login"], doors.caller.address, ctx.now)
        if not passwords.matches(expected["password_hash"], ask.password or ""):
            raise Refusal(
                "UNAUTHENTICATED",
                f"There is somebody called {expected['login']} already. If that is you, send your password with the "
                "link, or log in first; if not, choose another login.",
            )
        attempts.forgive(expected["login"], doors.caller.address)
        person = replace(person, proven=expected["id"])
    elif ask.password is not None and bearer is None:
        person = replace(person, password_hash=passwords.hashed(ask.password))
    with doors.write() as ctx:
        user = links.use(ctx, secret, person)
        return _logged_in(ctx, user, None if person.bearer else tokens.log_in(ctx, user["id"]).text)


def _accept(ctx: Context, user_id: str, hash: str | None) -> LoggedIn:
    row = _one(ctx, user_id)
    if row["password_hash"] != hash:
        raise _wrong_password()  # changed while this one was judged
    token = tokens.log_in(ctx, user_id)
    acting = links.as_user(ctx, row)
    acting.record("user.logged_in", Subject(), via="password", token=token.token.public_id)
    return _logged_in(ctx, row, token.text)


def _logged_in(ctx: Context, row: Row, token: str | None) -> LoggedIn:
    user = User(row["id"], row["login"], row["name"], row["operator"])
    return LoggedIn(token, user, memberships(ctx, user.id))


def _one(ctx: Context, user_id: str) -> Row:
    row = rows.lock(ctx.tx, user_id)
    if row is None:
        raise _wrong_password()
    return row


def _refused(ctx: Context, login: str | None, via: str) -> None:
    actor = ctx.actor if ctx.user_or_none else Actor("site", None, "anonymous", ctx.actor.address, ctx.actor.request_id)
    replace(ctx, actor=actor).record("user.login_refused", Subject(), login=login or "", via=via)


def _wrong_password() -> Refusal:
    return Refusal("UNAUTHENTICATED", "Login or password is wrong. Check both, or ask an owner for a login link.")
