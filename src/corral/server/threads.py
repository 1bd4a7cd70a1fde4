"""Threads of their own for what lives on connections: a person's many requests must not starve streams or machines.

Ordinary requests share the framework's pool. Whoever waits in the loop for a stream, a listener or
a machine borrows from here, and nothing in a thread ever waits for another thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

from corral.domain.errors import Refusal

T = TypeVar("T")

IN_LINE = 200
"""Jobs of one asker that run or wait; one more is refused."""


@dataclass(eq=False)
class _Line:
    limiter: CapacityLimiter
    length: int = 0


class Threads:
    """At most `count` at once, of them `each` for one asker (0: no such bound); more wait their turn."""

    def __init__(self, count: int, each: int = 0) -> None:
        self._limiter = CapacityLimiter(count)
        self._each = each or count
        self._lines: dict[str, _Line] = {}

    async def run(self, job: Callable[[], T]) -> T:
        """Run `job` in a thread; return or raise what it does."""
        return await to_thread.run_sync(job, limiter=self._limiter)

    async def run_for(self, asker: str, job: Callable[[], T]) -> T:
        """Run it in the asker's own line: one who asks much stands before nobody else. Errors: `RATE_LIMITED`."""
        line = self._lines.setdefault(asker, _Line(CapacityLimiter(self._each)))
        if line.length >= IN_LINE:
            raise Refusal("RATE_LIMITED", "You ask for much at once. Wait for answers, then ask on.", retry_after_s=5)
        line.length += 1
        try:
            async with line.limiter:
                return await self.run(job)
        finally:
            line.length -= 1
            if not line.length:
                del self._lines[asker]
