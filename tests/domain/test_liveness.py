"""Which silent machines are Down (spec 10, "Machine states"; design decision 4)."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from corral.domain.liveness import HOLD_FOR, Verdict, judge, was_deaf
from corral.domain.machines import DOWN_AFTER, MachineState, state_after

START = datetime(2026, 3, 1, tzinfo=timezone.utc)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def fleet(*heard: float) -> dict[str, datetime | None]:
    return {f"m{n}": at(seconds) for n, seconds in enumerate(heard)}


def test_down_after_60_seconds_of_silence() -> None:
    up = fleet(0, 50, 50)
    assert judge(up, START, None, at(59.9)).down == frozenset()
    assert judge(up, START, None, at(60)).down == {"m0"}


def test_silence_counts_only_from_when_the_site_listens() -> None:
    up = {"m0": None, **fleet(0)}
    listening = at(3_600)  # an hour's outage
    assert judge(up, listening, None, at(3_659)) == Verdict()
    assert judge(up, listening, None, at(3_660)).down == {"m0"}


def test_most_machines_silent_together_are_held_for_five_minutes() -> None:
    up = fleet(0, 0, 0, 0, 0, 55, 55, 55)
    first = judge(up, START, None, at(60))
    assert first == Verdict(suspect=frozenset(f"m{n}" for n in range(5)), held_since=at(60))
    held = judge(up, START, first.held_since, at(60) + HOLD_FOR - timedelta(seconds=1))
    assert held.down == frozenset()
    assert held.suspect == frozenset(up)
    after = judge(up, START, first.held_since, at(60) + HOLD_FOR)
    assert after == Verdict(down=frozenset(up))


def test_half_of_them_or_fewer_than_five_is_no_reason_to_suspect_oneself() -> None:
    assert judge(fleet(0, 0, 0, 0), START, None, at(60)).down == {"m0", "m1", "m2", "m3"}
    assert len(judge(fleet(*[0] * 5, *[50] * 5), START, None, at(60)).down) == 5


def test_those_that_come_back_during_the_hold_never_go_down() -> None:
    held_since = at(60)
    up = fleet(0, 350, 350, 350, 350)
    assert judge(up, START, held_since, held_since + HOLD_FOR) == Verdict(down=frozenset({"m0"}))


def test_a_process_that_was_stopped_for_a_while_did_not_listen() -> None:
    assert not was_deaf(START, at(5))
    assert was_deaf(START, at(30))


moments = st.floats(0, 10_000).map(at)


@given(st.sampled_from(MachineState), st.none() | moments, moments, moments)
def test_only_a_report_ends_down_and_only_silence_heard_by_a_listening_site_begins_it(
    was: MachineState, last: datetime | None, listening: datetime, now: datetime
) -> None:
    after = state_after(was, last, listening, now)
    if last is None:
        assert after is MachineState.IDLE
    elif after is MachineState.DOWN and was is not MachineState.DOWN:
        assert now - last >= DOWN_AFTER
        assert now - listening >= DOWN_AFTER
    elif after is MachineState.UP and was is MachineState.DOWN:
        assert last > listening


@given(
    st.dictionaries(st.sampled_from("abcdefghij"), st.none() | moments),
    moments,
    st.none() | moments,
    moments,
)
def test_nothing_is_down_that_was_heard_in_the_last_minute_or_while_the_site_is_held(
    up: dict[str, datetime | None], listening: datetime, held: datetime | None, now: datetime
) -> None:
    verdict = judge(up, listening, held, now)
    for id in verdict.down | verdict.suspect:
        assert now - max(up[id] or listening, listening) >= DOWN_AFTER
    assert not (verdict.down and verdict.suspect)
    if held is not None and now - held < HOLD_FOR:
        assert verdict.held_since == held
        assert not verdict.down
    if verdict.held_since == now and held is None:
        assert len(verdict.suspect) >= 5
        assert len(verdict.suspect) * 2 > len(up)
