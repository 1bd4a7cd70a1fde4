"""Rows of people: users, one-time links, API tokens, SSH keys."""

from __future__ import annotations

from sqlalchemy import RowMapping, select

from corral.store.tables.users import api_tokens, users
from corral.store.transaction import Tx


def token_owner(tx: Tx, public_id: str) -> RowMapping | None:
    """Return an API token with its owner, by the token's public id (the caller compares the hash)."""
    return tx.one(
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
        .where(api_tokens.c.public_id == public_id)
    )
