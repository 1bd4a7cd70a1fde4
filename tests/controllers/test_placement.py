"""The placement worker: batches, answers to each, retries alone, the queue, time (design decision 5)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from corral.controllers.placement import PlacementWorker
from corral.domain import placement as choose
from corral.domain.allocations import Seen
from corral.domain.compute_clusters import Creation
from corral.domain.errors import Refusal
from corral.store import fleet
from corral.store.tables.access import access, access_pools
from corral.store.tables.clusters import clusters, tenancies
from corral.store.tables.machines import gpus, machines
from corral.store.tables.users import api_tokens
from corral.store.tables.workloads import gpu_holds, workloads
from corral.store.transaction import Scope, Tx
from corral.usecases import queue
from corral.usecases.context import new_id
from corral.usecases.fleets import Fleets
from corral.usecases.idempotency import Key
from tests.conftest import Clock
from tests.placing import allocation, ask, check_invariants, create, report, saying, terminate, workload
from tests.usecases.test_gpu_evidence import Host, gpu, xid
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


# ---- what the queue costs the others


def quiet(world: World) -> PlacementWorker:
    """Return a worker whose turns a test takes itself."""
    worker = PlacementWorker(world.db)
    worker._next_tick = float("inf")
    return worker


def calls(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[tuple[str, tuple[Any, ...]]]:
    """Return what of the queue is called from now on, with what."""
    seen: list[tuple[str, tuple[Any, ...]]] = []

    def noted(name: str) -> Callable[..., Any]:
        real = getattr(queue, name)

        def call(*given: Any) -> Any:
            seen.append((name, given))
            return real(*given)

        return call

    for name in names:
        monkeypatch.setattr(queue, name, noted(name))
    return seen


def turn(worker: PlacementWorker) -> None:
    """Let five seconds pass."""
    worker._next_queue = 0.0
    worker._look_after(set())


def test_a_queue_is_tried_again_and_told_why_only_when_something_changed(
    world_on_both: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_on_both
    asked = calls(monkeypatch, "advance", "reasons")
    create(world, Creation("waits", gpus=1, wait=True))
    worker = quiet(world)
    for _ in range(3):
        turn(worker)
    assert [name for name, _ in asked] == ["advance", "reasons"]
    world.add_machine("a", gpu_count=0)
    for _ in range(3):
        turn(worker)
    assert [name for name, _ in asked] == ["advance", "reasons"] * 2
    assert workload(world, "waits")["reason"] == "a: has no GPU, 1 asked"


def test_why_something_waits_is_found_while_others_write(world_on_both: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world, wrote = world_on_both, list[int]()
    create(world, Creation("waits", gpus=1, wait=True))
    world.add_machine("a", gpu_count=0)
    why = choose.why_it_waits

    def write() -> int:
        cluster = world.ids.clusters["default"]
        with world.db.write() as tx:
            return fleet.lock(tx, Scope(world.ids.orgs["acme"]), cluster)

    with ThreadPoolExecutor(1) as others:

        def writing(*args: Any) -> str:
            wrote.append(others.submit(write).result(timeout=20))
            return why(*args)

        monkeypatch.setattr(choose, "why_it_waits", writing)
        turn(quiet(world))
    assert wrote
    assert workload(world, "waits")["reason"] == "a: has no GPU, 1 asked"


def test_what_an_organisation_changes_makes_no_others_queue_be_tried(
    world_on_both: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_on_both
    create(world, Creation("waits", gpus=1, wait=True))
    create(world, Creation("waits-too", gpus=1, wait=True), "rival")
    tried = calls(monkeypatch, "advance")
    worker = quiet(world)
    worker._next_queue = float("inf")
    stop = world.db.subscribe(worker._committed)
    world.add_machine("theirs", "rival", gpu_count=1)
    stop()
    worker._look_after(worker._changed)
    assert [given[2] for _, given in tried] == [world.ids.orgs["rival"]]
    assert [workload(world, name)["queued"] for name in ("waits", "waits-too")] == [True, False]


def test_a_question_is_answered_from_what_is_remembered(
    world_on_both: World, placer: PlacementWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, read = world_on_both, list[int]()
    world.add_machine("a", gpu_count=1)
    changed_since = fleet.changed_since

    def reading(tx: Tx, scope: Scope, cluster_id: str, version: int) -> fleet.Changes:
        found = changed_since(tx, scope, cluster_id, version)
        read.append(len(found.machines))
        return found

    monkeypatch.setattr(fleet, "changed_since", reading)

    def where(gpus: int) -> str | None:
        def explain(fleets: Fleets) -> queue.Explanation:
            with world.act("member", "acme", "research") as ctx:
                return queue.explain(ctx, fleets, Creation("x", gpus=gpus))

        return placer.ask(explain).result(timeout=30).machine

    assert [where(1), where(1), where(2)] == ["a", "a", None]
    assert read == [1]
    world.add_machine("b", gpu_count=2)
    assert where(2) == "b"
    assert read == [1, 1]
    with pytest.raises(Refusal):
        where(5000)


def test_a_worker_that_ends_answers_what_was_asked_and_refuses_what_comes_later(world_on_both: World) -> None:
    worker = PlacementWorker(world_on_both.db)
    asked = [worker.ask(lambda fleets: "answer") for _ in range(5)]
    asyncio.run(worker.start())
    asyncio.run(worker.stop())
    assert [one.result(timeout=0) for one in asked] == ["answer"] * 5
    with pytest.raises(Refusal) as refused:
        worker.ask(lambda fleets: 0)
    assert refused.value.code == "UNAVAILABLE"


def other_cluster(world: World, machine: str) -> None:
    """Make acme's cluster `other`, which its workspace may use, with a machine that was in `default`."""
    with world.db.write() as tx:
        id = world.ids.clusters["other"] = new_id(tx.now)
        acme, research = world.ids.orgs["acme"], world.ids.workspaces["acme/research"]
        tx.run(insert(clusters).values(id=id, hosted=False, created_at=tx.now))
        named = {"slug": "other", "name": "Other", "joined_at": tx.now}
        tx.run(insert(tenancies).values(cluster_id=id, org_id=acme, **named))
        granted = {"workspace_id": research, "cluster_id": id}
        tx.run(insert(access).values(**granted, org_id=acme, changed_at=tx.now))
        tx.run(insert(access_pools).values(**granted, pool="*"))
        tx.run(update(machines).where(machines.c.id == world.ids.machines[machine]).values(cluster_id=id))
        fleet.touch(tx, Scope(acme), id, [world.ids.machines[machine]])


def test_a_gpu_that_is_fenced_from_another_cluster_is_given_to_nobody(
    world_on_both: World, placer: PlacementWorker
) -> None:
    """Two machines claim one GPU, in two clusters of one organisation."""
    Host(world_on_both, "there", gpu(1))
    other_cluster(world_on_both, "there")
    here = Host(world_on_both, "here", gpu(1))
    assert outcome(world_on_both, placer, Creation("big", cluster="other", gpus=2)) == "NO_CAPACITY", (
        "now it knows both"
    )
    here.say(xid(79))
    assert outcome(world_on_both, placer, Creation("dev", cluster="other", gpus=1)) == "NO_CAPACITY"
