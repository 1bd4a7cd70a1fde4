"""What a webhook is told of, and when again."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.domain import webhooks as rules
from corral.domain.errors import Refusal
from corral.domain.events import is_of
from corral.domain.webhooks import Outcome

NOW = datetime(2026, 3, 1, tzinfo=timezone.utc)
NO_ANSWER = Outcome(None)


def test_types_are_those_of_events_or_beginnings_of_some() -> None:
    assert rules.types(["cluster.node.*", "workload.failed", "cluster.node.*"]) == ("cluster.node.*", "workload.failed")
    assert rules.types([]) == ()
    for wrong in ("cluster.nod", "nothing.*", "*", ".*", "user.logged_in", ""):
        with pytest.raises(Refusal) as refusal:
            rules.types([wrong])
        assert refusal.value.code == "INVALID_REQUEST"


def test_a_beginning_matches_only_whole_words() -> None:
    assert is_of("cluster.node.down", "cluster.node.*")
    assert not is_of("cluster.node.down", "cluster.nod.*")
    assert not is_of("cluster.node.down", "cluster.node")


def test_what_is_not_taken_is_sent_again_for_about_a_day_and_then_given_up() -> None:
    waited, attempts = timedelta(0), 1
    while (at := rules.next_try(attempts, NO_ANSWER, NOW, 0.5)) is not None:
        waited += at - NOW
        attempts += 1
    assert timedelta(hours=23) < waited < timedelta(hours=26)
    assert rules.next_try(1, NO_ANSWER, NOW, 0.5) == NOW + timedelta(seconds=5)


@given(st.floats(0, 1), st.integers(1, 10))
def test_what_failed_together_comes_again_apart_but_never_much_later(chance: float, attempts: int) -> None:
    middle = rules.next_try(attempts, NO_ANSWER, NOW, 0.5)
    spread = rules.next_try(attempts, NO_ANSWER, NOW, chance)
    assert middle is not None and spread is not None
    assert 0.79 <= (spread - NOW) / (middle - NOW) <= 1.21
    assert rules.next_try(attempts, NO_ANSWER, NOW, 0.0) != rules.next_try(attempts, NO_ANSWER, NOW, 1.0)


@pytest.mark.parametrize("status", [200, 201, 204, 299, 410])
def test_taken_and_gone_are_not_sent_again(status: int) -> None:
    assert rules.next_try(1, Outcome(status), NOW, 0.5) is None


@pytest.mark.parametrize("status", [100, 301, 307, 400, 401, 404, 409, 500, 503])
def test_every_other_answer_is_no_success(status: int) -> None:
    assert rules.next_try(1, Outcome(status), NOW, 0.5) is not None


def test_retry_after_counts_where_it_may_and_only_so_far() -> None:
    for status in (429, 503):
        assert rules.next_try(1, Outcome(status, 90.0), NOW, 0.5) == NOW + timedelta(seconds=90)
        assert rules.next_try(1, Outcome(status, 1e12), NOW, 0.5) == NOW + rules.RETRY_AFTER_MAX
        assert rules.next_try(1, Outcome(status, -7.0), NOW, 0.5) == NOW + timedelta(seconds=5)
        assert rules.next_try(5, Outcome(status, 1.0), NOW, 0.5) == NOW + timedelta(minutes=30)
    assert rules.next_try(1, Outcome(500, 90.0), NOW, 0.5) == NOW + timedelta(seconds=5)


def test_a_target_that_fails_is_left_alone_longer_and_longer_up_to_two_minutes() -> None:
    for silent in (Outcome(None), Outcome(429), Outcome(503)):
        assert [rules.pause(n, silent).total_seconds() for n in (0, 1, 2, 3, 4, 99)] == [0, 5, 30, 120, 120, 120]


def test_a_target_that_refuses_some_is_asked_for_the_others_meanwhile() -> None:
    few, many = range(rules.REFUSALS_IN_A_ROW), (rules.REFUSALS_IN_A_ROW, 10_000)
    assert {rules.pause(n, Outcome(500)).total_seconds() for n in few} == {0}
    assert {rules.pause(n, Outcome(500)).total_seconds() for n in many} == {5}
