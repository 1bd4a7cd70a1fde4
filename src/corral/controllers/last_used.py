"""Writes down, at most once a minute and at the end, when API tokens were last used (spec 50, "Tokens")."""

from __future__ import annotations

import asyncio

from corral.controllers.rounds import Rounds
from corral.usecases.tokens import LastUsed

EVERY_S = 60.0


class LastUsedWriter(Rounds):
    """Flushes a `LastUsed` while it runs, and when it ends."""

    name = "last-used"

    def __init__(self, last_used: LastUsed, every_s: float = EVERY_S) -> None:
        super().__init__(every_s)
        self._last_used = last_used

    async def stop(self) -> None:
        await super().stop()
        await asyncio.to_thread(self.pass_once)

    def pass_once(self) -> None:
        self._last_used.flush()
