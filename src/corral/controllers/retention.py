"""Forgets what is kept for a time only: answers under an `Idempotency-Key` live a day (spec 50), events 90 days,
and so do alerts that closed; what was sent is shown for 30 days.

Audit entries are never forgotten.
"""

from __future__ import annotations

from corral.controllers.rounds import Rounds
from corral.store.engine import Database
from corral.usecases import alerts, deliveries, idempotency, journal

EVERY_S = 3600.0


class Retention(Rounds):
    """Looks at the start and then once an hour."""

    name = "retention"

    def __init__(self, db: Database, every_s: float = EVERY_S) -> None:
        super().__init__(every_s, at_once=True)
        self._db = db

    def pass_once(self) -> None:
        for forget_old in (idempotency.forget_old, alerts.forget_old, deliveries.forget_old, journal.forget_old):
            more = True
            # Each part in a transaction of its own: nobody waits long for the writer.
            while more and not self.ending.is_set():
                with self._db.write() as tx:
                    more = forget_old(tx)
