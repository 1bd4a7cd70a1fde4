"""A workspace's monthly budget (spec 10, "Prices, usage, budgets"): it tells at chosen percents, and stops nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from corral.domain import money
from corral.domain.errors import Refusal
from corral.domain.prices import second
from corral.domain.usage import DAY_S, PARTS, Period, month_at

DEFAULT_THRESHOLDS = (50, 80, 100)
PERCENT_MAX = 1000
THRESHOLDS_MAX = 10
JUDGED_AFTERWARDS_S = DAY_S
"""So long a month that is over is still looked at: what was reached in its last minute, or while the site was away."""


@dataclass(frozen=True)
class Budget:
    """`amount`: millionths a month; `thresholds`: percents, ascending."""

    amount: int
    currency: str
    thresholds: Sequence[int] = DEFAULT_THRESHOLDS

    def percent(self, parts: int) -> int:
        """Return how much of it a cost (`PARTS` of a millionth) is, in whole percents that were really reached."""
        return parts * 100 // (self.amount * PARTS)

    def reached(self, parts: int) -> list[int]:
        """Return the thresholds that a cost has reached, ascending."""
        return [percent for percent in self.thresholds if parts * 100 >= self.amount * PARTS * percent]


def asked(amount: str, currency: str, thresholds: Collection[int]) -> Budget:
    """Return the budget that was asked for. Errors: `INVALID_REQUEST`, naming the field."""
    found = money.millionths(amount, "amount", money.AMOUNT_MAX)
    if found == 0:
        raise Refusal(
            "INVALID_REQUEST", "amount: a budget is more than 0. Remove the budget to have none.", field="amount"
        )
    percents = sorted(set(thresholds))
    if not 1 <= len(percents) <= THRESHOLDS_MAX or not 1 <= percents[0] <= percents[-1] <= PERCENT_MAX:
        raise Refusal(
            "INVALID_REQUEST",
            f"thresholds: give 1 to {THRESHOLDS_MAX} whole percents from 1 to {PERCENT_MAX}.",
            field="thresholds",
        )
    return Budget(found, money.currency(currency), tuple(percents))


def months_to_judge(now: datetime, changed_at: datetime) -> list[Period]:
    """Return the months (UTC) of which to say what was reached, each until now at the latest.

    That is this one, and on its first day the one before, where the budget stood since then.
    """
    present = second(now)
    month = month_at(present)
    found = [Period(month.start, max(month.start, present))]
    if present - month.start < JUDGED_AFTERWARDS_S and second(changed_at) < month.start:
        found.insert(0, month_at(month.start - 1))
    return found


def rest_of_month(now: datetime) -> Period:
    """Return the time from now to this month's end."""
    present = second(now)
    return Period(present, month_at(present).end)


def this_month(now: datetime) -> Period:
    """Return this month until now."""
    present = second(now)
    return Period(month_at(present).start, present)


PASS_EVERY = timedelta(minutes=1)
"""How often costs are compared with budgets."""
