"""Which silent machines are Down (spec 10, "Machine states"; design decision 4).

All moments are on one steady clock of the process that hears the reports: the wall clock may
step, and an agent's clock is never asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from corral.domain.machines import DOWN_AFTER, MachineState, state_after

HOLD_FOR = timedelta(minutes=5)
SUSPICIOUS_FROM = 5
"""Fewer machines than this may all fall silent together without the site suspecting itself."""
SUSPECT_PRESSURE = "silent: no report for 60 seconds, and most machines fell silent together"
"""Keeps new work off a machine while the site suspects itself; the machine's next report ends it."""


@dataclass(frozen=True)
class Verdict:
    """What to do about the machines that are silent."""

    down: frozenset[str] = frozenset()
    suspect: frozenset[str] = frozenset()
    """Held: not Down, and no new work lands there."""
    held_since: datetime | None = None
    """When the site began to suspect itself (None: it does not)."""


def judge(
    up: Mapping[str, datetime | None], listening_since: datetime, held_since: datetime | None, now: datetime
) -> Verdict:
    """Judge the machines that are Up, by when each was last heard (None: not since the process began).

    If more than half of them, and five or more, are silent together, the fault is likely
    the site's own: none is marked Down for five minutes.
    """
    silent = frozenset(
        id
        for id, heard in up.items()
        if state_after(MachineState.UP, heard or listening_since, listening_since, now) is MachineState.DOWN
    )
    if held_since is not None and now - held_since < HOLD_FOR:
        return Verdict(suspect=silent, held_since=held_since)
    if held_since is None and len(silent) >= SUSPICIOUS_FROM and len(silent) * 2 > len(up):
        return Verdict(suspect=silent, held_since=now)
    return Verdict(down=silent)


def was_deaf(last_beat: datetime, now: datetime) -> bool:
    """Return whether the process was stopped or too busy to hear anybody: silence then counts anew."""
    return now - last_beat > DOWN_AFTER / 6
