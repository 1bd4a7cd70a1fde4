"""Acts that share a transaction: each has its own answer, its own failure, its own journal."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from corral.controllers.batches import Batches
from corral.domain.errors import Refusal
from corral.domain.events import Entry, Subject
from corral.store import journal
from corral.store.engine import Database
from corral.store.transaction import SITE, Tx, Wake


@pytest.fixture
def batches(db: Database) -> Iterator[Batches]:
    made = Batches(db)
    yield made
    asyncio.run(made.stop())


def say(tx: Tx, number: int, *, fail: bool = False) -> int:
    tx.record(Entry("site.changed", Subject(), {"number": number}), SITE)
    tx.wake(Wake.DESIRED, str(number))
    if fail:
        raise Refusal("CONFLICT", f"number {number}")
    return number


def written(db: Database) -> list[int]:
    with db.read() as tx:
        return [row["data"]["number"] for row in journal.after(tx, 0, 1000)]


def test_of_acts_that_wait_together_one_that_fails_takes_nothing_of_the_others(db: Database, batches: Batches) -> None:
    woken: list[str] = []
    db.subscribe(lambda signals, _: woken.extend(signal.id for signal in signals))
    futures = [batches.submit(("o", "c"), lambda tx, n=n: say(tx, n, fail=n % 5 == 0)) for n in range(20)]  # type: ignore[misc]
    asyncio.run(batches.start())
    for n, future in enumerate(futures):
        if n % 5 == 0:
            with pytest.raises(Refusal, match=f"number {n}"):
                future.result(20)
        else:
            assert future.result(20) == n
    good = [n for n in range(20) if n % 5]
    assert written(db) == good
    assert woken == [str(n) for n in good]


def test_acts_that_wait_share_a_transaction_and_run_in_the_order_of_locks(
    db: Database, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral.controllers.batches.LONGEST_S", 60.0)
    order: list[tuple[str, int]] = []
    futures = [
        batches.submit((org, "c"), lambda tx, org=org: order.append((org, id(tx))))  # type: ignore[misc]
        for org in ("b", "a", "c", "a")
    ]
    asyncio.run(batches.start())
    for future in futures:
        future.result(20)
    assert [org for org, _ in order] == ["a", "a", "b", "c"]
    assert len({tx for _, tx in order}) == 1


def test_a_transaction_that_has_taken_its_time_takes_no_more_acts(
    db: Database, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral.controllers.batches.LONGEST_S", 0.0)
    seen: list[tuple[int, list[int]]] = []

    def act(tx: Tx, number: int) -> None:
        seen.append((number, written(db)))
        say(tx, number)

    futures = [batches.submit(("o", "c"), lambda tx, n=n: act(tx, n)) for n in range(4)]  # type: ignore[misc]
    asyncio.run(batches.start())
    for future in futures:
        future.result(20)
    assert seen == [(number, list(range(number))) for number in range(4)]


def test_when_the_shared_transaction_fails_each_act_is_done_again_alone(db: Database, batches: Batches) -> None:
    def breaks(tx: Tx) -> int:
        end = "ROLLBACK" if db.is_sqlite else "SELECT pg_terminate_backend(pg_backend_pid())"
        tx.conn.exec_driver_sql(end)  # takes the whole transaction with it
        return 0

    good = batches.submit(("a",), lambda tx: say(tx, 1))
    bad = batches.submit(("b",), breaks)
    also_good = batches.submit(("c",), lambda tx: say(tx, 2))
    asyncio.run(batches.start())
    assert (good.result(20), also_good.result(20)) == (1, 2)
    assert sorted(written(db)) == [1, 2]
    assert bad.exception(20) is not None


def test_what_was_given_up_is_not_done(db: Database, batches: Batches) -> None:
    future = batches.submit(("a",), lambda tx: say(tx, 1))
    future.cancel()
    after = batches.submit(("a",), lambda tx: say(tx, 2))
    asyncio.run(batches.start())
    after.result(20)
    assert written(db) == [2]


def test_what_was_submitted_before_the_end_is_done(db: Database) -> None:
    batches = Batches(db)
    gate = threading.Event()
    first = batches.submit(("a",), lambda tx: gate.wait(20))
    rest = [batches.submit(("a",), lambda tx, n=n: say(tx, n)) for n in range(100)]  # type: ignore[misc]

    async def run() -> None:
        await batches.start()
        gate.set()
        await batches.stop()

    asyncio.run(run())
    assert first.result(0)
    assert [future.result(0) for future in rest] == list(range(100))
