"""Looks each minute what workspaces have spent of their budgets, and says once what was reached (spec 10).

Level-triggered: what was reached while nobody looked (a restart, a lowered budget) is found at the next look.
Organisation by organisation, each in transactions of its own, so that none waits for another's.
"""

from __future__ import annotations

import asyncio
import contextlib

from structlog import get_logger

from corral.domain.budgets import PASS_EVERY
from corral.store.engine import Database
from corral.store.transaction import Scope
from corral.usecases import budgets

log = get_logger()


class Budgets:
    """Looks in a worker thread, at the start and then each minute."""

    def __init__(self, db: Database, every_s: float = PASS_EVERY.total_seconds()) -> None:
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
                await asyncio.to_thread(self.look)
            except Exception as error:  # a database that is away for a while must not end this loop
                log.error("budgets_not_looked_at", why=str(error))
            await asyncio.sleep(self._every_s)

    def look(self) -> None:
        """Look at every organisation's budgets once."""
        after: str | None = None
        while True:
            with self._db.read() as tx:
                scopes = budgets.orgs_to_judge(tx, after)
            if not scopes:
                return
            for scope in scopes:
                try:
                    self._look_at(scope)
                except Exception as error:  # others' budgets are looked at all the same
                    log.error("budgets_not_judged", org=scope.org, why=str(error))
            after = scopes[-1].org

    def _look_at(self, scope: Scope) -> None:
        with self._db.read() as tx:
            reached = budgets.judge(tx, scope)
        if reached:
            with self._db.write() as tx:
                budgets.tell(tx, scope, reached)
