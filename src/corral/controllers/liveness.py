"""The liveness loop: writes down who was heard, and marks Down who was not (spec 10, "Machine states").

A level-triggered thread. What it judges by is in `domain/liveness.py`; a restart loses only
the silence counted so far, so nobody is marked Down for an outage of the site's own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import groupby
from operator import attrgetter

from structlog import get_logger

from corral.controllers.heard import Heard
from corral.domain.liveness import Verdict, judge
from corral.domain.machines import DOWN_AFTER, MachineRef
from corral.store.engine import Database
from corral.usecases import liveness

log = get_logger()

_tenancy = attrgetter("org_id", "cluster_id")


class Liveness:
    """`hear_again(machine)` makes a machine's next report count as news, whatever it says."""

    def __init__(self, db: Database, heard: Heard, every_s: float, hear_again: Callable[[str], None]) -> None:
        self._db = db
        self._heard = heard
        self._every_s = every_s
        self._hear_again = hear_again
        self._held_since: datetime | None = None
        self._closed: frozenset[str] = frozenset()
        self._called_since: datetime | None = None
        self._unflushed: dict[str, datetime] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="liveness", daemon=True)

    async def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        self._end.set()
        self._thread.join()

    @property
    def suspect(self) -> frozenset[str]:
        """Machines that are silent while the site suspects itself."""
        return self._closed

    def _run(self) -> None:
        while not self._end.wait(self._every_s):
            self._pass_once()
        self._pass_once(last=True)

    def _pass_once(self, *, last: bool = False) -> None:
        try:
            self.flush()
            if not last:
                self.judge()
        except Exception:  # the database is away: the next pass does it all
            log.exception("liveness_pass_failed")

    def flush(self) -> None:
        """Write down who was heard since the last flush, on the database's clock."""
        self._unflushed.update(self._heard.take_fresh())
        if not self._unflushed:
            return
        now = self._heard.now()
        with self._db.write() as tx:
            liveness.flush(tx, {id: tx.now - (now - moment) for id, moment in self._unflushed.items()})
        self._unflushed = {}

    def judge(self) -> None:
        """Judge the silent ones. Asks the database only when there may be one."""
        now = self._heard.now()
        if not self._heard.listening() or not self._anything_to_judge(now):
            return
        listening_since = self._heard.listening_since
        with self._db.read() as tx:
            up = {machine.id: machine for machine in liveness.roll_call(tx)}
        verdict = judge({id: self._heard.last(id) for id in up}, listening_since, self._held_since, now)
        settled = self._act(verdict, up)
        self._held_since = verdict.held_since
        if settled and verdict.held_since is None:
            self._called_since = listening_since

    def _anything_to_judge(self, now: datetime) -> bool:
        """Somebody fell silent; or nobody has asked yet for those not heard since we began to listen."""
        if now - self._heard.listening_since < DOWN_AFTER:
            return False
        asked = self._called_since == self._heard.listening_since
        return self._held_since is not None or not asked or self._heard.silent_since(now - DOWN_AFTER)

    def _act(self, verdict: Verdict, up: dict[str, MachineRef]) -> bool:
        """Do what was judged; return whether every machine that is to be Down is."""
        if verdict.held_since is not None and self._held_since is None:
            log.warning("site_suspected", silent=len(verdict.suspect), up=len(up))
            with self._db.write() as tx:
                liveness.suspect(tx, verdict.suspect, len(up))
        for machines in _by_tenancy([up[id] for id in verdict.suspect - self._closed]):
            self._close(machines)
        self._closed = verdict.suspect
        went = [self._mark_down(machines) for machines in _by_tenancy([up[id] for id in verdict.down])]
        return sum(went) == len(verdict.down)

    def _close(self, machines: Sequence[MachineRef]) -> None:
        self._news(machines)
        with self._db.write() as tx:
            liveness.close(tx, machines, self._still_silent)

    def _mark_down(self, machines: Sequence[MachineRef]) -> int:
        self._news(machines)
        with self._db.write() as tx:
            went = liveness.mark_down(tx, machines, self._still_silent)
        for machine in went:
            if self._still_silent(machine.id):
                self._heard.drop(machine.id)
        return len(went)

    def _news(self, machines: Sequence[MachineRef]) -> None:
        # Before it is asked whether they are still silent: a report that comes after this is
        # taken in with the database, behind the tenancy's lock, and so ends what is done here.
        for machine in machines:
            self._hear_again(machine.id)

    def _still_silent(self, machine_id: str) -> bool:
        last = self._heard.last(machine_id) or self._heard.listening_since
        return self._heard.now() - max(last, self._heard.listening_since) >= DOWN_AFTER


def _by_tenancy(machines: Sequence[MachineRef]) -> list[list[MachineRef]]:
    return [list(group) for _, group in groupby(sorted(machines, key=_tenancy), _tenancy)]
