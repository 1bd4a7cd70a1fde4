"""Whose delivery is begun next: the slow, and those with much, hold up nobody else."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from corral.domain.turns import (
    AT_ONCE,
    OF_A_TARGET,
    OF_AN_ORG,
    SERVICES_AT_ONCE,
    SERVICES_OF_AN_ORG,
    Turns,
    UnderWay,
    Waiting,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


def waiting(org: str, target: str = "", minutes: int = 0, *, service: bool = False) -> Waiting:
    return Waiting(org, target or f"{org}-1", not service, NOON + timedelta(minutes=minutes))


def under_way(one: Waiting) -> UnderWay:
    return UnderWay(one.org, one.target, one.by_webhook)


def begin(turns: Turns, most: int = 999) -> list[Waiting]:
    """Begin what may begin, of targets that have more than enough waiting."""
    begun: list[Waiting] = []
    while len(begun) < most and (one := turns.next()) is not None:
        turns.began(one)
        begun.append(one)
    return begun


def test_a_target_and_an_organisation_have_so_many_at_once() -> None:
    assert len(begin(Turns([waiting("a")], []))) == OF_A_TARGET
    many = [waiting("a", f"a-{number}") for number in range(10)]
    begun = begin(Turns(many, []))
    assert len(begun) == OF_AN_ORG and max(Counter(one.target for one in begun).values()) == 1


def test_a_target_that_fails_has_one_and_a_service_too() -> None:
    assert len(begin(Turns([waiting("a")], [], failing={"a-1"}))) == 1
    assert len(begin(Turns([waiting("a", service=True)], []))) == 1
    assert begin(Turns([waiting("a")], [UnderWay("a", "a-1", True)], failing={"a-1"})) == []


def test_the_organisation_with_the_fewest_on_their_way_comes_first_though_its_own_is_newer() -> None:
    busy = [UnderWay("a", "a-2", True)]
    begun = begin(Turns([waiting("a"), waiting("b", minutes=5)], busy), 3)
    assert [one.org for one in begun] == ["b", "a", "b"]


def test_of_several_with_as_many_that_whose_turn_was_longest_ago_comes_first_then_the_oldest() -> None:
    both = [waiting("a"), waiting("b", minutes=5)]
    assert [one.org for one in begin(Turns(both, []), 1)] == ["a"]
    assert [one.org for one in begin(Turns(both, [], last={"a": 7}), 1)] == ["b"]


def test_one_with_much_does_not_go_on_while_another_waits() -> None:
    """Everything else is taken, one place becomes free at a time: they take turns, however much one has."""
    others = [UnderWay(f"other-{number}", "x", True) for number in range(AT_ONCE - 1)]
    last: dict[str, int] = {}
    order = []
    for _ in range(6):
        turns = Turns([waiting("a"), waiting("b", minutes=60)], others, last=last)
        (one,) = begin(turns)
        order.append(one.org)
        last = turns.last
    assert order == ["a", "b"] * 3


def test_many_organisations_with_slow_targets_leave_places_for_one_that_comes_later() -> None:
    slow = [waiting(f"slow-{org}", f"{org}-{target}") for org in range(10) for target in range(20)]
    begun = begin(Turns(slow, []))
    assert len(begun) < AT_ONCE
    late = begin(Turns([*slow, waiting("late", minutes=60)], [under_way(one) for one in begun]))
    assert late and {one.org for one in late} == {"late"}


def test_services_are_shared_out_like_that_too() -> None:
    slow = [waiting(f"slow-{org}", f"{org}-{target}", service=True) for org in range(3) for target in range(3)]
    begun = begin(Turns(slow, []))
    assert Counter(one.org for one in begun) == {"slow-0": 1, "slow-1": 1, "slow-2": 1}
    late = waiting("late", service=True, minutes=60)
    assert begin(Turns([*slow, late], [under_way(one) for one in begun])) == [late]
    alone = [one for one in slow if one.org == "slow-0"]
    assert len(begin(Turns(alone, []))) == SERVICES_OF_AN_ORG < SERVICES_AT_ONCE
    webhook = waiting("slow-0", "hook")
    assert {one.target for one in begin(Turns([*slow, webhook], [under_way(one) for one in begun]))} == {"hook"}


def test_a_target_of_which_nothing_is_left_gives_way() -> None:
    turns = Turns([waiting("a"), waiting("a", "a-2", 5)], [])
    first = turns.next()
    assert first is not None and first.target == "a-1"
    turns.spent(first)
    second = turns.next()
    assert second is not None and second.target == "a-2"
    turns.spent(second)
    assert turns.next() is None


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5), st.booleans(), st.integers(0, 90)), max_size=60),
    st.lists(st.integers(0, 400), max_size=20),
)
def test_no_bound_is_ever_passed_and_nobody_without_any_is_left_out(
    targets: list[tuple[int, int, bool, int]], ends: list[int]
) -> None:
    known = {(org, target): (service, minutes) for org, target, service, minutes in targets}
    due = [waiting(f"{o}", f"{o}-{t}", minutes, service=service) for (o, t), (service, minutes) in known.items()]
    running: list[Waiting] = []
    for end in [0, *ends]:
        if running:
            del running[end % len(running)]
        running += begin(Turns(due, [under_way(one) for one in running]))
        of_org = Counter(one.org for one in running)
        services = [one for one in running if not one.by_webhook]
        assert len(running) <= AT_ONCE and max(of_org.values(), default=0) <= OF_AN_ORG
        assert max(Counter(one.target for one in running).values(), default=0) <= OF_A_TARGET
        assert len(services) <= SERVICES_AT_ONCE
        assert max(Counter(one.org for one in services).values(), default=0) <= SERVICES_OF_AN_ORG
        if len(running) < AT_ONCE:
            assert {one.org for one in due if one.by_webhook} <= set(of_org)
