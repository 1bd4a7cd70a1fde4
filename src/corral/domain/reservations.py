"""Reservations: windows during which machines serve only named workspaces, or nobody (spec 10, "Reservations").

Windows are half-open [start, end). Before one, only work that is sure to end in time lands there, and
work of the named workspaces. Where several windows cover a machine, only what all of them allow may run:
two that would overlap are refused when they are made, but relabelling a machine may bring it under both.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum

from corral.domain.errors import Refusal
from corral.domain.ids import HIDDEN, shown
from corral.domain.labels import checked_value
from corral.domain.workloads import STOP_GRACE

MAX_NODES = 250
MAX_WORKSPACES = 100
MAX_REASON = 200
MAX_LIVE = 1_000
"""Reservations of one organisation in one cluster that are not over."""
LONGEST = timedelta(days=5 * 366)
FARTHEST = timedelta(days=10 * 366)
"""How far ahead a window may end."""
NOBODY = "nobody"
_WHOM_NAMED = 5
_RFC_3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:([Zz])|([+-])([01]\d|2[0-3]):([0-5]\d))", re.ASCII
)


class State(str, Enum):
    """Where now is: before the window, in it, after it."""

    UPCOMING = "upcoming"
    ACTIVE = "active"
    PAST = "past"


def state(start: datetime, end: datetime, now: datetime) -> State:
    if now >= end:
        return State.PAST
    return State.ACTIVE if now >= start else State.UPCOMING


# --- as placement feels it


@dataclass(frozen=True)
class Window:
    """One reservation as a machine feels it. Times are UTC; `workspaces` are ids, none: nobody's work."""

    id: str
    start: datetime
    end: datetime
    workspaces: frozenset[str]
    whom: str
    """For people: the workspaces' short names, or "nobody"."""
    reason: str = ""


def whom(workspaces: Sequence[str]) -> str:
    """Return for whom a window is, in words: short names of workspaces, the first few of many."""
    if not workspaces:
        return NOBODY
    more = f" and {len(workspaces) - _WHOM_NAMED} more" if len(workspaces) > _WHOM_NAMED else ""
    return ", ".join(workspaces[:_WHOM_NAMED]) + more


def refusal(window: Window, workspace: str, now: datetime, sure_end: datetime | None) -> str:
    """Return why work of a workspace may not begin now where this window is ("" = it may).

    `sure_end`: when it is gone for sure, its stop grace included; None: it has no time limit.
    """
    if window.end <= now or workspace in window.workspaces:
        return ""
    if window.start <= now:
        return in_words(window, now)
    if sure_end is not None and sure_end <= window.start:
        return ""
    return (
        f"{in_words(window, now)}; until then only work whose time limit, with {STOP_GRACE.seconds} s to stop, "
        "ends before that"
    )


def refused_by(windows: Iterable[Window], workspace: str, now: datetime, sure_end: datetime | None) -> str:
    """Return the first window's refusal ("" = none of them refuses)."""
    return next((said for window in windows if (said := refusal(window, workspace, now, sure_end))), "")


def in_words(window: Window, now: datetime) -> str:
    """Return a window that is not over in words: until when, or from when to when; for whom, and why."""
    why = f": {window.reason}" if window.reason else ""
    until = f"{_to_read(window.end)} UTC{why}"
    if window.start <= now:
        return f"reserved for {window.whom} until {until}"
    return f"reserved for {window.whom} from {_to_read(window.start)} to {until}"


def _to_read(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S}" if time.second else f"{time:%Y-%m-%d %H:%M}"


def now_in_words(windows: Iterable[Window], now: datetime) -> str:
    """Return those of the windows that now is in, in words ("" = none)."""
    return "; ".join(
        in_words(window, now) for window in windows if state(window.start, window.end, now) is State.ACTIVE
    )


def closed_to_all(windows: Iterable[Window], now: datetime) -> str:
    """Return, in words, the windows that now is in, when together they let in nobody's work ("" = they let in some)."""
    active = [window for window in windows if state(window.start, window.end, now) is State.ACTIVE]
    if not active or frozenset.intersection(*(window.workspaces for window in active)):
        return ""
    return now_in_words(active, now)


# --- as people ask for it


@dataclass(frozen=True)
class Given:
    """What somebody sent, unchecked. Times are texts; `pool` is a selector by label: {"pool": NAME}."""

    start: str
    end: str
    pool: Mapping[str, object] | None = None
    nodes: Sequence[str] = ()
    workspaces: Sequence[str] = ()
    reason: str = ""


