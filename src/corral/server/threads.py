"""Threads of their own for what lives on connections: a person's many requests must not starve streams or machines.

Ordinary requests share the framework's pool. Whoever waits in the loop for a stream, a listener or
a machine borrows from here, and nothing in a thread ever waits for another thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

T = TypeVar("T")


class Threads:
    """At most `count` at once; more wait their turn."""

    def __init__(self, count: int) -> None:
        self._limiter = CapacityLimiter(count)

    async def run(self, job: Callable[[], T]) -> T:
        """Run `job` in a thread; return or raise what it does."""
        return await to_thread.run_sync(job, limiter=self._limiter)
