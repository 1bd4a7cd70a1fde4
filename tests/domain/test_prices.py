"""A price table, who sets it, and which one held when (spec 10, "Prices, usage, budgets")."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from corral.domain import prices as rules
from corral.domain.errors import Refusal
from corral.domain.prices import PriceTable, Tariff

NOW = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
NOTHING = {"vcpu_hour": "0", "ram_gib_hour": "0", "storage_gib_month": "0"}


def test_a_table_is_read_from_decimal_strings_and_shown_so() -> None:
    rates = {"vcpu_hour": "0.01", "ram_gib_hour": "0.0025", "storage_gib_month": "0.1"}
    table = rules.asked("EUR", {"H100": "2.5", "*": "1"}, rates)
    assert table == PriceTable("EUR", {"H100": 2_500_000, "*": 1_000_000}, 10_000, 2_500, 100_000)
    assert table.shown() == {
        "currency": "EUR",
        "gpu_hour": {"*": "1.00", "H100": "2.50"},
        "vcpu_hour": "0.01",
        "ram_gib_hour": "0.0025",
        "storage_gib_month": "0.10",
    }


def test_a_model_without_a_rate_of_its_own_costs_what_every_other_does() -> None:
    table = PriceTable("EUR", {"H100": 2, "*": 1})
    assert (table.gpu_rate("H100"), table.gpu_rate("A100")) == (2, 1)
    assert PriceTable("EUR", {"H100": 2}).gpu_rate("A100") is None


@pytest.mark.parametrize("model", ["", " H100", "H100 ", "H\n100", "x" * 101, "\u202eH100", "H\0"])
def test_a_model_is_a_name_as_machines_show_it(model: str) -> None:
    with pytest.raises(Refusal, match="GPU model"):
        rules.asked("EUR", {model: "1"}, NOTHING)


def test_a_bad_amount_names_its_model() -> None:
    with pytest.raises(Refusal) as refusal:
        rules.asked("EUR", {"H100": "2,5"}, NOTHING)
    assert refusal.value.details == {"field": "gpu_hour.H100"}


def test_so_many_models_and_no_more() -> None:
    most = {f"m{number}": "1" for number in range(rules.MODELS_MAX)}
    assert len(rules.asked("EUR", most, NOTHING).gpu_hour) == rules.MODELS_MAX
    with pytest.raises(Refusal, match="at most"):
        rules.asked("EUR", {**most, "one more": "1"}, NOTHING)


@pytest.mark.parametrize(("operator", "admin"), [(True, False), (True, True)])
def test_the_operator_sets_the_hosted_clusters_prices(operator: bool, admin: bool) -> None:
    rules.check_setter(True, operator=operator, admin=admin, contact="")


def test_an_admin_is_told_whom_to_ask_for_the_hosted_clusters() -> None:
    with pytest.raises(Refusal, match=r"operator.*ops@example\.org") as refusal:
        rules.check_setter(True, operator=False, admin=True, contact="ops@example.org")
    assert refusal.value.code == "FORBIDDEN"


def test_a_dedicated_clusters_prices_are_its_organisations_admins_only() -> None:
    rules.check_setter(False, operator=False, admin=True, contact="")
    with pytest.raises(Refusal, match="owner or admin"):
        rules.check_setter(False, operator=True, admin=False, contact="")


def test_prices_change_so_often_within_a_day_and_no_more() -> None:
    hours = [NOW - timedelta(hours=number) for number in range(rules.CHANGES_MAX)]
    with pytest.raises(Refusal) as refusal:
        rules.check_changes(hours, NOW)
    assert (refusal.value.code, refusal.value.details) == ("RATE_LIMITED", {"retry_after_s": 3600})
    rules.check_changes(hours, NOW + timedelta(hours=1))
    rules.check_changes(hours[1:], NOW)


def test_a_table_holds_from_its_second_until_the_next() -> None:
    first, second, third = (PriceTable(code) for code in ("EUR", "USD", "CHF"))
    since = [
        (NOW + timedelta(milliseconds=900), first),
        (NOW + timedelta(seconds=5, milliseconds=1), second),
        (NOW + timedelta(seconds=5, milliseconds=2), third),
    ]
    tariff, start = Tariff(since), rules.second(NOW)
    assert tariff.at(start - 1) is None
    assert [tariff.at(start + after) for after in (0, 4, 5, 999)] == [first, first, third, third]
