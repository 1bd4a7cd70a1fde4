"""What is remembered of tenancies: brought up to date by what changed, locked in one order (decisions 5 and 6)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event, insert, select, update

from corral.controllers.batches import Batches
from corral.controllers.heard import Heard
from corral.domain.allocations import Seen
from corral.domain.asks import PlacementAsk
from corral.domain.compute_clusters import Creation
from corral.domain.errors import Refusal
from corral.domain.fleet import Fleet
from corral.domain.placement import try_place
from corral.domain.quotas import Quota
from corral.domain.resources import Ask
from corral.domain.sessions import Opened
from corral.server.agents import Hub
from corral.store import allocations as store
from corral.store import fleet, restored, workloads
from corral.store.engine import Database
from corral.store.tables.access import access, access_pools
from corral.store.tables.clusters import clusters, tenancies
from corral.store.tables.machines import machines
from corral.store.tables.workloads import allocations
from corral.store.transaction import Scope, Tx
from corral.usecases import orgs, workload_life
from corral.usecases.fleets import Fleets, Grant, Line, Remembered, Tenancy, Waiting
from corral.usecases.idempotency import Stored
from corral.usecases.placement import create_many
from tests.conftest import Clock
from tests.facts import GIB, machine, planned
from tests.placing import ask, create, report, saying, terminate
from tests.world import World

SMALL = (
    "ix_allocations_must_end",
    "ix_allocations_stopping",
    "ix_allocations_differ",
    "ix_machines_down",
    "ix_workloads_out_of_sync",
)
"""Indexes of what is not as it should be."""
FIRST = "00000000-0000-7000-8000-000000000000"
"""A cluster that sorts before the others."""


@pytest.fixture
def world(world_on_both: World) -> World:
    return world_on_both


def two_tenancies(world: World) -> tuple[tuple[str, str], tuple[str, str]]:
    """Give the organisation that sorts last the cluster that sorts first; return (organisation, cluster) of each."""
    early, late = sorted(("acme", "rival"), key=lambda org: world.ids.orgs[org])
    with world.db.write() as tx:
        tx.run(insert(clusters).values(id=FIRST, hosted=False, created_at=tx.now))
        mine = {"cluster_id": FIRST, "org_id": world.ids.orgs[late]}
        tx.run(insert(tenancies).values(**mine, slug="big", name="Big", joined_at=tx.now))
        granted = {"workspace_id": world.ids.workspaces[f"{late}/research"], "cluster_id": FIRST}
        tx.run(insert(access).values(**granted, org_id=mine["org_id"], changed_at=tx.now))
        tx.run(insert(access_pools).values(**granted, pool="*"))
    return (world.ids.orgs[late], FIRST), (world.ids.orgs[early], world.ids.clusters["default"])


def test_whatever_locks_several_tenancies_locks_them_in_one_order(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two_tenancies(world)
    locked: list[tuple[str, str]] = []
    lock = fleet.lock

    def seeing(tx: Tx, scope: Scope, cluster_id: str) -> int:
        if (scope.org, cluster_id) not in locked:
            locked.append((scope.org, cluster_id))
        return lock(tx, scope, cluster_id)

    monkeypatch.setattr(fleet, "lock", seeing)
    for name, org in (("a", "acme"), ("b", "rival")):
        world.add_machine(name, org)
        if world.ids.orgs[org] == first[0]:
            with world.db.write() as tx:
                tx.run(update(machines).where(machines.c.name == name).values(cluster_id=FIRST))
    big = {world.ids.orgs["acme"]: "acme", world.ids.orgs["rival"]: "rival"}[first[0]]
    locked.clear()
    with world.db.write() as tx:
        asks = [
            ask(world, Creation("w", cluster="big" if org == big else "default", time_limit_seconds=60), who)
            for org, who in (("acme", "member"), ("rival", "rival"))
        ]
        assert all(isinstance(answer, Stored) for answer in create_many(tx, Fleets(), asks))
    assert locked == [first, second]
    locked.clear()
    clock.forward(61)
    with world.db.write() as tx:
        workload_life.tick(tx)
    assert locked == [first, second]
    locked.clear()
    asyncio.run(_acts_of_machines(world, [second, first]))
    assert locked == [first, second]


async def _acts_of_machines(world: World, where: list[tuple[str, str]]) -> None:
    """Let a machine of each tenancy do something at the same moment."""
    batches = Batches(world.db)
    hub = Hub(world.db, batches, Heard(time.monotonic), world.config, world.app.state.artefact)

    def locking(org: str, cluster: str) -> asyncio.Task[int]:
        who = Opened("machine", org, cluster, "m", 1, "")
        return asyncio.create_task(hub.act(who, lambda tx: fleet.lock(tx, Scope(org), cluster)))

    acts = [locking(org, cluster) for org, cluster in where]
    await asyncio.sleep(0)  # both are submitted
    await batches.start()
    await asyncio.gather(*acts)
    await batches.stop()


def test_what_is_remembered_is_what_would_be_read_anew(world: World) -> None:
    scope, cluster = Scope(world.ids.orgs["acme"]), world.ids.clusters["default"]
    remembered = Fleets()
    for name in ("a", "b"):
        world.add_machine(name, gpu_count=2)
    create(world, Creation("on-a", gpus=2), fleets=remembered)
    create(world, Creation("on-b", gpus=1))
    for name in ("waits-1", "waits-2"):
        create(world, Creation(name, gpus=2, wait=True))
    steps: list[Callable[[], object]] = [
        lambda: terminate(world, "on-a"),
        lambda: report(world, "a", [saying(world, "on-a", Seen.GONE)]),
        lambda: terminate(world, "waits-1"),
        lambda: terminate(world, "on-b"),
        lambda: report(world, "b", [saying(world, "on-b", Seen.GONE)]),
        lambda: None,
    ]
    for step in steps:
        with world.db.read() as tx:
            known, anew = remembered.seen(tx, scope, cluster), Fleets().seen(tx, scope, cluster)
        counts = [{ws: +its for ws, its in tenancy.counted.live.items() if +its} for tenancy in (known, anew)]
        assert counts[0] == counts[1]
        assert [one.name for one in known.queue] == [one.name for one in anew.queue]
        free = [{name: (m.vcpu, m.by_model) for name, m in t.fleet.machines.items()} for t in (known, anew)]
        assert free[0] == free[1]
        step()


def test_when_one_machine_changed_nothing_else_is_read_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    scope, cluster = Scope(world.ids.orgs["acme"]), world.ids.clusters["default"]
    for name in ("a", "b"):
        world.add_machine(name, gpu_count=1)
        create(world, Creation(f"on-{name}", gpus=1))
    create(world, Creation("waits", gpus=1, wait=True))
    remembered = Fleets()
    with world.db.read() as tx:
        remembered.seen(tx, scope, cluster)
    with world.db.write() as tx:
        fleet.touch(tx, scope, cluster, [world.ids.machines["a"]])
    read: list[str] = []
    queue, changed_since = workloads.queue, fleet.changed_since

    def changes(tx: Tx, scope: Scope, cluster_id: str, version: int) -> fleet.Changes:
        found = changed_since(tx, scope, cluster_id, version)
        read.extend(facts.name for facts in found.machines)
        read.extend(found.live)
        return found

    monkeypatch.setattr(fleet, "changed_since", changes)
    monkeypatch.setattr(workloads, "queue", lambda *args: read.append("queue") or queue(*args))  # type: ignore[func-returns-value]
    with world.db.read() as tx:
        assert [one.name for one in remembered.seen(tx, scope, cluster).queue] == ["waits"]
    assert read == ["a", world.ids.machines["a"]]
    terminate(world, "waits")
    with world.db.read() as tx:
        assert remembered.seen(tx, scope, cluster).queue == []


def test_a_tenancy_may_change_more_often_than_a_small_number_counts(world: World) -> None:
    scope, cluster = Scope(world.ids.orgs["acme"]), world.ids.clusters["default"]
    world.add_machine("a")
    with world.db.write() as tx:
        tx.run(update(tenancies).values(version=2**31))
        assert fleet.touch(tx, scope, cluster, [world.ids.machines["a"]]) == 2**31 + 1
    assert create(world, Creation("waits", gpus=99, wait=True))["queued"]
    with world.db.read() as tx:
        assert len(fleet.changed_since(tx, scope, cluster, 2**31).machines) == 1


def test_who_asks_is_judged_under_the_lock(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An organisation that is removed while an ask waits for its lock gets nothing more."""
    at_the_lock, lock = threading.Event(), fleet.lock
    removing = threading.current_thread()

    def seeing(tx: Tx, scope: Scope, cluster_id: str) -> int:
        if threading.current_thread() is not removing:
            at_the_lock.set()
        return lock(tx, scope, cluster_id)

    monkeypatch.setattr(fleet, "lock", seeing)
    with ThreadPoolExecutor(1) as pool:
        with world.act("rival", "rival") as ctx:
            orgs.remove(ctx)
            asked = pool.submit(create, world, Creation("late", wait=True), "rival")
            # SQLite has one writer: there the ask comes in only after the removal.
            assert world.db.is_sqlite or at_the_lock.wait(20)
        with pytest.raises(Refusal) as refused:
            asked.result(timeout=30)
    assert refused.value.code == "NOT_FOUND"
    with world.db.read() as tx:
        assert workloads.tenancies_with_queue(tx) == []


