"""Which conditions people are told of, and how often (spec 10, "Events, audit, alerts").

An alert is one condition of one thing: (organisation, kind, about). At most one of it is open.

- It *begins*: where one is open it counts; one that ended less than `QUIET` ago is opened again and
  counts; else there is a new one.
- People are told when it opens and when it closes. After anything told, an opening waits until `QUIET` is over, and is
  told then if it is still open. A closing is told at once, if its opening was told. So a machine that flaps costs
  at most two messages in each `QUIET`, and nobody believes for longer than that that a machine is up which is not.
- What happens again while it is open is told again after the kind's `repeat`, if it has one.
- What has no end of its own (`LASTS`) closes by itself, and nobody is told of that.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from corral.domain.errors import Refusal
from corral.domain.ids import HIDDEN, shown

QUIET = timedelta(minutes=10)
TITLE_MAX = 300
ABOUT_MAX = 200


class Kind(str, Enum):
    """What rules choose by. `MACHINE_UP` and `GPU_FAULT_CLEARED` are the closings of the kinds before them."""

    MACHINE_DOWN = "machine_down"
    MACHINE_UP = "machine_up"
    GPU_FAULT = "gpu_fault"
    GPU_FAULT_CLEARED = "gpu_fault_cleared"
    BUDGET = "budget"
    TOKEN_REPLAYED = "token_replayed"  # noqa: S105  # a kind of alert
    CLONE_SUSPECTED = "clone_suspected"
    AGENT_UPDATE_FAILED = "agent_update_failed"


CLOSED_AS: Mapping[Kind, Kind] = {Kind.MACHINE_DOWN: Kind.MACHINE_UP, Kind.GPU_FAULT: Kind.GPU_FAULT_CLEARED}
"""As what kind the end of an alert is told. Of the others the end is not told."""
OPENING = tuple(kind for kind in Kind if kind not in CLOSED_AS.values())
"""The kinds that alerts have."""
REPEAT: Mapping[Kind, timedelta] = {
    Kind.GPU_FAULT: QUIET,
    Kind.AGENT_UPDATE_FAILED: QUIET,
    Kind.TOKEN_REPLAYED: timedelta(days=1),
    Kind.CLONE_SUSPECTED: timedelta(days=1),
}
LASTS: Mapping[Kind, timedelta] = {Kind.TOKEN_REPLAYED: timedelta(days=1)}
"""Since it last happened. A budget's alert lasts as long as its month (UTC)."""


class Told(str, Enum):
    """What a message says: the alert opened (or goes on), or it closed."""

    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True)
class Alert:
    """Where an alert stands. `told` is what people know, since `told_at`; `tell_at` is when an opening is due."""

    opened_at: datetime
    last_at: datetime
    count: int = 1
    closed_at: datetime | None = None
    told: Told | None = None
    told_at: datetime | None = None
    tell_at: datetime | None = None


@dataclass(frozen=True)
class Sign:
    """What a journal entry says of a condition. `about` is what it is one alert of."""

    kind: Kind
    about: str
    begins: bool
    title: str = ""


def began(alert: Alert | None, kind: Kind, at: datetime) -> tuple[Alert, Told | None]:
    """Return the alert after its condition began (again) at `at`, and what people are told of it now.

    `alert` is the newest one of this (organisation, kind, about). The answer's `count` is 1 where it is a new one.
    """
    if alert is None or (alert.closed_at is not None and at >= alert.closed_at + QUIET):
        return _settled(Alert(at, at), at)
    at = max(at, alert.last_at, alert.told_at or at)
    after = replace(alert, last_at=at, count=alert.count + 1, closed_at=None)
    repeat = REPEAT.get(kind)
    if alert.closed_at is None and alert.told is Told.OPEN:
        again = repeat is not None and alert.told_at is not None and at >= alert.told_at + repeat
        return (replace(after, told_at=at), Told.OPEN) if again else (after, None)
    return _settled(after, at)


def ended(alert: Alert, at: datetime, *, aloud: bool) -> tuple[Alert, Told | None]:
    """Return an open alert after its condition ended. `aloud`: that is something to tell."""
    at = max(at, alert.opened_at, alert.told_at or at)
    after = replace(alert, closed_at=at, tell_at=None)
    if not aloud:
        return (replace(after, told=Told.CLOSED) if alert.told else after), None
    return _settled(after, at)


