"""Sends what the outbox has: each target at its own pace, none before the others (spec 10, "Events, audit, alerts").

One turn writes down what was sent and takes what is due; sending itself is in no transaction. A target gets few at
once, an organisation not many, and one that fails is left alone for a while: who is slow holds up nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from anyio import CapacityLimiter, to_thread
from structlog import get_logger

from corral.domain.targets import NOT_REACHED, Network
from corral.domain.webhooks import Outcome, pause
from corral.store.engine import Database
from corral.store.transaction import Tx
from corral.usecases import deliveries as use
from corral.usecases.deliveries import Due, Result

log = get_logger()

AT_ONCE = 64
OF_AN_ORG = 8
SERVICES_OF_AN_ORG = 2
"""Mail and chat services: each is told by a process."""
OF_A_TARGET = 4
TOGETHER = 50
"""Messages to one mail or chat service that are told in one."""
WINDOW = 1_000
POLL_EVERY_S = 1.0
FAILED_WAIT_S = 2.0


@dataclass(frozen=True)
class Job:
    """What is sent in one go: one delivery to a webhook, or some messages to one service."""

    dues: Sequence[Due]
    opened: tuple[Network, ...]

    @property
    def target(self) -> str:
        return self.dues[0].target_id

    @property
    def org(self) -> str:
        return self.dues[0].org_id


class Sender(Protocol):
    """What reaches the outside."""

    async def send(self, job: Job) -> Outcome: ...

    async def aclose(self) -> None: ...


class Deliveries:
    """Start it on the loop that serves. `chance()` is 0 to 1."""

    def __init__(
        self,
        db: Database,
        sender: Sender,
        poll_every_s: float = POLL_EVERY_S,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._db, self._sender, self._chance = db, sender, chance
        self._poll_every_s = poll_every_s
        self._limiter = CapacityLimiter(1)
        self._sending: dict[str, Job] = {}
        """By delivery: on its way, or sent and not yet written down."""
        self._jobs: set[asyncio.Task[None]] = set()
        self._results: list[Result] = []
        self._failures: Counter[str] = Counter()
        self._paused: dict[str, datetime] = {}
        self._stopping = False

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        self._stopping = True
        self._woken.set()
        for job in self._jobs:
            job.cancel()
        # First: what waits in a thread for a service ends only with its process.
        await self._sender.aclose()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        await self._task  # not cancelled: its thread may have the database in hand
        if self._results:
            with contextlib.suppress(Exception):  # what is not written down is sent again
                await to_thread.run_sync(self._write, self._results)

    def wake(self) -> None:
        """Look for what is due now. From any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has closed
            self._loop.call_soon_threadsafe(self._woken.set)

    async def _run(self) -> None:
        while not self._stopping:
            results, self._results = self._results, []
            try:
                jobs = await to_thread.run_sync(self._turn, results, limiter=self._limiter)
            except Exception as error:  # the database is away: nothing new is sent until it is back
                log.warning("deliveries_not_read", why=str(error))
                self._results = results + self._results
                await asyncio.sleep(FAILED_WAIT_S)
                continue
            for result in results:
                self._sending.pop(result.due.id, None)
            if self._stopping:
                return
            for job in jobs:
                self._begin(job)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll_every_s):
                    await self._woken.wait()
            self._woken.clear()

    def _begin(self, job: Job) -> None:
        self._sending |= dict.fromkeys((due.id for due in job.dues), job)
        task = asyncio.create_task(self._send(job))
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    async def _send(self, job: Job) -> None:
        try:
            outcome = await self._sender.send(job)
        except Exception:  # whatever a target answers must not end more than its own delivery
            log.exception("delivery_failed", target=job.target)
            outcome = Outcome(None, error=NOT_REACHED)
        self._results += [Result(due, outcome) for due in job.dues]
        self._woken.set()

    # -- in a thread, one at a time

    def _turn(self, results: Sequence[Result]) -> list[Job]:
        if results:
            self._write(results)
        with self._db.read() as tx:
            jobs, stray = self._pick(tx, {result.due.id for result in results})
        if stray:
            with self._db.write() as tx:
                use.drop(tx, stray)
        return jobs

    def _write(self, results: Sequence[Result]) -> None:
        with self._db.write() as tx:
            use.settle(tx, results, self._chance)
        for result in results:
            target = result.due.target_id
            if result.outcome.taken:
                self._failures.pop(target, None)
                self._paused.pop(target, None)
            else:
                self._failures[target] += 1
                self._paused[target] = tx.now + pause(self._failures[target])

    def _pick(self, tx: Tx, written: set[str]) -> tuple[list[Job], set[str]]:
        """Return what may begin now, and targets that are told no more though something waits for them.

        A target that has its share is left out of the next look, so it hides nobody.
        """
        self._paused = {target: until for target, until in self._paused.items() if until > tx.now}
        under_way = {id(job): job for due, job in self._sending.items() if due not in written}
        shares = _Shares(list(under_way.values()), set(self._failures))
        busy, stray = set(self._sending), set[str]()
        while shares.room:
            full = shares.full | set(self._paused)
            found = use.due(tx, sorted(full), WINDOW)
            for due in found:
                if not due.able:
                    stray.add(due.target_id)
                elif due.id not in busy:
                    busy.add(due.id)
                    shares.offer(due)
            if len(found) < WINDOW or shares.full <= full:
                break
        opened = use.opened(tx) if shares.begun else ()
        return [Job(dues, opened) for dues in shares.begun], stray


class _Shares:
    """Who may have how many on their way. `failing`: targets that get one at a time until they take something."""

    def __init__(self, under_way: Sequence[Job], failing: set[str]) -> None:
        self.begun: list[list[Due]] = []
        self.full: set[str] = set()
        self._failing = failing
        self._jobs = 0
        self._of_org: Counter[str] = Counter()
        self._services_of_org: Counter[str] = Counter()
        self._of_target: Counter[str] = Counter()
        self._together: dict[str, list[Due]] = {}
        for job in under_way:
            self._count(job.dues[0])
            if not job.dues[0].by_webhook:
                self.full.add(job.target)

    @property
    def room(self) -> bool:
        return self._jobs < AT_ONCE

    def offer(self, due: Due) -> None:
        """Begin a delivery where there is room for it."""
        target = due.target_id
        if target in self.full:
            return
        if target in self._together:
            self._together[target].append(due)
            if len(self._together[target]) >= TOGETHER:
                self.full.add(target)
        elif self._has_its_share(due):
            self.full.add(target)
        elif self.room:
            self._count(due)
            self.begun.append([due])
            if not due.by_webhook:
                self._together[target] = self.begun[-1]

    def _has_its_share(self, due: Due) -> bool:
        services = self._services_of_org[due.org_id]
        return self._of_org[due.org_id] >= OF_AN_ORG or (not due.by_webhook and services >= SERVICES_OF_AN_ORG)

    def _count(self, due: Due) -> None:
        self._jobs += 1
        self._services_of_org[due.org_id] += not due.by_webhook
        self._of_org[due.org_id] += 1
        self._of_target[due.target_id] += 1
        most = 1 if due.target_id in self._failing else OF_A_TARGET
        if due.by_webhook and self._of_target[due.target_id] >= most:
            self.full.add(due.target_id)
