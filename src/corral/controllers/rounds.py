"""Going round: a controller that looks again and again, in a thread of its own, at what is due.

Level-triggered: each pass does all that is due, so one that failed (the database is away for a while) or was
missed (a restart) costs time and nothing else.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod

from structlog import get_logger

log = get_logger()


class Rounds(ABC):
    """Calls `pass_once` every `every_s` seconds, the first time after as long, or `at_once`."""

    name: str
    """Of the thread, and in the log."""

    def __init__(self, every_s: float, *, at_once: bool = False) -> None:
        self._every_s = every_s
        self._at_once = at_once
        self.ending = threading.Event()
        """Set when the process stops: a long pass looks at it between its parts."""
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    async def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        self.ending.set()
        await asyncio.to_thread(self._thread.join)

    @abstractmethod
    def pass_once(self) -> None:
        """Do what is due."""

    def _run(self) -> None:
        if self._at_once:
            self._try()
        while not self.ending.wait(self._every_s):
            self._try()

    def _try(self) -> None:
        try:
            self.pass_once()
        except Exception:  # the next pass does it all
            log.exception("pass_failed", of=self.name)
