"""Windows, what may be asked for, and times with an offset (spec 10, "Reservations")."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from corral.domain import reservations as rules
from corral.domain.errors import Refusal
from corral.domain.ids import EPOCH
from corral.domain.reservations import Given, State, Window

NOW = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)
DAY = 40
"""Minutes that the model looks at."""


def minute(number: int) -> datetime:
    return NOW + number * MINUTE


def ask(start: str = "2026-03-02T00:00:00Z", end: str = "2026-03-03T00:00:00Z", **more: Any) -> rules.Asked:
    return rules.asked(Given(start, end, **{"nodes": ["a"], **more}), NOW)


def refused(**more: Any) -> tuple[str, str]:
    with pytest.raises(Refusal) as refusal:
        ask(**more)
    return refusal.value.code, refusal.value.message


# --- windows against a model, minute by minute

windows = st.tuples(st.integers(0, DAY), st.integers(1, DAY)).map(lambda two: (two[0], two[0] + two[1]))
teams = st.frozensets(st.sampled_from(["red", "green", "blue"]), max_size=2)


def window(span: tuple[int, int], whom: frozenset[str] = frozenset(), id: str = "w") -> Window:
    return Window(id, minute(span[0]), minute(span[1]), whom, rules.whom(sorted(whom)))


@given(windows, st.integers(0, 3 * DAY))
@example((2, 5), 2)
@example((2, 5), 5)
def test_a_state_is_where_now_is(span: tuple[int, int], now: int) -> None:
    inside = now in range(*span)
    expected = State.ACTIVE if inside else State.UPCOMING if now < span[0] else State.PAST
    assert rules.state(minute(span[0]), minute(span[1]), minute(now)) is expected


@given(st.lists(st.tuples(windows, teams), max_size=4), st.integers(0, DAY), st.none() | st.integers(1, 3 * DAY))
@example([((2, 5), frozenset())], 5, None)
@example([((2, 5), frozenset())], 0, 2)
@example([((2, 5), frozenset())], 0, 3)
@example([((2, 5), frozenset())], 4, 1)
def test_work_may_begin_when_none_of_its_minutes_is_closed_to_it(
    spans: Sequence[tuple[tuple[int, int], frozenset[str]]], now: int, lasts: int | None
) -> None:
    """Its minutes: from now until it is gone for sure; without a time limit, for ever."""
    given_windows = [window(span, whom, str(number)) for number, (span, whom) in enumerate(spans)]
    ends = now + lasts if lasts is not None else 4 * DAY
    closed = {m for span, whom in spans for m in range(*span) if "red" not in whom}
    sure_end = minute(ends) if lasts is not None else None
    said = rules.refused_by(given_windows, "red", minute(now), sure_end)
    assert bool(said) == bool(closed & set(range(now, ends)))


@given(st.lists(st.tuples(windows, teams), max_size=4), st.integers(0, DAY))
def test_a_machine_is_closed_to_all_when_no_team_may_begin_there(
    spans: Sequence[tuple[tuple[int, int], frozenset[str]]], now: int
) -> None:
    given_windows = [window(span, whom, str(number)) for number, (span, whom) in enumerate(spans)]
    a_moment = minute(now) + timedelta(seconds=1)
    anybody = any(not rules.refused_by(given_windows, team, minute(now), a_moment) for team in ("red", "green", "blue"))
    active = [one for one in given_windows if rules.state(one.start, one.end, minute(now)) is State.ACTIVE]
    assert bool(rules.closed_to_all(given_windows, minute(now))) == (bool(active) and not anybody)


def test_a_refusal_says_for_whom_until_when_and_why() -> None:
    one = Window("w", minute(0), minute(90), frozenset({"id"}), "research", "course")
    assert rules.refusal(one, "me", NOW, None) == "reserved for research until 2026-03-01 13:30 UTC: course"
    before = rules.refusal(one, "me", NOW - MINUTE, None)
    assert before == (
        "reserved for research from 2026-03-01 12:00 to 2026-03-01 13:30 UTC: course; "
        "until then only work whose time limit, with 10 s to stop, ends before that"
    )
    assert rules.refusal(one, "id", NOW, None) == ""
    odd = Window("w", NOW, NOW + timedelta(seconds=90), frozenset(), "nobody")
    assert rules.refusal(odd, "me", NOW, None) == "reserved for nobody until 2026-03-01 12:01:30 UTC"
    assert rules.whom([]) == "nobody"
    assert rules.whom(list("abcdefg")) == "a, b, c, d, e and 2 more"


# --- what may be asked for


@pytest.mark.parametrize(
    ("given_", "word"),
    [
        ({"nodes": []}, "nothing"),
        ({"nodes": [], "pool": {}}, "pool"),
        ({"pool": {}}, "pool"),
        ({"pool": {"pool": ""}}, "name"),
        ({"pool": {"rack": "r1"}}, "'rack'"),
        ({"pool": {"pool": "h100", "rack": "r1"}}, "'rack'"),
        ({"pool": {"\u202e": "h100"}}, "'\\u202e'"),
        ({"start": "2026-03-02T00:00:00Z", "end": "2026-03-02T01:00:00+01:00"}, "empty"),
        ({"start": "2026-03-03T00:00:00Z", "end": "2026-03-02T00:00:00Z"}, "before"),
        ({"start": "2026-03-01T10:00:00Z", "end": "2026-03-01T12:00:00Z"}, "future"),
        ({"end": "2031-03-10T00:00:00Z"}, "at most"),
        ({"start": "2036-03-10T00:00:00Z", "end": "2036-03-11T00:00:00Z"}, "ahead"),
        ({"nodes": [str(n) for n in range(251)]}, "at most 250"),
        ({"workspaces": [str(n) for n in range(101)]}, "at most 100"),
    ],
)
def test_what_is_no_reservation_is_refused_saying_why(given_: dict[str, Any], word: str) -> None:
    code, message = refused(**given_)
    assert code == "INVALID_RESERVATION" and word in message


@pytest.mark.parametrize("pool", ["a b", "x" * 64, 7, None, ["h100"]])
def test_a_pool_is_the_value_of_a_label(pool: object) -> None:
    assert refused(pool={"pool": pool})[0] == ("INVALID_LABEL" if isinstance(pool, str) else "INVALID_REQUEST")


def test_a_window_that_has_begun_and_is_not_over_may_be_reserved() -> None:
    assert ask(start="2026-03-01T11:00:00Z", end="2026-03-01T12:00:00.000001Z").start < NOW


def test_names_given_twice_count_once_and_a_reason_is_trimmed() -> None:
    asked = ask(nodes=["b", "a", "b"], workspaces=["x", "x"], pool={"pool": "h100"}, reason=" fans ")
    assert (asked.nodes, asked.workspaces, asked.pool, asked.reason) == (("b", "a"), ("x",), "h100", "fans")


@pytest.mark.parametrize("reason", ["a\x1b[2J", "a\nb", "\u202eabc", "x" * 201])
def test_a_reason_is_one_printable_line(reason: str) -> None:
    assert refused(reason=reason)[0] == "INVALID_REQUEST"


# --- times


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2026-03-01T12:00:00Z", "2026-03-01T12:00:00Z"),
        ("2026-03-01t12:00:00z", "2026-03-01T12:00:00Z"),
        ("2026-03-01 12:00:00.5+05:45", "2026-03-01T06:15:00.500000Z"),
        ("2026-03-01T00:30:00+14:00", "2026-02-28T10:30:00Z"),
        ("2026-03-01T12:00:00-00:00", "2026-03-01T12:00:00Z"),
        ("2026-03-01T12:00:00.123456789Z", "2026-03-01T12:00:00.123456Z"),
        # Leap days, and the century that has one.
        ("2028-02-29T23:30:00-01:00", "2028-03-01T00:30:00Z"),
        ("2028-03-01T00:30:00+01:00", "2028-02-29T23:30:00Z"),
        ("2000-02-29T12:00:00Z", "2000-02-29T12:00:00Z"),
        # Berlin's clocks: the hour that is skipped lies between these two, the one that comes twice is both of those.
        ("2026-03-29T01:59:59+01:00", "2026-03-29T00:59:59Z"),
        ("2026-03-29T03:00:00+02:00", "2026-03-29T01:00:00Z"),
        ("2026-10-25T02:30:00+02:00", "2026-10-25T00:30:00Z"),
        ("2026-10-25T02:30:00+01:00", "2026-10-25T01:30:00Z"),
    ],
)
def test_times_come_with_any_offset_and_leave_in_utc(text: str, utc: str) -> None:
    assert rules.utc(rules.moment(text, "start")) == utc


@pytest.mark.parametrize(
    "text",
    [
        "2026-03-01T12:00:00",
        "2026-03-01T12:00Z",
        "2026-03-01",
        "1772366400",
        "",
        "2026-02-29T12:00:00Z",
        "2100-02-29T12:00:00Z",
        "2026-03-01T24:00:00Z",
        "2026-06-30T23:59:60Z",
        "2026-03-01T12:00:00+24:00",
        "2026-03-01T12:00:00+01",
        "2026-03-01T12:00:00 Europe/Berlin",
        "٢٠٢٦-03-01T12:00:00Z",
        "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00",
        "2026-03-01T12:00:00Z\n",
    ],
)
def test_a_time_without_an_offset_or_that_is_none_is_refused_by_field(text: str) -> None:
    with pytest.raises(Refusal) as refusal:
        rules.moment(text, "start")
    assert refusal.value.code == "INVALID_REQUEST" and refusal.value.details["field"] == "start"


offsets = st.integers(-23 * 60 - 59, 23 * 60 + 59).map(lambda minutes: timezone(timedelta(minutes=minutes)))


moments = st.integers(86_400, 4 * 10**9).map(lambda seconds: EPOCH + timedelta(seconds=seconds, microseconds=seconds))


@given(moments, offsets)
def test_whatever_the_offset_the_moment_stays(moment: datetime, offset: timezone) -> None:
    read = rules.moment(moment.astimezone(offset).isoformat(), "start")
    assert read == moment and read.utcoffset() == timedelta()
    assert rules.moment(rules.utc(read), "start") == moment
