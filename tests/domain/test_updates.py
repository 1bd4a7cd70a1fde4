"""Who is asked to update when, and when a machine counts as not come back (spec 10, "Update agents")."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from corral.domain import updates
from corral.domain.machines import MachineState
from corral.domain.updates import AWAY_AFTER, COME_BACK_WITHIN, Candidate, Standing, State, Step

BEHIND = Standing("1.0", MachineState.UP)
ASKED = replace(BEHIND, asked_release="2.0", update=State.ASKED)


@pytest.mark.parametrize(("release", "behind"), [("", False), ("2.0", False), ("1.0", True), ("3.0", True)])
def test_behind_is_another_release_than_the_site_serves(release: str, behind: bool) -> None:
    assert updates.is_behind(release, "2.0") is behind


@pytest.mark.parametrize(
    ("machines", "stages"),
    [(0, []), (1, [1]), (2, [1, 1]), (10, [1, 1, 8]), (11, [1, 2, 8]), (100, [1, 10, 89]), (1000, [1, 100, 899])],
)
def test_one_is_asked_then_a_tenth_then_the_rest(machines: int, stages: list[int]) -> None:
    planned = updates.staged([Candidate(str(n), f"m-{n}", 0) for n in range(machines)])
    found = [stage for _, stage in planned]
    assert found == sorted(found)
    assert [found.count(stage) for stage in sorted(set(found))] == stages


def test_those_with_the_least_work_come_first() -> None:
    planned = updates.staged([Candidate("a", "a", 2), Candidate("b", "b", 0), Candidate("c", "c", 1)])
    assert [machine.id for machine, _ in planned] == ["b", "c", "a"]


@pytest.mark.parametrize(
    ("machine", "why"),
    [
        (BEHIND, ""),
        (replace(BEHIND, state=MachineState.DOWN), "it is down"),
        (replace(BEHIND, state=MachineState.IDLE), "it is idle"),
        (replace(ASKED, update=State.FAILED, message="no room"), "release 2.0 failed on it: no room"),
        (replace(ASKED, update=State.FAILED, asked_release="1.5"), ""),
        (ASKED, ""),
    ],
)
def test_who_is_not_up_or_failed_with_this_release_is_left_out(machine: Standing, why: str) -> None:
    told = updates.left_out(machine, "2.0")
    assert told.startswith(why)
    assert bool(told) == bool(why)
    step, _ = updates.judged(Step.WAITING, machine, "2.0")
    assert step is (Step.LEFT_OUT if why else Step.ASKED)


@pytest.mark.parametrize(
    ("machine", "step", "why"),
    [
        (ASKED, Step.ASKED, ""),
        (replace(ASKED, update=State.RUNNING), Step.ASKED, ""),
        (replace(ASKED, update=State.RUNNING, release="2.0"), Step.ASKED, ""),
        (replace(BEHIND, release="2.0"), Step.DONE, ""),
        (replace(ASKED, update=State.FAILED, message="bad checksum"), Step.FAILED, "bad checksum"),
        (replace(ASKED, state=MachineState.DOWN), Step.FAILED, "it fell silent after it was asked to update"),
        (replace(ASKED, asked_for=COME_BACK_WITHIN - timedelta(seconds=1)), Step.ASKED, ""),
        (replace(ASKED, asked_for=COME_BACK_WITHIN), Step.FAILED, "it has not come back with the new release within"),
        (replace(ASKED, removed=True, state=MachineState.DOWN), Step.LEFT_OUT, "it was removed"),
    ],
)
def test_who_was_asked_comes_back_fails_or_is_waited_for(machine: Standing, step: Step, why: str) -> None:
    found, told = updates.judged(Step.ASKED, machine, "2.0")
    assert found is step
    assert told.startswith(why)


@pytest.mark.parametrize("step", [Step.DONE, Step.FAILED, Step.LEFT_OUT])
def test_what_was_judged_stays_so(step: Step) -> None:
    assert updates.judged(step, ASKED, "2.0") == (step, "")


def test_who_has_the_release_at_its_turn_is_not_asked() -> None:
    assert updates.judged(Step.WAITING, replace(BEHIND, release="2.0"), "2.0") == (Step.DONE, "")


def test_the_control_plane_looks_since_its_start_or_since_it_was_away_last() -> None:
    watch, start = updates.Watch(), datetime(2026, 3, 1, tzinfo=timezone.utc)
    back = start + 3 * AWAY_AFTER
    for now, since in [
        (start, start),
        (start + AWAY_AFTER, start),
        (back, back),
        (back + AWAY_AFTER, back),
    ]:
        assert watch.look(now) == since
