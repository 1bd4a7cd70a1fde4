"""Whatever people, machines and time do in any order (spec 60, lines 1 to 3): no GPU twice, nothing oversold, no quota
exceeded in any dimension, nothing in a window that is not its own, nothing on a fenced GPU."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import Any

from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import and_, func, insert, select, update

from corral.domain.allocations import Seen
from corral.domain.compute_clusters import Creation
from corral.domain.errors import Refusal
from corral.domain.quotas import Quota
from corral.domain.workloads import STOP_GRACE
from corral.store import access, fleet
from corral.store import reservations as reservation_rows
from corral.store.reservations import For
from corral.store.tables.faults import gpu_faults
from corral.store.tables.machines import gpus, machines
from corral.store.tables.reservations import reservation_machines, reservation_workspaces, reservations
from corral.store.tables.workloads import allocations, gpu_holds, workloads
from corral.store.transaction import Scope
from corral.usecases import queue, workload_life
from corral.usecases.context import new_id
from corral.usecases.fleets import Fleets
from tests.conftest import Clock
from tests.placing import check_invariants, create, report, saying, terminate
from tests.world import World

QUOTAS = (
    Quota(gpus=4),
    Quota(gpu_models={"H100": 1, "A100": 1}),
    Quota(gpus=5, vcpu=24, ram_gib=80, storage_gib=900),
    Quota(gpu_hours_month=1),
)
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""A failure is told as it was found: making it smaller against a database takes minutes."""
STEPS = st.one_of(
    st.tuples(st.just("create"), st.sampled_from((1, 2, 3, 0)), st.booleans(), st.sampled_from((None, 600, 3600))),
    st.tuples(st.just("create"), st.sampled_from((1, 2, 3)), st.just(False), st.sampled_from((None, 600, 3600))),
    st.tuples(st.just("reserve"), st.integers(0, 2), st.integers(-600, 1200), st.integers(60, 3600), st.booleans()),
    st.tuples(st.just("fault"), st.integers(0, 5), st.booleans()),
    st.tuples(st.just("finish"), st.integers(0, 9)),
    st.tuples(st.just("terminate"), st.integers(0, 9)),
    st.tuples(st.just("report"), st.integers(0, 9), st.sampled_from(list(Seen))),
    st.tuples(st.just("cordon"), st.integers(0, 1), st.booleans()),
    st.tuples(st.just("down"), st.integers(0, 1), st.booleans()),
    st.tuples(st.just("wait"), st.integers(1, 40)),
    st.tuples(st.just("wait"), st.integers(100, 3000)),
    st.tuples(st.just("restart")),
)


