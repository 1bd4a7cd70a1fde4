"""A workspace's monthly budget (spec 10, "Prices, usage, budgets")."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from corral.domain import budgets as rules
from corral.domain.budgets import Budget
from corral.domain.errors import Refusal
from corral.domain.prices import second
from corral.domain.usage import PARTS, Period

TEN = Budget(10_000_000, "EUR", (50, 80, 100))


def test_a_budget_is_read_from_what_was_asked() -> None:
    assert rules.asked("10.00", "EUR", [100, 50, 80, 50]) == TEN


@pytest.mark.parametrize(
    ("amount", "currency", "thresholds", "field"),
    [
        ("0", "EUR", [50], "amount"),
        ("0.00", "EUR", [50], "amount"),
        ("1e3", "EUR", [50], "amount"),
        ("10", "euro", [50], "currency"),
        ("10", "EUR", [], "thresholds"),
        ("10", "EUR", [0], "thresholds"),
        ("10", "EUR", [1001], "thresholds"),
        ("10", "EUR", [-5, 50], "thresholds"),
        ("10", "EUR", list(range(1, 12)), "thresholds"),
    ],
)
def test_a_bad_budget_names_its_field(amount: str, currency: str, thresholds: list[int], field: str) -> None:
    with pytest.raises(Refusal) as refusal:
        rules.asked(amount, currency, thresholds)
    assert (refusal.value.code, refusal.value.details) == ("INVALID_REQUEST", {"field": field})


def test_a_threshold_is_reached_exactly_there_and_not_a_part_before() -> None:
    half = 5_000_000 * PARTS
    assert (TEN.reached(half - 1), TEN.percent(half - 1)) == ([], 49)
    assert (TEN.reached(half), TEN.percent(half)) == ([50], 50)
    assert (TEN.reached(3 * half), TEN.percent(3 * half)) == ([50, 80, 100], 150)


def test_the_month_before_is_judged_on_the_first_day_where_the_budget_stood_then() -> None:
    first = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
    old, new = first - timedelta(days=9), first - timedelta(hours=1)
    march = Period(second(first.replace(hour=0)), second(first))
    february = Period(second(datetime(2026, 2, 1, tzinfo=timezone.utc)), march.start)
    assert rules.months_to_judge(first, old) == [february, march]
    assert rules.months_to_judge(first, new) == [march]
    assert len(rules.months_to_judge(first + timedelta(days=1), old)) == 1


def test_the_rest_of_the_month_begins_where_this_month_until_now_ends() -> None:
    now = datetime(2028, 2, 10, 3, 4, 5, 600, tzinfo=timezone.utc)
    assert rules.this_month(now).end == rules.rest_of_month(now).start
    assert rules.rest_of_month(now).end == second(datetime(2028, 3, 1, tzinfo=timezone.utc))
