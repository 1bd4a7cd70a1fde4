"""The journal, live: one tailer reads each entry once; every listener follows at its own pace (SSE).

Listeners keep a position, not a queue: what they have not read stands in a ring, and what has
left the ring is read from the database. So a slow reader costs nothing, and nobody misses or
repeats an entry (spec 60, line 9).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from itertools import islice

from starlette.concurrency import run_in_threadpool
from structlog import get_logger

from corral.store import journal
from corral.store import site as site_rows
from corral.store.engine import Database
from corral.store.transaction import Row, Signal, Wake

log = get_logger()

RING = 10_000
BATCH = 500
POLL_EVERY_S = 2.0
"""Another process (a command on the same database) wakes nobody here."""


class Live:
    """Follows the journal from now on. Start it on the loop that serves."""

    def __init__(self, db: Database, poll_every_s: float = POLL_EVERY_S) -> None:
        self._db = db
        self._poll_every_s = poll_every_s
        self._ring: deque[Row] = deque(maxlen=RING)
        self._changed = asyncio.Event()
        self._woken = asyncio.Event()
        self._stopping = False
        self.seq = 0
        """The newest sequence that listeners may see."""
        self.rights = 0
        """Counts changes to who may see what: a listener looks again at its own right when it has moved."""

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._unsubscribe = self._db.subscribe(self._on_commit)
        self.incarnation, self.seq = await run_in_threadpool(self._newest)
        self._tail_task = asyncio.create_task(self._tail())

    async def stop(self) -> None:
        self._unsubscribe()
        self._stopping = True
        self._tail_task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._tail_task
        self._announce()

    @property
    def stopping(self) -> bool:
        return self._stopping

    async def changed(self, seq: int, timeout_s: float) -> bool:
        """Wait until there is something after `seq` (or the process stops); False when the time is over."""
        if self.seq > seq or self._stopping:
            return True
        event = self._changed
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return False
        return True

    def recent(self, after: int, limit: int) -> list[Row] | None:
        """Return up to `limit` entries after `after` from memory; None when they have left it."""
        if not self._ring or self._ring[0]["seq"] > after + 1:
            return None if after < self.seq else []
        # The ring holds every sequence in order; gaps come only from rolled back transactions.
        start = next((i for i, row in enumerate(self._ring) if row["seq"] > after), len(self._ring))
        return list(islice(self._ring, start, start + limit))

    def _on_commit(self, signals: Sequence[Signal], seq: int | None) -> None:
        rights = any(signal.wake is Wake.STREAMS for signal in signals)
        if seq is not None or rights:
            with contextlib.suppress(RuntimeError):  # the loop has closed
                self._loop.call_soon_threadsafe(self._wake, rights)

    def _wake(self, rights: bool) -> None:
        self.rights += rights
        self._woken.set()

    def _newest(self) -> tuple[str, int]:
        with self._db.read() as tx:
            return site_rows.incarnation(tx), journal.bounds(tx)[1]

    def _read(self) -> Sequence[Row]:
        with self._db.read() as tx:
            return journal.after(tx, self.seq, BATCH)

    async def _tail(self) -> None:
        while True:
            try:
                rows = await run_in_threadpool(self._read)
            except Exception as error:  # the database is away: say so, and go on when it is back
                log.warning("journal_tail_failed", error=str(error))
                rows = ()
            if rows:
                self._ring.extend(rows)
                self.seq = rows[-1]["seq"]
                self._announce()
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll_every_s):
                    await self._woken.wait()
            self._woken.clear()

    def _announce(self) -> None:
        # A new event for the next change: whoever waits on the old one wakes exactly once.
        event, self._changed = self._changed, asyncio.Event()
        event.set()
