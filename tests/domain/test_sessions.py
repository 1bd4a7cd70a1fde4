"""When two sessions betray a copy of a machine's state (spec 40, "Joining"; design decision 3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.domain.allocations import Desired
from corral.domain.resources import Resources
from corral.domain.sessions import is_clone, may_be_told


@pytest.mark.parametrize(
    ("recent", "instance", "clone"),
    [
        ("", "A", False),  # the first hello
        ("A", "A", False),  # a half-open connection replaced
        ("AAA", "A", False),
        ("A", "B", False),  # the agent was restarted
        ("AB", "C", False),
        ("AB", "B", False),
        ("AB", "A", True),  # the superseded one says hello again
        ("ABBB", "A", True),
        ("ABC", "B", True),
        ("ABA", "B", True),
    ],
)
def test_a_superseded_instance_that_says_hello_again_is_a_clone(recent: str, instance: str, clone: bool) -> None:
    assert is_clone(list(recent), instance) is clone


@given(st.lists(st.integers(1, 4), max_size=12))
def test_one_agent_that_restarts_and_reconnects_is_never_a_clone(reconnects: list[int]) -> None:
    recent: list[str] = []
    for life, times in enumerate(reconnects):
        for _ in range(times):
            assert not is_clone(recent, f"instance-{life}")
            recent.append(f"instance-{life}")


@given(st.lists(st.booleans(), min_size=3, max_size=16))
def test_two_copies_are_noticed_at_the_first_return_of_one(turns: list[bool]) -> None:
    recent: list[str] = []
    noticed, changes = False, 0
    for turn in turns:
        instance = "A" if turn else "B"
        changes += bool(recent) and recent[-1] != instance
        noticed = noticed or is_clone(recent, instance)
        recent.append(instance)
    assert noticed is (changes >= 2)


def _want(*, stop: bool) -> Desired:
    return Desired("x", 1, stop, "compute_cluster", "o", "w", "l", "n", "i", (), Resources())


def test_in_quarantine_a_machine_is_told_only_to_stop_or_about_what_itself_runs() -> None:
    assert may_be_told(_want(stop=False), quarantined=False, running_here=())
    assert not may_be_told(_want(stop=False), quarantined=True, running_here=())
    assert may_be_told(_want(stop=False), quarantined=True, running_here={"x"})
    assert may_be_told(_want(stop=True), quarantined=True, running_here=())
