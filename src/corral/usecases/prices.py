"""Seeing and setting a cluster's prices (spec 10, "Prices, usage, budgets"): each setting is a row, valid from then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from corral.domain import prices as rules
from corral.domain.events import Subject
from corral.domain.prices import PriceTable, Tariff
from corral.store import clusters as cluster_rows
from corral.store import prices as rows
from corral.store.transaction import Row, Scope, Tx
from corral.usecases import clusters
from corral.usecases.context import Context

OPERATOR = "the operator"


@dataclass(frozen=True)
class Prices:
    """A price table, from when it holds, and who set it."""

    table: PriceTable
    valid_from: datetime
    set_by: str


@dataclass(frozen=True)
class ClusterPrices:
    """What a cluster costs now (None: no prices were ever set)."""

    cluster: str | None
    """Its short name in the organisation; None at the site's own door."""
    hosted: bool
    current: Prices | None


def show(ctx: Context, slug: str) -> ClusterPrices:
    """Return a cluster's prices. Errors: `NOT_FOUND`."""
    row = clusters.find(ctx, slug)
    return ClusterPrices(row["slug"], bool(row["hosted"]), _seen(_newest(ctx.tx, row["cluster_id"]), row["hosted"]))


def history(ctx: Context, slug: str, before: datetime | None, limit: int) -> Sequence[Prices]:
    """Return a cluster's price tables, newest first. Errors: `NOT_FOUND`."""
    row = clusters.find(ctx, slug)
    found = [_prices(one) for one in rows.newest(ctx.tx, row["cluster_id"], before, limit)]
    return [one for one in (_seen(prices, row["hosted"]) for prices in found) if one is not None]


def put(ctx: Context, slug: str, table: PriceTable) -> ClusterPrices:
    """Set a cluster's prices. Errors: `NOT_FOUND`, `RATE_LIMITED`; `FORBIDDEN`, saying whom to ask."""
    row = clusters.find(ctx, slug)
    hosted = bool(row["hosted"])
    contact = cluster_rows.site_contact(ctx.tx)
    rules.check_setter(hosted, operator=ctx.user.operator, admin=ctx.admin, contact=contact)
    subject = Subject(org=None if hosted else ctx.org.id, cluster=row["cluster_id"])
    _set(ctx, subject, row["cluster_id"], table)
    return show(ctx, slug)


def show_hosted(ctx: Context) -> ClusterPrices:
    """Return the hosted cluster's prices, to the operator."""
    row = cluster_rows.hosted_cluster(ctx.tx)
    return ClusterPrices(None, True, _newest(ctx.tx, row["id"]) if row is not None else None)


def hosted_history(ctx: Context, before: datetime | None, limit: int) -> Sequence[Prices]:
    """Return the hosted cluster's price tables, newest first, to the operator."""
    row = cluster_rows.hosted_cluster(ctx.tx)
    return [_prices(one) for one in rows.newest(ctx.tx, row["id"], before, limit)] if row is not None else []


def put_hosted(ctx: Context, table: PriceTable) -> ClusterPrices:
    """Set the hosted cluster's prices, also before its first organisation comes. Errors: `RATE_LIMITED`."""
    cluster_id = clusters.hosted_id(ctx)
    _set(ctx, Subject(cluster=cluster_id), cluster_id, table)
    return show_hosted(ctx)


def tariffs(tx: Tx, scope: Scope, start: datetime, end: datetime) -> dict[str, Tariff]:
    """Return the prices that held in [start, end), by cluster."""
    found: dict[str, list[tuple[datetime, PriceTable]]] = {}
    for row in rows.over_time(tx, scope, start, end):
        found.setdefault(row["cluster_id"], []).append((row["valid_from"], _table(row)))
    return {cluster_id: Tariff(since) for cluster_id, since in found.items()}


def _set(ctx: Context, subject: Subject, cluster_id: str, table: PriceTable) -> None:
    rows.lock(ctx.tx, cluster_id)
    recent = [_prices(row) for row in rows.newest(ctx.tx, cluster_id, None, rules.CHANGES_MAX)]
    before = recent[0] if recent else None
    if before is not None and before.table == table:
        return
    rules.check_changes([one.valid_from for one in recent], ctx.now)
    # Whoever waited for the lock began before the one who had it: time goes on all the same.
    valid_from = max(ctx.now, before.valid_from + timedelta(microseconds=1)) if before is not None else ctx.now
    values = {**vars(table), "gpu_hour": dict(table.gpu_hour), "set_by": ctx.user.login}
    rows.add(ctx.tx, ctx.new_id(), cluster_id, valid_from, values)
    ctx.record("cluster.prices", subject, before=before.table.shown() if before else None, after=table.shown())


def _newest(tx: Tx, cluster_id: str) -> Prices | None:
    found = rows.newest(tx, cluster_id, None, 1)
    return _prices(found[0]) if found else None


def _seen(prices: Prices | None, hosted: bool) -> Prices | None:
    """Return prices as an organisation sees them: who of the site's people set them is not theirs to know."""
    return replace(prices, set_by=OPERATOR) if prices is not None and hosted else prices


def _prices(row: Row) -> Prices:
    return Prices(_table(row), row["valid_from"], row["set_by"])


def _table(row: Row) -> PriceTable:
    rates = row["vcpu_hour"], row["ram_gib_hour"], row["storage_gib_month"]
    return PriceTable(row["currency"], row["gpu_hour"], *rates)
