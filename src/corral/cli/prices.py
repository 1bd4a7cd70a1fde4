"""`corral cluster prices` and `corral site prices`: what clusters cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

from corral.cli.journal_commands import moment
from corral.cli.output import Column, column, details, emit, safe, say, table
from corral.cli.place import Place, at
from corral.cli.root import Group

if TYPE_CHECKING:
    from corral.client.money import Prices, PriceTable

F = TypeVar("F", bound=Callable[..., Any])
_RATES = ("vcpu_hour", "ram_gib_hour", "storage_gib_month")


class GpuRate(click.ParamType[tuple[str, str]]):
    """MODEL=AMOUNT; an empty amount takes the model out of the table."""

    name = "MODEL=AMOUNT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        model, equals, amount = str(value).rpartition("=")
        if not equals or not model:
            self.fail(f"{value!r}: write MODEL=AMOUNT, such as H100=2.50; * is every other model.", param, ctx)
        return model, amount


def _rates(command: F) -> F:
    for option in (
        click.option("--storage", "storage_gib_month", metavar="AMOUNT", help="A GiB of storage for a month."),
        click.option("--ram", "ram_gib_hour", metavar="AMOUNT", help="A GiB of RAM for an hour."),
        click.option("--vcpu", "vcpu_hour", metavar="AMOUNT", help="A vCPU for an hour."),
        click.option("--gpu", "gpus", multiple=True, type=GpuRate(), help="A GPU for an hour; repeatable. *: others."),
        click.option("--currency", metavar="CODE", help="ISO 4217: EUR, USD … Default: as it is."),
    ):
        command = option(command)
    return command


@click.group(cls=Group)
def prices() -> None:
    """What a cluster costs."""


@prices.command("show")
@click.option("--history", is_flag=True, help="Also what it cost before.")
@at("org", "cluster")
def show_cluster(place: Place, history: bool) -> None:
    """The price table that holds now."""
    if history:
        _draw_history(place.cluster.price_history())
    else:
        _draw(place.cluster.prices())


@prices.command("set")
@_rates
@at("org", "cluster")
def set_cluster(place: Place, **given: Any) -> None:
    """Set prices, valid from now; what is not named stays as it is.

    A dedicated cluster's are its owners' and admins' to set, the hosted cluster's the operator's: corral site prices.
    """
    cluster = place.cluster
    currency, rates = _merged(cluster.prices(), given)
    _draw(cluster.set_prices(currency, **rates))


@click.group("prices", cls=Group)
def site_prices() -> None:
    """What the hosted cluster costs (operators)."""


@site_prices.command("show")
@click.option("--history", is_flag=True, help="Also what it cost before.")
@at()
def show_site(place: Place, history: bool) -> None:
    """The hosted cluster's price table that holds now."""
    if history:
        _draw_history(place.corral.site.price_history())
    else:
        _draw(place.corral.site.prices())


@site_prices.command("set")
@_rates
@at()
def set_site(place: Place, **given: Any) -> None:
    """Set the hosted cluster's prices, valid from now; what is not named stays as it is."""
    site = place.corral.site
    currency, rates = _merged(site.prices(), given)
    _draw(site.set_prices(currency, **rates))


def _merged(present: Prices, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the currency and the whole table: what is there, with what was named."""
    table = present.current
    currency = given["currency"] or (table.currency if table else None)
    if currency is None:
        raise click.UsageError("There are no prices yet: name their currency, such as --currency EUR.")
    gpus = {**(table.gpu_hour if table else {}), **dict(given["gpus"])}
    rates: dict[str, Any] = {name: given[name] or (getattr(table, name) if table else "0") for name in _RATES}
    return currency, {"gpu_hour": {model: amount for model, amount in gpus.items() if amount}, **rates}


def _draw(prices: Prices) -> None:
    def draw() -> None:
        table = prices.current
        if table is None:
            say("No prices were set yet.")
            return
        gpus = [(f"{'other GPUs' if model == '*' else safe(model)}, an hour", a) for model, a in table.gpu_hour.items()]
        details(
            [
                ("currency", table.currency),
                *gpus,
                ("vCPU, an hour", table.vcpu_hour),
                ("GiB of RAM, an hour", table.ram_gib_hour),
                ("GiB of storage, a month", table.storage_gib_month),
                ("since", moment(table.raw["valid_from"])),
                ("set by", table.set_by),
            ]
        )

    emit(prices.raw, draw)


def _draw_history(tables: Iterator[PriceTable]) -> None:
    rows = [one.raw for one in tables]
    columns = [
        Column("SINCE", lambda row: moment(row["valid_from"])),
        column("CURRENCY", "currency"),
        Column("GPU-HOUR", lambda row: row["gpu_hour"], flow=True),
        column("VCPU-HOUR", "vcpu_hour", right=True),
        column("RAM GIB-HOUR", "ram_gib_hour", right=True),
        column("STORAGE GIB-MONTH", "storage_gib_month", right=True),
        column("BY", "set_by"),
    ]
    emit(rows, lambda: table(rows, columns, "No prices were set yet."))
