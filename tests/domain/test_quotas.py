"""Quotas in every dimension: what counts, what exceeds which by how much, and what that leaves (spec 20, spec 60)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.domain.asks import PlacementAsk
from corral.domain.errors import Refusal
from corral.domain.gpu_hours import HOUR, Ledger
from corral.domain.quotas import (
    MODELS,
    NO_LIMIT,
    QUOTA_MAX,
    Amounts,
    Before,
    Quota,
    Reached,
    Standing,
    amounts,
    checked,
    exceeded,
    explain,
    known,
    reached,
)
from corral.domain.resources import Ask, Resources
from tests.facts import GIB, at

SHARE = Resources(0, 8, 64 * GIB, 512 * GIB)
NOTHING: Amounts = Counter()


def standing(quota: Quota, live: Amounts = NOTHING, before: Before | None = None) -> Standing:
    return Standing(quota, live, before or Before(at(0)), Ledger(at(0)))


def told(quota: Quota, asked: Amounts, live: Amounts = NOTHING, before: Before | None = None) -> dict[str, Any]:
    """Return the details of the refusal."""
    over = standing(quota, live, before).over(asked)
    assert over is not None
    refused = exceeded("Workspace 'w' on cluster 'c'", over, "ops")
    assert refused.code == "QUOTA_EXCEEDED" and refused.message.startswith("Workspace 'w' on cluster 'c': quota: ")
    return dict(refused.details)


@pytest.mark.parametrize(
    ("quota", "named"),
    [
        (Quota(gpus=3), {"quota": "gpus", "limit": 3, "in_use": 2, "asked": 2, "over_by": 1}),
        (
            Quota(gpu_models={"H100": 3, "A100": 0}),
            {"quota": "gpu_models", "gpu_model": "H100", "limit": 3, "in_use": 2, "asked": 2, "over_by": 1},
        ),
        (Quota(vcpu=15), {"quota": "vcpu", "limit": 15, "in_use": 8, "asked": 8, "over_by": 1}),
        (Quota(ram_gib=100), {"quota": "ram_gib", "limit": 100, "in_use": 64, "asked": 64, "over_by": 28}),
        (Quota(storage_gib=1), {"quota": "storage_gib", "limit": 1, "in_use": 512, "asked": 512, "over_by": 1023}),
    ],
)
def test_a_refusal_says_which_quota_and_by_how_much(quota: Quota, named: dict[str, Any]) -> None:
    asked = amounts(2, "H100", SHARE)
    assert told(quota, asked, asked) == {**named, "waiting": 0}
    assert standing(quota).over(NOTHING) is None


def test_what_fits_exactly_fits_in_every_dimension() -> None:
    quota = Quota(4, {"H100": 4}, 16, 128, 1024)
    assert standing(quota, amounts(2, "H100", SHARE)).over(amounts(2, "H100", SHARE)) is None


def test_what_is_not_asked_for_exceeds_nothing() -> None:
    over_already = amounts(9, "H100", SHARE)
    assert standing(Quota(gpus=1, gpu_models={"H100": 1}), over_already).over(amounts(0, "", SHARE)) is None


def test_words_name_the_quota_and_what_waits() -> None:
    before = Before(at(0))
    before.add(Quota(), PlacementAsk(Ask(gpus=1), gpu_model="H100"), SHARE)
    over = standing(Quota(gpu_models={"H100": 3}), amounts(2, "H100", SHARE), before).over(amounts(2, "H100", SHARE))
    assert over is not None and explain(over) == (
        "quota: 2 of 3 H100 GPUs are in use, 1 more are asked for by what waits before this; 2 asked is 2 too many"
    )
    over = standing(Quota(ram_gib=100)).over(amounts(0, "", Resources(0, 1, 100 * GIB + 512)))
    assert over is not None and explain(over) == "quota: 0 of 100 GiB RAM are in use; 100.5 asked is 0.5 too many"


def test_gpu_hours_say_the_month_and_which_time_limit_fits() -> None:
    want = PlacementAsk(Ask(gpus=2), now=at(0), sure_end=at(30))
    mine = standing(Quota(gpu_hours_month=50))
    over = mine.over_hours(want)
    assert over is not None and "GPU-hours of 2026-03" in explain(over)
    assert explain(over).endswith("60 asked is 10 too many (a time limit of up to 24 h 59 min fits now)")
    assert "(a time limit of up to 4 h fits now)" in explain(replace(over, fits=4 * 3600 + 59))
    assert "(a time limit of up to 1 min fits now)" in explain(replace(over, fits=119))
    assert "(no time limit fits now)" in explain(replace(over, fits=59))
    details = exceeded("w", over, "ops").details
    assert details == {
        "quota": "gpu_hours_month",
        "month": "2026-03",
        "limit": 50,
        "in_use": 0,
        "waiting": 0,
        "asked": 60,
        "over_by": 10,
        "time_limit_that_fits": 25 * 3600 - 10,
    }
    endless = standing(Quota(gpu_hours_month=1_000)).over_hours(PlacementAsk(Ask(gpus=2), now=at(0)))
    assert endless is not None and exceeded("w", endless, "ops").details["over_by"] > 0
    assert standing(Quota()).over_hours(want) is None


# ---- what is known before a machine is chosen


def test_a_fair_share_counts_at_least_what_it_is_where_it_is_smallest() -> None:
    assert known(PlacementAsk(Ask(gpus=2, vcpu=5)), SHARE) == amounts(
        2, "", Resources(0, 5, 64 * GIB, 512 * GIB)
    ) - Counter({(MODELS, ""): 2})
    assert known(PlacementAsk(Ask(gpus=2), gpu_model="H100"), SHARE)[MODELS, "H100"] == 2
    assert known(PlacementAsk(Ask()), SHARE) == amounts(0, "", Resources(0, 1, 2 * GIB, 10 * GIB))


def test_an_ask_of_any_model_counts_before_each_that_could_suffice() -> None:
    quota, before = Quota(gpu_models={"H100": 4, "A100": 1}), Before(at(0))
    before.add(quota, PlacementAsk(Ask(gpus=2)), SHARE)
    assert (before.amounts[MODELS, "H100"], before.amounts[MODELS, "A100"]) == (2, 0)


def test_an_ask_is_for_what_the_quota_leaves() -> None:
    quota = Quota(gpu_models={"H100": 4, "A100": 2}, vcpu=20)
    want = standing(quota, amounts(3, "H100", SHARE)).within(PlacementAsk(Ask(gpus=2)))
    assert want.spent_models == {"H100"}
    assert want.room is not None and (want.room.vcpu, want.room.ram_mib > 10**15) == (12, True)
    untouched = PlacementAsk(Ask(gpus=2))
    assert standing(Quota(gpus=9)).within(untouched) is untouched


# ---- what people set


@pytest.mark.parametrize(
    ("quota", "field"),
    [
        (Quota(gpus=-1), "gpus"),
        (Quota(gpu_models={"H100": QUOTA_MAX + 1}), "gpu_models"),
        (Quota(gpu_models={"": 1}), "gpu_models"),
        (Quota(gpu_models={"a\x1b[2J": 1}), "gpu_models"),
        (Quota(gpu_models={f"m{n}": 1 for n in range(51)}), "gpu_models"),
        (Quota(vcpu=-1), "vcpu"),
        (Quota(ram_gib=-1), "ram_gib"),
        (Quota(storage_gib=-1), "storage_gib"),
        (Quota(gpu_hours_month=-1), "gpu_hours_month"),
    ],
)
def test_a_quota_that_cannot_be_is_refused_naming_the_field(quota: Quota, field: str) -> None:
    with pytest.raises(Refusal) as refused:
        checked(quota)
    assert (refused.value.code, refused.value.details["field"]) == ("INVALID_REQUEST", f"quota.{field}")


def test_no_quota_is_no_limit_and_zero_is_none_at_all() -> None:
    assert checked(NO_LIMIT) == Quota()
    assert checked(Quota(gpus=0)).gpus == 0
    assert told(Quota(gpus=0), amounts(1, "H100", SHARE))["over_by"] == 1


# ---- what machines' lists say


@pytest.mark.parametrize(
    ("quota", "what"),
    [
        (Quota(9, {"H100": 9}, 9, 65, 513, 9), Reached()),
        (Quota(gpus=2), Reached(gpus=True)),
        (Quota(gpu_models={"H100": 2, "A100": 0}), Reached(models=frozenset({"H100", "A100"}))),
        (Quota(vcpu=8), Reached(everything=True)),
        (Quota(ram_gib=64), Reached(everything=True)),
        (Quota(storage_gib=512), Reached(everything=True)),
        (Quota(gpu_hours_month=8), Reached(gpus=True)),
    ],
)
def test_what_is_reached_leaves_nothing(quota: Quota, what: Reached) -> None:
    hours = Ledger(at(0))
    hours.add_time(8 * HOUR)
    assert reached(quota, amounts(2, "H100", SHARE), hours) == what


def test_a_machine_is_closed_by_what_could_be_created_there() -> None:
    assert Reached(gpus=True).on(8, ["H100"]) and not Reached(gpus=True).on(0, [])
    by_model = Reached(models=frozenset({"H100"}))
    assert by_model.on(8, ["H100"]) and not by_model.on(8, ["A100", "H100"]) and not by_model.on(0, [])
    assert Reached(everything=True).on(0, [])


# ---- whatever is asked in whatever order

QUOTAS = st.builds(
    Quota,
    st.none() | st.integers(0, 8),
    st.dictionaries(st.sampled_from(("H100", "A100")), st.integers(0, 6)),
    st.none() | st.integers(0, 40),
    st.none() | st.integers(0, 300),
    st.none() | st.integers(0, 2_000),
)
ASKED = st.tuples(st.integers(0, 4), st.sampled_from(("H100", "A100")), st.integers(1, 20), st.integers(1, 200))


@settings(max_examples=200, deadline=None)
@given(QUOTAS, st.lists(st.tuples(ASKED, st.booleans()), max_size=15))
def test_no_dimension_is_ever_exceeded_by_what_is_let_in(
    quota: Quota, steps: list[tuple[tuple[int, str, int, int], bool]]
) -> None:
    live, held = Amounts(), list[Amounts]()
    for (gpus, model, vcpu, gib), ends in steps:
        asked = amounts(gpus, model if gpus else "", Resources(0, vcpu, gib * GIB, gib * GIB))
        if standing(quota, live).over(asked) is None:
            live += asked
            held.append(asked)
        for dimension, limit in quota.limits:
            assert live[dimension] <= limit
        if ends and held:
            live -= held.pop(0)


def test_the_earlier_that_waits_counts_in_its_own_dimensions_only() -> None:
    before = Before(at(0))
    before.add(Quota(gpu_hours_month=1), PlacementAsk(Ask(gpus=1), now=at(0), sure_end=at(1)), SHARE)
    assert before.hours.of(Ledger(at(0)).last) == HOUR
    cpu = Before(at(0))
    cpu.add(Quota(gpu_hours_month=1), PlacementAsk(Ask(vcpu=4), now=at(0)), SHARE)
    assert (cpu.amounts[("gpus", "")], cpu.hours.endless) == (0, 0)
