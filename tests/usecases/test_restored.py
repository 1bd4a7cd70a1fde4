"""After a restored back-up nothing is placed twice: what waited then may run on a machine that has not said so yet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from sqlalchemy import update

from corral.controllers.placement import PlacementWorker
from corral.domain.allocations import Report as Report_
from corral.domain.allocations import Seen
from corral.domain.compute_clusters import Creation
from corral.domain.sessions import Opened, Report
from corral.store.tables.machines import machines as machine_table
from corral.store.tables.workloads import allocations, gpu_holds, workloads
from corral.store.transaction import Scope
from corral.usecases import machines, queue, removal, reports, site
from corral.usecases.fleets import RESTORED, Fleets
from tests.conftest import Clock
from tests.placing import allocation, ask, check_invariants, create, ref, report, saying, wanted, workload
from tests.world import World


@pytest.fixture
def world(world_on_both: World, clock: Clock) -> World:
    """`one` and `two`, of two GPUs each. `dev` waited when the back-up was made, and was placed on `two` after that."""
    world = world_on_both
    for name in ("one", "two"):
        world.add_machine(name, gpu_count=2)
        create(world, Creation(f"full-{name}", gpus=2))
    create(world, Creation("dev", gpus=2, wait=True))
    with world.db.write() as tx:
        for table in (gpu_holds, allocations):
            tx.run(table.delete())
        tx.run(update(workloads).where(workloads.c.name != "dev").values(ended_at=tx.now))
    return world


def restore(world: World, clock: Clock) -> None:
    clock.forward(10)
    with world.db.write() as tx:
        site.restored(tx)


def hear(world: World, machine: str, *seen: object) -> None:
    where = ref(world, machine)
    with world.db.write() as tx:
        session = Opened(where.id, where.org_id, where.cluster_id, where.name, 0, "")
        reports.receive(tx, session, Report("", "", None, (), seen))  # type: ignore[arg-type]


def same(world: World, fleets: Fleets) -> None:
    """What one process remembers is what another reads."""
    where = ref(world, "one")
    with world.db.read() as tx:
        old, new = (known.seen(tx, Scope(where.org_id), where.cluster_id) for known in (fleets, Fleets()))
    assert (old.queue, old.counted.live, old.last_queue_no) == (new.queue, new.counted.live, new.last_queue_no)


def advance(world: World, fleets: Fleets | None = None) -> None:
    where = ref(world, "one")
    fleets = fleets or Fleets()
    with world.db.write() as tx:
        queue.advance(tx, fleets, where.org_id, where.cluster_id)
    with world.db.read() as tx:
        _, why = queue.reasons(tx, fleets, where.org_id, where.cluster_id)
    with world.db.write() as tx:
        queue.say(tx, where.org_id, why)


def test_what_waited_is_placed_when_every_machine_has_said_what_it_runs(world: World, clock: Clock) -> None:
    restore(world, clock)
    hear(world, "one")
    advance(world)
    assert workload(world, "dev")["queued"]
    assert workload(world, "dev")["reason"] == RESTORED
    hear(world, "two")
    advance(world)
    assert not workload(world, "dev")["queued"]


def test_what_runs_on_the_machine_that_reports_last_is_adopted_there_and_placed_nowhere_else(
    world: World, clock: Clock
) -> None:
    fleets = Fleets()  # one process's: it saw `dev` wait before the machine that runs it spoke
    with world.db.write() as tx:  # the part of history that the back-up does not have
        tx.run(update(machine_table).where(machine_table.c.name == "one").values(cordon_reason="x"))
    advance(world)
    told = wanted(world, "two")["dev"]
    running = saying(world, "dev", Seen.RUNNING)
    with world.db.write() as tx:
        for table in (gpu_holds, allocations):
            tx.run(table.delete())
        tx.run(update(workloads).where(workloads.c.name == "dev").values(queued=True, queue_no=1))
        tx.run(update(machine_table).values(cordon_reason=None))
    restore(world, clock)
    hear(world, "one")
    advance(world, fleets)
    hear(world, "two", running)
    advance(world, fleets)
    where = ref(world, "two")
    with world.db.write() as tx:
        session = Opened(where.id, where.org_id, where.cluster_id, where.name, 0, "")
        reports.described(tx, session, [told], [told.id])
    hear(world, "two", running)
    advance(world, fleets)
    assert (allocation(world, "dev")["id"], allocation(world, "dev")["machine_id"]) == (told.id, where.id)
    assert list(wanted(world, "one")) == []
    check_invariants(world.db)
    same(world, fleets)


@pytest.mark.parametrize("decide", ["release", "remove"])
def test_an_admin_decides_about_a_machine_that_does_not_come_back(world: World, clock: Clock, decide: str) -> None:
    with world.db.write() as tx:
        tokens = site.restored(tx)
    assert tokens == ["operator"]
    _admin_again(world)
    hear(world, "one")
    with world.act("admin", org="acme") as ctx:
        if decide == "release":
            machines.release_quarantine(ctx, "default", "two")
        else:
            removal.remove(ctx, "default", "two", force=False)
    advance(world)
    assert not workload(world, "dev")["queued"]


def _admin_again(world: World) -> None:
    """Tokens died with the restore."""
    world.tokens = {who: world.token(who, ["all"], name="again") for who in ("admin", "member")}


def test_what_is_asked_for_after_the_restore_does_not_wait_for_silent_machines(world: World, clock: Clock) -> None:
    restore(world, clock)
    _admin_again(world)
    hear(world, "one")
    clock.forward(1)
    assert create(world, Creation("new", gpus=2))["machine"] == "one"
    create(world, Creation("newer", gpus=1, wait=True))
    hear(world, "one", saying(world, "new", Seen.FAILED, message="x"))
    advance(world)
    assert (workload(world, "newer")["queued"], workload(world, "dev")["queued"]) == (False, True)


def test_a_back_up_put_back_without_a_word_places_nothing_before_machines_have_spoken(world: World) -> None:
    spoken: set[str] = set()
    asked: list[str] = []

    def has_said(machine: str) -> bool:
        asked.append(machine)
        return machine in spoken

    worker = PlacementWorker(world.db, has_said)
    asyncio.run(worker.start())
    try:
        spoken.add(ref(world, "one").id)
        _until(lambda: len(asked) > 1)
        assert workload(world, "dev")["queued"]
        spoken.add(ref(world, "two").id)
        _until(lambda: not workload(world, "dev")["queued"])
    finally:
        asyncio.run(worker.stop())


def test_a_restart_holds_only_what_waited_before_it_and_says_why(world: World) -> None:
    spoken = {ref(world, "one").id}
    worker = PlacementWorker(world.db, spoken.__contains__)
    asyncio.run(worker.start())
    try:
        _until(lambda: "'two'" in workload(world, "dev")["reason"])
        worker.submit(ask(world, Creation("full", gpus=2))).result(20)
        worker.submit(ask(world, Creation("half", gpus=2))).result(20)
        worker.submit(ask(world, Creation("later", gpus=1, wait=True))).result(20)
        where = world.ids.machines[wanted_on(world, "full")]
        report(world, wanted_on(world, "full"), [saying(world, "full", Seen.FAILED, message="x")])
        _until(lambda: not workload(world, "later")["queued"])
        assert allocation(world, "later")["machine_id"] == where
        assert workload(world, "dev")["queued"]
    finally:
        asyncio.run(worker.stop())


def wanted_on(world: World, name: str) -> str:
    return next(machine for machine in ("one", "two") if name in wanted(world, machine))


def test_a_quarantine_of_later_holds_nothing_that_waited_at_the_restore(world: World, clock: Clock) -> None:
    restore(world, clock)
    hear(world, "one")
    hear(world, "two")
    hear(world, "two", Report_("01900000-0000-7000-8000-000000000001", 1, Seen.RUNNING))
    advance(world)
    assert not workload(world, "dev")["queued"]


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
