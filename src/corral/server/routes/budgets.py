"""Workspaces' monthly budgets: told about, never a limit (spec 10, "Prices, usage, budgets")."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from corral.domain import budgets as rules
from corral.domain import money
from corral.server.bodies import Body
from corral.server.door import AtDoor, Page, page_token
from corral.usecases import budgets as use

router = APIRouter()


class BudgetBody(Body):
    """`amount` a month, as a decimal string; `thresholds` in percent."""

    amount: Annotated[str, Field(examples=["1000.00"])]
    currency: str
    thresholds: list[int] = Field(default=list(rules.DEFAULT_THRESHOLDS))


class BudgetView(BaseModel):
    """A budget and how the month (UTC) stands.

    `forecast`: if all that lives now lives to the month's end, at today's prices. `other_costs`: in other
    currencies; they do not count.
    """

    workspace: str
    amount: str
    currency: str
    thresholds: list[int]
    month: str
    spent: str
    percent: int
    forecast: str
    other_costs: dict[str, str]
    unpriced_gpu_seconds: int
    changed_at: datetime

    @staticmethod
    def of(standing: use.Standing) -> BudgetView:
        return BudgetView(
            workspace=standing.workspace,
            amount=money.text(standing.budget.amount),
            currency=standing.budget.currency,
            thresholds=list(standing.budget.thresholds),
            month=standing.month,
            spent=money.text(standing.spent),
            percent=standing.percent,
            forecast=money.text(standing.forecast),
            other_costs={currency: money.text(amount) for currency, amount in standing.elsewhere.items()},
            unpriced_gpu_seconds=standing.unpriced_gpu_seconds,
            changed_at=standing.changed_at,
        )


class BudgetList(BaseModel):
    items: list[BudgetView]
    next_page_token: str | None


@router.get("/api/v1/orgs/{org}/budgets")
def list_budgets(org: str, door: AtDoor, page: Page) -> BudgetList:
    """The workspaces' budgets, and what is spent of each this month."""
    with door.read() as ctx:
        found: Sequence[use.Standing] = use.listed(ctx, page.after, page.size + 1)
    items = [BudgetView.of(standing) for standing in found[: page.size]]
    more = len(found) > page.size
    return BudgetList(items=items, next_page_token=page_token(items[-1].workspace) if more else None)


@router.put("/api/v1/orgs/{org}/budgets/{ws}")
def set_budget(org: str, ws: str, body: BudgetBody, door: AtDoor) -> BudgetView:
    """Set a workspace's monthly budget; the same again changes nothing. It tells, and stops nothing."""
    asked = rules.asked(body.amount, body.currency, body.thresholds)
    with door.write() as ctx:
        return BudgetView.of(use.put(ctx, asked))


@router.delete("/api/v1/orgs/{org}/budgets/{ws}", status_code=204)
def remove_budget(org: str, ws: str, door: AtDoor) -> Response:
    """Remove a workspace's budget."""
    with door.write() as ctx:
        use.remove(ctx)
    return Response(status_code=204)
