"""Updating machines' agents: one by name, or all that are behind in stages (spec 10, "Update agents").

A machine that is asked is asked until it has answered: by being of the release, or by saying why not. In stages
one machine is asked, then a tenth, then the rest, a few at a time; the first that does not come back ends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from corral.domain.machines import MachineState

COME_BACK_WITHIN = timedelta(minutes=10)
"""For a machine that was asked in a stage to be of the new release."""
AWAY_AFTER = timedelta(seconds=60)
"""Between two looks: longer, and the control plane was not there to hear what machines said."""
AT_ONCE = 50
"""Machines of a stage that are asked and have not answered: all of them download from the site."""
STAGES = 3
STAGE_NAMES = ("one", "a tenth", "the rest")


class State(str, Enum):
    """Of a machine's own update. None of them: nothing is asked, or it is done."""

    ASKED = "asked"  # it is told on its session, now or when it connects
    RUNNING = "running"  # it said that it works on it
    FAILED = "failed"  # the old release goes on


class Step(str, Enum):
    """Of a machine in an update of many."""

    WAITING = "waiting"
    ASKED = "asked"
    DONE = "done"
    FAILED = "failed"
    LEFT_OUT = "left_out"


class Outcome(str, Enum):
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"  # by a person; or the site serves another release now
    FAILED = "failed"  # a machine did not come back


@dataclass(frozen=True)
class Ask:
    """What a machine is told: be of this release."""

    number: int
    release: str


@dataclass(frozen=True)
class Said:
    """What a machine's report says of its update."""

    ask: int
    state: State
    message: str


@dataclass(frozen=True)
class Standing:
    """A machine as an update of many sees it."""

    release: str
    state: MachineState
    removed: bool = False
    asked_release: str | None = None
    """Of its own update, if one is asked or failed."""
    update: State | None = None
    message: str = ""
    asked_for: timedelta = timedelta()
    """How long it has been asked by a control plane that was there to hear it."""


@dataclass(frozen=True)
class Candidate:
    """A machine that is behind and Up."""

    id: str
    name: str
    works: int
    """Workloads that hold something of it."""


class Watch:
    """Since when the control plane has looked without a break: its own outage is not held against a machine.

    A start, and a database that was away, are breaks: what machines said meanwhile has not come in yet.
    """

    def __init__(self) -> None:
        self._since: datetime | None = None
        self._last: datetime | None = None

    def look(self, now: datetime) -> datetime:
        """Return since when; it looks again now. `now`: the database's time."""
        if self._since is None or self._last is None or now - self._last > AWAY_AFTER:
            self._since = now
        self._last = now
        return self._since


def is_behind(release: str, served: str) -> bool:
    """Return whether an agent's release differs from the one that the site serves; one never heard is not."""
    return release not in ("", served)


def staged(machines: Sequence[Candidate]) -> Sequence[tuple[Candidate, int]]:
    """Return the machines with their stage (0, 1, 2): those with the least work come first."""
    ordered = sorted(machines, key=lambda machine: (machine.works, machine.name))
    tenth = -(-len(ordered) // 10)
    return [(machine, 0 if n == 0 else 1 if n <= tenth else 2) for n, machine in enumerate(ordered)]


def left_out(machine: Standing, served: str) -> str:
    """Return why an update of many leaves out a machine that is behind ("": it takes part)."""
    if machine.state is not MachineState.UP:
        return f"it is {machine.state.value}"
    if machine.update is State.FAILED and machine.asked_release == served:
        return f"release {served} failed on it: {machine.message}. Ask it by name to try again"
    return ""


def judged(step: Step, machine: Standing, wanted: str) -> tuple[Step, str]:
    """Return where a machine stands now, and why. `step`: where it stood; WAITING: it is its turn now.

    A machine to be asked comes back as ASKED.
    """
    if step not in (Step.WAITING, Step.ASKED):
        return step, ""
    if machine.removed:
        return Step.LEFT_OUT, "it was removed"
    mine = machine.asked_release == wanted
    if machine.release == wanted and not (mine and machine.update is State.RUNNING):
        return Step.DONE, ""
    if step is Step.WAITING:
        why = left_out(machine, wanted)
        return (Step.LEFT_OUT, why) if why else (Step.ASKED, "")
    if mine and machine.update is State.FAILED:
        return Step.FAILED, machine.message
    why = lost(machine)
    return (Step.FAILED, why) if why else (Step.ASKED, "")


def lost(machine: Standing) -> str:
    """Return why a machine that was asked in a stage counts as not come back ("": it is waited for)."""
    if machine.state is MachineState.DOWN:
        return "it fell silent after it was asked to update"
    if machine.asked_for >= COME_BACK_WITHIN:
        minutes = COME_BACK_WITHIN.total_seconds() / 60
        return f"it has not come back with the new release within {minutes:.0f} minutes"
    return ""
