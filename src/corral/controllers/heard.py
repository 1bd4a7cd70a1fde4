"""When each machine was last heard, in memory: the hot path of reports ends here (design decision 8).

All moments are on a steady clock: the wall clock at the start, then what the monotonic clock
counted. Wall clock steps do not touch it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone

from corral.domain.liveness import was_deaf


class Heard:
    """Written by the loop that hears the reports; read by the liveness thread. Each call is atomic."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._base = datetime.now(timezone.utc) - timedelta(seconds=monotonic())
        self._last: dict[str, datetime] = {}
        self._fresh: dict[str, datetime] = {}
        self._settled: set[str] = set()
        self.listening_since = self.last_beat = self.now()

    def now(self) -> datetime:
        return self._base + timedelta(seconds=self._monotonic())

    def note(self, machine_id: str) -> None:
        """A machine reported."""
        self._last[machine_id] = self._fresh[machine_id] = self.now()

    def last(self, machine_id: str) -> datetime | None:
        """Return when a machine was last heard by this process."""
        return self._last.get(machine_id)

    def settle(self, machine_id: str) -> None:
        """A machine's report was taken in, and its description of what is not known here."""
        self._settled.add(machine_id)

    def settled(self, machine_id: str) -> bool:
        """Whether a machine has said what it runs, since this process began."""
        return machine_id in self._settled

    def drop(self, machine_id: str) -> None:
        """Forget a machine: it is Down or removed."""
        self._last.pop(machine_id, None)

    def beat(self) -> None:
        """The loop is there to hear. After it was not, every machine's silence counts anew."""
        now = self.now()
        if was_deaf(self.last_beat, now):
            self.listening_since = now
        self.last_beat = now

    def listening(self) -> bool:
        """Whether the loop was there just now."""
        return not was_deaf(self.last_beat, self.now())

    def silent_since(self, moment: datetime) -> bool:
        """Whether any machine was last heard at or before `moment`."""
        return any(heard <= moment for heard in tuple(self._last.values()))

    def take_fresh(self) -> dict[str, datetime]:
        """Return who was heard since the last call."""
        fresh, self._fresh = self._fresh, {}
        return fresh
