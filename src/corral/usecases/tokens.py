"""API tokens: made, listed, revoked at once; when each was last used (spec 50, "Tokens")."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from corral.domain import ids, secrets
from corral.domain import users as rules
from corral.domain.errors import Refusal, not_found
from corral.domain.events import Subject
from corral.store import users as rows
from corral.store.engine import Database
from corral.store.transaction import Row, Wake
from corral.usecases.context import Context


@dataclass(frozen=True)
class Token:
    """A live token as lists show it: never its secret."""

    id: str
    public_id: str
    name: str
    scopes: Sequence[str]
    from_login: bool
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None


@dataclass(frozen=True)
class NewToken:
    """The one answer that has the secret (`text`)."""

    text: str
    token: Token


def create(ctx: Context, name: str, scopes: Sequence[str], expires_in_s: int | None) -> NewToken:
    """Make a token of the caller's. Errors: `INVALID_NAME`, `INVALID_REQUEST`, `FORBIDDEN`, `CONFLICT` (too many)."""
    name = ids.display_name(name, "name of a token")
    allowed = rules.token_scopes(scopes, ctx.scopes)
    expires_at = ctx.now + rules.token_ttl(expires_in_s)
    rows.lock(ctx.tx, ctx.user.id)
    if rows.count_tokens(ctx.tx, ctx.user.id) >= rules.TOKENS_MAX:
        raise Refusal("CONFLICT", f"You have {rules.TOKENS_MAX} live tokens. Revoke one that is not needed first.")
    made = _mint(ctx, ctx.user.id, Token(ctx.new_id(), "", name, allowed, False, ctx.now, expires_at, None))
    data = {"name": name, "token": made.token.public_id, "scopes": list(allowed)}
    ctx.record("token.created", Subject(), **data, expires_at=expires_at.isoformat())
    return made


def log_in(ctx: Context, user_id: str) -> NewToken:
    """Make the token of somebody who has proven who they are; the oldest of this kind give way, with their streams."""
    rows.lock(ctx.tx, user_id)
    if rows.revoke_logins(ctx.tx, user_id, keep=rules.LOGIN_TOKENS_MAX - 1):
        ctx.wake(Wake.STREAMS, user_id)
    expires_at = ctx.now + rules.LOGIN_TOKEN_TTL
    return _mint(ctx, user_id, Token(ctx.new_id(), "", "login", ("all",), True, ctx.now, expires_at, None))


def listed(ctx: Context, after: str | None, limit: int) -> Sequence[Token]:
    """Return the caller's live tokens, oldest first."""
    return [_token(row) for row in rows.tokens(ctx.tx, ctx.user.id, after, limit)]


def revoke(ctx: Context, id: str) -> None:
    """Revoke one of the caller's tokens, by id or public id; its open streams close. Errors: `NOT_FOUND`."""
    row = rows.revoke_token(ctx.tx, ctx.user.id, id)
    if row is None:
        raise not_found()
    ctx.record("token.revoked", Subject(), name=row["name"], token=row["public_id"])
    ctx.wake(Wake.STREAMS, ctx.user.id)


class LastUsed:
    """When tokens were last used: in memory, written down now and then, so that a read costs no write."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._moments: dict[str, datetime] = {}
        self._lock = threading.Lock()

    def note(self, token_id: str, now: datetime) -> None:
        if token_id:
            with self._lock:
                self._moments[token_id] = now

    def flush(self) -> None:
        """Write down what was noted since the last time."""
        with self._lock:
            moments, self._moments = self._moments, {}
        if moments:
            with self._db.write() as tx:
                rows.used(tx, moments)


def _mint(ctx: Context, user_id: str, token: Token) -> NewToken:
    secret = secrets.make(secrets.API, os.urandom(secrets.RANDOM_BYTES))
    values = {
        "id": token.id,
        "name": token.name,
        "scopes": list(token.scopes),
        "from_login": token.from_login,
        "expires_at": token.expires_at,
    }
    rows.add_token(ctx.tx, user_id, secret, values)
    made = Token(
        token.id, secret.public_id, token.name, token.scopes, token.from_login, ctx.now, token.expires_at, None
    )
    return NewToken(secret.text, made)


def _token(row: Row) -> Token:
    return Token(
        row["id"],
        row["public_id"],
        row["name"],
        tuple(row["scopes"]),
        row["from_login"],
        row["created_at"],
        row["expires_at"],
        row["last_used_at"],
    )
