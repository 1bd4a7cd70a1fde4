"""Rows of people, and of the API tokens they carry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, RowMapping, and_, bindparam, func, insert, or_, select, update

from corral.domain.secrets import Secret
from corral.store.tables.users import api_tokens, users
from corral.store.transaction import Tx

_TOKEN_OWNER = (
    select(
        api_tokens.c.id.label("token_id"),
        api_tokens.c.secret_hash,
        api_tokens.c.scopes,
        api_tokens.c.expires_at,
        api_tokens.c.revoked_at,
        users.c.id.label("user_id"),
        users.c.login,
        users.c.name,
        users.c.operator,
    )
    .join(users, users.c.id == api_tokens.c.user_id)
    .where(api_tokens.c.public_id == bindparam("public_id"))
)


def by_login(tx: Tx, login: str) -> RowMapping | None:
    return tx.one(select(users).where(users.c.login == login))


def by_id(tx: Tx, id: str) -> RowMapping | None:
    return tx.one(select(users).where(users.c.id == id))


def lock(tx: Tx, id: str) -> RowMapping | None:
    """Lock a person's row until the transaction ends: what they have a limited number of is made under it."""
    return tx.one(select(users).where(users.c.id == id).with_for_update(key_share=True))


def has_operator(tx: Tx) -> bool:
    return tx.one(select(users.c.id).where(users.c.operator).limit(1)) is not None


def add(tx: Tx, id: str, login: str, values: Mapping[str, Any]) -> bool:
    """Make a person (`values`: name, password_hash, operator); False when the login is taken."""
    return tx.insert_unless_taken(insert(users).values(id=id, login=login, created_at=tx.now, **values))


def change(tx: Tx, id: str, **values: str) -> None:
    tx.run(update(users).where(users.c.id == id).values(**values))


def token_owner(tx: Tx, public_id: str) -> RowMapping | None:
    """Return an API token with its owner, by the token's public id (the caller compares the hash)."""
    return tx.one(_TOKEN_OWNER, {"public_id": public_id})


def add_token(tx: Tx, user_id: str, secret: Secret, values: Mapping[str, Any]) -> None:
    """Keep a token's hash (`values`: id, name, scopes, from_login, expires_at)."""
    row = {"user_id": user_id, "public_id": secret.public_id, "secret_hash": secret.hash, "created_at": tx.now}
    tx.run(insert(api_tokens).values(**row, **values))


def tokens(tx: Tx, user_id: str, after: str | None, limit: int) -> Sequence[RowMapping]:
    """Return a person's live tokens, oldest first, from after id `after`."""
    query = select(api_tokens).where(_live(tx, user_id))
    return tx.all(
        (query if after is None else query.where(api_tokens.c.id > after)).order_by(api_tokens.c.id).limit(limit)
    )


def count_tokens(tx: Tx, user_id: str) -> int:
    """Return how many live tokens a person has made, those of logging in left out."""
    query = select(func.count()).select_from(api_tokens)
    return int(tx.scalar(query.where(_live(tx, user_id), api_tokens.c.from_login.is_(False))))


def revoke_token(tx: Tx, user_id: str, id: str) -> RowMapping | None:
    """Revoke a live token, by id or public id; None when the person has no such one."""
    named = or_(api_tokens.c.id == id, api_tokens.c.public_id == id)
    query = update(api_tokens).where(_live(tx, user_id), named).values(revoked_at=tx.now)
    return tx.one(query.returning(api_tokens.c.id, api_tokens.c.name, api_tokens.c.public_id))


def revoke_logins(tx: Tx, user_id: str, keep: int = 0, but: str = "") -> int:
    """Revoke tokens of logging in, all but the newest `keep` and the token `but`; return how many."""
    mine = and_(_live(tx, user_id), api_tokens.c.from_login)
    kept = select(api_tokens.c.id).where(mine).order_by(api_tokens.c.id.desc()).limit(keep)
    query = update(api_tokens).where(mine, api_tokens.c.id != but, api_tokens.c.id.not_in(kept))
    return tx.run(query.values(revoked_at=tx.now))


def revoke_all_tokens(tx: Tx) -> None:
    """Revoke every API token of the site, those of logins too."""
    tx.run(update(api_tokens).where(api_tokens.c.revoked_at.is_(None)).values(revoked_at=tx.now))


def operators(tx: Tx) -> Sequence[str]:
    """Return the logins of the site's operators."""
    return [row["login"] for row in tx.all(select(users.c.login).where(users.c.operator).order_by(users.c.login))]


def used(tx: Tx, moments: Mapping[str, datetime]) -> None:
    """Set when tokens (by id) were last used; a later moment stays."""
    at = bindparam("at", type_=api_tokens.c.last_used_at.type)
    earlier = or_(api_tokens.c.last_used_at.is_(None), api_tokens.c.last_used_at < at)
    query = update(api_tokens).where(api_tokens.c.id == bindparam("token"), earlier).values(last_used_at=at)
    tx.run(query, [{"token": id, "at": moment} for id, moment in sorted(moments.items())])


def _live(tx: Tx, user_id: str) -> ColumnElement[bool]:
    unexpired = or_(api_tokens.c.expires_at.is_(None), api_tokens.c.expires_at > tx.now)
    return and_(api_tokens.c.user_id == user_id, api_tokens.c.revoked_at.is_(None), unexpired)
