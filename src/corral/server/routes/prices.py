"""What clusters cost: seen by all of their organisation, set by whose they are (spec 10, "Prices, usage, budgets").

Amounts are decimal strings in both directions: a JSON number is a float to most programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, Field

from corral.domain import prices as rules
from corral.domain.ids import EPOCH
from corral.server.bodies import Body
from corral.server.door import AtDoor, Page, Paging, page_token
from corral.usecases import prices as use

router = APIRouter()

_RATE = r"^[0-9]{1,7}(\.[0-9]{1,6})?$"
Rate = Annotated[str, Field(json_schema_extra={"pattern": _RATE}, examples=["2.50"])]


class PriceTableBody(Body):
    """The whole table: what is left out costs nothing. `gpu_hour` by GPU model; `*` is every other model."""

    currency: str
    gpu_hour: dict[str, Rate] = Field(default={})
    vcpu_hour: Rate = "0"
    ram_gib_hour: Rate = "0"
    storage_gib_month: Rate = "0"

    def asked(self) -> rules.PriceTable:
        rates = {name: getattr(self, name) for name in ("vcpu_hour", "ram_gib_hour", "storage_gib_month")}
        return rules.asked(self.currency, self.gpu_hour, rates)


class PriceTableView(BaseModel):
    """A price table, and the moment from which it holds until the next."""

    currency: str
    gpu_hour: dict[str, str]
    vcpu_hour: str
    ram_gib_hour: str
    storage_gib_month: str
    valid_from: datetime
    set_by: str

    @staticmethod
    def of(prices: use.Prices) -> PriceTableView:
        return PriceTableView(**prices.table.shown(), valid_from=prices.valid_from, set_by=prices.set_by)


class PricesView(BaseModel):
    """`current` null: no prices were set yet. `history` (with `?history=true`): newest first, the current one too."""

    cluster: str | None
    hosted: bool
    current: PriceTableView | None
    history: list[PriceTableView] | None = None
    next_page_token: str | None = None


@router.get("/api/v1/orgs/{org}/clusters/{cluster}/prices")
def show_prices(org: str, cluster: str, door: AtDoor, page: Page, history: bool = False) -> PricesView:
    """What a cluster costs; with `history=true` also what it cost before."""
    before = _before(page)
    with door.read() as ctx:
        view = _view(use.show(ctx, cluster))
        return _with(view, use.history(ctx, cluster, before, page.size + 1), page) if history else view


@router.put("/api/v1/orgs/{org}/clusters/{cluster}/prices")
def set_prices(org: str, cluster: str, body: PriceTableBody, door: AtDoor) -> PricesView:
    """Set what a cluster costs from now on; the same again changes nothing.

    The hosted cluster's: the operator; a dedicated cluster's: owners and admins of its organisation.
    """
    asked = body.asked()
    with door.write() as ctx:
        return _view(use.put(ctx, cluster, asked))


@router.get("/api/v1/site/prices")
def show_site_prices(door: AtDoor, page: Page, history: bool = False) -> PricesView:
    """What the hosted cluster costs; with `history=true` also what it cost before."""
    before = _before(page)
    with door.read() as ctx:
        view = _view(use.show_hosted(ctx))
        return _with(view, use.hosted_history(ctx, before, page.size + 1), page) if history else view


@router.put("/api/v1/site/prices")
def set_site_prices(body: PriceTableBody, door: AtDoor) -> PricesView:
    """Set what the hosted cluster costs every organisation from now on; the same again changes nothing."""
    asked = body.asked()
    with door.write() as ctx:
        return _view(use.put_hosted(ctx, asked))


def _view(prices: use.ClusterPrices) -> PricesView:
    current = PriceTableView.of(prices.current) if prices.current is not None else None
    return PricesView(cluster=prices.cluster, hosted=prices.hosted, current=current)


def _with(view: PricesView, found: Sequence[use.Prices], page: Paging) -> PricesView:
    shown, more = found[: page.size], len(found) > page.size
    token = page_token(str((shown[-1].valid_from - EPOCH) // timedelta(microseconds=1))) if more else None
    history = [PriceTableView.of(prices) for prices in shown]
    return view.model_copy(update={"history": history, "next_page_token": token})


def _before(page: Paging) -> datetime | None:
    """Return the moment that a page comes before; a page token is in microseconds since the epoch."""
    moment = page.sequence()
    return None if moment is None else EPOCH + timedelta(microseconds=min(moment, 10**17))