def waited(alert: Alert, now: datetime) -> tuple[Alert, Told | None]:
    """Return an alert whose opening waited to be told, and what people are told of it now."""
    return _settled(alert, now)


def lapsed(kind: Kind, alert: Alert, now: datetime) -> bool:
    """Return whether an open alert, of a kind without an end of its own, is over."""
    if kind is Kind.BUDGET:
        return (now.year, now.month) > (alert.opened_at.year, alert.opened_at.month)
    return kind in LASTS and now >= alert.last_at + LASTS[kind]


def _settled(alert: Alert, now: datetime) -> tuple[Alert, Told | None]:
    """Tell what people do not know yet, or say when that is due."""
    if alert.closed_at is not None:
        after = replace(alert, tell_at=None)
        return (
            (replace(after, told=Told.CLOSED, told_at=now), Told.CLOSED) if alert.told is Told.OPEN else (after, None)
        )
    if alert.told is Told.OPEN:
        return replace(alert, tell_at=None), None
    if alert.told_at is None or now >= alert.told_at + QUIET:
        return replace(alert, told=Told.OPEN, told_at=now, tell_at=None), Told.OPEN
    return replace(alert, tell_at=alert.told_at + QUIET), None


def told_as(kind: Kind, told: Told) -> Kind:
    """Return the kind that rules choose a message by."""
    return kind if told is Told.OPEN else CLOSED_AS[kind]


# -- what the journal says


def sign(entry: Mapping[str, Any]) -> Sign | None:
    """Return what a journal entry (columns of `store/tables/journal`) says of a condition; None: nothing."""
    read = _READ.get(entry["type"])
    return read(entry, entry["data"]) if read is not None else None


ENDS_ALL = "cluster.node.removed"
"""A machine that was removed has no alerts any more; nobody is told."""
SIGNS = frozenset(
    {
        ENDS_ALL,
        "cluster.node.down",
        "cluster.node.up",
        "cluster.node.gpu_fault",
        "cluster.node.gpu_fault_cleared",
        "cluster.node.gpu_part_cleared",
        "cluster.node.cloned",
        "cluster.node.quarantine_released",
        "cluster.node.upgrade",
        "cluster.token.replayed",
        "workspace.budget.reached",
    }
)
"""The types of entries that open or close alerts."""


def _down(entry: Mapping[str, Any], data: Mapping[str, Any]) -> Sign:
    return Sign(Kind.MACHINE_DOWN, entry["machine_id"], True, f"Machine {_of(data, 'name')} is down")


def _up(entry: Mapping[str, Any], data: Mapping[str, Any]) -> Sign:
    return Sign(Kind.MACHINE_DOWN, entry["machine_id"], False, f"Machine {_of(data, 'name')} is up again")


def _fault(entry: Mapping[str, Any], data: Mapping[str, Any]) -> Sign:
    why = " ".join(part for part in (_of(data, "code"), _of(data, "reason")) if part)
    title = f"GPU {_of(data, 'gpu')} ({_of(data, 'model')}) of machine {_of(data, 'name')} has a fault, and is fenced"
    return Sign(Kind.GPU_FAULT, _gpu(entry, data), True, f"{title}: {why}" if why else title)


def _cleared(entry: Mapping[str, Any], data: Mapping[str, Any]) -> Sign:
    title = f"The fault of GPU {_of(data, 'gpu')} of machine {_of(data, 'name')} is cleared"
    return Sign(Kind.GPU_FAULT, _gpu(entry, data), False, title)


