"""Money is whole millionths, in decimal strings outside (spec 10, "Prices, usage, budgets")."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.domain import money
from corral.domain.errors import Refusal

AMOUNTS = st.integers(0, money.AMOUNT_MAX * money.MILLION)


@given(AMOUNTS)
def test_what_is_shown_is_read_as_the_same(amount: int) -> None:
    assert money.millionths(money.text(amount), "amount", money.AMOUNT_MAX) == amount


@given(AMOUNTS)
def test_what_is_shown_is_exact_with_two_decimals_or_as_many_as_it_needs(amount: int) -> None:
    shown = money.text(amount)
    decimals = shown.partition(".")[2]
    assert Decimal(shown) * money.MILLION == amount
    assert 2 <= len(decimals) <= money.DECIMALS
    assert len(decimals) == 2 or not decimals.endswith("0")


@given(st.decimals(0, money.RATE_MAX, places=6))
def test_an_amount_is_read_exactly(amount: Decimal) -> None:
    assert money.millionths(f"{amount:f}", "rate", money.RATE_MAX) == amount * money.MILLION


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "1 ", " 1", "+1", "-1", "1.", ".5", "1e3", "1,5", "1_000", "0x1", "1.0000001", "NaN", "Infinity"),
        *("1000000.000001", "1000001", "9" * 400, "٣", "1\n", "1\0", "\ud800", "=1"),
    ],
)
def test_what_is_no_amount_is_refused_naming_the_field(text: str) -> None:
    with pytest.raises(Refusal) as refusal:
        money.millionths(text, "vcpu_hour", money.RATE_MAX)
    assert (refusal.value.code, refusal.value.details) == ("INVALID_REQUEST", {"field": "vcpu_hour"})


def test_the_least_and_the_most_are_amounts() -> None:
    assert money.millionths("0", "x", money.RATE_MAX) == 0
    assert money.millionths("1000000.000000", "x", money.RATE_MAX) == money.RATE_MAX * money.MILLION


@pytest.mark.parametrize("code", ["", "eur", "EURO", "EU", "€", "XXX", "ABC", "EUR "])
def test_a_currency_is_a_code_of_iso_4217(code: str) -> None:
    assert money.currency("EUR") == "EUR"
    with pytest.raises(Refusal, match="ISO 4217"):
        money.currency(code)


def test_every_code_has_three_capitals() -> None:
    assert all(len(code) == 3 and code.isascii() and code.isupper() for code in money.CURRENCIES)
