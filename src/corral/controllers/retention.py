"""Forgets what is kept for a time only: answers under an `Idempotency-Key` live a day (spec 50), events 90 days,
and so do alerts that closed; what was sent is shown for 30 days.

Audit entries are never forgotten.
"""

from __future__ import annotations

import asyncio
import contextlib

from structlog import get_logger

from corral.store.engine import Database
from corral.usecases import alerts, deliveries, idempotency, journal

EVERY_S = 3600.0

log = get_logger()


class Retention:
    """Looks in a worker thread, at the start and then once an hour."""

    def __init__(self, db: Database, every_s: float = EVERY_S) -> None:
        self._db = db
        self._every_s = every_s
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self._forget)
            except Exception as error:  # a database that is away for a while must not end this loop
                log.error("old_rows_not_forgotten", why=str(error))
            await asyncio.sleep(self._every_s)

    def _forget(self) -> None:
        with self._db.write() as tx:
            idempotency.forget_old(tx)
            alerts.forget_old(tx)
            deliveries.forget_old(tx)
        more = True
        while more:  # each part in a transaction of its own: nobody waits long for the writer
            with self._db.write() as tx:
                more = journal.forget_old(tx)