def _gpu(entry: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    # A latch follows its GPU to another machine; what names no GPU is the machine's.
    return str(data.get("gpu") or entry["machine_id"])[:ABOUT_MAX]


def _cloned(entry: Mapping[str, Any], data: Mapping[str, Any]) -> Sign:
    title = f"Two copies of machine {_of(data, 'name')} report: no new work until an admin decides"
    return Sign(Kind.CLONE_SUSPECTED, entry["machine_id"], True, title)


def _released(entry: Mapping[str, Any], data: Mapping[str, Any]) -> Sign:
    return Sign(Kind.CLONE_SUSPECTED, entry["machine_id"], False)


def _upgrade(entry: Mapping[str, Any], data: Mapping[str, Any]) -> Sign | None:
    if data.get("state") not in ("failed", "done"):
        return None
    failed = data["state"] == "failed"
    title = f"The agent of machine {_of(data, 'name')} could not be updated: {_of(data, 'reason')}" if failed else ""
    return Sign(Kind.AGENT_UPDATE_FAILED, entry["machine_id"], failed, title)


def _replayed(entry: Mapping[str, Any], data: Mapping[str, Any]) -> Sign:
    title = f"A used join token, of machine {_of(data, 'name')}, came again with another key, and was refused"
    return Sign(Kind.TOKEN_REPLAYED, str(data.get("token") or entry["machine_id"])[:ABOUT_MAX], True, title)


def _budget(entry: Mapping[str, Any], data: Mapping[str, Any]) -> Sign:
    about = f"{entry['workspace_id']}/{_of(data, 'month')}/{_of(data, 'percent')}"
    costs = f"{_of(data, 'spent')} of {_of(data, 'amount')} {_of(data, 'currency')}"
    title = f"Workspace {_of(data, 'workspace')} reached {_of(data, 'percent')}% of its budget of {_of(data, 'month')}"
    return Sign(Kind.BUDGET, about[:ABOUT_MAX], True, f"{title}: {costs}")


_READ = {
    "cluster.node.down": _down,
    "cluster.node.up": _up,
    "cluster.node.gpu_fault": _fault,
    "cluster.node.gpu_fault_cleared": _cleared,
    "cluster.node.gpu_part_cleared": _cleared,
    "cluster.node.cloned": _cloned,
    "cluster.node.quarantine_released": _released,
    "cluster.node.upgrade": _upgrade,
    "cluster.token.replayed": _replayed,
    "workspace.budget.reached": _budget,
}


def _of(data: Mapping[str, Any], name: str) -> str:
    """Return a field as text for people: one line, nothing hidden in it."""
    value = data.get(name)
    return one_line("" if value is None else str(value), 120)


def one_line(text: str, limit: int = TITLE_MAX) -> str:
    """Return text on one line, without characters that do not show, cut at `limit`."""
    clean = "".join(" " if unicodedata.category(c) in HIDDEN else c for c in text)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


# -- what rules choose


def kinds(asked: list[str]) -> tuple[Kind, ...]:
    """Return the kinds a rule is for, in the one order; none: every kind. Errors: `INVALID_REQUEST`."""
    known = {kind.value for kind in Kind}
    for text in asked:
        if text not in known:
            raise Refusal(
                "INVALID_REQUEST",
                f"kinds: {shown(text)} is none. Use {', '.join(kind.value for kind in Kind)}.",
                field="kinds",
            )
    return tuple(kind for kind in Kind if kind.value in asked)


def opening_kind(text: str) -> Kind:
    """Return the kind of alerts to list. Errors: `INVALID_REQUEST`."""
    if text in [kind.value for kind in OPENING]:
        return Kind(text)
    back = {after.value: kind.value for kind, after in CLOSED_AS.items()}
    hint = f"{text} is how a {back[text]} ends: ask for {back[text]}" if text in back else f"{shown(text)} is none"
    names = ", ".join(kind.value for kind in OPENING)
    raise Refusal("INVALID_REQUEST", f"kind: {hint}. Kinds of alerts: {names}.", field="kind")


def text(alert: Alert, org: str, site_url: str) -> str:
    """Return what stands under a message's title: whose it is, since when, how often, where to look."""
    lines = [f"Organisation {org} at {site_url}", f"Since {alert.opened_at:%Y-%m-%d %H:%M:%S} UTC"]
    if alert.count > 1:
        lines.append(f"{alert.count} times, last at {alert.last_at:%Y-%m-%d %H:%M:%S} UTC")
    if alert.closed_at is not None:
        lines.append(f"Over since {alert.closed_at:%Y-%m-%d %H:%M:%S} UTC")
    return "\n".join(lines)
