"""Which allocation stands for a workload that had several."""

from __future__ import annotations

import pytest
from sqlalchemy import insert, select, update

from corral.store import allocations
from corral.store.tables.workloads import allocations as table
from corral.store.transaction import Scope
from tests.metered import Held, hold
from tests.world import World


@pytest.mark.parametrize(("before", "now"), [("a" * 36, "z" * 36), ("z" * 36, "a" * 36)])
def test_the_one_that_lives_stands_for_a_workload_also_when_both_were_placed_in_one_moment(
    world_on_both: World, before: str, now: str
) -> None:
    with world_on_both.db.read() as tx:
        at = tx.now
    workload = hold(world_on_both, "again", Held(placed=at))
    acme = Scope(world_on_both.ids.orgs["acme"])
    with world_on_both.db.write() as tx:
        tx.run(update(table).values(id=before, released_at=at))
        row = tx.one(select(table))
        assert row is not None
        tx.run(insert(table).values(**{**row, "id": now, "released_at": None}))
    with world_on_both.db.read() as tx:
        assert allocations.of_workloads(tx, acme, [workload])[workload]["id"] == now