def test_the_clocks_pass_reads_no_table_from_end_to_end(world: World) -> None:
    """It comes each second, for all tenants; what is as it should be costs nothing."""
    asked: list[tuple[str, Any]] = []
    with world.db.write() as tx:

        @event.listens_for(tx.conn, "before_cursor_execute")
        def note(_conn: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: bool) -> None:
            asked.append((statement, parameters))

        workload_life.due(tx)
    with world.db.write() as tx:
        if not world.db.is_sqlite:
            tx.conn.exec_driver_sql("SET LOCAL enable_seqscan = off")
        for statement, parameters in asked:
            explained = f"EXPLAIN {'QUERY PLAN' if world.db.is_sqlite else ''} {statement}"
            plan = [str(row) for row in tx.conn.exec_driver_sql(explained, parameters)]
            scans = [step for step in plan if "Seq Scan" in step or ("SCAN" in step and "ix_" not in step)]
            assert not scans, plan
            # On so few rows PostgreSQL takes whichever index; SQLite takes it by the rules alone.
            assert not world.db.is_sqlite or any(index in step for step in plan for index in SMALL), plan
            assert not [step for step in plan if "SCAN" in step and not any(index in step for index in SMALL)], plan
    assert len(asked) == 5


def test_a_clock_pass_with_nothing_due_finds_nothing_and_each_kind_once(world: World, clock: Clock) -> None:
    world.add_machine("a")
    create(world, Creation("fine"))
    with world.db.read() as tx:
        assert not workload_life.due(tx)
    with world.db.write() as tx:
        long_ago = tx.now - timedelta(hours=1)
        tx.run(update(allocations).values(mismatch_since=long_ago, stop_asked_at=long_ago, must_end_by=long_ago))
        tx.run(update(machines).values(state="down", state_since=long_ago))
    with world.db.read() as tx:
        due = workload_life.due(tx)
        assert len(due.differing) == 1
        assert not due.overdue  # it was told to stop
        assert tx.scalar(select(allocations.c.id)) == due.differing[0]["allocation_id"]


