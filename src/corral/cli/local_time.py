"""Times as people write them: local, in a named zone or this machine's, with the offset that holds on that day.

A time that the clocks skip, or that they show twice, is refused, saying what to write instead.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

LOCALTIME = Path("/etc/localtime")
_WRITTEN = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d)(:\d\d(?:\.\d{1,6})?)?)?(Z|[+-]\d\d:\d\d)?", re.ASCII | re.IGNORECASE
)
_LIKE = "Write 2026-03-01 12:00 in local time, or 2026-03-01T12:00+01:00"


@dataclass(frozen=True)
class Zone:
    """A time zone, and how people call it."""

    name: str
    rule: tzinfo

    def shown(self, moment: datetime) -> str:
        """Return a moment as the zone's clocks show it, with the offset then."""
        local = moment.astimezone(self.rule)
        seconds = ":%S" if local.second else ""
        return f"{local:%Y-%m-%d %H:%M}{local.strftime(seconds)} {_offset(local)}"


def zone(name: str | None) -> Zone:
    """Return the zone of that name; None: this machine's. Errors: `click.BadParameter`."""
    return _named(name) if name is not None else _machines()


def _named(name: str) -> Zone:
    try:
        return Zone(name, ZoneInfo(name))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        text = f"{name!r} is no time zone. Write one as Europe/Berlin or UTC."
        raise click.BadParameter(text, param_hint="--tz") from None


def _machines() -> Zone:
    """As the C library has it: TZ, else /etc/localtime, else UTC."""
    name = os.environ.get("TZ", "").removeprefix(":")
    if name and not name.startswith("/"):
        try:
            return _named(name)
        except click.BadParameter:
            text = f"This machine's zone (TZ={name!r}) has no name. Give one with --tz Europe/Berlin."
            raise click.BadParameter(text, param_hint="--tz") from None
    path = Path(name) if name else LOCALTIME
    if not path.exists():
        return Zone("UTC", timezone.utc)
    _, found, key = str(path.resolve()).partition("/zoneinfo/")
    if found:
        return _named(key)
    with path.open("rb") as file:
        return Zone("this machine's zone", ZoneInfo.from_file(file))


def moment(text: str, where: Zone, option: str) -> datetime:
    """Return the moment that `text` means: with an offset as it is, else a time on the zone's clocks.

    Errors: `click.BadParameter`.
    """
    found = _WRITTEN.fullmatch(text.strip())
    try:
        if found is None:
            raise ValueError
        day, clock, seconds, offset = found.groups()
        naive = datetime.fromisoformat(f"{day}T{clock or '00:00'}{seconds or ''}")
        if offset:
            return naive.replace(tzinfo=datetime.fromisoformat(f"2000-01-01T00:00{offset.upper()}").tzinfo)
        return _on_the_clock(naive, where, option)
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{text!r} is no time. {_LIKE}.", param_hint=option) from None


def _on_the_clock(naive: datetime, where: Zone, option: str) -> datetime:
    first, second = (naive.replace(tzinfo=where.rule, fold=fold) for fold in (0, 1))
    before, after = first.utcoffset() or timedelta(), second.utcoffset() or timedelta()
    if before == after:
        return first
    shown = f"{naive:%Y-%m-%d %H:%M}"
    if before < after:  # skipped: read by the clocks before, it is later on the clocks after
        later = _exact(first.astimezone(timezone.utc).astimezone(where.rule))
        earlier = _exact(second.astimezone(timezone.utc).astimezone(where.rule))
        text = f"{shown} does not exist in {where.name}: the clocks skip it. Write {earlier} or {later}."
    else:
        text = (
            f"{shown} comes twice in {where.name}. Write {_exact(first)} for the first, {_exact(second)} for the other."
        )
    raise click.BadParameter(text, param_hint=option)


def _exact(local: datetime) -> str:
    return f"{local:%Y-%m-%dT%H:%M}{_offset(local)}"


def _offset(local: datetime) -> str:
    text = local.strftime("%z")
    return f"{text[:3]}:{text[3:5]}"
