"""What is kept for a time only is forgotten by itself."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import func, insert, select

from corral.controllers.retention import Retention
from corral.domain.events import EVENTS_KEPT, Entry, Subject
from corral.store import journal as rows
from corral.store.tables.journal import journal
from corral.store.tables.site import idempotency
from corral.store.transaction import SITE
from corral.usecases import journal as use
from tests.conftest import Clock
from tests.live_server import eventually
from tests.world import World


def test_answers_under_an_idempotency_key_are_forgotten_after_a_day(world_on_both: World, clock: Clock) -> None:
    world = world_on_both

    def keep(key: str) -> None:
        with world.db.write() as tx:
            row = {"user_id": world.ids.users["member"], "key": key, "route": "r", "body_hash": b"", "status": 201}
            tx.run(insert(idempotency).values(**row, answer={}, created_at=tx.now))

    def kept() -> int:
        with world.db.read() as tx:
            return int(tx.scalar(select(func.count()).select_from(idempotency)))

    keep("old")
    clock.forward(24 * 3600 - 60)
    keep("new")

    async def look_after() -> None:
        retention = Retention(world.db, every_s=0.01)
        await retention.start()
        clock.forward(61)
        await asyncio.to_thread(eventually, lambda: kept() == 1)
        await retention.stop()

    asyncio.run(look_after())
    assert kept() == 1


def test_events_are_forgotten_by_age_and_the_audit_never(
    world_on_both: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_on_both
    monkeypatch.setattr(use, "FORGOTTEN_AT_ONCE", 3)

    def record(type: str) -> None:
        with world.db.write() as tx:
            tx.record(Entry(type, Subject(org=world.ids.orgs["acme"])), SITE)

    def forget() -> int:
        parts = 1
        while True:
            with world.db.write() as tx:
                if not use.forget_old(tx):
                    return parts
            parts += 1

    for _ in range(4):
        record("cluster.node.down")  # an event
        record("workload.created")  # both
        record("org.changed")  # audit
    clock.forward(EVENTS_KEPT.total_seconds() + 1)
    record("cluster.node.down")
    assert forget() == 5
    with world.db.read() as tx:
        kept = [row["type"] for row in tx.all(select(journal.c.type).order_by(journal.c.seq))]
        floor, newest = rows.floor(tx), rows.newest(tx)
    assert kept == ["workload.created", "org.changed"] * 4 + ["cluster.node.down"]
    assert floor == newest - 1
    assert forget() == 1
