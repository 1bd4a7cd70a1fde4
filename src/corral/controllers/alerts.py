"""Follows the journal for alerts and webhooks: one thread, every tenant's entries in one pass (spec 10).

Woken by commits, never part of one: what machines report waits for nothing here. Its place in the journal is kept in
the database, and moves with what it makes. Entries that nobody is told of move it in memory only: a fleet's reports
cost no write here.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence

from structlog import get_logger

from corral.domain.errors import Refusal
from corral.store import journal, site
from corral.store.engine import Database
from corral.store.transaction import Signal, Tx
from corral.usecases import telling

log = get_logger()

BATCH = 500
POLL_EVERY_S = 2.0
"""Another process (a command on the same database) wakes nobody here; nor does what waits until it is quiet."""
SETTLE_S = 0.05
"""After a wake-up: many commits make one pass."""
KEEP_EVERY = 5_000
"""Entries that nobody is told of, after which the place is written down all the same."""
LAPSED_EVERY_S = 600.0


class AlertFollower:
    """`site_url()` is how people reach the site; `on_told()` is called after something went into the outbox."""

    def __init__(
        self,
        db: Database,
        site_url: Callable[[], str],
        on_told: Callable[[], None],
        poll_every_s: float = POLL_EVERY_S,
    ) -> None:
        self._db, self._site_url, self._on_told = db, site_url, on_told
        self._poll_every_s = poll_every_s
        self._kept: int | None = None
        """The place, as the database has it."""
        self._seq = -1
        """The place in memory; -1: not known yet."""
        self._lapsed_at = -LAPSED_EVERY_S
        self._end = threading.Event()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name="alerts", daemon=True)

    async def start(self) -> None:
        self._unsubscribe = self._db.subscribe(self._on_commit)
        self._thread.start()

    async def stop(self) -> None:
        self._unsubscribe()
        self._end.set()
        self._woken.set()
        self._thread.join()

    def _on_commit(self, _signals: Sequence[Signal], seq: int | None) -> None:
        if seq is not None:
            self._woken.set()

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                more = self.pass_once()
            except Exception:  # the database is away: the next pass begins where this one did
                log.exception("journal_not_followed")
                self._seq, more = -1, False
            if not more and self._woken.wait(self._poll_every_s):
                self._end.wait(SETTLE_S)
                self._woken.clear()
        with contextlib.suppress(Exception):  # what is not kept is only looked at once more
            self._keep()

    def pass_once(self) -> bool:
        """Take in the next entries; return whether there may be more."""
        with self._db.read() as tx:
            if self._seq < 0:
                self._find_place(tx)
            entries = [{**row} for row in journal.after(tx, self._seq, BATCH)]
            wanted = telling.concerns(tx, entries)
            due = telling.next_due(tx)
            waits = due is not None and due <= tx.now
        reaches = entries[-1]["seq"] if entries else self._seq
        if wanted:
            with self._db.write() as tx:
                telling.take_in(tx, entries, telling.Place(self._kept, reaches), self._site_url())
            self._kept = reaches
            self._on_told()
        self._seq = reaches
        if self._kept is None or not 0 <= self._seq - self._kept < KEEP_EVERY:
            self._keep()
        if len(entries) == BATCH:
            return True
        self._by_time(waits)
        return False

    def _by_time(self, waits: bool) -> None:
        """Do what no entry asks for. Only with the journal read to its end: an entry may end what waits."""
        if waits:
            with self._db.write() as tx:
                telling.tell_due(tx, self._site_url())
            self._on_told()
        if time.monotonic() - self._lapsed_at >= LAPSED_EVERY_S:
            with self._db.write() as tx:
                telling.close_lapsed(tx)
            self._lapsed_at = time.monotonic()

    def _find_place(self, tx: Tx) -> None:
        """Go on where it was; at a site's first start, and behind the journal's end, at the end: no old history."""
        self._kept, newest = site.notified_seq(tx), journal.newest(tx)
        if self._kept is not None and self._kept > newest:
            log.warning("journal_ends_before_its_place", place=self._kept, newest=newest)
        self._seq = newest if self._kept is None else min(self._kept, newest)

    def _keep(self) -> None:
        """Write the place down."""
        if self._seq < 0 or self._kept == self._seq:
            return
        with self._db.write() as tx:
            if not site.advance_notified(tx, self._kept, self._seq):
                raise Refusal("UNAVAILABLE", "The journal was read on by another process.")
        self._kept = self._seq
