"""Workspaces' monthly budgets: set, seen with what was spent, and told when a threshold is reached (spec 10).

A budget stops nothing. What it tells, it tells once for a workspace, a month and a percentage, whatever is
restarted, changed or lowered meanwhile: the row that says so is unique, and written with the event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from corral.domain import budgets as rules
from corral.domain import money
from corral.domain.budgets import Budget
from corral.domain.errors import not_found
from corral.domain.events import Entry, Subject
from corral.domain.usage import Bill, Period, month_name, rounded
from corral.store import budgets as rows
from corral.store import workspaces
from corral.store.transaction import SITE, Row, Scope, Tx
from corral.usecases import orgs, usage
from corral.usecases.context import Context

BATCH = 200


@dataclass(frozen=True)
class Standing:
    """A budget and how this month stands. Amounts in millionths of its currency."""

    workspace: str
    budget: Budget
    month: str
    spent: int
    percent: int
    forecast: int
    """What the month comes to if all that lives now lives to its end, at today's prices."""
    elsewhere: dict[str, int]
    """What was spent in other currencies: it does not count."""
    unpriced_gpu_seconds: int
    changed_at: datetime


@dataclass(frozen=True)
class Reached:
    """A threshold that costs have reached, not yet said. `changed_at`: of the budget that was judged."""

    workspace_id: str
    month: Period
    percent: int
    spent: int
    changed_at: datetime


def listed(ctx: Context, after: str | None, limit: int) -> Sequence[Standing]:
    """Return the organisation's budgets by workspace."""
    return _standings(ctx, rows.listed(ctx.tx, ctx.scope, after, limit))


def put(ctx: Context, budget: Budget) -> Standing:
    """Set the workspace's budget; the same again changes nothing. Errors: `NOT_FOUND`."""
    before = _locked(ctx)
    if before is None or _budget(before) != budget:
        values = {"amount": budget.amount, "currency": budget.currency, "thresholds": list(budget.thresholds)}
        rows.put(ctx.tx, ctx.scope, ctx.workspace.id, values)
        ctx.record("workspace.budget", _subject(ctx), before=_told(before), after=_shown(budget))
    found = rows.get(ctx.tx, ctx.scope, ctx.workspace.id)
    if found is None:
        raise not_found()
    return _standings(ctx, [found])[0]


def remove(ctx: Context) -> None:
    """Remove the workspace's budget. Errors: `NOT_FOUND`, also where it has none."""
    before = _locked(ctx)
    if before is None:
        raise not_found()
    rows.remove(ctx.tx, ctx.scope, ctx.workspace.id)
    ctx.record("workspace.budget", _subject(ctx), before=_told(before), after=None)


def orgs_to_judge(tx: Tx, after: str | None) -> Sequence[Scope]:
    """Return organisations that have a budget, `BATCH` at a time, from after `after`."""
    return [Scope(id) for id in rows.orgs_with_budgets(tx, after, BATCH)]


def judge(tx: Tx, scope: Scope) -> list[Reached]:
    """Return which thresholds of an organisation's budgets are reached and were not said yet; changes nothing."""
    found: list[Reached] = []
    after: str | None = None
    while batch := rows.listed(tx, scope, after, BATCH):
        found += _judged(tx, scope, batch)
        after = batch[-1]["slug"]
    return found


def tell(tx: Tx, scope: Scope, reached: Sequence[Reached]) -> None:
    """Record each that is still so: once, however many look."""
    for one in reached:
        row = rows.lock(tx, scope, one.workspace_id)
        if row is None or row["changed_at"] != one.changed_at:
            continue  # the budget changed since it was judged: the next look judges it anew
        month = month_name(one.month)
        if not rows.cross(tx, scope, one.workspace_id, month, one.percent):
            continue
        data = {
            "workspace": row["slug"],
            "percent": one.percent,
            "spent": money.text(one.spent),
            "amount": money.text(row["amount"]),
            "currency": row["currency"],
            "month": month,
        }
        subject = Subject(org=scope.org, workspace=one.workspace_id)
        tx.record(Entry("workspace.budget.reached", subject, data), SITE)


def _judged(tx: Tx, scope: Scope, batch: Sequence[Row]) -> list[Reached]:
    months: dict[Period, list[Row]] = {}
    for row in batch:
        for month in rules.months_to_judge(tx.now, row["changed_at"]):
            months.setdefault(month, []).append(row)
    said = rows.crossed(tx, scope, [row["workspace_id"] for row in batch], [month_name(month) for month in months])
    found = []
    for month, its in months.items():
        bills = usage.bills(tx, scope, month, [row["workspace_id"] for row in its])
        for row in its:
            cost = bills[row["workspace_id"]].cost.get(row["currency"], 0)
            found += [
                Reached(row["workspace_id"], month, percent, rounded(cost), row["changed_at"])
                for percent in _budget(row).reached(cost)
                if (row["workspace_id"], month_name(month), percent) not in said
            ]
    return found


def _standings(ctx: Context, found: Sequence[Row]) -> list[Standing]:
    ids = [row["workspace_id"] for row in found]
    month, rest = rules.this_month(ctx.now), rules.rest_of_month(ctx.now)
    so_far, to_come = (usage.bills(ctx.tx, ctx.scope, period, ids) if ids else {} for period in (month, rest))
    return [_standing(row, month, so_far[row["workspace_id"]], to_come[row["workspace_id"]]) for row in found]


def _standing(row: Row, month: Period, so_far: Bill, to_come: Bill) -> Standing:
    budget = _budget(row)
    cost = so_far.cost.get(budget.currency, 0)
    return Standing(
        row["slug"],
        budget,
        month_name(month),
        rounded(cost),
        budget.percent(cost),
        rounded(cost + to_come.cost.get(budget.currency, 0)),
        {currency: amount for currency, amount in so_far.rounded().items() if currency != budget.currency},
        so_far.unpriced_gpu,
        row["changed_at"],
    )


def _locked(ctx: Context) -> Row | None:
    """Return the workspace's budget under the organisation's lock. Errors: `NOT_FOUND` when the workspace went."""
    orgs.locked(ctx)
    if not workspaces.is_live(ctx.tx, ctx.scope, ctx.workspace.id):
        raise not_found()
    return rows.lock(ctx.tx, ctx.scope, ctx.workspace.id)


def _budget(row: Row) -> Budget:
    return Budget(row["amount"], row["currency"], tuple(row["thresholds"]))


def _told(row: Row | None) -> dict[str, object] | None:
    return _shown(_budget(row)) if row is not None else None


def _shown(budget: Budget) -> dict[str, object]:
    return {
        "amount": money.text(budget.amount),
        "currency": budget.currency,
        "thresholds": list(budget.thresholds),
    }


def _subject(ctx: Context) -> Subject:
    return Subject(org=ctx.org.id, workspace=ctx.workspace.id)
