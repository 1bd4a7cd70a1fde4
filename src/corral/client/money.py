"""Prices, usage and budgets, as the SDK sees them. Amounts are decimal strings ("2.50"): read them with `Decimal`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import httpx

from corral.client.decode import View, decode
from corral.client.transport import Transport, unreachable


@dataclass(frozen=True, kw_only=True)
class PriceTable(View):
    """What holds from a moment until the next table. `gpu_hour` by GPU model; `*` is every other one."""

    currency: str
    gpu_hour: dict[str, str]
    vcpu_hour: str
    ram_gib_hour: str
    storage_gib_month: str
    valid_from: datetime
    set_by: str = ""


@dataclass(frozen=True, kw_only=True)
class Prices(View):
    """What a cluster costs now; `current` None: nothing was set yet."""

    hosted: bool
    cluster: str | None = None
    current: PriceTable | None = None


@dataclass(frozen=True, kw_only=True)
class Money(View):
    currency: str
    amount: str


@dataclass(frozen=True, kw_only=True)
class UsageBill(View):
    """Amounts times seconds, the cost in each currency, and what no price stood against."""

    gpu_seconds: int
    vcpu_seconds: int
    ram_mib_seconds: int
    storage_mib_seconds: int
    cost: list[Money]
    unpriced_gpu_seconds: int = 0
    unpriced_vcpu_seconds: int = 0


@dataclass(frozen=True, kw_only=True)
class UsageGroup(UsageBill):
    """One group; None for what it is not grouped by. `model` "": without GPUs. `day`: 2026-11-30, of UTC."""

    workspace: str | None = None
    workspace_id: str | None = None
    user: str | None = None
    user_id: str | None = None
    workload: str | None = None
    workload_id: str | None = None
    model: str | None = None
    cluster: str | None = None
    cluster_id: str | None = None
    day: str | None = None


@dataclass(frozen=True)
class UsageReport:
    """The period, everything in it together, and its groups, read page by page as they are asked for."""

    start: str
    end: str
    total: UsageBill
    groups: Iterator[UsageGroup]


@dataclass(frozen=True)
class UsageQuery:
    """What to ask for. `by`: workspace, user, workload, model, cluster, day. Times are RFC 3339; None: this month."""

    by: Sequence[str] = ("workspace",)
    start: str | None = None
    end: str | None = None
    workspace: str | None = None
    user: str | None = None
    cluster: str | None = None

    def params(self) -> dict[str, Any]:
        names = {name: getattr(self, name) for name in ("workspace", "user", "cluster")}
        return {"by": list(self.by), "from": self.start, "to": self.end, **names}


THIS_MONTH = UsageQuery()


@dataclass(frozen=True, kw_only=True)
class Budget(View):
    """A workspace's monthly budget and how the month stands."""

    workspace: str
    amount: str
    currency: str
    thresholds: list[int]
    month: str
    spent: str
    percent: int
    forecast: str
    other_costs: dict[str, str] = field(default_factory=dict)
    unpriced_gpu_seconds: int = 0
    changed_at: datetime | None = None


def prices(transport: Transport, path: str) -> Prices:
    return decode(Prices, transport.call("GET", path))


def set_prices(transport: Transport, path: str, currency: str, rates: Mapping[str, Any]) -> Prices:
    return decode(Prices, transport.call("PUT", path, {"currency": currency, **rates}))


def price_history(transport: Transport, path: str) -> Iterator[PriceTable]:
    """Yield a cluster's price tables, newest first."""
    token = None
    while True:
        page = transport.call("GET", path, params={"history": "true", "page_size": 200, "page_token": token})
        yield from (decode(PriceTable, item) for item in page["history"])
        token = page["next_page_token"]
        if not token:
            return


def usage(transport: Transport, path: str, query: UsageQuery) -> UsageReport:
    """Ask for the first page, and for the others when their groups are read."""
    first = transport.call("GET", path, params={**query.params(), "page_size": 200})
    return UsageReport(
        first["from"], first["to"], decode(UsageBill, first["total"]), _groups(transport, path, query, first)
    )


def _groups(transport: Transport, path: str, query: UsageQuery, first: dict[str, Any]) -> Iterator[UsageGroup]:
    page = first
    while True:
        yield from (decode(UsageGroup, item) for item in page["items"])
        if not page["next_page_token"]:
            return
        # The same period on every page: "now" is when the first was asked for.
        more = {"page_size": 200, "page_token": page["next_page_token"], "from": first["from"], "to": first["to"]}
        page = transport.call("GET", path, params={**query.params(), **more})


def usage_csv(transport: Transport, path: str, query: UsageQuery) -> Iterator[bytes]:
    """Yield the groups as a CSV file, in parts. Errors: `CorralError`."""
    try:
        with transport.stream(path, {**query.params(), "format": "csv"}) as response:
            yield from response.iter_bytes()
    except httpx.TransportError as error:
        raise unreachable(transport.site.url, error) from error
