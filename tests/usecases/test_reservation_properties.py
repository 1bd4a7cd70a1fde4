"""Whatever is reserved, relabelled, removed and waited for: what is refused and what is placed is what a model of
hours says, on both databases (spec 10, "Reservations"; spec 60, line 3)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any

from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from corral.controllers.reservations import Reservations
from corral.domain.compute_clusters import Creation
from corral.domain.errors import Refusal
from corral.store import fleet
from corral.store.tables.machines import machines
from corral.store.tables.reservations import reservations as table
from corral.store.tables.workloads import allocations, gpu_holds, workloads
from corral.store.transaction import Scope
from corral.usecases.fleets import Fleets
from tests.conftest import Clock
from tests.placing import create
from tests.usecases.test_reservations import NOON, asked, make, relabel, remove, shown
from tests.world import World

PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""A failure is told as it was found: making it smaller against a database takes minutes."""
NAMES, POOLS, EVER = ("a", "b"), ("", "x", "y"), 200
WHICH = st.tuples(st.frozensets(st.sampled_from(NAMES)), st.sampled_from(POOLS)).filter(lambda one: any(one))
CREATE = st.tuples(st.just("create"), st.none() | st.integers(1, 6), st.booleans())
STEPS = st.one_of(
    st.tuples(st.just("reserve"), WHICH, st.tuples(st.integers(-1, 4), st.integers(1, 4)), st.booleans()),
    CREATE,
    CREATE,
    st.tuples(st.just("relabel"), st.sampled_from(NAMES), st.sampled_from(POOLS)),
    st.tuples(st.just("remove"), st.integers(0, 9)),
    st.tuples(st.just("wait"), st.integers(1, 3)),
    st.tuples(st.just("restart")),
)
_runs = count()


@dataclass(frozen=True)
class Reserved:
    """A reservation in the model: machines by name, a pool, the hours of its window, whether it is for `research`."""

    id: str
    names: frozenset[str]
    pool: str
    hours: range
    ours: bool


class Site:
    """The world under a run of steps beside a model of it; hours count from the run's beginning."""

    def __init__(self, world: World, clock: Clock) -> None:
        self.world, self.clock, self.fleets = world, clock, Fleets()
        self.run, self.begun = f"r{next(_runs)}", clock.now
        self.pools = dict.fromkeys(NAMES, "")
        self.live: list[Reserved] = []
        self.made = 0
        self._clear()
        for name in NAMES:
            world.add_machine(self._name(name), gpu_count=0)

    def _clear(self) -> None:
        """End what an earlier run left."""
        with self.world.db.write() as tx:
            scope, ids = Scope(self.world.ids.orgs["acme"]), list(self.world.ids.machines.values())
            fleet.touch(tx, scope, self.world.ids.clusters["default"], ids)
            for old, column in ((allocations, "released_at"), (gpu_holds, "released_at"), (workloads, "ended_at")):
                tx.run(update(old).values({column: tx.now}))
            tx.run(update(table).values(removed_at=tx.now, ended_at=tx.now))
            tx.run(update(machines).values(removed_at=tx.now))

    def _name(self, machine: str) -> str:
        return f"{self.run}-{machine}"

    @property
    def now(self) -> int:
        return int((self.clock.now - self.begun).total_seconds() // 3600)

    def covered(self, one: Reserved) -> set[str]:
        return {name for name, pool in self.pools.items() if name in one.names or (one.pool and pool == one.pool)}

    def reserve(self, which: tuple[frozenset[str], str], window: tuple[int, int], ours: bool) -> None:
        names, pool = which
        start = self.now + window[0]
        new = Reserved("", names, pool, range(start, start + window[1]), ours)
        against = {
            one.id
            for one in self.live
            if set(one.hours) & set(new.hours)
            and ((new.pool and one.pool == new.pool) or self.covered(one) & self.covered(new))
        }
        zero = (self.begun - NOON).total_seconds() / 3600
        whom = ["research"] if ours else []
        given_ = asked(
            zero + start,
            zero + start + window[1],
            sorted(self._name(name) for name in names),
            pool or None,
            workspaces=whom,
        )
        try:
            id = make(self.world, given_).id
        except Refusal as refusal:
            if refusal.code == "INVALID_RESERVATION":
                assert start + window[1] <= self.now
            else:
                assert refusal.code == "RESERVATION_CONFLICT"
                assert {one["id"] for one in refusal.details["reservations"]} == against != set()
            return
        assert not against
        self.live.append(Reserved(id, names, pool, new.hours, ours))
        told = shown(self.world, id)
        assert set(told.effect.machines) == {self._name(name) for name in self.covered(self.live[-1])}
        assert told.reservation.machines == len(told.effect.machines)

    def create(self, hours: int | None, with_grace: bool) -> None:
        """`with_grace`: its time limit and its stop grace together are over on the hour; else ten seconds later."""
        limit = None if hours is None else hours * 3600 - (10 if with_grace else 0)
        ends = EVER if hours is None else self.now + hours + (0 if with_grace else 1)
        closed = {
            name
            for one in self.live
            if not one.ours and set(one.hours) & set(range(self.now, ends))
            for name in self.covered(one)
        }
        self.made += 1
        try:
            ask = Creation(f"{self.run}-w{self.made}", time_limit_seconds=limit)
            made = create(self.world, ask, fleets=self.fleets)
        except Refusal as refusal:
            assert refusal.code == "NO_CAPACITY" and closed == set(NAMES)
            assert {one["reason"].split(" for ")[0] for one in refusal.details["machines"]} == {"reserved"}
            return
        assert made["machine"] in {self._name(name) for name in NAMES if name not in closed}

    def relabel(self, name: str, pool: str) -> None:
        relabel(self.world, self._name(name), pool)
        self.pools[name] = pool

    def remove(self, number: int) -> None:
        if self.live:
            gone = self.live.pop(number % len(self.live))
            remove(self.world, gone.id)

    def wait(self, hours: int) -> None:
        self.clock.forward(3600 * hours)
        self.live = [one for one in self.live if one.hours.stop > self.now]
        Reservations(self.world.db, 60).pass_once()

    def restart(self) -> None:
        self.fleets = Fleets()


def test_what_is_refused_and_placed_is_what_a_model_of_hours_says(world_on_both: World, clock: Clock) -> None:
    examples = 100 if world_on_both.db.is_sqlite else 40

    @settings(
        max_examples=examples,
        deadline=None,
        phases=PHASES,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(STEPS, min_size=5, max_size=20))
    @example([("reserve", (frozenset(NAMES), ""), (2, 1), False), ("create", 2, True), ("create", 2, False)])
    def run(steps: list[tuple[Any, ...]]) -> None:
        site = Site(world_on_both, clock)
        for step in steps:
            getattr(site, step[0])(*step[1:])

    run()
