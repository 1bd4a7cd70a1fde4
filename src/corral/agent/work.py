"""What this machine was told to run, one file an allocation: how a new agent knows what the one before it knew.

A start is only made once its record is on disk, so that no container runs which a later
agent could not explain; a stop never waits for the disk.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from corral.agent.state import StateError, StateFolder, Unwritable
from corral.protocol.messages import DesiredAllocation

FOLDER = "work"
LOG_BLOCK = 1000
"""Numbers of log lines are taken from disk in blocks: none is used twice, and no line costs a write."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class End(str, Enum):
    GONE = "gone"  # told to stop, or out of time: all of it is removed
    FAILED = "failed"  # could not be started: all of it is removed


@dataclass(frozen=True)
class Timer:
    """A time limit on the machine's own clock; `boot_id` says of which boot."""

    boot_id: str
    ends_at: float
    """Seconds of CLOCK_BOOTTIME."""
    left_s: float
    """What was left when this was written: all that a reboot leaves us."""


@dataclass(frozen=True)
class Record:
    """One allocation: what it should be and what became of it. Immutable; each change makes a new one."""

    want: DesiredAllocation
    ran: bool = False
    """It was started and verified once."""
    applied: int = 0
    """The generation its container was last brought to."""
    host_key: str = ""
    gpus: tuple[str, ...] = ()
    container: str = ""
    restarts: int = 0
    oom_kills: int = 0
    """Of containers before the one that runs now."""
    log_reserved: int = 0
    """Log lines up to this number may have been used."""
    timer: Timer | None = None
    end: End | None = None
    message: str = ""
    exit_code: int | None = None
    log_tail: str = ""


class Works(Protocol):
    """Where records are kept."""

    def load(self) -> list[Record]:
        """Return all records. Errors: `StateError` when one cannot be read back."""
        ...

    def put(self, record: Record) -> None:
        """Keep a record. Errors: `Unwritable`; then the old one stands."""
        ...

    def drop(self, allocation: str) -> None:
        """Forget a record. Errors: `Unwritable`."""
        ...


class WorkFolder:
    """Records as files `work/<allocation>.json` of the state folder."""

    def __init__(self, state: StateFolder) -> None:
        self._state = state

    def load(self) -> list[Record]:
        records = []
        for name in self._state.names(FOLDER):
            record = self._state.read(name, Record)
            if record is not None and name != _file(record.want.id):
                raise StateError(f"{self._state.path / name} tells of another allocation; put it back from a copy")
            if record is not None:
                records.append(record)
        return records

    def put(self, record: Record) -> None:
        self._state.make_folder(FOLDER)
        self._state.write(_file(record.want.id), record)

    def drop(self, allocation: str) -> None:
        self._state.remove(_file(allocation))


class WorkMemory:
    """Records of a simulated machine: gone with it."""

    def load(self) -> list[Record]:
        return []

    def put(self, record: Record) -> None:
        return

    def drop(self, allocation: str) -> None:
        return


def known_id(allocation: str) -> bool:
    """Tell whether an id may name a file and a container."""
    return _ID.fullmatch(allocation) is not None


def _file(allocation: str) -> str:
    if not known_id(allocation):
        raise Unwritable(f"{allocation!r} is not the id of an allocation")
    return f"{FOLDER}/{allocation}.json"


class BootClock:
    """Seconds since this machine was switched on; goes on while it sleeps, and no one can set it."""

    def __init__(self, now: Callable[[], float] | None = None, boot_id: str | None = None) -> None:
        self.now = now or (lambda: time.clock_gettime(time.CLOCK_BOOTTIME))
        self.boot_id = read_boot_id() if boot_id is None else boot_id

    def timer(self, seconds_left: float) -> Timer:
        return Timer(self.boot_id, self.now() + seconds_left, seconds_left)

    def ends_at(self, timer: Timer | None) -> float | None:
        """Return when a timer ends on this boot's clock. Over a reboot only what was left then is known."""
        if timer is None:
            return None
        return timer.ends_at if timer.boot_id == self.boot_id else self.now() + timer.left_s


def read_boot_id() -> str:
    """Return the kernel's random id of this boot; "" where it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