class Site:
    """The world under a run of steps, with one worker's memory that lives through them."""

    def __init__(self, world: World, clock: Clock, run: str, quota: Quota) -> None:
        self.world, self.clock, self.run, self.quota = world, clock, run, quota
        self.fleets = Fleets()
        self.names: list[str] = []
        self.machines = [f"{run}-{number}" for number in range(2)]
        self._clear()
        for name in self.machines:
            world.add_machine(name, gpu_count=3, pool=name[-1])
        with world.db.write() as tx:
            tx.run(update(gpus).where(gpus.c.uuid.startswith(f"GPU-{run}-1-")).values(model="A100"))
            access.put(tx, self.scope, world.ids.workspaces["acme/research"], self.cluster, quota)
            access.put_pools(tx, self.scope, world.ids.workspaces["acme/research"], self.cluster, ["*"])

    def _clear(self) -> None:
        """End what an earlier run left, so that each begins on an empty site."""
        with self.world.db.write() as tx:
            fleet.touch(tx, self.scope, self.cluster, list(self.world.ids.machines.values()))
            for table, column in ((allocations, "released_at"), (gpu_holds, "released_at"), (workloads, "ended_at")):
                tx.run(update(table).values({column: tx.now}))
            tx.run(update(machines).values(removed_at=tx.now))
            tx.run(update(reservations).values(ended_at=tx.now))
            tx.run(update(allocations).values(placed_at=allocations.c.released_at))  # it used no GPU-hours

    @property
    def scope(self) -> Scope:
        return Scope(self.world.ids.orgs["acme"])

    @property
    def cluster(self) -> str:
        return self.world.ids.clusters["default"]

    def do(self, step: tuple[Any, ...]) -> None:
        with self.world.db.read() as tx:
            before = {row["id"] for row in tx.all(select(allocations.c.id))}
        getattr(self, step[0])(*step[1:])
        with self.world.db.write() as tx:
            org, cluster = self.world.ids.orgs["acme"], self.world.ids.clusters["default"]
            queue.advance(tx, self.fleets, org, cluster)
        check_invariants(self.world.db)
        self.check_quota()
        self.check_placed(before)
        self.check_states()

    def reserve(self, which: int, begins_in: int, length: int, ours: bool) -> None:
        """Reserve a machine by name, or all by their pools (2), for this workspace or for nobody."""
        covered = self.machines if which == 2 else [self.machines[which]]
        with self.world.db.write() as tx:
            fleet.touch(tx, self.scope, self.cluster, [self.world.ids.machines[name] for name in covered])
            for pool in ("0", "1") if which == 2 else (None,):
                named = [] if pool else [self.world.ids.machines[name] for name in covered]
                start = tx.now + timedelta(seconds=begins_in)
                when = {"starts_at": start, "ends_at": start + timedelta(seconds=length), "reason": ""}
                place = {"id": new_id(tx.now), "cluster_id": self.cluster, "pool": pool}
                whom = For(named, [self.world.ids.workspaces["acme/research"]] if ours else [])
                row = {**place, **when, "created_by": self.world.ids.users["admin"]}
                reservation_rows.add(tx, self.scope, row, whom)

    def fault(self, number: int, clear: bool) -> None:
        machine = self.machines[number // 3]
        uuid = f"GPU-{machine}-{number % 3}"
        with self.world.db.write() as tx:
            fleet.touch(tx, self.scope, self.cluster, [self.world.ids.machines[machine]])
            latched = gpu_faults.c.uuid == uuid, gpu_faults.c.cleared_at.is_(None)
            if clear:
                tx.run(update(gpu_faults).where(*latched).values(cleared_at=tx.now))
            elif tx.one(select(gpu_faults.c.id).where(*latched)) is None:
                what = {"id": new_id(tx.now), "org_id": self.scope.org, "vendor": "nvidia", "uuid": uuid}
                seen = {"machine_id": self.world.ids.machines[machine], "code": "xid_79", "since": tx.now}
                tx.run(insert(gpu_faults).values(**what, **seen, last_at=tx.now))

    def create(self, gpus: int, wait: bool, limit: int | None) -> None:
        name = f"{self.run}-w{len(self.names)}"
        closed = self.closed()
        with suppress(Refusal):
            creation = Creation(name, gpus=gpus, wait=wait, time_limit_seconds=limit)
            made = create(self.world, creation, fleets=self.fleets)
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
        """In every dimension; of GPU-hours by what was used really."""
        of_this_run = allocations.c.released_at.is_(None) | (allocations.c.placed_at != allocations.c.released_at)
        with self.world.db.read() as tx:
            rows, now = tx.all(select(allocations).where(of_this_run)), tx.now
        live: Counter[str] = Counter()
        used = timedelta(0)
        for row in rows:
            if row["released_at"] is None:
                live.update({name: row[name] for name in ("gpus", "vcpu", "ram_mib", "storage_mib")})
                live[row["gpu_model"]] += row["gpus"]
            sure_end = row["must_end_by"] + STOP_GRACE if row["must_end_by"] is not None else now
            used += row["gpus"] * (min(row["released_at"] or now, sure_end) - row["placed_at"])
        for (name, model), limit in self.quota.limits:
            assert live[model or name.replace("_gib", "_mib")] <= limit
        if self.quota.gpu_hours_month is not None:
            assert used <= timedelta(hours=self.quota.gpu_hours_month)

    def check_placed(self, before: set[str]) -> None:
        """What was placed just now is in no window that is not its own, and on no fenced GPU."""
        mine = self.world.ids.workspaces["acme/research"]
        with self.world.db.read() as tx:
            placed = tx.all(
                select(allocations, machines.c.pool)
                .join(machines, machines.c.id == allocations.c.machine_id)
                .where(allocations.c.id.not_in(before))
            )
            windows = tx.all(
                select(reservations, reservation_machines.c.machine_id, reservation_workspaces.c.workspace_id)
                .outerjoin(reservation_machines, reservation_machines.c.reservation_id == reservations.c.id)
                .outerjoin(reservation_workspaces, reservation_workspaces.c.reservation_id == reservations.c.id)
                .where(reservations.c.ended_at.is_(None))
            )
            holds = gpu_holds.c.allocation_id.in_([row["id"] for row in placed])
            fenced = and_(gpus.c.uuid == gpu_faults.c.uuid, gpu_faults.c.cleared_at.is_(None))
            faulty = select(gpus.c.uuid).join(gpu_holds, gpu_holds.c.gpu_id == gpus.c.id).join(gpu_faults, fenced)
            assert tx.all(faulty.where(holds)) == []
        for row in placed:
            for window in windows:
                covers = window["machine_id"] == row["machine_id"] or window["pool"] == row["pool"]
                if covers and window["workspace_id"] != mine and window["ends_at"] > row["placed_at"]:
                    assert row["must_end_by"] is not None
                    assert row["must_end_by"] + STOP_GRACE <= window["starts_at"]

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

    @settings(max_examples=60, deadline=None, phases=PHASES, suppress_health_check=[HealthCheck.too_slow])
    @example(Quota(gpu_hours_month=1), [("create", 2, False, 1500), ("create", 3, True, None), ("wait", 3000)])
    @given(st.sampled_from(QUOTAS), st.lists(STEPS, min_size=12, max_size=24))
    def holds(quota: Quota, steps: list[tuple[Any, ...]]) -> None:
        site = Site(world, clock, f"r{next(runs)}", quota)
        for step in steps:
            site.do(step)

    holds()
