"""One thread that does many small acts of machines in one transaction.

A fleet that comes back says thousands of hellos and first reports at once; a commit for each
would cost a disk sync each. Acts that are waiting share a transaction, each in a savepoint of
its own, so that one that fails takes nothing of the others with it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeVar, cast

from corral.store.engine import Database
from corral.store.transaction import Tx

T = TypeVar("T")
MAX_BATCH = 64
LONGEST_S = 0.05
"""After so long a transaction takes no more acts: what people change waits for the same locks."""


@dataclass
class _Act:
    order: tuple[str, ...]
    job: Callable[[Tx], Any]
    future: Future[Any] = field(default_factory=Future)


class Batches:
    """Submit acts from any thread; each gets its own answer or its own exception."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._waiting: queue.SimpleQueue[_Act | None] = queue.SimpleQueue()
        self.submitted = 0
        """How many acts there were: the hot path adds none."""
        self._thread = threading.Thread(target=self._run, name="machine-acts", daemon=True)

    async def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """Do what was submitted, then end."""
        self._waiting.put(None)
        self._thread.join()

    def __len__(self) -> int:
        """How many acts wait."""
        return self._waiting.qsize()

    def submit(self, order: tuple[str, ...], job: Callable[[Tx], T]) -> Future[T]:
        """Do `job` soon. Acts of a batch run by `order` (`fleet.lock_order`), and so take their locks in one order."""
        self.submitted += 1
        act = _Act(order, job)
        self._waiting.put(act)
        return cast("Future[T]", act.future)

    def _run(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch, ending = self._more([first])
            mine = [act for act in batch if act.future.set_running_or_notify_cancel()]
            self._do(sorted(mine, key=lambda act: act.order))
            if ending:
                return

    def _more(self, batch: list[_Act]) -> tuple[list[_Act], bool]:
        """Add what waits already; return whether the end was asked for."""
        while len(batch) < MAX_BATCH:
            try:
                act = self._waiting.get_nowait()
            except queue.Empty:
                break
            if act is None:
                return batch, True
            batch.append(act)
        return batch, False

    def _do(self, batch: list[_Act]) -> None:
        while len(batch) > 1:
            batch = self._do_some(batch)
        for act in batch:
            self._do_one(act)

    def _do_some(self, batch: list[_Act]) -> list[_Act]:
        """Do the first ones, as many as fit into a transaction; return the rest."""
        answers: list[tuple[Any, Exception | None]] = []
        try:
            with self._db.write() as tx:
                over = monotonic() + LONGEST_S
                for act in batch:
                    answers.append(_attempt(tx, act))
                    if monotonic() >= over:
                        break
        except Exception:  # the transaction as a whole failed: nothing of it counts, so each is done again alone
            for act in batch:
                self._do_one(act)
            return []
        for act, (answer, error) in zip(batch, answers, strict=False):
            _settle(act, answer, error)
        return batch[len(answers) :]

    def _do_one(self, act: _Act) -> None:
        try:
            with self._db.write() as tx:
                answer = act.job(tx)
        except Exception as error:  # handed to whoever waits
            _settle(act, None, error)
        else:
            _settle(act, answer, None)


def _attempt(tx: Tx, act: _Act) -> tuple[Any, Exception | None]:
    try:
        with tx.savepoint():
            return act.job(tx), None
    except Exception as error:  # handed to whoever waits
        return None, error


def _settle(act: _Act, answer: Any, error: Exception | None) -> None:
    if error is not None:
        act.future.set_exception(error)
    else:
        act.future.set_result(answer)
