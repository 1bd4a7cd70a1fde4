"""`corral workspace budget`: what a workspace may cost a month, and how the month stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from corral.cli.output import Column, column, details, emit, safe, say, shown, table
from corral.cli.place import Place, at
from corral.cli.root import Group
from corral.client.errors import CorralError

if TYPE_CHECKING:
    from corral.client.money import Budget


@click.group(cls=Group)
def budget() -> None:
    """Monthly budgets: they tell, and stop nothing."""


@budget.command("list")
@at("org")
def list_budgets(place: Place) -> None:
    """The budgets of the organisation's workspaces, and how this month stands."""
    rows = [one.raw for one in place.org.budgets()]
    columns = [
        column("WORKSPACE", "workspace"),
        column("MONTH", "month"),
        column("SPENT", "spent", right=True),
        column("BUDGET", "amount", right=True),
        column("CURRENCY", "currency"),
        Column("USED", lambda row: f"{row['percent']}%", right=True),
        column("FORECAST", "forecast", right=True),
        Column("TELLS AT", lambda row: [f"{percent}%" for percent in row["thresholds"]]),
    ]
    emit(rows, lambda: table(rows, columns, "No budget yet. Set one: corral workspace budget set 1000 EUR -w NAME"))


@budget.command()
@at("org", "workspace")
def show(place: Place) -> None:
    """One workspace's budget."""
    name = place.workspace.name
    found = next((one for one in place.org.budgets() if one.workspace == name), None)
    if found is None:
        raise CorralError("NOT_FOUND", f"'{name}' has no budget. Set one: corral workspace budget set", status=404)
    _draw(found)


@budget.command("set")
@click.argument("amount")
@click.argument("currency")
@click.option(
    "--at", "thresholds", multiple=True, type=int, metavar="PERCENT", help="Default: 50, 80, 100. Repeatable."
)
@at("org", "workspace")
def set_budget(place: Place, amount: str, currency: str, thresholds: tuple[int, ...]) -> None:
    """Set what the workspace may cost a month; it is told when a percentage is reached. Nothing is stopped."""
    _draw(place.org.set_budget(place.workspace.name, amount, currency, thresholds or (50, 80, 100)))


@budget.command()
@at("org", "workspace")
def remove(place: Place) -> None:
    """Remove the workspace's budget."""
    name = place.workspace.name
    place.org.remove_budget(name)
    emit({"workspace": name, "removed": True}, lambda: say(f"'{safe(name)}' has no budget any more."))


def _draw(one: Budget) -> None:
    def draw() -> None:
        details(
            [
                ("workspace", one.workspace),
                ("month", one.month),
                ("budget", f"{one.amount} {one.currency}"),
                ("spent", f"{one.spent} {one.currency} ({one.percent}%)"),
                ("forecast", f"{one.forecast} {one.currency} if what runs now runs on"),
                ("in other currencies", shown(one.other_costs) if one.other_costs else None),
                ("GPU-hours without a price", one.unpriced_gpu_seconds // 3600 or None),
                ("tells at", [f"{percent}%" for percent in one.thresholds]),
            ]
        )

    emit(one.raw, draw)
