"""When counters are a fault, and what is one cause (spec 10, "GPU faults"; spec 40)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from corral.domain.faults import UNREADABLE_S, Baseline, Counters, by_counters, cleared, judged, meaning, same_cause

WELL = Counters(0, 0, False, 18, 18, 0)


def codes(now: Counters, was: Counters | None = WELL) -> list[str]:
    return [fault.code for fault in by_counters(now, was)]


def test_a_gpu_that_is_well_has_no_fault() -> None:
    assert codes(WELL) == codes(WELL, None) == codes(Counters()) == codes(Counters(), None) == []


def test_memory_errors_count_from_the_baseline() -> None:
    assert codes(replace(WELL, ecc_volatile=1, ecc_aggregate=1)) == ["ecc_uncorrected"]
    old = replace(WELL, ecc_volatile=3, ecc_aggregate=7)
    assert codes(old, old) == []
    assert codes(replace(old, ecc_aggregate=8), old) == ["ecc_uncorrected"]
    assert codes(replace(old, ecc_volatile=4), old) == ["ecc_uncorrected"]


def test_a_gpus_life_before_it_came_here_is_no_fault() -> None:
    assert codes(replace(WELL, ecc_aggregate=7), None) == []
    assert codes(replace(WELL, ecc_aggregate=7, ecc_volatile=1), None) == ["ecc_uncorrected"]


def test_a_driver_that_was_loaded_again_counts_anew() -> None:
    only_since_load = replace(WELL, ecc_aggregate=-1, ecc_volatile=5)
    assert codes(replace(only_since_load, ecc_volatile=0), only_since_load) == []
    assert codes(replace(only_since_load, ecc_volatile=2), only_since_load) == ["ecc_uncorrected"]


def test_an_old_report_that_comes_late_makes_no_new_errors() -> None:
    known = replace(WELL, ecc_volatile=7, ecc_aggregate=7)
    late = replace(WELL, ecc_volatile=6, ecc_aggregate=6)
    assert codes(late, known) == []
    assert codes(known, judged(late, known)) == []


def test_links_are_a_fault_when_they_were_up_and_all_are_down() -> None:
    down = replace(WELL, nvlinks_up=0)
    assert codes(down) == ["nvlink_down"]
    assert codes(down, judged(down, WELL)) == ["nvlink_down"], "it is remembered that they were up"
    assert codes(replace(WELL, nvlinks_up=1)) == []
    assert codes(down, None) == codes(down, down) == [], "they never were up"
    assert codes(Counters(nvlinks=0), WELL) == []


def test_links_are_all_down_only_when_as_many_could_be_read_as_before() -> None:
    some = replace(WELL, nvlinks=1, nvlinks_up=0)
    assert codes(some) == codes(some, replace(WELL, nvlinks_up=17)) == []
    for after in (judged(some, WELL), cleared(some, WELL)):
        assert codes(some, after) == [], "it is remembered how many there are"
        assert codes(replace(WELL, nvlinks_up=0), after) == ["nvlink_down"]


def test_a_gpu_that_does_not_answer_is_a_fault_after_a_minute_or_when_it_is_lost() -> None:
    assert codes(Counters(unreadable_s=UNREADABLE_S - 1)) == []
    assert codes(Counters(unreadable_s=UNREADABLE_S)) == codes(Counters(lost=True), None) == ["unreadable"]


@pytest.mark.parametrize("silent", [Counters(unreadable_s=30), Counters(lost=True)])
def test_what_a_silent_gpu_does_not_say_changes_what_it_is_measured_against_in_nothing(silent: Counters) -> None:
    known = replace(WELL, ecc_volatile=7, ecc_aggregate=7)
    assert judged(silent, known) == cleared(silent, known) == known
    assert not judged(silent, None).silent
    assert not cleared(silent, None).silent


def test_a_failed_remap_is_a_fault_as_long_as_it_is_there() -> None:
    failed = replace(WELL, remap_failed=True)
    assert codes(failed) == codes(failed, failed) == codes(failed, None) == ["row_remap_failed"]


@pytest.mark.parametrize(("action", "fences"), [(0, False), (3, False), (5, False), (-1, False), (1, True), (9, True)])
def test_a_recovery_action_that_needs_a_reset_is_a_fault(action: int, fences: bool) -> None:
    assert codes(replace(WELL, recovery_action=action)) == (["recovery_action"] if fences else [])


def test_a_state_that_only_lasts_is_not_counted_again() -> None:
    lasting = replace(WELL, remap_failed=True, nvlinks_up=0, recovery_action=1)
    assert [fault.times for fault in by_counters(lasting, WELL)] == [0, 0, 0]


def test_after_a_clear_counters_count_from_what_the_gpu_says_then() -> None:
    now = replace(WELL, ecc_volatile=5, ecc_aggregate=5, nvlinks_up=0)
    after = cleared(now, WELL)
    assert (after.ecc_aggregate, after.nvlinks_up) == (5, 18)
    assert cleared(None, WELL) == WELL
    assert cleared(None, None) == Counters()


def test_cleared_lines_are_those_of_the_boot_up_to_the_last() -> None:
    baseline = Baseline(WELL, "boot-1", 100)
    assert baseline.covers("boot-1", 100)
    assert not baseline.covers("boot-1", 101)
    assert not baseline.covers("boot-2", 3)


@pytest.mark.parametrize(
    ("code", "latched", "same"),
    [
        ("xid_119", ["xid_79"], "xid_79"),
        ("missing", ["xid_79"], "xid_79"),
        ("xid_94", ["xid_48"], "xid_48"),
        ("ecc_uncorrected", ["xid_48"], "xid_48"),
        ("xid_48", ["xid_48"], "xid_48"),
        ("xid_154", ["nvlink_down"], "nvlink_down"),
        ("recovery_action", ["xid_62"], "xid_62"),
        ("recovery_action", [], None),
        ("xid_79", ["xid_48"], None),
        ("xid_62", ["xid_46"], None),
        ("xid_79", [], None),
    ],
)
def test_one_cause_makes_one_fence(code: str, latched: list[str], same: str | None) -> None:
    assert same_cause(code, latched) == same


def test_every_code_has_words() -> None:
    assert meaning("xid_79") == "fallen off the bus"
    assert meaning("ecc_uncorrected") == "uncorrectable memory errors"
    assert meaning("xid_99999") and meaning("unheard_of") == "unheard_of"


def test_counters_are_kept_as_they_were() -> None:
    assert Counters.of(WELL.plain()) == WELL
    assert Counters.of({"ecc_volatile": 1, "of a later release": 2}) == Counters(ecc_volatile=1)
