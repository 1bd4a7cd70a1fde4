"""The site's one row: its incarnation and settings."""

from __future__ import annotations

from typing import Any

from sqlalchemy import RowMapping, insert, select, update

from corral.store.tables.site import sites
from corral.store.transaction import Tx


def get(tx: Tx) -> RowMapping | None:
    """Return the site's row; None before its first start."""
    return tx.one(select(sites))


def incarnation(tx: Tx) -> str:
    """Return the site's incarnation; "" before its first start."""
    return str(tx.scalar(select(sites.c.incarnation)) or "")


def lock(tx: Tx) -> RowMapping | None:
    """Return the row, locked until the transaction ends."""
    return tx.one(select(sites).with_for_update(key_share=True))


def add(tx: Tx, incarnation: str, hosted_machine_limit: int) -> None:
    values = {"incarnation": incarnation, "hosted_machine_limit": hosted_machine_limit}
    tx.run(insert(sites).values(id=1, created_at=tx.now, **values))


def change(tx: Tx, **values: Any) -> None:
    tx.run(update(sites).values(**values))


def notified_seq(tx: Tx) -> int | None:
    """Return how far the journal was read for alerts and webhooks; None: never yet."""
    seq = tx.scalar(select(sites.c.notified_seq))
    return None if seq is None else int(seq)


def advance_notified(tx: Tx, was: int | None, seq: int) -> bool:
    """Say that the journal was read up to `seq`; False where somebody else went on from `was` meanwhile."""
    return tx.run(update(sites).where(sites.c.notified_seq.is_not_distinct_from(was)).values(notified_seq=seq)) == 1


def private_targets(tx: Tx) -> tuple[str, ...]:
    """Return the private networks that the operator lets tenants be told in, as CIDR."""
    return tuple(tx.scalar(select(sites.c.private_targets)) or ())
