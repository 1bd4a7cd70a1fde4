"""Writes down, at most once a minute and at the end, when API tokens were last used (spec 50, "Tokens")."""

from __future__ import annotations

import asyncio
import contextlib

from structlog import get_logger

from corral.usecases.tokens import LastUsed

EVERY_S = 60.0

log = get_logger()


class LastUsedWriter:
    """Flushes a `LastUsed` in a worker thread while it runs."""

    def __init__(self, last_used: LastUsed, every_s: float = EVERY_S) -> None:
        self._last_used = last_used
        self._every_s = every_s
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await asyncio.to_thread(self._last_used.flush)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await asyncio.to_thread(self._last_used.flush)
            except Exception as error:  # a database that is away for a while must not end this loop
                log.error("last_used_not_written", why=str(error))