def test_of_a_workloads_allocations_the_newest_is_read_and_no_other(world: World, clock: Clock) -> None:
    world.add_machine("a")
    create(world, Creation("dev"))
    clock.forward(10)
    with world.db.write() as tx:
        old = tx.one(select(allocations))
        assert old is not None
        tx.run(update(allocations).values(released_at=tx.now))
        for name in ("newer", "newest"):
            released = {"placed_at": tx.now, "released_at": tx.now}
            tx.run(insert(allocations).values(**{**old, **released, "id": f"{name}-{old['id'][:20]}"}))
        found = store.of_workloads(tx, Scope(world.ids.orgs["acme"]), [old["workload_id"]])
    assert [row["id"] for row in found.values()] == [f"newest-{old['id'][:20]}"]


# ---- what waits, as it is remembered

QUOTAS = (
    Quota(),
    Quota(gpus=9),
    Quota(gpu_models={"H100": 5}),
    Quota(vcpu=40),
    Quota(ram_gib=300, gpus=12),
    Quota(gpu_hours_month=6_000),
)
asked = st.builds(
    PlacementAsk,
    st.builds(Ask, st.integers(0, 5), st.none() | st.integers(1, 20), st.none() | st.integers(1, 80).map(GIB.__mul__)),
    machine=st.none() | st.sampled_from(("a", "b")),
    gpu_model=st.none() | st.sampled_from(("A100", "H100")),
    workspace=st.sampled_from(("w1", "w2")),
)


def whole(tenancy: Tenancy, tx: Tx) -> tuple[object, ...]:
    """Return whom a new ask must not overtake, and how each workspace stands after all of its own that wait."""
    ahead, machines = tenancy.ahead(tx), tenancy.fleet.machines
    kinds = {name: ahead.waits_for(machine.kind) for name, machine in machines.items()}
    return kinds, set(ahead.kept(machines)), tenancy.standing(tx, "w1"), tenancy.standing(tx, "w2")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.tuples(*[st.sampled_from(QUOTAS)] * 2), st.lists(st.tuples(asked, st.integers(0, 9)), max_size=14))
