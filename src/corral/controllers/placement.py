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

from structlog import get_logger

from corral.domain.errors import Refusal
from corral.store.engine import Database
from corral.store.faults import IntegrityError
from corral.store.transaction import Signal, Wake
from corral.usecases import queue, workload_life
from corral.usecases.fleets import Fleets
from corral.usecases.idempotency import Stored
from corral.usecases.placement import CreateAsk, create_many

log = get_logger()

MAX_BATCH = 32
TICK_S = 1.0
"""How often time limits and Out of Sync are looked at."""
QUEUE_EVERY_S = 5.0
"""How often what waits is told why anew, beside being tried whenever something changed."""


@dataclass
class _Submitted:
    ask: CreateAsk
    answer: Future[Stored] = field(default_factory=Future)


class PlacementWorker:
    """Submit asks from any thread; each gets its own answer or refusal."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._fleets = Fleets()
        self._waiting: deque[_Submitted] = deque()
        self._changed_clusters: set[str] = set()
        self._wake = threading.Condition()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="placement", daemon=True)
        self._unsubscribe: Callable[[], None] = lambda: None
        self._next_tick = self._next_queue = 0.0

    async def start(self) -> None:
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
                raise Refusal("UNAVAILABLE", "The control plane is stopping. Try again in a moment.", retry_after_s=5)
            self._waiting.append(submitted)
            self._wake.notify()
        return submitted.answer

    def _committed(self, signals: Sequence[Signal], _last_seq: int | None) -> None:
        """Somebody changed what placement judges by: try the queues of those clusters again."""
        changed = {signal.id for signal in signals if signal.wake is Wake.PLACEMENT}
        if changed and threading.current_thread() is not self._thread:
            with self._wake:
                self._changed_clusters |= changed
                self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                if not (self._waiting or self._changed_clusters or self._ending):
                    self._wake.wait(max(0.0, self._next_tick - monotonic()))
                batch, changed = self._batch(), self._changed_clusters
                self._changed_clusters = set()
                if self._ending and not batch:
                    return
            if batch:
                self._create(batch)
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

    def _failed(self, error: Exception) -> None:
        self._fleets.forget()
        log.warning("placement_failed", error=str(error), kind=type(error).__name__)

    def _look_after(self, changed: set[str]) -> None:
        """Try the queues that may go on, and do what is due by time."""
        now = monotonic()
        try:
            if now >= self._next_tick:
                self._next_tick = now + TICK_S
                self._tick()
            if now >= self._next_queue:
                self._next_queue = now + QUEUE_EVERY_S
                self._advance(None)
            elif changed:
                self._advance(changed)
        except Exception as error:  # tried again at the next turn; the thread must live
            self._failed(error)

    def _tick(self) -> None:
        with self._db.read() as tx:
            due = bool(workload_life.due(tx))
        if due:
            with self._db.write() as tx:
                workload_life.tick(tx)

    def _advance(self, clusters: set[str] | None) -> None:
        """Try what waits in these clusters; None: everywhere, and say why what still waits does."""
        with self._db.read() as tx:
            tenancies = queue.waiting_in(tx)
        for cluster_id, org_id in tenancies:
            if clusters is None or cluster_id in clusters:
                with self._db.write() as tx:
                    queue.advance(tx, self._fleets, org_id, cluster_id, say_why=clusters is None)


def _settle(one: _Submitted, answer: Stored | Refusal) -> None:
    if isinstance(answer, Refusal):
        one.answer.set_exception(answer)
    else:
        one.answer.set_result(answer)
