"""Sends what the outbox has: each target at its own pace, none before the others (spec 10, "Events, audit, alerts").

One turn writes down what was sent and takes what is due; sending itself is in no transaction. Whose turn it is, and
how many may be on their way, is said in `domain/turns`; a target that fails is left alone for a while besides.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from anyio import CapacityLimiter, to_thread
from structlog import get_logger

from corral.domain.targets import NOT_REACHED, Network
from corral.domain.turns import Turns, UnderWay, Waiting
from corral.domain.webhooks import Outcome, pause
from corral.store.engine import Database
from corral.store.transaction import Tx
from corral.usecases import deliveries as use
from corral.usecases.deliveries import Due, Head, Result

log = get_logger()

TOGETHER = 50
"""Messages to one mail or chat service that are told in one."""
GATHER_S = 0.05
"""How long results are gathered while more is under way: each turn asks the database several things."""
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
    def under_way(self) -> UnderWay:
        due = self.dues[0]
        return UnderWay(due.org_id, due.target_id, due.by_webhook)


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
        """In a row, of targets for which something waits."""
        self._paused: dict[str, datetime] = {}
        self._last: dict[str, int] = {}
        """Of organisations for which something waits: the number of its last turn."""
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
            await self._wait()

    async def _wait(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._poll_every_s):
                await self._woken.wait()
        if self._jobs and not self._stopping:
            await asyncio.wait(self._jobs, timeout=GATHER_S)
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
            heads = use.heads(tx)
            jobs = self._pick(tx, heads, {result.due.id for result in results})
        stray = {head.target_id for head in heads if not head.able}
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
                self._paused[target] = tx.now + pause(self._failures[target], result.outcome)

    def _pick(self, tx: Tx, heads: Sequence[Head], written: Collection[str]) -> list[Job]:
        """Return what may begin now."""
        under_way = {id(job): job for due, job in self._sending.items() if due not in written}.values()
        self._forget(tx, heads, under_way)
        due = [
            Waiting(head.org_id, head.target_id, head.by_webhook, head.next_at)
            for head in heads
            if head.able and head.next_at <= tx.now and head.target_id not in self._paused
        ]
        turns = Turns(due, [job.under_way for job in under_way], self._failures, self._last)
        begun = self._take(tx, turns)
        self._last = turns.last
        if not begun:
            return []
        loaded = use.load(tx, [id for ids in begun for id in ids])
        opened = use.opened(tx)
        jobs = [[loaded[id] for id in ids if id in loaded] for ids in begun]
        return [Job(dues, opened) for dues in jobs if dues]

    def _take(self, tx: Tx, turns: Turns) -> list[list[str]]:
        """Return the ids of deliveries that begin, those together that are sent in one go."""
        begun: list[list[str]] = []
        rest: dict[str, list[str]] = {}
        while (target := turns.next()) is not None:
            if target.target not in rest:
                rest[target.target] = self._due_ids(tx, target, turns.room(target))
            ids = rest[target.target]
            if not ids:
                turns.spent(target)
                continue
            begun.append([ids.pop(0)] if target.by_webhook else ids)
            turns.began(target)
        return begun

    def _due_ids(self, tx: Tx, target: Waiting, room: int) -> list[str]:
        busy = sum(job.target == target.target for job in self._sending.values())
        most = room if target.by_webhook else TOGETHER
        ids = use.due_ids(tx, target.target, most + busy)
        return [id for id in ids if id not in self._sending][:most]

    def _forget(self, tx: Tx, heads: Sequence[Head], under_way: Collection[Job]) -> None:
        """Keep in memory only targets and organisations for which something waits or is under way."""
        targets = {head.target_id for head in heads} | {job.target for job in under_way}
        orgs = {head.org_id for head in heads}
        self._paused = {target: until for target, until in self._paused.items() if until > tx.now and target in targets}
        self._failures = Counter({target: count for target, count in self._failures.items() if target in targets})
        self._last = {org: turn for org, turn in self._last.items() if org in orgs}
