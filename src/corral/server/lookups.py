"""Looking names up that tenants chose: a name server that keeps silent holds up its own asker, and nobody else.

Nothing ends a look-up but the system's resolver, which may wait for half a minute. So a place is held until the thread
ends, not until whoever asked gives up; organisations have few each; and a name on which somebody gave up is looked up
among its like until it answers again.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from corral.domain.errors import Refusal

Resolve = Callable[[str, int], Sequence[str]]
WITHIN_S = 5.0
SILENT_MAX = 1_000
"""Names that are remembered as silent; the one that was noted first goes for another."""


@dataclass(frozen=True)
class Room:
    """How many look-ups at once in all, and `each`: for each asker (an organisation, a person), in their order."""

    most: int
    each: tuple[int, ...]


class Lookups:
    """Two pools: for names in general, and for those that kept silent. From any thread, or the loop."""

    def __init__(self, resolver: Resolve, general: Room, silent: Room) -> None:
        self._resolver = resolver
        self._general, self._silent = _Pool(general), _Pool(silent)
        self._names: dict[str, None] = {}
        """Those that kept silent."""
        self._lock = threading.Lock()

    def wait(self, askers: Sequence[str], host: str, port: int) -> Sequence[str]:
        """Return a host's addresses; blocks. Errors: `RATE_LIMITED`, `TimeoutError`, what the resolver raises."""
        asked = self._begin(askers, host, port)
        try:
            return asked.result(WITHIN_S)
        except TimeoutError:
            self._note(host)
            raise

    async def look_up(self, askers: Sequence[str], host: str, port: int) -> Sequence[str]:
        """The same, in the loop."""
        asked = self._begin(askers, host, port)
        try:
            async with asyncio.timeout(WITHIN_S):
                return await asyncio.wrap_future(asked)
        except TimeoutError:
            self._note(host)
            raise

    def close(self) -> None:
        """Take no more."""
        self._general.close()
        self._silent.close()

    def _begin(self, askers: Sequence[str], host: str, port: int) -> Future[Sequence[str]]:
        with self._lock:
            pool = self._silent if host in self._names else self._general
        return pool.begin(askers, lambda: self._ask(host, port))

    def _ask(self, host: str, port: int) -> Sequence[str]:
        began = time.monotonic()
        found = self._resolver(host, port)
        if time.monotonic() - began < WITHIN_S:
            with self._lock:
                self._names.pop(host, None)
        return found

    def _note(self, host: str) -> None:
        with self._lock:
            self._names[host] = None
            if len(self._names) > SILENT_MAX:
                del self._names[next(iter(self._names))]


class _Pool:
    """Nothing waits in line here: who has a place has a thread."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._threads = ThreadPoolExecutor(room.most, thread_name_prefix="lookup")
        self._all = 0
        self._taken: Counter[tuple[int, str]] = Counter()
        self._lock = threading.Lock()

    def begin(self, askers: Sequence[str], job: Callable[[], Sequence[str]]) -> Future[Sequence[str]]:
        """Errors: `RATE_LIMITED`."""
        self._take(askers)

        def run() -> Sequence[str]:
            try:
                return job()
            finally:
                self._give(askers)

        try:
            return self._threads.submit(run)
        except RuntimeError:  # it was closed
            self._give(askers)
            raise OSError("nothing is looked up any more") from None

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _take(self, askers: Sequence[str]) -> None:
        with self._lock:
            full = self._all >= self._room.most
            if full or any(self._taken[key] >= most for key, most in zip(_keys(askers), self._room.each, strict=True)):
                raise Refusal(
                    "RATE_LIMITED", "Many addresses are being looked up just now. Try again soon.", retry_after_s=10
                )
            self._all += 1
            self._taken.update(_keys(askers))

    def _give(self, askers: Sequence[str]) -> None:
        with self._lock:
            self._all -= 1
            self._taken.subtract(_keys(askers))
            self._taken = +self._taken


def _keys(askers: Sequence[str]) -> list[tuple[int, str]]:
    return list(enumerate(askers))
