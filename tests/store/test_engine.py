"""After a commit: whoever waits for it hears of it, whatever another listener does."""

from __future__ import annotations

from corral.store.engine import Database
from corral.store.transaction import Signal, Wake


def test_a_listener_that_fails_neither_undoes_a_commit_nor_keeps_others_from_hearing(db: Database) -> None:
    heard: list[Signal] = []

    def broken(*_: object) -> None:
        raise RuntimeError("the loop is closed")

    db.subscribe(broken)
    db.subscribe(lambda signals, _seq: heard.extend(signals))
    with db.write() as tx:
        tx.wake(Wake.DESIRED, "m1")
    assert heard == [Signal(Wake.DESIRED, "m1")]
