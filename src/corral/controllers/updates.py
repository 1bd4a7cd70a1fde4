"""The loop that takes updates of agents on (spec 10, "Update agents").

Level-triggered: each pass looks at every update that is not settled and does what is due next. A restart loses
nothing. One tenancy that fails keeps nobody else's from going on. Ten minutes that a machine has count only while
this loop went round: machines come back after the control plane does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from structlog import get_logger

from corral.controllers.rounds import Rounds
from corral.domain import updates as rules
from corral.store import updates as rows
from corral.store.engine import Database
from corral.store.transaction import Row, Tx
from corral.usecases import staged_updates, updates

log = get_logger()

SILENT = "it fell silent while it updated and has not come back"
UNHEEDED = (
    f"it has been connected for {rules.COME_BACK_WITHIN.total_seconds() / 60:.0f} minutes and has not begun to update; "
    "put the agent on with install.sh again"
)


class Updates(Rounds):
    """Looks every `every_s` seconds. `served`: the release that the site serves, as long as this process lives."""

    name = "updates"

    def __init__(self, db: Database, every_s: float, served: str) -> None:
        super().__init__(every_s)
        self._db = db
        self._served = served
        self._watch = rules.Watch()

    def pass_once(self) -> None:
        """Do what is due in every update."""
        with self._db.read() as tx:
            watched_since, too_long_ago = self._watch.look(tx.now), tx.now - rules.COME_BACK_WITHIN
            unsettled, silent = rows.unsettled(tx), rows.silent(tx)
            unheeded = rows.unheeded(tx, too_long_ago) if watched_since <= too_long_ago else ()
            others = rows.of_other_releases(tx, self._served)
        for machine in silent:
            self._settle(machine, SILENT)
        for machine in unheeded:
            self._settle(machine, UNHEEDED)
        for machine in others:
            self._settle(machine, f"the site serves release {self._served} now: ask again to update to that")
        for update in unsettled:
            advance = partial(staged_updates.advance, update=update, served=self._served, watched_since=watched_since)
            self._do(update["org_id"], advance)

    def _settle(self, machine: Row, why: str) -> None:
        self._do(machine["org_id"], partial(updates.settle, found=machine, why=why))

    def _do(self, org_id: str, act: Callable[[Tx], None]) -> None:
        try:
            with self._db.write() as tx:
                act(tx)
        except Exception:  # tried again at the next pass
            log.exception("update_not_taken_on", org=org_id)
