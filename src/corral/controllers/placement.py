"""The placement worker: one thread that places everything, many asks in a transaction (design decision 5).

Asks that are waiting share a transaction. When that fails as a whole (a last guard of the database,
a lost connection), what is remembered of the fleets is thrown away and each ask is done again alone, so
one ask's fault is not another's. The same thread tries the queue again when capacity or a rule
changed, and does what time alone makes due.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeVar, cast

from structlog import get_logger

from corral.domain.errors import Refusal
from corral.store.database_errors import IntegrityError
from corral.store.engine import Database
from corral.store.transaction import Signal, Wake
from corral.usecases import queue, workload_life
from corral.usecases.fleets import Beginning, Fleets
from corral.usecases.idempotency import Stored
from corral.usecases.placement import CreateAsk, create_many
from corral.usecases.queue import Queue

log = get_logger()

T = TypeVar("T")

MAX_BATCH = 32
TICK_S = 1.0
"""How often time limits and Out of Sync are looked at."""
QUEUE_EVERY_S = 5.0
"""How often what waits is told why anew, beside being tried whenever something changed."""


@dataclass
class _Submitted:
    ask: CreateAsk
    answer: Future[Stored] = field(default_factory=Future)


@dataclass
class _Question:
    ask: Callable[[Fleets], Any]
    answer: Future[Any] = field(default_factory=Future)


class PlacementWorker:
    """Submit asks from any thread; each gets its own answer or refusal.

    `has_said(machine)`: since this process began the machine has said what it runs (see `fleets.Beginning`).
    """

    def __init__(self, db: Database, has_said: Callable[[str], bool] = lambda _: True) -> None:
        self._db = db
        self._has_said = has_said
        self._fleets = Fleets()
        self._waiting: deque[_Submitted] = deque()
        self._questions: deque[_Question] = deque()
        self._changed: set[tuple[str, str]] = set()
        """(cluster, organisation): tenancies whose queue may go on."""
        self._told: dict[tuple[str, str], int] = {}
        """The version at which what waits in a tenancy was tried and told why."""
        self._wake = threading.Condition()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="placement", daemon=True)
        self._unsubscribe: Callable[[], None] = lambda: None
        self._next_tick = self._next_queue = 0.0

    async def start(self) -> None:
        with self._db.read() as tx:
            self._fleets = Fleets(Beginning(queue.all_that_waits(tx), self._has_said))
        self._unsubscribe = self._db.subscribe(self._committed)
        self._thread.start()

    async def stop(self) -> None:
        """Answer what was submitted, then end."""
        self._unsubscribe()
        with self._wake:
            self._ending = True
            self._wake.notify()
        self._thread.join()

    def submit(self, ask: CreateAsk) -> Future[Stored]:
        """Create it soon. The future gets the answer, or raises the `Refusal`."""
        submitted = _Submitted(ask)
        with self._wake:
            if self._ending:
                raise _stopping()
            self._waiting.append(submitted)
            self._wake.notify()
        return submitted.answer

    def ask(self, question: Callable[[Fleets], T]) -> Future[T]:
        """Answer a question about the fleets as they are remembered, after what waits to be created."""
        asked = _Question(question)
        with self._wake:
            if self._ending:
                raise _stopping()
            self._questions.append(asked)
            self._wake.notify()
        return cast("Future[T]", asked.answer)

    def _committed(self, signals: Sequence[Signal], _last_seq: int | None) -> None:
        """Somebody changed what placement judges by: try those queues again."""
        changed = {(signal.id, signal.org) for signal in signals if signal.wake is Wake.PLACEMENT}
        if changed and threading.current_thread() is not self._thread:
            with self._wake:
                self._changed |= changed
                self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                if not (self._waiting or self._questions or self._changed or self._ending):
                    self._wake.wait(max(0.0, self._next_tick - monotonic()))
                batch, changed = self._batch(), self._changed
                question = self._questions.popleft() if self._questions else None
                self._changed = set()
                if self._ending and not batch and question is None:
                    return
            if batch:
                self._create(batch)
            if question is not None:
                self._answer(question)
            self._look_after(changed)

    def _batch(self) -> list[_Submitted]:
        """Take what waits, up to `MAX_BATCH`; a second ask under one `Idempotency-Key` is left for the next."""
        batch: list[_Submitted] = []
        keys: set[str] = set()
        while self._waiting and len(batch) < MAX_BATCH:
            key = self._waiting[0].ask.key
            if key is not None and key.key in keys:
                break
            submitted = self._waiting.popleft()
            if not submitted.answer.set_running_or_notify_cancel():
                continue
            if key is not None:
                keys.add(key.key)
            batch.append(submitted)
        return batch

    def _create(self, batch: Sequence[_Submitted]) -> None:
        try:
            answers = self._transact([one.ask for one in batch])
        except Exception as error:
            self._failed(error)
            for one in batch:
                self._create_alone(one)
            return
        for one, answer in zip(batch, answers, strict=True):
            _settle(one, answer)

    def _create_alone(self, one: _Submitted) -> None:
        try:
            _settle(one, self._transact([one.ask])[0])
        except Exception as error:
            self._failed(error)
            if isinstance(error, IntegrityError):
                # Somebody else took the name, the key or a GPU at the same time, past every rule read before.
                text = "Something else took what this needs at the same moment. Try again."
                one.answer.set_exception(Refusal("CONFLICT", text))
            else:
                one.answer.set_exception(error)

    def _transact(self, asks: Sequence[CreateAsk]) -> list[Stored | Refusal]:
        with self._db.write() as tx:
            return create_many(tx, self._fleets, asks)

    def _answer(self, question: _Question) -> None:
        """Questions are answered one a turn: what is created does not wait for many."""
        if not question.answer.set_running_or_notify_cancel():
            return
        try:
            question.answer.set_result(question.ask(self._fleets))
        except Refusal as refusal:
            question.answer.set_exception(refusal)
        except Exception as error:
            self._failed(error)
            question.answer.set_exception(error)

    def _failed(self, error: Exception) -> None:
        self._fleets.forget()
        log.warning("placement_failed", error=str(error), kind=type(error).__name__)

    def _look_after(self, changed: set[tuple[str, str]]) -> None:
        """Try the queues that may go on, and do what is due by time."""
        now = monotonic()
        try:
            if now >= self._next_tick:
                self._next_tick = now + TICK_S
                self._tick()
            if now >= self._next_queue:
                self._next_queue = now + QUEUE_EVERY_S
                self._try_all()
            elif changed:
                self._try(changed)
        except Exception as error:  # tried again at the next turn; the thread must live
            self._failed(error)

    def _tick(self) -> None:
        with self._db.read() as tx:
            due = bool(workload_life.due(tx))
        if due:
            with self._db.write() as tx:
                workload_life.tick(tx)

    def _try(self, changed: set[tuple[str, str]]) -> None:
        """Place what waits in these tenancies and can be placed now."""
        for here in self._queues():
            if (here.cluster_id, here.org_id) in changed:
                self._advance(here)

    def _try_all(self) -> None:
        """Try what waits wherever anything changed since, and tell why what still waits does.

        Why is found out beside the others' writing: it costs more than anything else here.
        """
        queues = self._queues()
        told, self._told = self._told, {}
        for here in queues:
            where = (here.cluster_id, here.org_id)
            if told.get(where) == here.version:
                self._told[where] = here.version
                continue
            self._advance(here)
            with self._db.read() as tx:
                version, changed = queue.reasons(tx, self._fleets, here.org_id, here.cluster_id)
            if changed:
                with self._db.write() as tx:
                    queue.say(tx, here.org_id, changed)
            self._told[where] = version

    def _queues(self) -> list[Queue]:
        """Return where something waits."""
        with self._db.read() as tx:
            return queue.waiting_in(tx)

    def _advance(self, here: Queue) -> None:
        with self._db.write() as tx:
            queue.advance(tx, self._fleets, here.org_id, here.cluster_id)


def _stopping() -> Refusal:
    return Refusal("UNAVAILABLE", "The control plane is stopping. Try again in a moment.", retry_after_s=5)


def _settle(one: _Submitted, answer: Stored | Refusal) -> None:
    if isinstance(answer, Refusal):
        one.answer.set_exception(answer)
    else:
        one.answer.set_result(answer)