@dataclass(frozen=True)
class Asked:
    """A reservation of machines by name, of those that carry a pool, or of both. Times are UTC."""

    start: datetime
    end: datetime
    pool: str | None = None
    nodes: Sequence[str] = ()
    workspaces: Sequence[str] = ()
    """Short names; none: nobody's work."""
    reason: str = ""


def asked(given: Given, now: datetime) -> Asked:
    """Return what was asked for, checked. Errors: `INVALID_RESERVATION`, `INVALID_REQUEST`, `INVALID_LABEL`."""
    start, end = moment(given.start, "start"), moment(given.end, "end")
    pool = _pool(given.pool)
    nodes, workspaces = tuple(dict.fromkeys(given.nodes)), tuple(dict.fromkeys(given.workspaces))
    if pool is None and not nodes:
        raise _invalid("It reserves nothing: name machines in 'nodes', or a pool as {\"pool\": NAME}.", "nodes")
    if len(nodes) > MAX_NODES:
        raise _invalid(f"{len(nodes)} machines are too many: name at most {MAX_NODES}, or give a pool.", "nodes")
    if len(workspaces) > MAX_WORKSPACES:
        raise _invalid(f"{len(workspaces)} workspaces are too many: name at most {MAX_WORKSPACES}.", "workspaces")
    _check_window(start, end, now)
    return Asked(start, end, pool, nodes, workspaces, _reason(given.reason))


def _check_window(start: datetime, end: datetime, now: datetime) -> None:
    if end == start:
        raise _invalid(f"The window is empty: it starts and ends at {utc(start)}. Give a later end.", "end")
    if end < start:
        raise _invalid(f"It ends ({utc(end)}) before it starts ({utc(start)}). Exchange the two.", "end")
    if end <= now:
        raise _invalid(f"It ended at {utc(end)}, and it is {utc(now)} now. Give an end in the future.", "end")
    if end - start > LONGEST:
        raise _invalid(f"It lasts {(end - start).days} days: make it at most {LONGEST.days}.", "end")
    if end - now > FARTHEST:
        raise _invalid(f"It ends at {utc(end)}: that is more than {FARTHEST.days} days ahead.", "end")


def _pool(selector: Mapping[str, object] | None) -> str | None:
    if selector is None:
        return None
    others = sorted(key for key in selector if key != "pool")
    if others or "pool" not in selector:
        text = (
            f"A reservation goes by the label 'pool' only, not by {shown(others[0])}" if others else "No pool is named"
        )
        raise _invalid(f'{text}: write {{"pool": NAME}}.', "pool")
    if not isinstance(selector["pool"], str):
        raise Refusal("INVALID_REQUEST", 'pool: its name is a text: write {"pool": NAME}.', field="pool.pool")
    pool = checked_value("pool", selector["pool"])
    if not pool:
        raise _invalid("The pool has no name. Name one, or leave 'pool' out.", "pool")
    return pool


def _reason(text: str) -> str:
    reason = text.strip()
    if len(reason) > MAX_REASON or any(unicodedata.category(c) in HIDDEN for c in reason):
        raise Refusal(
            "INVALID_REQUEST",
            f"{shown(reason)} cannot be a reason: use at most {MAX_REASON} printable characters.",
            field="reason",
        )
    return reason


def _invalid(text: str, where: str) -> Refusal:
    return Refusal("INVALID_RESERVATION", text, field=where)


def moment(text: str, where: str) -> datetime:
    """Return an RFC 3339 time in UTC, whole microseconds. Errors: `INVALID_REQUEST`, also for one without an offset."""
    found = _RFC_3339.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        day, clock, fraction, _zulu, sign, hours, minutes = found.groups()
        offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
        local = datetime.fromisoformat(f"{day}T{clock}").replace(
            microsecond=int((fraction or "0").ljust(6, "0")[:6]), tzinfo=timezone.utc
        )
        return local + offset if sign == "-" else local - offset
    except (ValueError, OverflowError):
        raise Refusal(
            "INVALID_REQUEST",
            f"{where}: {shown(text)} is no time with an offset. Write one as RFC 3339 has it: 2026-03-01T12:00:00Z "
            "or 2026-03-01T13:00:00+01:00.",
            field=where,
        ) from None


def utc(time: datetime) -> str:
    """Return a time in UTC as answers write it."""
    return time.isoformat().replace("+00:00", "Z")
