"""`Idempotency-Key`: same key, same answer; another body 422 (spec 50).

The answer is kept in the transaction that makes the thing, so a crash leaves both or neither.
Keys belong to a user, last a day, and never keep a secret.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from corral.domain.errors import Refusal
from corral.store import idempotency as rows
from corral.store.transaction import Tx
from corral.usecases.context import Context

KEPT_FOR = timedelta(days=1)
FORGOTTEN_AT_ONCE = 2_000


def forget_old(tx: Tx) -> bool:
    """Forget a batch of answers whose day is over; return whether more may be due."""
    return rows.drop_older(tx, tx.now - KEPT_FOR, FORGOTTEN_AT_ONCE)


class Racing(Refusal):
    """The same request, sent at the same time, came first. Ask again: its answer is there now."""

    def __init__(self) -> None:
        super().__init__("CONFLICT", "The same request is being answered just now. Send it again to get that answer.")


@dataclass(frozen=True)
class Key:
    """A request's key. `body` is the canonical JSON of what was asked; `route` method and path."""

    key: str
    route: str
    body: bytes


@dataclass(frozen=True)
class Stored:
    status: int
    answer: dict[str, Any]


def recall(ctx: Context, key: Key) -> Stored | None:
    """Return the answer given before, or None if this key is new. Errors: `IDEMPOTENCY_KEY_REUSED`."""
    row = rows.get(ctx.tx, ctx.user.id, key.key)
    if row is None or row["created_at"] + KEPT_FOR < ctx.now:
        return None
    if row["route"] != key.route or row["body_hash"] != hashlib.sha256(key.body).digest():
        raise Refusal(
            "IDEMPOTENCY_KEY_REUSED",
            "This Idempotency-Key was used before for another request. Use a new key for a new request.",
        )
    return Stored(row["status"], row["answer"])


def remember(ctx: Context, key: Key, status: int, answer: dict[str, Any]) -> None:
    """Keep the answer (without secrets) beside what the same transaction made.

    Errors: `Racing` when the same request, sent at the same time, came first: this one must make nothing.
    """
    rows.drop(ctx.tx, ctx.user.id, key.key, ctx.now - KEPT_FOR)
    body_hash = hashlib.sha256(key.body).digest()
    if not rows.put(ctx.tx, ctx.user.id, key.key, key.route, body_hash, status, answer):
        raise Racing
