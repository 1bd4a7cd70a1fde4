"""Rows of requests for a dedicated cluster: asked by an organisation, answered once by the operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import RowMapping, Select, func, insert, select, update

from corral.store.tables.clusters import cluster_requests as table
from corral.store.tables.clusters import tenancies
from corral.store.tables.orgs import orgs
from corral.store.tables.users import users
from corral.store.transaction import Scope, Tx

_OPEN = table.c.answered_at.is_(None)


def add(tx: Tx, scope: Scope, id: str, by: str, name: str, note: str) -> None:
    """Keep a request; `by` is its maker's id."""
    row = {"id": id, "org_id": scope.org, "created_by": by, "name": name, "note": note}
    tx.run(insert(table).values(**row, created_at=tx.now))


def count_open(tx: Tx, scope: Scope) -> int:
    """Return how many wait for an answer. Meant for under the organisation's lock."""
    return int(tx.scalar(select(func.count()).where(table.c.org_id == scope.org, _OPEN)))


def listed(tx: Tx, scope: Scope, before: str | None, limit: int) -> Sequence[RowMapping]:
    """Return the organisation's requests, newest first, from before the id `before`."""
    query = _shown().where(table.c.org_id == scope.org).order_by(table.c.id.desc()).limit(limit)
    return tx.all(query if before is None else query.where(table.c.id < before))


def get(tx: Tx, scope: Scope, id: str) -> RowMapping | None:
    return tx.one(_shown().where(table.c.org_id == scope.org, table.c.id == id))


def answer(tx: Tx, scope: Scope, id: str, answer: str, note: str) -> bool:
    """End an open request; False when it was answered or withdrawn before: the database lets one."""
    values = {"answered_at": tx.now, "answer": answer, "answer_note": note}
    return tx.run(update(table).where(table.c.org_id == scope.org, table.c.id == id, _OPEN).values(values)) == 1


def set_cluster(tx: Tx, scope: Scope, id: str, cluster_id: str) -> None:
    """Say which cluster was made for a request."""
    tx.run(update(table).where(table.c.org_id == scope.org, table.c.id == id).values(cluster_id=cluster_id))


def withdraw_open(tx: Tx, scope: Scope) -> None:
    """End the open requests of an organisation that goes."""
    tx.run(update(table).where(table.c.org_id == scope.org, _OPEN).values(answered_at=tx.now, answer="withdrawn"))


# --- the operator's: whosesoever they are


def org_of(tx: Tx, id: str) -> str | None:
    """Return the id of the organisation that asked."""
    found = tx.scalar(select(table.c.org_id).where(table.c.id == id))
    return None if found is None else str(found)


def open_ones(tx: Tx, after: str | None, limit: int) -> Sequence[RowMapping]:
    """Return the site's open requests, oldest first, from after the id `after`."""
    query = _shown().where(_OPEN).order_by(table.c.id).limit(limit)
    return tx.all(query if after is None else query.where(table.c.id > after))


def ended_ones(tx: Tx, before: str | None, limit: int) -> Sequence[RowMapping]:
    """Return those that were answered or withdrawn, newest first, from before the id `before`."""
    query = _shown().where(table.c.answered_at.is_not(None)).order_by(table.c.id.desc()).limit(limit)
    return tx.all(query if before is None else query.where(table.c.id < before))


def _shown() -> Select[Any]:
    """With the maker's `login`, the organisation's `org` and the short name `cluster` of what was made for it."""
    made = (tenancies.c.cluster_id == table.c.cluster_id) & (tenancies.c.org_id == table.c.org_id)
    return (
        select(table, users.c.login, orgs.c.slug.label("org"), tenancies.c.slug.label("cluster"))
        .join(users, users.c.id == table.c.created_by)
        .join(orgs, orgs.c.id == table.c.org_id)
        .outerjoin(tenancies, made)
    )
