"""When a machine is short of disk or memory, and takes no new work (spec 10, "Machine states").

Entering and leaving have different limits, so that a machine at the edge does not flap.
"""

from __future__ import annotations

from dataclasses import dataclass

from corral.protocol.messages import Condition

GIB = 1024


@dataclass(frozen=True)
class Limit:
    """Short below the larger of a share of the whole and a fixed amount; the share is capped for big disks."""

    percent: float
    least_mib: int
    most_mib: int

    def mib(self, whole_mib: int) -> float:
        return max(self.least_mib, min(self.most_mib, whole_mib * self.percent / 100))


DISK_ENTER = Limit(percent=5, least_mib=2 * GIB, most_mib=50 * GIB)
DISK_LEAVE = Limit(percent=7, least_mib=3 * GIB, most_mib=70 * GIB)
MEMORY_ENTER = Limit(percent=3, least_mib=0, most_mib=8 * GIB)
MEMORY_LEAVE = Limit(percent=5, least_mib=0, most_mib=12 * GIB)


@dataclass(frozen=True)
class Level:
    """How much there is and how much of it is free. A whole of 0 = not known: never short."""

    whole_mib: int = 0
    free_mib: int = 0


@dataclass(frozen=True)
class Pressure:
    """What was short at the last look."""

    disk: bool = False
    memory: bool = False


def after(was: Pressure, disk: Level, memory: Level) -> Pressure:
    """Return what is short now. `disk` is the runtime's file system."""
    return Pressure(
        disk=_short(was.disk, disk, DISK_ENTER, DISK_LEAVE),
        memory=_short(was.memory, memory, MEMORY_ENTER, MEMORY_LEAVE),
    )


def conditions(now: Pressure) -> tuple[Condition, ...]:
    """Return the conditions to report. Their texts hold no changing number: a condition is told once."""
    found = []
    if now.disk:
        text = "the container runtime's file system is nearly full; remove images or data that nobody needs"
        found.append(Condition("disk_pressure", text))
    if now.memory:
        text = "nearly all memory is in use; end what uses it outside Corral, or wait for work here to end"
        found.append(Condition("memory_pressure", text))
    return tuple(found)


def _short(was: bool, level: Level, enter: Limit, leave: Limit) -> bool:
    if level.whole_mib <= 0:
        return False
    return level.free_mib < (leave if was else enter).mib(level.whole_mib)
