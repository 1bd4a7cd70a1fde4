"""`corral usage`: what was used and what it costs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import click

from corral.cli.journal_commands import Moment, moment, write
from corral.cli.output import Column, column, emit, note, safe, safe_line, say, table
from corral.cli.place import Place, at
from corral.cli.root import Command

if TYPE_CHECKING:
    from corral.client.money import UsageGroup, UsageQuery, UsageReport

BY = ("workspace", "user", "workload", "model", "cluster", "day")
_HOUR_S = 3600


class Grouping(click.ParamType[tuple[str, ...]]):
    """Names with commas between."""

    name = "NAMES"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(name.strip() for name in str(value).split(",")))
        if unknown := [name for name in names if name not in BY]:
            self.fail(f"{unknown[0]!r}: write some of {', '.join(BY)}, with commas between.", param, ctx)
        return names


class UtcMoment(Moment):
    """A day of UTC, as usage is told by; else a moment."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            day = datetime.strptime(str(value), "%Y-%m-%d").replace(tzinfo=timezone.utc)
        except ValueError:
            return super().convert(value, param, ctx)
        return day.isoformat()


class Month(click.ParamType[tuple[str, str]]):
    """A month of UTC: from its first moment to the next one's."""

    name = "YYYY-MM"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        try:
            first = datetime.strptime(str(value), "%Y-%m").replace(tzinfo=timezone.utc)
            after = (first + timedelta(days=31)).replace(day=1)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no month. Write 2026-11.", param, ctx)
        return first.isoformat(), after.isoformat()


@click.command(cls=Command)
@click.option("--by", type=Grouping(), default="workspace", show_default=True, help=f"Some of {', '.join(BY)}.")
@click.option("--month", type=Month(), help="This month of UTC. Default: the one it is, until now.")
@click.option("--from", "start", type=UtcMoment(), help="From here: 2026-11-01 (UTC), RFC 3339, or 7d ago.")
@click.option("--to", "end", type=UtcMoment(), help="Until here, not with it.")
@click.option("--user", metavar="LOGIN", help="Of workloads that this person made.")
@click.option("--csv", "as_csv", is_flag=True, help="Write a CSV file to stdout.")
@at("org", "workspace", "cluster")
def usage(place: Place, by: tuple[str, ...], as_csv: bool, **given: Any) -> None:
    """Show what was used and what it costs. Members see what they made themselves."""
    query = _query(place, by, given)
    if as_csv:
        _write(place.org.usage_csv(query))
        return
    report = place.org.usage(query)
    groups = list(report.groups)
    answer = {
        "from": report.start,
        "to": report.end,
        "by": list(by),
        "total": report.total.raw,
        "items": [group.raw for group in groups],
    }
    emit(answer, lambda: _draw(report, groups, by))


def _query(place: Place, by: tuple[str, ...], given: dict[str, Any]) -> UsageQuery:
    from corral.client.money import UsageQuery

    start, end = given["start"], given["end"]
    if given["month"] is not None:
        if start or end:
            raise click.UsageError("--month says when: leave --from and --to out.")
        start, end = given["month"]
    return UsageQuery(by, start, end, place.workspace_name, given["user"], place.cluster_name)


def _write(parts: Iterator[bytes]) -> None:
    """Hand the file to stdout as it is; to a terminal only what a terminal may be shown."""
    if not sys.stdout.isatty():
        write(parts)
        return
    for line in b"".join(parts).decode("utf-8").splitlines():
        say(safe_line(line))


def _draw(report: UsageReport, groups: Sequence[UsageGroup], by: tuple[str, ...]) -> None:
    note(f"{moment(report.start)} to {moment(report.end)}")
    columns = [_MODEL if name == "model" else column(name.upper(), name) for name in by]
    rows = [group.raw for group in groups]
    if len(rows) > 1:
        rows.append({**report.total.raw, by[0]: "total"})
    table(rows, [*columns, *_AMOUNTS], "Nothing was used.")
    if report.total.unpriced_gpu_seconds or report.total.unpriced_vcpu_seconds:
        gpus, vcpus = (_hours(getattr(report.total, f"unpriced_{name}_seconds")) for name in ("gpu", "vcpu"))
        note(
            f"Without a price, and so not in the cost: {gpus} GPU-hours, {vcpus} vCPU-hours. See: corral cluster prices"
        )


def _hours(seconds: int) -> str:
    """Return hours, rounded to two decimals in whole numbers."""
    hundredths = (seconds * 100 + _HOUR_S // 2) // _HOUR_S
    return f"{hundredths // 100}.{hundredths % 100:02}"


def _gib_hours(row: dict[str, Any], name: str) -> str:
    return _hours(row[name] // 1024)


def _cost(row: dict[str, Any]) -> str:
    return ", ".join(f"{safe(one['amount'])} {safe(one['currency'])}" for one in row["cost"]) or "-"


_MODEL = Column("MODEL", lambda row: row["model"] or "(no GPU)" if "model" in row else "")
_AMOUNTS = [
    Column("GPU-HOURS", lambda row: _hours(row["gpu_seconds"]), right=True),
    Column("VCPU-HOURS", lambda row: _hours(row["vcpu_seconds"]), right=True),
    Column("RAM GIB-HOURS", lambda row: _gib_hours(row, "ram_mib_seconds"), right=True, drop=2),
    Column("STORAGE GIB-HOURS", lambda row: _gib_hours(row, "storage_mib_seconds"), right=True, drop=3),
    Column("COST", _cost, right=True),
]