def test_what_waits_is_remembered_as_it_would_be_judged_anew(
    sqlite_db: Database, quotas: tuple[Quota, Quota], steps: list[tuple[PlacementAsk, int]]
) -> None:
    """Whatever was placed or waits since: nothing that is kept of the queue is other than what it would be."""
    fleet_ = Fleet.of([machine("a", vcpu=32), machine("b", ("A100",) * 4 + ("H100",) * 2, vcpu=64)])
    grants: dict[str, Grant | None] = {
        name: Grant(None, quota) for name, quota in zip(("w1", "w2"), quotas, strict=True)
    }
    here = Tenancy("cluster", Scope("org"), fleet=fleet_, grants=grants)
    with sqlite_db.read() as tx:
        for number, (want, hours) in enumerate(steps):
            waiting = Waiting(str(number), want.workspace, "", want, hours * 3600 or None, "")
            want = waiting.asking(None, tx.now)
            within, over = here.judged(tx, want)
            plan = try_place(here.fleet, within, here.ahead(tx)) if over is None else None
            if plan is not None:
                here.take(want, plan)
            else:
                here.wait(waiting)
            assert whole(here, tx) == whole(replace(here, _line=Remembered()), tx)


def test_what_waits_keeps_no_machine_on_which_its_share_is_more_than_the_quota_leaves_by_now(
    sqlite_db: Database,
) -> None:
    small, large, other = machine("a", vcpu=32), machine("b", vcpu=64), machine("c", vcpu=128, pool="other")
    grants = dict.fromkeys(("w1", "w2"), Grant(None, Quota(vcpu=20)))
    here = Tenancy("cluster", Scope("org"), fleet=Fleet.of([small, large, other]), grants=dict(grants))
    with sqlite_db.read() as tx:
        here.wait(Waiting("1", "w1", "", PlacementAsk(Ask(2, ram_mib=512 * GIB), pool="", workspace="w1"), None, ""))
        kinds = [here.fleet.machines[name].kind for name in ("a", "b")]
        assert [here.ahead(tx).waits_for(kind) for kind in kinds] == [True, True]  # for 8 or 16 vCPU of 20
        want = PlacementAsk(Ask(1, vcpu=6), pool="other", workspace="w1", now=tx.now)
        here.take(want, planned(here.fleet, here.judged(tx, want)[0], here.ahead(tx)))
        assert [here.ahead(tx).waits_for(kind) for kind in kinds] == [True, False]  # of 14
        assert whole(here, tx) == whole(replace(here, _line=Remembered()), tx)


@pytest.mark.parametrize("quota", QUOTAS)
def test_a_placement_has_nothing_that_waits_judged_again(
    sqlite_db: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch, quota: Quota
) -> None:
    fleet_ = Fleet.of([machine("a"), machine("b", ("A100",) * 8)])
    here = Tenancy("cluster", Scope("org"), fleet=fleet_, grants=dict.fromkeys(("w1", "w2"), Grant(None, quota)))
    turns: list[str] = []
    turn, doubtful = Line.turn, restored.doubtful

    def turning(line: Line, waiting: Waiting) -> tuple[PlacementAsk | None, str]:
        turns.append(waiting.id)
        return turn(line, waiting)

    def doubting(tx: Tx, scope: Scope, cluster_id: str) -> frozenset[str]:
        turns.append("doubtful")
        return doubtful(tx, scope, cluster_id)

    monkeypatch.setattr(Line, "turn", turning)
    monkeypatch.setattr(restored, "doubtful", doubting)
    for number in range(6):
        want = PlacementAsk(Ask(1, 4, GIB), machine="gone", workspace=f"w{1 + number % 2}")
        here.wait(Waiting(str(number), want.workspace, "", want, 60, ""))
    with sqlite_db.read() as tx:
        here.begin()
        for number in range(4):
            want = PlacementAsk(Ask(1, 1), workspace=f"w{1 + number % 2}", now=tx.now, sure_end=tx.now)
            within, _ = here.judged(tx, want)
            plan = try_place(here.fleet, within, here.ahead(tx))
            assert plan is not None
            here.take(want, plan)
            assert turns == ["doubtful", *map(str, range(6))]
        last = Waiting("last", "w1", "", want, 60, "")
        here.wait(last)
        here.ahead(tx)
        assert turns[7:] == ["last"]
    turns.clear()
    clock.forward(2)
    with sqlite_db.read() as tx:
        here.begin()
        here.ahead(tx)
    timed = quota.gpu_hours_month is not None
    assert set(turns) == ({"doubtful", "last", *map(str, range(6))} if timed else set())
