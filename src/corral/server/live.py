"""The journal, live: one tailer reads and encodes each entry once; every listener follows at its own pace (SSE).

Listeners keep a position, not a queue: what they have not read stands in a ring, and what has
left the ring is read from the database. So a slow reader costs nothing, and nobody misses or
repeats an entry (spec 60, line 9).
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from structlog import get_logger

from corral.domain.errors import Refusal
from corral.server import entries
from corral.server.threads import Threads
from corral.store import journal
from corral.store import site as site_rows
from corral.store.engine import Database
from corral.store.transaction import Signal, Wake

log = get_logger()

RING = 10_000
RING_BYTES = 32 * 1024 * 1024
OVERHEAD = 1024
"""Bytes that an entry takes in memory beside its frame, about."""
BATCH = 500
POLL_EVERY_S = 2.0
"""Another process (a command on the same database) wakes nobody here."""
THREADS = 4
OF_AN_ASKER = 2
"""Threads that one asker may have of them."""
JUDGES = 2
LISTENERS_OF_A_USER = 50
"""A browser uses one for all its tabs."""


@dataclass(frozen=True, slots=True)
class Kept:
    """An event in the ring: what filters look at, and the frame that every listener gets."""

    seq: int
    row: Mapping[str, Any]
    frame: bytes


@dataclass(eq=False, slots=True)
class Listener:
    """`stale`: the person's rights may have changed; look again before anything more is told."""

    stale: bool


class Live:
    """Follows the journal from now on. Start it on the loop that serves."""

    def __init__(self, db: Database, poll_every_s: float = POLL_EVERY_S) -> None:
        self._db = db
        self._poll_every_s = poll_every_s
        self._ring: deque[Kept] = deque()
        self._bytes = 0
        self._floor = 0
        """Every event after this sequence, up to `seq`, stands in the ring."""
        self._changed = asyncio.Event()
        self._woken = asyncio.Event()
        self._listeners: dict[str, list[Listener]] = {}
        self._stopping = False
        self.threads = Threads(THREADS, OF_AN_ASKER)
        """For who comes, and for what has left the ring."""
        self.judging = Threads(JUDGES)
        """For looking again at listeners' rights: who asks anew does not stand before that."""
        self._tailing = Threads(1)
        self.seq = 0
        """The newest sequence that listeners may see."""
        self.rights = 0
        """Counts changes to who may see what, for who is not listening yet."""

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._unsubscribe = self._db.subscribe(self._on_commit)
        self.incarnation, self.seq = await self._tailing.run(self._newest)
        self._floor = self.seq
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

    def check_room(self, user_id: str) -> None:
        """Refuse one listener more than a person may have. Errors: `RATE_LIMITED`."""
        have = len(self._listeners.get(user_id, ()))
        if have >= LISTENERS_OF_A_USER:
            raise Refusal("RATE_LIMITED", f"You have {have} open event streams. Close some first.", retry_after_s=5)

    @contextlib.contextmanager
    def listening(self, user_id: str, rights: int) -> Iterator[Listener]:
        """Listen as somebody who was let in when `self.rights` was `rights`."""
        listener = Listener(stale=self.rights != rights)
        mine = self._listeners.setdefault(user_id, [])
        mine.append(listener)
        try:
            yield listener
        finally:
            mine.remove(listener)
            if not mine:
                self._listeners.pop(user_id, None)

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

    def recent(self, after: int, limit: int) -> tuple[list[Kept], int] | None:
        """Return up to `limit` events after `after`, and how far they reach; None when some have left memory."""
        if after < self._floor:
            return None
        start = bisect_right(self._ring, after, key=_seq)
        stop = min(start + limit, len(self._ring))
        found = [self._ring[i] for i in range(start, stop)]
        return found, self.seq if stop == len(self._ring) else found[-1].seq

    def _on_commit(self, signals: Sequence[Signal], seq: int | None) -> None:
        changed = [signal.id for signal in signals if signal.wake is Wake.STREAMS]
        if seq is not None or changed:
            with contextlib.suppress(RuntimeError):  # the loop has closed
                self._loop.call_soon_threadsafe(self._wake, changed)

    def _wake(self, changed: Sequence[str]) -> None:
        self.rights += bool(changed)
        for user_id in changed:  # or the id of a workload, which nobody listens as
            for listener in self._listeners.get(user_id, ()):
                listener.stale = True
        self._woken.set()

    def _newest(self) -> tuple[str, int]:
        with self._db.read() as tx:
            return site_rows.incarnation(tx), journal.newest(tx)

    def _read(self) -> tuple[list[Kept], int]:
        """Return the events among the next entries, and the sequence these reach to."""
        with self._db.read() as tx:
            rows = journal.after(tx, self.seq, BATCH)
        kept = [
            Kept(row["seq"], {name: row[name] for name in journal.MATCHED}, entries.frame(row, self.incarnation))
            for row in rows
            if row["event"]
        ]
        return kept, rows[-1]["seq"] if rows else self.seq

    async def _tail(self) -> None:
        while True:
            try:
                kept, seq = await self._tailing.run(self._read)
            except Exception as error:  # the database is away: say so, and go on when it is back
                log.warning("journal_tail_failed", error=str(error))
                kept, seq = [], self.seq
            if seq > self.seq:
                self._keep(kept)
                self.seq = seq
                self._announce()
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll_every_s):
                    await self._woken.wait()
            self._woken.clear()

    def _keep(self, kept: Sequence[Kept]) -> None:
        self._ring.extend(kept)
        self._bytes += sum(OVERHEAD + len(one.frame) for one in kept)
        while len(self._ring) > RING or self._bytes > RING_BYTES:
            oldest = self._ring.popleft()
            self._bytes -= OVERHEAD + len(oldest.frame)
            self._floor = oldest.seq

    def _announce(self) -> None:
        # A new event for the next change: whoever waits on the old one wakes exactly once.
        event, self._changed = self._changed, asyncio.Event()
        event.set()


def _seq(kept: Kept) -> int:
    return kept.seq
