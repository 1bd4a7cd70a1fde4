"""How the agent's loop calls what blocks: drivers and probes run in threads (design: "Inside the agent")."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Calls(Protocol):
    async def run(self, call: Callable[..., T], *args: Any) -> T:
        """Return what `call(*args)` returns, without holding up the loop."""
        ...

    def post(self, call: Callable[..., object], *args: Any) -> None:
        """Have `call(*args)` run in the loop's own thread; may be used from any thread."""
        ...

    def close(self) -> None: ...


class ThreadCalls:
    """Each call in a thread of a pool that grows with use."""

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._loop = asyncio.get_running_loop()

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        return await self._loop.run_in_executor(self._pool, call, *args)

    def post(self, call: Callable[..., object], *args: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, *args)

    def close(self) -> None:
        """Take no more calls. One that goes on is not waited for: a driver may be stuck in it."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class InlineCalls:
    """Calls that do not block, made in the loop itself: a thousand simulated machines need no threads."""

    def __init__(self, latency_s: float = 0.0) -> None:
        self._latency_s = latency_s

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        if self._latency_s:
            await asyncio.sleep(self._latency_s)
        return call(*args)

    def post(self, call: Callable[..., object], *args: Any) -> None:
        call(*args)

    def close(self) -> None:
        return
