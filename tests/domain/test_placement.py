"""Placement: best fit, deterministic, with reasons; the index says what a plain search would (spec 30)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from corral.domain import asks as terms
from corral.domain import fleet as fleet_
from corral.domain import placement
from corral.domain.asks import Ahead, Kind, PlacementAsk
from corral.domain.fleet import Fleet
from corral.domain.placement import REASONS_KEPT, explain, why_it_waits
from corral.domain.resources import Ask, Resources
from tests.facts import GIB, at, machine, planned, reasons, window


def test_the_machine_with_the_fewest_free_gpus_is_taken_so_whole_machines_stay_whole() -> None:
    fleet = Fleet.of([machine("a"), machine("b")])
    first = planned(fleet, PlacementAsk(Ask(gpus=3)))
    fleet.take(first)
    second = planned(fleet, PlacementAsk(Ask(gpus=5)))
    fleet.take(second)
    assert (first.machine, second.machine) == ("a", "a")
    assert planned(fleet, PlacementAsk(Ask(gpus=8))).machine == "b"


def test_among_equals_the_one_with_least_free_vcpu_then_the_first_by_name() -> None:
    fleet = Fleet.of([machine("c"), machine("b"), machine("a", vcpu=96)])
    assert planned(fleet, PlacementAsk(Ask(gpus=1))).machine == "b"


def test_gpus_are_given_in_pci_bus_order_and_come_back() -> None:
    fleet = Fleet.of([machine("a")])
    first = planned(fleet, PlacementAsk(Ask(gpus=2)))
    assert [gpu.slot for gpu in first.gpus] == ["0000:00:00.0", "0000:01:00.0"]
    fleet.take(first)
    fleet.take(planned(fleet, PlacementAsk(Ask(gpus=1))))
    fleet.replace(machine("a"))
    assert planned(fleet, PlacementAsk(Ask(gpus=2))).gpus == first.gpus


def test_the_gpus_of_one_workload_are_of_one_model() -> None:
    fleet = Fleet.of([machine("mixed", ("A100", "A100", "H100", "H100"))])
    assert {gpu.model for gpu in planned(fleet, PlacementAsk(Ask(gpus=2))).gpus} == {"A100"}
    assert reasons(fleet, PlacementAsk(Ask(gpus=3))) == {"mixed": "2 of 4 GPUs free, 3 asked of one model"}


def test_selectors_intersect() -> None:
    fleet = Fleet.of([machine("a", pool="x"), machine("b", pool="y"), machine("c", ("A100",) * 4, pool="y")])
    assert planned(fleet, PlacementAsk(Ask(gpus=1), pool="y", gpu_model="H100")).machine == "b"
    assert planned(fleet, PlacementAsk(Ask(), machine="c", pool="y")).machine == "c"
    assert reasons(fleet, PlacementAsk(Ask(gpus=1), machine="a", pool="y")) == {}


def test_work_without_gpus_goes_where_gpus_are_taken_first() -> None:
    fleet = Fleet.of([machine("whole"), machine("taken")])
    fleet.take(planned(fleet, PlacementAsk(Ask(gpus=8, vcpu=8, ram_mib=GIB, storage_mib=GIB), machine="taken")))
    plan = planned(fleet, PlacementAsk(Ask()))
    assert (plan.machine, plan.gpus, plan.resources) == ("taken", (), Resources(0, 1, 2 * GIB, 10 * GIB))


def test_machines_outside_the_granted_pools_are_never_named() -> None:
    fleet = Fleet.of(
        [machine("mine", pool="a", closed="down since noon"), machine("theirs", pool="b"), machine("none")]
    )
    want = PlacementAsk(Ask(gpus=1), pools=frozenset({"a"}))
    assert reasons(fleet, want) == {"mine": "down since noon"}
    assert [answer.machine for answer in explain(fleet, want)] == ["mine"]


def test_each_reason_says_what_is_short_in_numbers() -> None:
    fleet = Fleet.of([machine("a", faulty=2), machine("cpu", ()), machine("c", closed="cordoned: maintenance")])
    assert reasons(fleet, PlacementAsk(Ask(gpus=8))) == {
        "a": "6 of 8 GPUs free (2 faulty or busy), 8 asked",
        "c": "cordoned: maintenance",
        "cpu": "has no GPU, 8 asked",
    }
    want = PlacementAsk(Ask(gpus=1, vcpu=65), machine="a")
    assert reasons(fleet, want) == {"a": "64 of 64 vCPU free, 65 asked"}
    want = PlacementAsk(Ask(ram_mib=513 * GIB), machine="a")
    assert reasons(fleet, want) == {"a": "512 of 512 GiB RAM free, 513 asked"}
    want = PlacementAsk(Ask(storage_mib=5000 * GIB), machine="a")
    assert reasons(fleet, want) == {"a": "4096 of 4096 GiB storage free, 5000 asked"}
    want = PlacementAsk(Ask(gpus=1), machine="a", gpu_model="A100")
    assert reasons(fleet, want) == {"a": "has H100, A100 asked"}


def test_a_later_ask_takes_no_machine_that_an_earlier_waiting_one_could_use() -> None:
    fleet = Fleet.of([machine("a", pool="x"), machine("b", pool="y")])
    fleet.take(planned(fleet, PlacementAsk(Ask(gpus=1), pool="x")))
    ahead = Ahead()
    ahead.add(PlacementAsk(Ask(gpus=8), pool="x"))
    assert reasons(fleet, PlacementAsk(Ask(gpus=1), pool="x"), ahead) == {"a": "kept for work that has waited longer"}
    assert planned(fleet, PlacementAsk(Ask(gpus=1)), ahead).machine == "b"


def test_what_could_never_be_placed_holds_nobody_back() -> None:
    fleet, ahead = Fleet.of([machine("a")]), Ahead()
    ahead.add(PlacementAsk(Ask(gpus=16)))
    assert planned(fleet, PlacementAsk(Ask(gpus=1)), ahead).machine == "a"


def test_a_machine_waited_for_by_name_is_kept_and_others_are_not() -> None:
    fleet, ahead = Fleet.of([machine("a"), machine("b")]), Ahead()
    ahead.add(PlacementAsk(Ask(gpus=8), machine="a"))
    assert planned(fleet, PlacementAsk(Ask(gpus=1)), ahead).machine == "b"


def test_many_asks_that_wait_are_each_looked_at_once_for_a_kind_of_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[PlacementAsk] = []
    could = terms.could_ever

    def looking(kind: Kind, ask: PlacementAsk, taken: Resources) -> bool:
        looked.append(ask)
        return could(kind, ask, taken)

    monkeypatch.setattr(terms, "could_ever", looking)
    fleet, ahead = Fleet.of([machine("a"), machine("b")]), Ahead()
    for _ in range(50):
        ahead.add(PlacementAsk(Ask(gpus=16)))
        assert planned(fleet, PlacementAsk(Ask(gpus=1)), ahead).machine == "a"
    assert len(looked) == 50
    ahead.add(PlacementAsk(Ask(gpus=8)))
    assert set(reasons(fleet, PlacementAsk(Ask(gpus=1)), ahead).values()) == {"kept for work that has waited longer"}


def test_why_something_waits_names_some_machines_and_judges_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet.of([machine(f"m{n:03}", pool="ab"[n % 2]) for n in range(100)])
    judged: list[str] = []
    why_not = placement.why_not

    def judging(fleet: Fleet, machine: fleet_.Machine, want: PlacementAsk, ahead: Ahead) -> str:
        judged.append(machine.facts.name)
        return why_not(fleet, machine, want, ahead)

    monkeypatch.setattr(placement, "why_not", judging)
    said = why_it_waits(fleet, PlacementAsk(Ask(gpus=9), pool="b"))
    assert said.startswith("m001: 8 of 8 GPUs free, 9 asked; m003: ") and said.endswith("; and 30 more machines")
    assert len(judged) == said.count(": ") == REASONS_KEPT
    assert why_it_waits(fleet, PlacementAsk(Ask(gpus=9), machine="m000")) == "m000: 8 of 8 GPUs free, 9 asked"
    assert why_it_waits(fleet, PlacementAsk(Ask(), pool="c")).startswith("no machine that this workspace may use")


# ---- reservations, data locations, what a quota leaves

ONE = PlacementAsk(Ask(gpus=1), workspace="research", now=at(0))


def test_during_a_window_only_the_named_workspaces_work_lands() -> None:
    fleet = Fleet.of([machine("a", windows=[window(-1, 2, "research")]), machine("b", windows=[window(-1, 2)])])
    assert planned(fleet, ONE).machine == "a"
    assert reasons(fleet, replace(ONE, workspace="other")) == {
        "a": "reserved for research until 2026-03-01 14:00 UTC",
        "b": "reserved for nobody until 2026-03-01 14:00 UTC",
    }


def test_before_a_window_only_work_sure_to_end_in_time_is_placed() -> None:
    fleet = Fleet.of([machine("a", windows=[window(2, 4, "other")])])
    assert planned(fleet, replace(ONE, sure_end=at(2))).machine == "a"
    late = replace(ONE, sure_end=at(2) + timedelta(microseconds=1))
    for want in (ONE, late):
        assert "from 2026-03-01 14:00 to 2026-03-01 16:00 UTC" in reasons(fleet, want)["a"]
        assert "reserved for other" in reasons(fleet, replace(want, machine="a"))["a"]
    assert planned(fleet, replace(late, machine="a", workspace="other")).machine == "a"


def test_a_window_that_is_over_keeps_nothing_out_and_one_begins_at_its_start() -> None:
    fleet = Fleet.of([machine("a", windows=[window(1, 2)])])
    assert reasons(fleet, replace(ONE, now=at(1), sure_end=at(1.5)))
    assert reasons(fleet, replace(ONE, now=at(2) - timedelta(microseconds=1)))
    assert planned(fleet, replace(ONE, now=at(2))).machine == "a"
    assert not fleet.has_windows


def test_what_was_taken_before_a_window_was_over_stays_taken() -> None:
    fleet = Fleet.of([machine("a", ("H100",) * 2, windows=[window(1, 2)])])
    fleet.take(planned(fleet, replace(ONE, sure_end=at(1))))
    later = replace(ONE, now=at(3))
    fleet.take(planned(fleet, later))
    assert reasons(fleet, later) == {"a": "0 of 2 GPUs free, 1 asked"}


def test_where_several_windows_cover_a_machine_only_what_all_allow_may_run() -> None:
    fleet = Fleet.of([machine("a", windows=[window(-1, 3, "research", "other"), window(-2, 3, "research")])])
    assert planned(fleet, ONE).machine == "a"
    assert reasons(fleet, replace(ONE, workspace="other"))


def test_work_that_is_over_in_time_leaves_unreserved_machines_to_work_that_is_not() -> None:
    fleet = Fleet.of([machine("a"), machine("b", windows=[window(9, 10)]), machine("c", windows=[window(3, 4)])])
    assert planned(fleet, replace(ONE, sure_end=at(1))).machine == "c"
    assert planned(fleet, replace(ONE, sure_end=at(5))).machine == "b"
    assert planned(fleet, ONE).machine == "a"


def test_an_ask_that_a_reservation_keeps_out_holds_nobody_back_there_until_it_is_over() -> None:
    facts = [machine("a", windows=[window(2, 4)]), machine("b", pool="x", windows=[window(2, 4)])]
    for first in (replace(ONE, ask=Ask(gpus=8)), replace(ONE, ask=Ask(gpus=8), machine="a")):
        fleet, ahead = Fleet.of(facts), Ahead()
        ahead.add(first)
        short = replace(ONE, sure_end=at(1), machine="a")
        assert planned(fleet, short, ahead).machine == "a"
        later = Ahead()
        later.add(replace(first, now=at(4)))
        assert reasons(fleet, replace(short, now=at(4), sure_end=at(5)), later) == {
            "a": "kept for work that has waited longer"
        }


def test_a_kept_drive_needs_a_data_location() -> None:
    fleet = Fleet.of([machine("a"), machine("b", data=True)])
    want = replace(ONE, drives=True)
    assert planned(fleet, want).machine == "b"
    assert planned(fleet, ONE).machine == "a"
    assert reasons(fleet, replace(want, machine="a")) == {"a": "no data location"}
    assert reasons(Fleet.of([machine("a")]), want) == {"a": "no data location"}


def test_what_needs_a_data_location_holds_nobody_back_where_there_is_none() -> None:
    fleet, ahead = Fleet.of([machine("a")]), Ahead()
    ahead.add(replace(ONE, drives=True))
    assert planned(fleet, ONE, ahead).machine == "a"


def test_only_models_that_the_quota_leaves_are_chosen_and_it_is_said_where_none_is() -> None:
    fleet = Fleet.of([machine("a", ("A100", "A100", "H100", "H100")), machine("b", ("A100",) * 2)])
    assert planned(fleet, replace(ONE, spent_models=frozenset({"A100"}))).gpu_model == "H100"
    want = replace(ONE, ask=Ask(gpus=2), machine="a", spent_models=frozenset({"A100"}))
    assert planned(fleet, want).gpu_model == "H100"
    assert reasons(fleet, replace(ONE, spent_models=frozenset({"A100", "H100"}))) == {
        "a": "the workspace's quota leaves too few A100, H100",
        "b": "the workspace's quota leaves too few A100",
    }
    assert planned(fleet, replace(ONE, ask=Ask(), spent_models=frozenset({"A100", "H100"}))).machine == "b"


def test_a_fair_share_stays_within_what_the_quota_leaves() -> None:
    fleet = Fleet.of([machine("a", vcpu=64), machine("b", vcpu=128)])
    fleet.take(planned(fleet, replace(ONE, machine="b")))
    assert planned(fleet, ONE).machine == "b"
    want = replace(ONE, room=Resources(0, 8, 64 * GIB, 512 * GIB))
    assert planned(fleet, want).machine == "a"
    assert reasons(fleet, replace(want, room=Resources(0, 8, 63 * GIB, 512 * GIB))) == {
        "a": "the workspace's quota leaves 63 GiB RAM, 64 asked (the fair share of 1 GPUs; ask for less)",
        "b": "the workspace's quota leaves 8 vCPU, 16 asked (the fair share of 1 GPUs; ask for less)",
    }
    ahead = Ahead()
    ahead.add(replace(want, room=Resources(0, 7, 64 * GIB, 512 * GIB)))
    assert planned(fleet, ONE, ahead).machine == "b"
