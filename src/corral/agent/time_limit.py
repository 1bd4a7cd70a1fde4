"""An allocation's time limit, on the machine's own clock: nobody can set it, and a reboot gives back little of it."""

from __future__ import annotations

from corral.agent.work import BootClock, Timer

SLACK_S = 5.0
"""A time limit that moved less than this is not written again."""
NOTE_S = 60.0
"""What is left of a time limit is written this often: a reboot gives back no more than that."""


class TimeLimit:
    """Its timer is what the allocation's record keeps of it."""

    def __init__(self, clock: BootClock, timer: Timer | None) -> None:
        self._clock = clock
        self._ends_at = clock.ends_at(timer)

    @property
    def is_over(self) -> bool:
        return self._ends_at is not None and self._clock.now() >= self._ends_at

    def left_s(self) -> float | None:
        """Return the seconds that are left; None: it has no limit."""
        return None if self._ends_at is None else max(0.0, self._ends_at - self._clock.now())

    def set(self, seconds_left: float | None, kept: Timer | None) -> Timer | None:
        """Take what the site says is left (None: no limit); return the timer to keep, `kept` if it hardly moved."""
        if seconds_left is None:
            self._ends_at = None
            return None
        timer = self._clock.timer(seconds_left)
        if self._ends_at is not None and abs(timer.ends_at - self._ends_at) <= SLACK_S:
            return kept
        self._ends_at = timer.ends_at
        return timer

    def noted(self, kept: Timer | None) -> Timer | None:
        """Return the timer to keep for a reboot: another one when much less is left than `kept` says."""
        left = self.left_s()
        if self._ends_at is None or left is None or kept is None or kept.left_s - left <= NOTE_S:
            return kept
        return Timer(self._clock.boot_id, self._ends_at, left)
