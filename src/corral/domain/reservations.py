"""Reservations: windows during which machines serve only named workspaces, or nobody (spec 10, "Reservations").

Windows are half-open [start, end). Before one, only work that is sure to end in time lands there, and
work of the named workspaces. Where several windows cover a machine, only what all of them allow may run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime


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


def refusal(window: Window, workspace: str, now: datetime, sure_end: datetime | None) -> str:
    """Return why work of a workspace may not begin now where this window is ("" = it may).

    `sure_end`: when it is gone for sure, its stop grace included; None: it has no time limit.
    """
    if window.end <= now or workspace in window.workspaces:
        return ""
    why = f": {window.reason}" if window.reason else ""
    if window.start <= now:
        return f"reserved for {window.whom} until {window.end:%Y-%m-%d %H:%M} UTC{why}"
    if sure_end is not None and sure_end <= window.start:
        return ""
    return (
        f"reserved for {window.whom} from {window.start:%Y-%m-%d %H:%M} to {window.end:%Y-%m-%d %H:%M} UTC{why}; "
        "until then only work whose time limit ends before that"
    )


def refused_by(windows: Iterable[Window], workspace: str, now: datetime, sure_end: datetime | None) -> str:
    """Return the first window's refusal ("" = none of them refuses)."""
    return next((said for window in windows if (said := refusal(window, workspace, now, sure_end))), "")
