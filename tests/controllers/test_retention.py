"""What is kept for a time only is forgotten by itself."""

from __future__ import annotations

import asyncio

from sqlalchemy import func, insert, select

from corral.controllers.retention import Retention
from corral.store.tables.site import idempotency
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
