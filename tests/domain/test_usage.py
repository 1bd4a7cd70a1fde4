"""Usage to the second and what it costs, exactly (spec 10, "Prices, usage, budgets")."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.domain import usage as rules
from corral.domain.errors import Refusal
from corral.domain.prices import PriceTable, Tariff, second
from corral.domain.usage import DAY_S, PARTS, Bill, By, Period, Used

NOW = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
TABLE = PriceTable("EUR", {"H100": 2_500_000}, 10_000, 2_500, 100_000)
amounts = st.integers(0, 10**12)
useds = st.builds(Used, amounts, amounts, amounts, amounts)
rates = st.integers(0, 10**12)
tables = st.builds(
    PriceTable,
    st.sampled_from(["EUR", "USD"]),
    st.dictionaries(st.sampled_from(["H100", "A100", "*"]), rates),
    rates,
    rates,
    rates,
)


def at(text: str) -> int:
    """Return the second of a day, or of a moment of it, of UTC."""
    return second(datetime.fromisoformat(text).replace(tzinfo=timezone.utc))


def test_an_hour_of_each_costs_its_price() -> None:
    bill = Bill()
    bill.add(Used(gpu=2 * 3600, vcpu=3600, ram_mib=1024 * 3600), "H100", TABLE, at("2026-03-01"))
    assert bill.rounded() == {"EUR": 5_000_000 + 10_000 + 2_500}
    assert (bill.unpriced_gpu, bill.unpriced_vcpu) == (0, 0)


@pytest.mark.parametrize(("year", "month", "days"), [(2026, 1, 31), (2026, 2, 28), (2028, 2, 29), (2026, 4, 30)])
def test_a_whole_month_of_storage_costs_the_price_whatever_its_length(year: int, month: int, days: int) -> None:
    whole = rules.month_at(at(f"{year}-{month:02}-17T05:00"))
    assert whole == Period(at(f"{year}-{month:02}-01"), at(f"{year}-{month:02}-01") + days * DAY_S)
    bill = Bill()
    bill.add(Used(storage_mib=3 * 1024 * whole.seconds), "", TABLE, whole.end - 1)
    assert bill.rounded() == {"EUR": 300_000}


def test_what_has_no_price_is_said_and_costs_nothing() -> None:
    bill = Bill()
    bill.add(Used(gpu=10, vcpu=20), "H100", None, at("2026-03-01"))
    bill.add(Used(gpu=3, vcpu=4), "A100", TABLE, at("2026-03-01"))
    assert (bill.unpriced_gpu, bill.unpriced_vcpu) == (13, 20)
    assert bill.used == Used(gpu=13, vcpu=24)
    assert bill.rounded() == {"EUR": round(Fraction(4 * 10_000, 3600))}


def test_currencies_are_kept_apart() -> None:
    bill = Bill()
    for code in ("EUR", "USD"):
        bill.add(Used(vcpu=3600), "", PriceTable(code, {}, 7), at("2026-03-01"))
    assert bill.rounded() == {"EUR": 7, "USD": 7}


@given(useds, tables, st.sampled_from(["H100", "A100", "B200"]), st.integers(0, at("2400-01-01")))
def test_a_cost_is_exact(used: Used, table: PriceTable, model: str, moment: int) -> None:
    bill = Bill()
    bill.add(used, model, table, moment)
    month = Fraction(rules.month_at(moment).seconds)
    cost = Fraction(used.gpu * (table.gpu_rate(model) or 0) + used.vcpu * table.vcpu_hour, 3600)
    cost += Fraction(used.ram_mib * table.ram_gib_hour, 1024 * 3600)
    cost += used.storage_mib * table.storage_gib_month / (1024 * month)
    assert Fraction(bill.cost[table.currency], PARTS) == cost
    assert bill.rounded()[table.currency] == round(cost)  # Python rounds fractions half to even


@given(st.integers(0, 1000), st.sampled_from([-1, 0, 1]))
def test_a_cost_is_rounded_half_to_even(whole: int, off: int) -> None:
    assert rules.rounded(whole * PARTS + PARTS // 2 + off) == round(Fraction(2 * whole + 1, 2) + Fraction(off, PARTS))


@given(st.lists(useds, max_size=5), st.lists(useds, max_size=5))
def test_groups_add_up_to_the_total_exactly(left: list[Used], right: list[Used]) -> None:
    bills = Bill(), Bill(), Bill()
    for bill, its in zip(bills, (left, right, left + right), strict=True):
        for used in its:
            bill.add(used, "H100", TABLE, at("2026-02-03"))
    costs = [bill.cost.get("EUR", 0) for bill in bills]
    assert costs[0] + costs[1] == costs[2]
    assert bills[0].used + bills[1].used == bills[2].used


# -- the period


def test_the_period_is_this_month_until_now_by_default() -> None:
    assert rules.period(None, None, NOW, ()) == Period(at("2026-03-01"), second(NOW))
    assert rules.period(None, datetime(2026, 2, 10, tzinfo=timezone.utc), NOW, ()) == Period(
        at("2026-02-01"), at("2026-02-10")
    )


def test_a_month_that_ends_where_the_period_does_is_the_month_before() -> None:
    assert rules.period(None, datetime(2026, 3, 1, tzinfo=timezone.utc), NOW, ()) == Period(
        at("2026-02-01"), at("2026-03-01")
    )


def test_a_period_ends_now_at_the_latest() -> None:
    later = NOW + timedelta(days=40)
    assert rules.period(NOW - timedelta(days=1), later, NOW, ()).end == second(NOW)
    assert rules.period(later, later + timedelta(days=1), NOW, ()).seconds == 0


def test_an_offset_is_taken_into_account() -> None:
    local = datetime(2026, 2, 1, 1, tzinfo=timezone(timedelta(hours=1)))
    assert rules.period(local, NOW, NOW, ()).start == at("2026-02-01")


def test_an_empty_period_and_one_that_is_too_long_are_refused() -> None:
    for start, end, by in (
        (NOW, NOW, ()),
        (NOW, NOW - timedelta(seconds=1), ()),
        (NOW - timedelta(days=rules.DAYS_MAX, seconds=1), NOW, ()),
        (NOW - timedelta(days=rules.DAYS_MAX_BY_DAY, seconds=1), NOW, (By.DAY,)),
        (datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))), None, ()),
    ):
        with pytest.raises(Refusal) as refusal:
            rules.period(start, end, NOW, by)
        assert refusal.value.code == "INVALID_REQUEST"
    assert rules.period(NOW - timedelta(days=rules.DAYS_MAX), NOW, NOW, ()).seconds == rules.DAYS_MAX * DAY_S


def test_names_of_months_and_days() -> None:
    assert rules.month_name(rules.month_at(at("2026-11-30T23:59:59"))) == "2026-11"
    assert rules.day_name(at("2028-02-29T23:00:00") // DAY_S) == "2028-02-29"


# -- its pieces


@given(st.integers(0, 300), st.integers(1, 200), st.lists(st.integers(0, 500 * DAY_S), max_size=6), st.booleans())
def test_pieces_are_the_period_cut_where_a_month_a_price_or_a_day_begins(
    first: int, days: int, changes: list[int], by_day: bool
) -> None:
    origin = at("2027-10-05T07:08:09")  # reaches over a leap day
    whole = Period(origin + first * DAY_S, origin + (first + days) * DAY_S)
    moments = sorted(origin + change for change in changes)
    tariff = Tariff([(datetime.fromtimestamp(moment, timezone.utc), TABLE) for moment in moments])
    found = rules.pieces(whole, {"c": tariff}, by_day=by_day)
    assert (found[0].start, found[-1].end) == (whole.start, whole.end)
    assert all(one.end == other.start for one, other in pairwise(found))
    for piece in found:
        assert piece.seconds > 0
        assert rules.month_at(piece.start) == rules.month_at(piece.end - 1)
        assert not any(piece.start < moment < piece.end for moment in moments)
        assert not by_day or piece.start // DAY_S == (piece.end - 1) // DAY_S


def test_prices_that_change_too_often_for_one_period_are_refused() -> None:
    whole = Period(at("2026-03-01"), at("2026-03-02"))
    since = [(datetime.fromtimestamp(whole.start + n, timezone.utc), TABLE) for n in range(rules.PIECES_MAX + 1)]
    with pytest.raises(Refusal, match="shorter"):
        rules.pieces(whole, {"c": Tariff(since)}, by_day=False)
