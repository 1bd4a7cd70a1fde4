"""How much a session may cause in a time (spec 60, line 8: a machine's root may send anything)."""

from __future__ import annotations

import time
from collections.abc import Callable


class Budget:
    """A bucket that fills at `rate` a second up to `burst`."""

    __slots__ = ("_at", "_burst", "_clock", "_left", "_rate")

    def __init__(self, burst: float, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._burst, self._rate, self._left, self._at = burst, rate, burst, clock()

    def take(self, amount: float) -> bool:
        """Return whether there was so much. What is asked for and not there has to be waited for, too."""
        self._fill()
        self._left -= amount
        return self._left >= 0

    def take_if_there(self, amount: float) -> bool:
        """Return whether there was so much; where there was not, nothing is taken."""
        self._fill()
        there = self._left >= amount
        if there:
            self._left -= amount
        return there

    def _fill(self) -> None:
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
