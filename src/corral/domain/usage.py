"""Usage and what it costs (spec 10, "Prices, usage, budgets"), to the second and exactly.

An allocation counts in each second from the one in which it was placed to the one before it was released; what
lives counts until now. A second costs what the price table that held in it says. Storage is priced by the month:
a second of a month costs the price divided by that calendar month's seconds (UTC), so a whole month costs the
price whether it has 28 days or 31. All sums are whole `PARTS` of a millionth; a bill is rounded once, at its end.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from enum import Enum

from corral.domain.errors import Refusal
from corral.domain.ids import EPOCH
from corral.domain.prices import PriceTable, Tariff, second
from corral.domain.resources import MIB_PER_GIB

HOUR_S, DAY_S = 3600, 86400
DAYS_MAX = 366
DAYS_MAX_BY_DAY = 92
PIECES_MAX = 4000

PARTS = MIB_PER_GIB * DAY_S * 377_580
"""377,580 is what 28, 29, 30 and 31 all divide: every price of one second is a whole number of these parts."""


class By(str, Enum):
    """What usage is grouped by."""

    WORKSPACE = "workspace"
    USER = "user"
    WORKLOAD = "workload"
    MODEL = "model"
    CLUSTER = "cluster"
    DAY = "day"


@dataclass(frozen=True)
class Period:
    """Half-open, in whole seconds since the epoch."""

    start: int
    end: int

    @property
    def seconds(self) -> int:
        return max(0, self.end - self.start)


@dataclass(frozen=True)
class Used:
    """Amounts times seconds."""

    gpu: int = 0
    vcpu: int = 0
    ram_mib: int = 0
    storage_mib: int = 0

    def __add__(self, other: Used) -> Used:
        return Used(
            self.gpu + other.gpu,
            self.vcpu + other.vcpu,
            self.ram_mib + other.ram_mib,
            self.storage_mib + other.storage_mib,
        )


@dataclass
class Bill:
    """What was used, and its cost by currency in `PARTS` of a millionth; what no price stood against is told apart."""

    used: Used = Used()
    cost: dict[str, int] = field(default_factory=dict)
    unpriced_gpu: int = 0
    unpriced_vcpu: int = 0

    def add(self, used: Used, model: str, table: PriceTable | None, at: int) -> None:
        """Add what was used of one GPU model, within one month, under one price table; `at`: a second of it."""
        self.used += used
        if table is None:
            self.unpriced_gpu += used.gpu
            self.unpriced_vcpu += used.vcpu
            return
        rate = table.gpu_rate(model)
        if rate is None:
            self.unpriced_gpu += used.gpu
        cost = (
            (used.gpu * (rate or 0) + used.vcpu * table.vcpu_hour) * (PARTS // HOUR_S)
            + used.ram_mib * table.ram_gib_hour * (PARTS // (HOUR_S * MIB_PER_GIB))
            + used.storage_mib * table.storage_gib_month * (PARTS // (month_at(at).seconds * MIB_PER_GIB))
        )
        self.cost[table.currency] = self.cost.get(table.currency, 0) + cost

    def rounded(self) -> dict[str, int]:
        """Return the cost in millionths by currency, half to even."""
        return {currency: rounded(parts) for currency, parts in sorted(self.cost.items())}


def rounded(parts: int) -> int:
    """Return `PARTS` of a millionth as millionths, half to even."""
    whole, rest = divmod(parts, PARTS)
    return whole + (2 * rest > PARTS or (2 * rest == PARTS and whole % 2 == 1))


def month_at(moment: int) -> Period:
    """Return the calendar month (UTC) of a second."""
    day = _day(moment)
    first = day.replace(day=1)
    start = _midnight(first)
    return Period(start, start + monthrange(first.year, first.month)[1] * DAY_S)


def month_name(month: Period) -> str:
    """Return 2026-11."""
    return f"{_day(month.start):%Y-%m}"


def day_name(number: int) -> str:
    """Return the date of a day that is counted from the epoch: 2026-11-30."""
    return _day(number * DAY_S).isoformat()


def _day(moment: int) -> date:
    return EPOCH.date() + timedelta(days=moment // DAY_S)


def _midnight(day: date) -> int:
    return (day - EPOCH.date()).days * DAY_S


def period(start: datetime | None, end: datetime | None, now: datetime, by: Collection[By]) -> Period:
    """Return the period asked for, ended at now at the latest. Default: this month (UTC) until now.

    Errors: `INVALID_REQUEST` for one that is empty or too long.
    """
    present = second(now)
    until = present if end is None else max(0, second(end))
    since = month_at(max(0, min(until, present) - 1)).start if start is None else max(0, second(start))
    if end is not None and since >= until:
        raise Refusal("INVALID_REQUEST", "to: it is not after 'from'. Give a period that is not empty.", field="to")
    found = Period(since, max(since, min(until, present)))
    most = DAYS_MAX_BY_DAY if By.DAY in by else DAYS_MAX
    if found.seconds > most * DAY_S:
        by_day = " by day" if By.DAY in by else ""
        raise Refusal(
            "INVALID_REQUEST", f"from: usage{by_day} is shown for at most {most} days. Ask for less.", field="from"
        )
    return found


def pieces(whole: Period, tariffs: Mapping[str, Tariff], *, by_day: bool) -> list[Period]:
    """Cut a period where a month, a price, or (`by_day`) a day begins. Errors: `INVALID_REQUEST` (too many)."""
    cuts = {whole.start, *_months(whole)}
    for tariff in tariffs.values():
        cuts.update(tariff.changes)
    if by_day:
        cuts.update(range(whole.start - whole.start % DAY_S, whole.end, DAY_S))
    starts = sorted(cut for cut in cuts if whole.start <= cut < whole.end)
    if len(starts) > PIECES_MAX:
        raise Refusal(
            "INVALID_REQUEST", "from: prices changed too often in this period. Ask for a shorter one.", field="from"
        )
    return [Period(start, end) for start, end in zip(starts, [*starts[1:], whole.end], strict=True)]


def _months(whole: Period) -> Iterable[int]:
    month = month_at(whole.start)
    while month.start < whole.end:
        yield month.start
        month = month_at(month.end)
