"""Budgets are looked at from the start, and again whatever one look met (spec 10, "Prices, usage, budgets")."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import func, select

from corral.controllers.budgets import Budgets
from corral.domain.budgets import Budget
from corral.domain.prices import PriceTable
from corral.store.tables.journal import journal
from corral.usecases import budgets
from tests.conftest import Clock
from tests.metered import Held, hold, price
from tests.world import World


@pytest.fixture
def spent(world: World, clock: Clock) -> World:
    """A world in which `research` has spent half of its budget."""
    start = clock.now - timedelta(hours=5)
    price(world, start, PriceTable("EUR", {"*": 1_000_000}))
    hold(world, "dev", Held(start, None, 1, "H100"))
    with world.act("admin", "acme", "research") as ctx:
        budgets.put(ctx, Budget(10_000_000, "EUR", (50, 80)))
    return world


def told(world: World) -> int:
    with world.db.read() as tx:
        mine = select(func.count()).where(journal.c.type == "workspace.budget.reached")
        return int(tx.scalar(mine))


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.01)


def test_the_control_plane_looks_when_it_starts(spent: World) -> None:
    async def start_and_wait() -> None:
        looking = Budgets(spent.db)
        await looking.start()
        try:
            await until(lambda: told(spent) == 1)
        finally:
            await looking.stop()

    asyncio.run(start_and_wait())


def test_it_is_a_part_of_the_application(spent: World) -> None:
    with spent.running():
        portal = spent.http.portal
        assert portal is not None
        portal.call(until, lambda: told(spent) == 1)


def test_it_looks_again_also_after_a_look_that_failed(
    spent: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([OSError("the database is away")])
    find = budgets.orgs_to_judge

    def failing(*args: object) -> object:
        for failure in failures:
            raise failure
        return find(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(budgets, "orgs_to_judge", failing)

    async def look_twice() -> None:
        looking = Budgets(spent.db, every_s=0.01)
        await looking.start()
        try:
            await until(lambda: told(spent) == 1)
            clock.forward(3 * 3600)
            await until(lambda: told(spent) == 2)
        finally:
            await looking.stop()

    asyncio.run(look_twice())
