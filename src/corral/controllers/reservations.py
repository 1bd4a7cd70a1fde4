"""The loop that tells when windows begin and end (spec 10, "Reservations").

A level-triggered thread: each pass tells every edge that has come and was not told, of all tenants, one tenancy a
transaction. A restart loses nothing. One tenancy that fails keeps nobody else's from being told.
"""

from __future__ import annotations

from itertools import groupby

from structlog import get_logger

from corral.controllers.rounds import Rounds
from corral.store.engine import Database
from corral.store.reservations import Due
from corral.usecases import reservation_edges

log = get_logger()

BATCH = 200
"""Windows in one transaction at most."""


class Reservations(Rounds):
    """Looks every `every_s` seconds."""

    name = "reservations"

    def __init__(self, db: Database, every_s: float) -> None:
        super().__init__(every_s)
        self._db = db

    def pass_once(self) -> None:
        """Tell every edge that is due."""
        after: Due | None = None
        while not self.ending.is_set():
            with self._db.read() as tx:
                page = reservation_edges.due(tx, after, BATCH)
            for _, windows in groupby(page, lambda one: (one.cluster_id, one.org_id)):
                self._tell(list(windows))
            if len(page) < BATCH:
                return
            after = page[-1]

    def _tell(self, windows: list[Due]) -> None:
        try:
            with self._db.write() as tx:
                reservation_edges.tell(tx, windows)
        except Exception:  # tried again at the next pass
            log.exception("reservation_edges_failed", org=windows[0].org_id, cluster=windows[0].cluster_id)
