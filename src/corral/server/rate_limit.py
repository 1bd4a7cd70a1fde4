"""How often one address may be refused before it has to wait: a token bucket each, in memory, bounded."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock


class RateLimit:
    """`burst` refusals at once, then `per_second`. The longest unseen addresses are forgotten beyond `remembered`."""

    def __init__(
        self,
        burst: int,
        per_second: float,
        *,
        remembered: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._burst, self._rate, self._remembered, self._clock = burst, per_second, remembered, clock
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = Lock()

    def wait_s(self, address: str) -> int:
        """Return for how many whole seconds this address has to wait (0 = it may go on)."""
        with self._lock:
            over = self._now(address) - (self._burst - 1)
        return 0 if over <= 0 else max(1, int(over / self._rate + 0.999))

    def spend(self, address: str) -> None:
        """Count one refusal."""
        with self._lock:
            self._spent[address] = (min(self._now(address) + 1, self._burst), self._clock())
            self._spent.move_to_end(address)
            while len(self._spent) > self._remembered:
                self._spent.popitem(last=False)

    def _now(self, address: str) -> float:
        spent, at = self._spent.get(address, (0.0, 0.0))
        return max(0.0, spent - (self._clock() - at) * self._rate)
