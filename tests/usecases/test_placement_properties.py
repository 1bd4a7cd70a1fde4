"""Whatever people, machines and time do in any order: no GPU twice, nothing oversold, no quota exceeded (spec 60)."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select, update

from corral.domain.allocations import Seen
from corral.domain.compute_clusters import Creation
from corral.domain.errors import Refusal
from corral.store import fleet
from corral.store.tables.access import access
from corral.store.tables.machines import machines
from corral.store.tables.workloads import allocations, gpu_holds, workloads
from corral.store.transaction import Scope
from corral.usecases import queue, workload_life
from corral.usecases.fleets import Fleets
from tests.conftest import Clock
from tests.placing import check_invariants, create, report, saying, terminate
from tests.world import World

QUOTA = 4
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""A failure is told as it was found: making it smaller against a database takes minutes."""
STEPS = st.one_of(
    st.tuples(st.just("create"), st.sampled_from((1, 2, 3, 0)), st.booleans()),
    st.tuples(st.just("create"), st.sampled_from((1, 2, 3)), st.just(False)),
    st.tuples(st.just("finish"), st.integers(0, 9)),
    st.tuples(st.just("terminate"), st.integers(0, 9)),
    st.tuples(st.just("report"), st.integers(0, 9), st.sampled_from(list(Seen))),
    st.tuples(st.just("cordon"), st.integers(0, 1), st.booleans()),
    st.tuples(st.just("down"), st.integers(0, 1), st.booleans()),
    st.tuples(st.just("wait"), st.integers(1, 40)),
    st.tuples(st.just("restart")),
)


class Site:
    """The world under a run of steps, with one worker's memory that lives through them."""

    def __init__(self, world: World, clock: Clock, run: str) -> None:
        self.world, self.clock, self.run = world, clock, run
        self.fleets = Fleets()
        self.names: list[str] = []
        self.machines = [f"{run}-{number}" for number in range(2)]
        self._clear()
        for name in self.machines:
            world.add_machine(name, gpu_count=3)

    def _clear(self) -> None:
        """End what an earlier run left, so that each begins on an empty site."""
        scope, cluster = Scope(self.world.ids.orgs["acme"]), self.world.ids.clusters["default"]
        with self.world.db.write() as tx:
            fleet.touch(tx, scope, cluster, list(self.world.ids.machines.values()))
            for table, column in ((allocations, "released_at"), (gpu_holds, "released_at"), (workloads, "ended_at")):
                tx.run(update(table).values({column: tx.now}))
            tx.run(update(machines).values(removed_at=tx.now))

    def do(self, step: tuple[Any, ...]) -> None:
        getattr(self, step[0])(*step[1:])
        with self.world.db.write() as tx:
            org, cluster = self.world.ids.orgs["acme"], self.world.ids.clusters["default"]
            queue.advance(tx, self.fleets, org, cluster)
        check_invariants(self.world.db)
        self.check_quota()
        self.check_states()

    def create(self, gpus: int, wait: bool) -> None:
        name = f"{self.run}-w{len(self.names)}"
        closed = self.closed()
        with suppress(Refusal):
            made = create(self.world, Creation(name, gpus=gpus, wait=wait), fleets=self.fleets)
            self.names.append(name)
            assert made["machine"] not in closed

    def terminate(self, number: int) -> None:
        if self.names:
            terminate(self.world, self.names[number % len(self.names)])

    def finish(self, number: int) -> None:
        self.report(number, Seen.RUNNING)
        self.terminate(number)
        self.report(number, Seen.GONE)

    def report(self, number: int, state: Seen) -> None:
        if not self.names:
            return
        name = self.names[number % len(self.names)]
        with self.world.db.read() as tx:
            held = tx.one(
                select(machines.c.name)
                .join(allocations, allocations.c.machine_id == machines.c.id)
                .join(workloads, workloads.c.id == allocations.c.workload_id)
                .where(workloads.c.name == name)
            )
        if held is not None:
            report(self.world, held["name"], [saying(self.world, name, state)])

    def cordon(self, number: int, on: bool) -> None:
        self.change(number, cordon_reason="test" if on else None)

    def down(self, number: int, on: bool) -> None:
        self.change(number, state="down" if on else "up")

    def change(self, number: int, **values: Any) -> None:
        with self.world.db.write() as tx:
            id = self.world.ids.machines[self.machines[number]]
            fleet.touch(tx, Scope(self.world.ids.orgs["acme"]), self.world.ids.clusters["default"], [id])
            tx.run(update(machines).where(machines.c.id == id).values(**values))

    def wait(self, seconds: int) -> None:
        self.clock.forward(seconds)
        with self.world.db.write() as tx:
            workload_life.tick(tx)

    def restart(self) -> None:
        self.fleets = Fleets()

    def closed(self) -> set[str]:
        with self.world.db.read() as tx:
            shut = (machines.c.state != "up") | machines.c.cordon_reason.is_not(None)
            return {row["name"] for row in tx.all(select(machines.c.name).where(shut))}

    def check_quota(self) -> None:
        with self.world.db.read() as tx:
            live = tx.scalar(select(func.sum(allocations.c.gpus)).where(allocations.c.released_at.is_(None)))
        assert (live or 0) <= QUOTA

    def check_states(self) -> None:
        """An ended workload holds nothing; one that lives holds one allocation or waits."""
        with self.world.db.read() as tx:
            rows = tx.all(
                select(
                    workloads.c.name, workloads.c.ended_at, workloads.c.queued, func.count(allocations.c.id).label("n")
                )
                .outerjoin(
                    allocations,
                    (allocations.c.workload_id == workloads.c.id) & allocations.c.released_at.is_(None),
                )
                .group_by(workloads.c.id, workloads.c.name, workloads.c.ended_at, workloads.c.queued)
            )
        for row in rows:
            assert row["n"] == (0 if row["ended_at"] or row["queued"] else 1), row["name"]


def test_no_order_of_events_breaks_what_must_always_hold(world_on_both: World, clock: Clock) -> None:
    world, runs = world_on_both, count()
    with world.db.write() as tx:
        tx.run(update(access).values(gpus=QUOTA))

    @settings(max_examples=30, deadline=None, phases=PHASES, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(STEPS, min_size=10, max_size=18))
    def holds(steps: list[tuple[Any, ...]]) -> None:
        site = Site(world, clock, f"r{next(runs)}")
        for step in steps:
            site.do(step)

    holds()
