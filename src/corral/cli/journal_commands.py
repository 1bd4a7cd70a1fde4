"""What `corral events` and `corral audit` share: filters, and how an entry is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import click

from corral.cli.output import Column, column, emit, safe, shown, table

if TYPE_CHECKING:
    from corral.client.journal import Filter
    from corral.client.models import JournalEntry

F = TypeVar("F", bound=Callable[..., Any])
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Moment(click.ParamType[str]):
    """An RFC 3339 time, or how long ago: 30m, 2h, 7d."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if text[:-1].isdigit() and text[-1:] in _UNITS:
            ago = timedelta(seconds=int(text[:-1]) * _UNITS[text[-1]])
            return (datetime.now(timezone.utc) - ago).isoformat()
        try:
            moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
        except ValueError:
            self.fail(f"{text!r} is no time. Write 2026-03-01T12:00:00Z, or how long ago: 30m, 2h, 7d.", param, ctx)
        return (moment if moment.tzinfo else moment.astimezone()).isoformat()


def filters(command: F) -> F:
    """Add the filters of both lists."""
    for option in (
        click.option("--limit", default=50, show_default=True, type=click.IntRange(1), help="At most so many."),
        click.option(
            "--export",
            "export",
            type=click.Choice(["ndjson", "csv"]),
            help="Write everything that matches to stdout as a file, oldest first.",
        ),
        click.option("--until", type=Moment(), help="Before this time."),
        click.option("--since", type=Moment(), help="From this time: RFC 3339, or 30m, 2h, 7d ago."),
        click.option("--actor", metavar="NAME", help="By this person."),
        click.option("--compute", "workload", metavar="NAME", help="Of this compute cluster (name its --workspace)."),
        click.option("--machine", metavar="NAME", help="Of this machine (name its --cluster)."),
        click.option(
            "--type", "types", multiple=True, metavar="TYPE", help="Of this type; cluster.node.* is all such."
        ),
    ):
        command = option(command)
    return command


def to_filter(given: dict[str, Any]) -> Filter:
    from corral.client.journal import Filter

    return Filter(**{name: value for name, value in given.items() if name != "limit"})


def draw(entries: Iterator[JournalEntry], limit: int, columns: list[Column]) -> None:
    """Show the newest `limit` entries, oldest first for people, as the API orders them for programs."""
    rows = [entry.raw for entry in islice(entries, limit)]
    emit(rows, lambda: table(reversed(rows), columns, "Nothing happened that matches."))


def write(parts: Iterator[bytes]) -> None:
    """Hand a file to stdout as it comes: it is for programs, so nothing in it is escaped."""
    for part in parts:
        click.echo(part, nl=False)


def about(row: dict[str, Any]) -> str:
    """Return what an entry tells, as one line: its data, names first."""
    data = dict(row.get("data") or {})
    name = data.pop("name", None)
    parts = [shown(name)] if name else []
    parts += [f"{safe(key)}={_told(value)}" for key, value in data.items() if value not in (None, "", [], {})]
    return " ".join(parts)


def _told(value: Any) -> str:
    if isinstance(value, dict):
        return f"({shown(value)})"
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return f"{len(value)} changed"  # each of them stands in --json
    return shown(value)


def moment(text: object) -> str:
    """Return an RFC 3339 time to the second: microseconds tell people nothing."""
    return f"{safe(text)[:19]}Z"


TIME = Column("TIME", lambda row: moment(row["at"]))
TYPE = column("TYPE", "type")
WHO = column("WHO", "actor", flow=True)
WHAT = Column("WHAT", about, flow=True)
