"""Rows of clusters' prices: each holds from its moment on, and none is ever changed.

A cluster's prices are asked for by its id, which whoever asks has found through their own tenancy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import RowMapping, func, insert, or_, select

from corral.store.tables.clusters import clusters, tenancies
from corral.store.tables.prices import prices
from corral.store.transaction import Scope, Tx

_P = prices.c


def lock(tx: Tx, cluster_id: str) -> None:
    """Lock the cluster's row: of two who set its prices the second sees the first's. It keeps no reference waiting."""
    tx.one(select(clusters.c.id).where(clusters.c.id == cluster_id).with_for_update(key_share=True))


def newest(tx: Tx, cluster_id: str, before: datetime | None, limit: int) -> Sequence[RowMapping]:
    """Return a cluster's price tables, newest first, from before `before`."""
    query = select(prices).where(_P.cluster_id == cluster_id).order_by(_P.valid_from.desc()).limit(limit)
    return tx.all(query if before is None else query.where(_P.valid_from < before))


def add(tx: Tx, id: str, cluster_id: str, valid_from: datetime, values: Mapping[str, Any]) -> None:
    tx.run(insert(prices).values(id=id, cluster_id=cluster_id, valid_from=valid_from, **values))


def over_time(tx: Tx, scope: Scope, start: datetime, end: datetime) -> Sequence[RowMapping]:
    """Return the price tables that held at some time in [start, end) in any cluster the organisation has ever used.

    By cluster, oldest first: the last one from before `start`, and those set since.
    """
    mine = select(tenancies.c.cluster_id).where(tenancies.c.org_id == scope.org)
    earlier = prices.alias()
    held_at_start = (
        select(func.max(earlier.c.valid_from))
        .where(earlier.c.cluster_id == _P.cluster_id, earlier.c.valid_from <= start)
        .scalar_subquery()
    )
    return tx.all(
        select(prices)
        .where(_P.cluster_id.in_(mine), _P.valid_from < end, or_(_P.valid_from > start, _P.valid_from == held_at_start))
        .order_by(_P.cluster_id, _P.valid_from)
    )
