"""Waiting before another try (spec 40: full jitter, so that a fleet never comes back in one second)."""

from __future__ import annotations

import random
from collections.abc import Callable


class Jitter:
    """Full jitter: each delay is anything between 0 and a bound that doubles up to `cap_s`."""

    def __init__(self, base_s: float, cap_s: float, chance: Callable[[], float] = random.random) -> None:
        self._base_s, self._cap_s, self._chance = base_s, cap_s, chance
        self._tries = 0

    def next(self, at_least_s: float = 0.0) -> float:
        """Return the next delay in seconds, never below `at_least_s`."""
        bound = min(self._cap_s, self._base_s * 2.0 ** min(self._tries, 32))
        self._tries += 1
        return at_least_s + self._chance() * bound

    def reset(self) -> None:
        self._tries = 0


class Doubling:
    """Plain doubling, for one machine's own tries: `first_s`, then twice as long each time, up to `cap_s`."""

    def __init__(self, first_s: float, cap_s: float) -> None:
        self._first_s, self._cap_s = first_s, cap_s
        self.tries = 0

    def next(self) -> float:
        delay = min(self._cap_s, self._first_s * 2.0 ** min(self.tries, 32))
        self.tries += 1
        return delay

    def reset(self) -> None:
        self.tries = 0
