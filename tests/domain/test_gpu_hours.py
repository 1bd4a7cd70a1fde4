"""GPU-hours a month: never exceeded in a model of work that nobody evicts; which time limit would fit (ADR 15)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from hypothesis import given, settings
from hypothesis import strategies as st

from corral.domain.gpu_hours import HOUR, Excess, Ledger, begins, excess, month_of, named
from corral.domain.workloads import STOP_GRACE

JANUARY = datetime(2026, 1, 1, tzinfo=timezone.utc)


def day(number: float) -> datetime:
    """Return a moment so many days after the year began."""
    return JANUARY + timedelta(days=number)


def judged(
    limit: int, now: datetime, gpus: int, hours: float | None, live: Ledger | None = None, before: Ledger | None = None
) -> Excess | None:
    sure_end = None if hours is None else now + timedelta(hours=hours)
    return excess(limit, live or Ledger(now), before or Ledger(now), gpus, sure_end)


def over(found: Excess | None) -> tuple[str | None, float]:
    """Return in which month, and by how many hours."""
    assert found is not None
    return None if found.month is None else named(found.month), found.over_by / HOUR


def test_what_fits_exactly_fits_and_a_moment_more_does_not() -> None:
    assert judged(20, day(10), 2, 10) is None
    assert over(judged(20, day(10), 2, 10.5)) == ("2026-01", 1)
    assert judged(20, day(10), 2, 10 + 1e-8 + 1 / 3600e6) is not None
    assert judged(0, day(10), 0, None) is None


def test_each_month_that_it_touches_is_judged_by_itself() -> None:
    now = day(30.5)  # twelve hours before February
    assert judged(24, now, 1, 36) is None
    assert over(judged(23, now, 1, 36)) == ("2026-02", 1)
    assert judged(31 * 24, day(0), 1, 60 * 24) is None


def test_without_a_time_limit_a_whole_long_month_must_fit() -> None:
    assert judged(2 * 31 * 24, day(50), 2, None) is None
    found = judged(2 * 31 * 24 - 1, day(50), 2, None)
    assert over(found) == (None, 1)
    assert found is not None and found.never
    late = day(364.9)  # hardly anything of this year's last month is left, and the next is long
    assert over(judged(700, late, 1, None)) == (None, 44)


def test_live_work_keeps_what_it_may_still_use_of_every_month() -> None:
    now, live = day(15), Ledger(day(15))
    live.add(1, day(10), day(40))  # until February 10
    live.add(1, day(5), None)
    live.add_time(3 * HOUR)
    assert live.of(month_of(now)) == ((21 + 26) * 24 + 3) * HOUR
    assert live.of(month_of(now) + 1) == (9 + 28) * 24 * HOUR
    assert live.of(month_of(now) + 2) == 31 * 24 * HOUR
    assert over(judged(47 * 24 + 3, now, 1, 1, live)) == ("2026-01", 1)
    assert over(judged(31 * 24 + 300, now, 1, None, live))[0] == "2026-01"
    assert over(judged(62 * 24 - 1, now, 1, None, live)) == ("2026-01", 47 * 24 + 3 + 16 * 24 - (62 * 24 - 1))


def test_what_waits_before_counts_first() -> None:
    now, before = day(1), Ledger(day(1))
    before.add(1, now, now + timedelta(hours=8))
    assert judged(10, now, 1, 2, None, before) is None
    found = judged(10, now, 1, 3, None, before)
    assert found is not None
    assert (found.waiting, found.asked, found.over_by, found.never) == (8 * HOUR, 3 * HOUR, HOUR, False)


def test_the_refusal_says_which_time_limit_would_fit() -> None:
    now, live = day(30.5), Ledger(day(30.5))
    live.add_time(90 * HOUR)
    found = judged(100, now, 1, 30, live)
    assert found is not None
    assert timedelta(seconds=found.fits) == timedelta(hours=10) - STOP_GRACE
    whole = timedelta(seconds=found.fits) + STOP_GRACE
    assert excess(100, live, Ledger(now), 1, now + whole) is None
    roomy = judged(112, now, 1, 200, live)  # the rest of this month fits, and 112 hours of the next
    assert roomy is not None and timedelta(seconds=roomy.fits) == timedelta(hours=124) - STOP_GRACE
    spent = judged(90, now, 1, 30, live)
    assert spent is not None and spent.fits == 0


def test_a_leap_february_is_a_day_longer() -> None:
    now = datetime(2028, 2, 1, tzinfo=timezone.utc)
    live = Ledger(now - timedelta(days=1))
    live.add(1, live.now, None)
    assert live.of(month_of(now)) == 29 * 24 * HOUR
    assert begins(month_of(now) + 1) == datetime(2028, 3, 1, tzinfo=timezone.utc)


# ---- nobody is evicted, and no month is exceeded


@dataclass
class Work:
    gpus: int
    placed: datetime
    sure_end: datetime | None
    ended: datetime | None = None


def used(works: list[Work], month: int, now: datetime) -> timedelta:
    """Return the GPU time that was really used in a month."""
    total = timedelta(0)
    for work in works:
        start, end = max(work.placed, begins(month)), min(work.ended or now, begins(month + 1))
        total += max(timedelta(0), end - start) * work.gpus
    return total


def ledger(works: list[Work], now: datetime) -> Ledger:
    book = Ledger(now)
    for work in works:
        book.add(work.gpus, work.placed, work.ended or work.sure_end)
    return book


STEPS = st.tuples(
    st.sampled_from(("ask", "ask", "end")),
    st.integers(1, 4),
    st.none() | st.floats(1, 2_000),
    st.floats(0, 500),
    st.integers(0, 9),
)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 3_000), st.lists(STEPS, max_size=25))
def test_no_month_is_ever_exceeded(limit: int, steps: list[tuple[str, int, float | None, float, int]]) -> None:
    now, works = day(20), list[Work]()
    for what, gpus, hours, wait, which in steps:
        live = [work for work in works if work.ended is None]
        if what == "end" and live:
            live[which % len(live)].ended = now
        elif what == "ask":
            sure_end = None if hours is None else now + timedelta(hours=hours)
            found = excess(limit, ledger(works, now), Ledger(now), gpus, sure_end)
            if found is None:
                works.append(Work(gpus, now, sure_end))
            elif found.fits >= 60:
                fitting = now + timedelta(seconds=found.fits) + STOP_GRACE
                assert excess(limit, ledger(works, now), Ledger(now), gpus, fitting) is None
        now += timedelta(hours=wait)
        for work in works:
            if work.ended is None and work.sure_end is not None and work.sure_end <= now:
                work.ended = work.sure_end  # as late as it can
        for month in range(month_of(day(20)), month_of(now) + 1):
            assert used(works, month, now) <= timedelta(hours=limit)
