"""The placement worker: batches, answers to each, retries alone, the queue, time (design decision 5)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import select, update

from corral.controllers.placement import PlacementWorker
from corral.domain.allocations import Seen
from corral.domain.compute_clusters import Creation
from corral.domain.errors import Refusal
from corral.store.tables.machines import gpus
from corral.store.tables.users import api_tokens
from corral.store.tables.workloads import gpu_holds, workloads
from corral.usecases.idempotency import Key
from tests.conftest import Clock
from tests.placing import allocation, ask, check_invariants, report, saying, terminate, workload
from tests.world import World


@pytest.fixture
def placer(world_on_both: World) -> Iterator[PlacementWorker]:
    worker = PlacementWorker(world_on_both.db)
    asyncio.run(worker.start())
    try:
        yield worker
    finally:
        asyncio.run(worker.stop())


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for a condition that another thread brings about."""
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.01)


def outcome(world: World, placer: PlacementWorker, creation: Creation, key: Key | None = None) -> str:
    try:
        placer.submit(replace(ask(world, creation), key=key)).result(timeout=30)
    except Refusal as refusal:
        return refusal.code
    return "made"


def test_of_many_at_once_each_gets_its_own_answer_and_no_gpu_is_given_twice(
    world_on_both: World, placer: PlacementWorker
) -> None:
    world_on_both.add_machine("a", gpu_count=8)
    with ThreadPoolExecutor(16) as pool:
        codes = list(pool.map(lambda n: outcome(world_on_both, placer, Creation(f"w{n}", gpus=1)), range(40)))
    assert sorted(codes) == ["NO_CAPACITY"] * 32 + ["made"] * 8
    check_invariants(world_on_both.db)


def test_the_same_idempotency_key_gives_the_same_answer_and_one_cluster(
    world_on_both: World, placer: PlacementWorker
) -> None:
    world_on_both.add_machine("a")
    key = Key("once", "POST /x", b"body")

    def again(_: int) -> dict[str, object]:
        submitted = replace(ask(world_on_both, Creation("dev")), key=key)
        return placer.submit(submitted).result(timeout=30).answer

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(again, range(8)))
    assert all(answer == answers[0] for answer in answers)
    other = Key("once", "POST /x", b"another body")
    assert outcome(world_on_both, placer, Creation("dev2"), other) == "IDEMPOTENCY_KEY_REUSED"
    with world_on_both.db.read() as tx:
        assert len(tx.all(select(workloads.c.id))) == 1


def test_a_last_guard_that_fires_is_a_refusal_and_spoils_nothing_else(
    world_on_both: World, placer: PlacementWorker
) -> None:
    world = world_on_both
    world.add_machine("a", gpu_count=2)
    assert outcome(world, placer, Creation("dev", gpus=1)) == "made"
    # Behind every rule's back: the second GPU is held too, without a word to the fleet.
    with world.db.write() as tx:
        gpu = _free_gpu(world)
        values = {"allocation_id": allocation(world, "dev")["id"], "org_id": world.ids.orgs["acme"]}
        tx.run(gpu_holds.insert().values(gpu_id=gpu, machine_id=world.ids.machines["a"], **values))
    assert outcome(world, placer, Creation("next", gpus=1)) == "NO_CAPACITY"
    assert outcome(world, placer, Creation("cpu")) == "made"


def _free_gpu(world: World) -> str:
    with world.db.read() as tx:
        held = select(gpu_holds.c.gpu_id)
        id: str = tx.scalar(select(gpus.c.id).where(gpus.c.id.not_in(held)))
    return id


def test_capacity_that_comes_free_goes_to_what_waits(world_on_both: World, placer: PlacementWorker) -> None:
    world = world_on_both
    world.add_machine("a", gpu_count=1)
    outcome(world, placer, Creation("first", gpus=1))
    outcome(world, placer, Creation("second", gpus=1, wait=True))
    terminate(world, "first")
    report(world, "a", [saying(world, "first", Seen.GONE)])
    until(lambda: not workload(world, "second")["queued"], "the queue goes on")
    check_invariants(world.db)


def test_a_time_limit_is_enforced_without_anybody_asking(
    world_on_both: World, placer: PlacementWorker, clock: Clock
) -> None:
    world_on_both.add_machine("a", gpu_count=1)
    outcome(world_on_both, placer, Creation("short", gpus=1, time_limit_seconds=60))
    clock.forward(61)
    until(lambda: allocation(world_on_both, "short")["stop_asked_at"] is not None, "it is told to stop")


def test_a_worker_that_ends_answers_what_was_submitted_and_refuses_what_comes_later(world_on_both: World) -> None:
    world_on_both.add_machine("a")
    worker = PlacementWorker(world_on_both.db)
    asyncio.run(worker.start())
    submitted = [worker.submit(ask(world_on_both, Creation(f"w{n}"))) for n in range(5)]
    asyncio.run(worker.stop())
    assert [one.result(timeout=0).status for one in submitted] == [201] * 5
    with pytest.raises(Refusal) as refused:
        worker.submit(ask(world_on_both, Creation("late")))
    assert refused.value.code == "UNAVAILABLE"


def test_a_token_revoked_before_its_turn_creates_nothing(world_on_both: World, placer: PlacementWorker) -> None:
    world_on_both.add_machine("a")
    with world_on_both.db.write() as tx:
        tx.run(update(api_tokens).values(revoked_at=tx.now))
    assert outcome(world_on_both, placer, Creation("dev")) == "UNAUTHENTICATED"
