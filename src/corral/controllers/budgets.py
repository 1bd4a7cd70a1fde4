"""Looks each minute what workspaces have spent of their budgets, and says once what was reached (spec 10).

Level-triggered: what was reached while nobody looked (a restart, a lowered budget) is found at the next look.
Organisation by organisation, each in transactions of its own, so that none waits for another's.
"""

from __future__ import annotations

from structlog import get_logger

from corral.controllers.rounds import Rounds
from corral.domain.budgets import PASS_EVERY
from corral.store.engine import Database
from corral.store.transaction import Scope
from corral.usecases import budgets

log = get_logger()


class Budgets(Rounds):
    """Looks at the start and then each minute."""

    name = "budgets"

    def __init__(self, db: Database, every_s: float = PASS_EVERY.total_seconds()) -> None:
        super().__init__(every_s, at_once=True)
        self._db = db

    def pass_once(self) -> None:
        """Look at every organisation's budgets once."""
        after: str | None = None
        while not self.ending.is_set():
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
