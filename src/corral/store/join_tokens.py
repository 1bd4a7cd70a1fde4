"""Rows of join tokens. Used stays used: removing the machine frees nothing (security cases)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import RowMapping, func, insert, select, update

from corral.domain.secrets import Secret
from corral.store.tables.clusters import join_tokens
from corral.store.tables.users import users
from corral.store.transaction import Scope, Tx


def add(tx: Tx, scope: Scope, secret: Secret, values: Mapping[str, Any]) -> None:
    """Keep a new token: its public id and the hash of its secret. `values`: id, cluster_id, labels, …"""
    tx.run(
        insert(join_tokens).values(
            org_id=scope.org, public_id=secret.public_id, secret_hash=secret.hash, created_at=tx.now, **values
        )
    )


def by_public_id(tx: Tx, public_id: str) -> RowMapping | None:
    """Return a token whosoever's it is (the caller compares the hash): a joining machine knows no organisation."""
    return tx.one(select(join_tokens).where(join_tokens.c.public_id == public_id))


def unused(tx: Tx, scope: Scope, cluster_id: str, after: str | None, limit: int) -> Sequence[RowMapping]:
    """Return unexpired unused tokens, oldest first, from after the id `after`; with `login`, their maker's."""
    query = (
        select(join_tokens, users.c.login)
        .outerjoin(users, users.c.id == join_tokens.c.created_by)
        .where(*_waiting(tx, scope, cluster_id))
        .order_by(join_tokens.c.id)
        .limit(limit)
    )
    return tx.all(query if after is None else query.where(join_tokens.c.id > after))


def count_unused(tx: Tx, scope: Scope, cluster_id: str) -> int:
    """Return how many tokens may still be used. Meant for under the organisation's lock."""
    return int(tx.scalar(select(func.count()).where(*_waiting(tx, scope, cluster_id))))


def revoke(tx: Tx, scope: Scope, cluster_id: str, id: str) -> RowMapping | None:
    """Revoke an unused token; return its row, or None where there is none that can be."""
    # Not only unexpired ones: revoking one that expired a moment ago is no mistake.
    found = tx.run(
        update(join_tokens)
        .where(
            join_tokens.c.org_id == scope.org,
            join_tokens.c.cluster_id == cluster_id,
            join_tokens.c.id == id,
            join_tokens.c.used_at.is_(None),
            join_tokens.c.revoked_at.is_(None),
        )
        .values(revoked_at=tx.now)
    )
    return tx.one(select(join_tokens).where(join_tokens.c.id == id)) if found == 1 else None


def revoke_unused(tx: Tx, scope: Scope, cluster_id: str) -> Sequence[str]:
    """Revoke every token that may still be used; return their public ids."""
    revoke = update(join_tokens).where(*_waiting(tx, scope, cluster_id)).values(revoked_at=tx.now)
    return sorted(row["public_id"] for row in tx.all(revoke.returning(join_tokens.c.public_id)))


def revoke_all_unused(tx: Tx) -> None:
    """Revoke every token of the site that may still be used."""
    unused = (join_tokens.c.used_at.is_(None), join_tokens.c.revoked_at.is_(None))
    tx.run(update(join_tokens).where(*unused).values(revoked_at=tx.now))


def bind(tx: Tx, id: str, key_hash: bytes, machine_id: str) -> bool:
    """Bind an unused, unrevoked, unexpired token to the machine that holds this key; return whether it was.

    One conditional statement: of any number that try at once, the database lets one.
    """
    bound = tx.run(
        update(join_tokens)
        .where(
            join_tokens.c.id == id,
            join_tokens.c.used_at.is_(None),
            join_tokens.c.revoked_at.is_(None),
            join_tokens.c.expires_at > tx.now,
        )
        .values(used_at=tx.now, key_hash=key_hash, machine_id=machine_id)
    )
    return bound == 1


def _waiting(tx: Tx, scope: Scope, cluster_id: str) -> list[Any]:
    return [
        join_tokens.c.org_id == scope.org,
        join_tokens.c.cluster_id == cluster_id,
        join_tokens.c.used_at.is_(None),
        join_tokens.c.revoked_at.is_(None),
        join_tokens.c.expires_at > tx.now,
    ]
