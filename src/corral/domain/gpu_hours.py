"""GPU-hours a UTC month: what is used, what live work may still use, and whether an ask fits (docs/adr/0015).

Nothing is ever evicted, so the quota is kept where work is placed: an ask fits when in every month that it may
touch, hours used, hours that live work may still use (until its sure end, or for ever), and its own stay within it.
GPU time is kept in whole GPU-microseconds: exact, however it is cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

from corral.domain.workloads import STOP_GRACE

_MICROSECOND = timedelta(microseconds=1)
HOUR = timedelta(hours=1) // _MICROSECOND
"""One GPU for an hour."""
LONGEST_MONTH = timedelta(days=31)
LONGEST_LIMIT = timedelta(seconds=315_360_000)
"""The longest time limit there is."""

Month = int
"""Years times twelve and months: they follow one another."""


def month_of(moment: datetime) -> Month:
    return moment.year * 12 + moment.month - 1


def begins(month: Month) -> datetime:
    return datetime(month // 12, month % 12 + 1, 1, tzinfo=timezone.utc)


def named(month: Month) -> str:
    return f"{month // 12:04}-{month % 12 + 1:02}"


@dataclass
class Ledger:
    """GPU time of work that holds GPUs or held some, from the month of `now` on, by month."""

    now: datetime
    _bounded: dict[Month, int] = field(default_factory=dict)
    _endless: int = 0
    """GPUs of work without a time limit: whole months after this one."""

    def add(self, gpus: int, start: datetime, end: datetime | None) -> None:
        """Count GPUs held from `start`, about now or before, to `end` at the latest; None: there is no knowing."""
        first = month_of(self.now)
        if end is None:
            self.add_time(gpus * max(0, (begins(first + 1) - max(start, begins(first))) // _MICROSECOND))
            self._endless += gpus
            return
        for month, length in _cut(max(start, begins(first)), end):
            self._bounded[month] = self._bounded.get(month, 0) + gpus * (length // _MICROSECOND)

    def add_time(self, gpu_time: int) -> None:
        """Count GPU-microseconds of this month."""
        first = month_of(self.now)
        self._bounded[first] = self._bounded.get(first, 0) + gpu_time

    def of(self, month: Month) -> int:
        """Return the GPU time of a month, this one or a later one."""
        length = begins(month + 1) - begins(month) if month > month_of(self.now) else timedelta(0)
        return self._bounded.get(month, 0) + self._endless * (length // _MICROSECOND)

    @property
    def last(self) -> Month:
        """The last month that is not like all that follow but for their lengths."""
        return max(self._bounded, default=month_of(self.now))

    @property
    def endless(self) -> int:
        """GPU time of every longest month after the last."""
        return self._endless * (LONGEST_MONTH // _MICROSECOND)


def _cut(start: datetime, end: datetime) -> Iterator[tuple[Month, timedelta]]:
    """Yield the parts of [start, end) by month."""
    while start < end:
        month = month_of(start)
        stop = min(end, begins(month + 1))
        yield month, stop - start
        start = stop


@dataclass(frozen=True)
class Excess:
    """A month in which an ask does not fit. GPU-microseconds. `month` None: any later one of 31 days.

    `fits`: the longest time limit with which it would fit if it were placed now, in whole seconds; 0: none does.
    `never`: it is more than a whole month's quota, were it alone.
    """

    month: Month | None
    limit: int
    in_use: int
    waiting: int
    asked: int
    fits: int
    never: bool

    @property
    def over_by(self) -> int:
        return self.in_use + self.waiting + self.asked - self.limit


def excess(limit_hours: int, live: Ledger, before: Ledger, gpus: int, sure_end: datetime | None) -> Excess | None:
    """Return the first month in which an ask that is placed now does not fit, after what waits `before` it."""
    if gpus == 0:
        return None
    limit, mine = limit_hours * HOUR, Ledger(live.now)
    mine.add(gpus, live.now, sure_end)
    endless = sure_end is None
    longest = LONGEST_MONTH if sure_end is None else min(sure_end - live.now, LONGEST_MONTH)
    never = gpus * (longest // _MICROSECOND) > limit
    until = max(live.last, before.last, mine.last) if endless else mine.last
    months: list[tuple[Month | None, int, int, int]] = [
        (month, live.of(month), before.of(month), mine.of(month)) for month in range(month_of(live.now), until + 1)
    ]
    if endless:
        months.append((None, live.endless, before.endless, mine.endless))
    for month, used, waiting, asked in months:
        if asked and used + waiting + asked > limit:
            return Excess(month, limit, used, waiting, asked, _fits(limit, live, before, gpus), never)
    return None


def _fits(limit: int, live: Ledger, before: Ledger, gpus: int) -> int:
    """Return the longest time limit that fits now, in whole seconds."""
    now = live.now
    end, farthest = now, now + LONGEST_LIMIT + STOP_GRACE
    while end < farthest:
        month = month_of(end)
        room = max(0, limit - live.of(month) - before.of(month))
        whole = begins(month + 1) - end
        own = timedelta(microseconds=room // gpus)
        if own < whole:
            end += own
            break
        end += whole
    return max(0, (min(end, farthest) - now - STOP_GRACE) // timedelta(seconds=1))
