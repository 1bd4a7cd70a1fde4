"""Whatever people, machines and time do in any order, against a small model (spec 60, "What must hold").

The nine lines, as far as one database shows them: each is named where it is checked. People's acts go through the
API; machines join, open sessions and report as their agents do. What the model says may be placed is computed from
what was done, never from Corral's own rules.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import func, select, update

from corral.domain.allocations import Report as AllocationReport
from corral.domain.allocations import Seen
from corral.domain.compute_clusters import Creation
from corral.domain.errors import Refusal
from corral.domain.faults import Acknowledged, Counters
from corral.domain.inventory import Gpu, GpuState, Inventory
from corral.domain.machines import DOWN_AFTER
from corral.domain.sessions import Hello, Report
from corral.store import access as access_rows
from corral.store import fleet, journal
from corral.store.tables.access import access
from corral.store.tables.faults import gpu_faults
from corral.store.tables.journal import journal as journal_table
from corral.store.tables.machines import gpus, machines
from corral.store.tables.reservations import reservations
from corral.store.tables.workloads import allocations, gpu_holds, workloads
from corral.store.transaction import Scope
from corral.usecases import faults, joining, liveness, queue, reports, sessions, workload_life
from corral.usecases.fleets import Fleets
from tests.conftest import Clock
from tests.fleet.model import (
    ADMIN,
    GPUS,
    LIMIT_S,
    MEMBER,
    ORGS,
    POOLS,
    QUOTA,
    VCPUS,
    Booking,
    Box,
    Card,
    Model,
    Work,
)
from tests.placing import check_invariants, create
from tests.world import World

PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""A failure is told as it was found: making it smaller against a database takes minutes."""


class Site(RuleBasedStateMachine):
    """`world`, `clock` and `numbers` are set by the test: one world serves many runs."""

    world: World
    clock: Clock
    numbers: Iterator[int]

    def __init__(self) -> None:
        super().__init__()
        self.run = f"r{next(self.numbers)}"
        self.model = Model()
        self.fleets = Fleets()
        self.made = 0
        self._empty()
        with self.world.db.read() as tx:
            self.seq = self.first = journal.newest(tx)
        self.read: list[int] = []

    def _empty(self) -> None:
        """End what an earlier run left."""
        world = self.world
        with world.db.write() as tx:
            for org in ORGS:
                fleet.touch(tx, Scope(world.ids.orgs[org]), world.ids.clusters["default"])
                workspace = world.ids.workspaces[f"{org}/research"]
                cluster = world.ids.clusters["default"]
                access_rows.put_pools(tx, Scope(world.ids.orgs[org]), workspace, cluster, POOLS)
            for table, column in ((allocations, "released_at"), (gpu_holds, "released_at"), (workloads, "ended_at")):
                tx.run(update(table).values({column: tx.now}))
            tx.run(update(workloads).values(queued=False))
            tx.run(update(machines).values(removed_at=tx.now))
            tx.run(update(reservations).values(removed_at=tx.now, ended_at=tx.now))
            tx.run(update(gpu_faults).values(cleared_at=tx.now))

    # ---- doors

    def ask(self, who: str, method: str, path: str, *, changes: bool = True, **kwargs: Any) -> Any:
        """Ask as a person. Line 7: one audit entry for what changed, none for the rest. Line 8: no 5xx.

        `changes`: what is asked for is not so already.
        """
        before = self._audited()
        answer = self.world.client(who).request(method, f"/api/v1/orgs/{path}", **kwargs)
        assert answer.status_code < 500, answer.text
        done = answer.status_code < 300 and changes and method != "GET"
        assert self._audited() - before == done, (method, path, answer.text)
        return answer

    def _audited(self) -> int:
        """Count people's entries in the audit."""
        mine = (journal_table.c.audit, journal_table.c.actor_kind == "user")
        with self.world.db.read() as tx:
            return int(tx.scalar(select(func.count()).select_from(journal_table).where(*mine)))

    def node(self, box: Box) -> str:
        return f"{box.org}/clusters/default/nodes/{box.name}"

    def some(self, number: int, **how: Any) -> Box | None:
        """Return one of the machines that are as said."""
        fit = [box for box in self.model.boxes if all(getattr(box, k) == v for k, v in how.items())]
        return fit[number % len(fit)] if fit else None

    # ---- machines

    @initialize()
    def begin(self) -> None:
        for org, pool in (("acme", "a"), ("acme", "b"), ("rival", "a")):
            self.join(org, pool)
            self.report(len(self.model.boxes) - 1)

    @rule(org=st.sampled_from(ORGS), pool=st.sampled_from(POOLS))
    def join(self, org: str, pool: str) -> None:
        """Line 5: the token makes one machine; another key is refused, the same gets the same again."""
        if len(self.model.boxes) > 6:
            return
        tokens = f"{org}/clusters/default/enrollment-tokens"
        made = self.ask(ADMIN[org], "POST", tokens, json={"labels": {"pool": pool}})
        assert made.status_code == 201, made.text
        token, key = made.json()["token"], os.urandom(32).hex()
        host = f"{self.run}-m{len(self.model.boxes)}"
        first, again = self._join(token, key, host), self._join(token, key, host)
        assert isinstance(first, joining.Joined) and isinstance(again, joining.Joined)
        assert first.machine == again.machine
        other = self._join(token, os.urandom(32).hex(), host)
        assert isinstance(other, Refusal) and other.code == "TOKEN_USED"
        n = len(self.model.boxes)
        cards = [Card(f"GPU-{self.run}-{n}-{i}", f"0000:{n + 1:02x}:0{i}.0") for i in range(GPUS)]
        self.model.boxes.append(Box(org, first.machine.name, key, token, cards, pool))

    def _join(self, token: str, key: str, host: str) -> joining.Joined | Refusal:
        with self.world.db.write() as tx:
            return joining.join(tx, joining.asked(token, key, host, "1"))

    @rule(number=st.integers(0, 9))
    def report(self, number: int) -> None:
        """A machine says hello, if it has no session, and reports; a removed one is told so for ever (line 5)."""
        box = self.model.boxes[number % len(self.model.boxes)] if self.model.boxes else None
        if box is None:
            return
        try:
            if box.session is None:
                box.instances += 1
                hello = Hello(1, "1", f"{box.name}-{box.instances}", "boot", 1)
                with self.world.db.write() as tx:
                    box.session = sessions.open(tx, box.key, hello, "192.0.2.7")
            self._report(box)
        except Refusal as refusal:
            assert box.removed and refusal.code == "MACHINE_REMOVED", refusal
            box.session = None
            return
        assert not box.removed
        box.up = True

    def _report(self, box: Box) -> None:
        assert box.session is not None
        cards = [Gpu("nvidia", c.uuid, c.slot, "H100", 81920, "", GpuState.OK, "", "") for c in box.cards]
        said = Inventory(f"d{box.name}", box.name, 64, 1 << 20, 1 << 20, cards, {"gpu_probe": "ok"})
        report = Report("1", said.digest, said, [], list(box.runs.values()), boot_id="boot", kernel_lines=box.kernel)
        with self.world.db.write() as tx:
            done = reports.receive(tx, box.session, report)
        with self.world.db.write() as tx:
            told = {want.id: want for want in sessions.told(tx, box.session, set(box.runs))}
        for id in done.outcome.forget:
            box.runs.pop(id, None)
        for id, want in told.items():
            state = Seen.GONE if want.stop else Seen.RUNNING
            box.runs[id] = AllocationReport(id, want.generation, state, gpus=list(want.gpus))

    @rule(number=st.integers(0, 9))
    def silence(self, number: int) -> None:
        """A machine is not heard for a minute. Line 4: what runs there is still held."""
        box = self.some(number, up=True, removed=False)
        if box is None or box.session is None:
            return
        self.clock.forward(DOWN_AFTER.total_seconds() + 1)
        with self.world.db.write() as tx:
            went = liveness.mark_down(tx, [box.session.machine], lambda _: True)
        assert [one.name for one in went] == [box.name]
        box.up, box.session = False, None

    @rule(number=st.integers(0, 9), on=st.booleans())
    def cordon(self, number: int, on: bool) -> None:
        box = self.some(number, removed=False)
        if box is not None:
            path = f"{self.node(box)}/{'cordon' if on else 'uncordon'}"
            answer = self.ask(ADMIN[box.org], "POST", path, changes=on != box.cordoned)
            assert answer.status_code == 200, answer.text
            box.cordoned = on

    @rule(number=st.integers(0, 9), pool=st.sampled_from((*POOLS, "")))
    def label(self, number: int, pool: str) -> None:
        box = self.some(number, removed=False)
        if box is not None:
            path, changes = f"{self.node(box)}/placement", pool != box.pool
            answer = self.ask(ADMIN[box.org], "PUT", path, json={"pool": pool}, changes=changes)
            assert answer.status_code == 200, answer.text
            box.pool = pool

    @rule(number=st.integers(0, 9), force=st.booleans(), seldom=st.integers(0, 2))
    def remove(self, number: int, force: bool, seldom: int) -> None:
        if not seldom:
            self._remove(self.some(number, removed=False), force)

    @precondition(lambda self: any(work.again for work in self.model.known.values()))
    @rule(number=st.integers(0, 9), seldom=st.integers(0, 2))
    def lose(self, number: int, seldom: int) -> None:
        """A machine with work that is placed again elsewhere is removed by force."""
        names = sorted(work.box for work in self.model.known.values() if work.again)
        if not seldom:
            self._remove(self.some(0, name=names[number % len(names)], removed=False), force=True)

    def _remove(self, box: Box | None, force: bool) -> None:
        if box is None:
            return
        busy = any(work.box == box.name for work in self.model.known.values())
        answer = self.ask(ADMIN[box.org], "DELETE", self.node(box), params={"force": str(force).lower()})
        assert answer.status_code == (409 if busy and not force else 200), answer.text
        if answer.status_code == 200:
            box.removed, box.up = True, False
            for work in [work for work in self.model.known.values() if work.box == box.name]:
                self._lost(work)
            self.model.known = {id: work for id, work in self.model.known.items() if work.box != box.name}

    def _lost(self, work: Work) -> None:
        """What its machine's loss ended waits to be placed again if it asked for that, and else is over."""
        mine = select(workloads.c.queued, workloads.c.ended_at, workloads.c.stop_asked_at)
        with self.world.db.read() as tx:
            row = tx.one(mine.where(workloads.c.name == work.name))
        assert row is not None
        if work.limit_s is None or not work.again:  # past its limit it is over in any case
            assert row["queued"] == (work.again and row["stop_asked_at"] is None), (work, row)
            assert (row["ended_at"] is None) == row["queued"], (work, row)

    @rule(number=st.integers(0, 9), card=st.integers(0, GPUS - 1))
    def fault(self, number: int, card: int) -> None:
        """A GPU falls off the bus: the kernel says so, the machine reports it. What runs there goes on (line 4)."""
        box = self.some(number, up=True, removed=False)
        if box is None:
            return
        sick = box.cards[card]
        sick.line = len(box.kernel) + 1
        line = f"NVRM: Xid (PCI:{sick.slot[:-2]}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
        box.kernel.append((sick.line, line))
        self._report(box)
        sick.faulty = True

    @rule(number=st.integers(0, 9), card=st.integers(0, GPUS - 1))
    def clear(self, number: int, card: int) -> None:
        """An admin clears a fault; the machine acknowledges. Its old kernel lines come again with each report."""
        box = self.some(number, up=True, removed=False)
        if box is None or box.session is None:
            return
        said = Acknowledged("boot", len(box.kernel), Counters())
        with self.world.act(ADMIN[box.org], box.org) as ctx:
            asked = faults.to_clear(ctx, "default", box.name, box.cards[card].uuid)
            answered = faults.Answered(asked, said, box.session.epoch)
            done = faults.clear(ctx, "default", box.name, box.cards[card].uuid, answered)
        assert bool(done.what.latches) == box.cards[card].faulty
        box.cards[card].faulty = False

    # ---- people

    @rule(
        org=st.sampled_from(ORGS),
        pool=st.sampled_from((None, *POOLS)),
        number=st.integers(0, 9),
        begins=st.integers(-2, 3),
        lasts=st.integers(1, 3),
        ours=st.booleans(),
    )
    def reserve(self, org: str, pool: str | None, number: int, begins: int, lasts: int, ours: bool) -> None:
        """Hours from now. Two windows of one machine that overlap are refused."""
        box = self.some(number, org=org, removed=False)
        names = frozenset({box.name} if box is not None and (pool is None or number % 3 == 0) else ())
        start = self.clock.now + timedelta(hours=begins)
        window = (start, start + timedelta(hours=lasts))
        mine = Booking("", org, pool, names, *window, frozenset({"research"} if ours else ()))
        body = {
            **({"pool": {"pool": pool}} if pool else {}),
            **({"nodes": sorted(names)} if names else {}),
            "start": window[0].isoformat(),
            "end": window[1].isoformat(),
            "workspaces": sorted(mine.workspaces),
        }
        answer = self.ask(ADMIN[org], "POST", f"{org}/clusters/default/reservations", json=body)
        conflicts = [other for other in self.model.bookings if self._overlap(mine, other)]
        expected = 400 if window[1] <= self.clock.now or not (pool or names) else 409 if conflicts else 201
        assert answer.status_code == expected, answer.text
        if expected == 201:
            mine.id = answer.json()["id"]
            self.model.bookings.append(mine)

    def _overlap(self, one: Booking, other: Booking) -> bool:
        if one.org != other.org or one.start >= other.end or other.start >= one.end or other.end <= self.clock.now:
            return False
        boxes = [box for box in self.model.boxes if not box.removed]
        shared = any(one.covers(box) and other.covers(box) for box in boxes)
        return shared or (one.pool is not None and one.pool == other.pool)

    @precondition(lambda self: self.model.bookings)
    @rule(number=st.integers(0, 9))
    def unreserve(self, number: int) -> None:
        one = self.model.bookings[number % len(self.model.bookings)]
        path = f"{one.org}/clusters/default/reservations/{one.id}"
        over = one.end <= self.clock.now
        answer = self.ask(ADMIN[one.org], "DELETE", path)
        assert answer.status_code in ((200, 204, 404, 409) if over else (200, 204)), answer.text
        self.model.bookings.remove(one)

    @rule(org=st.sampled_from(ORGS), pools=st.sampled_from((("a",), ("b",), POOLS)))
    def grant(self, org: str, pools: tuple[str, ...]) -> None:
        path = f"{org}/workspaces/research/access/default"
        body = {"pools": list(pools), "quota": {"gpus": QUOTA, "vcpu": VCPUS}}
        changes = set(pools) != self.model.granted[org]
        assert self.ask(ADMIN[org], "PUT", path, json=body, changes=changes).status_code == 200
        self.model.granted[org] = set(pools)

    @rule(org=st.sampled_from(ORGS), number=st.integers(0, 9))
    def leave_and_come_back(self, org: str, number: int) -> None:
        """The hosted cluster is left when nothing lives there, and used again with its machines."""
        access_path = f"{org}/workspaces/research/access/default"
        answer = self.ask(ADMIN[org], "DELETE", access_path)
        if answer.status_code == 409:
            assert self._alive(org), answer.text
            return
        assert answer.status_code == 204 and not self._alive(org), answer.text
        assert self.ask(ADMIN[org], "DELETE", f"{org}/clusters/default").status_code == 200
        with pytest.raises(Refusal):
            create(self.world, Creation(f"{self.run}-left"), MEMBER[org], fleets=self.fleets)
        self.report(number)
        nodes = f"{org}/clusters/default/nodes"
        assert self.ask(ADMIN[org], "GET", nodes).status_code == 404
        assert self.ask(ADMIN[org], "POST", f"{org}/hosted-cluster").json()["slug"] == "default"
        body = {"pools": list(POOLS), "quota": {"gpus": QUOTA, "vcpu": VCPUS}}
        assert self.ask(ADMIN[org], "PUT", access_path, json=body).status_code == 200
        self.model.granted[org] = set(POOLS)
        self.look()

    def _alive(self, org: str) -> bool:
        mine = (workloads.c.org_id == self.world.ids.orgs[org], workloads.c.ended_at.is_(None))
        with self.world.db.read() as tx:
            return bool(tx.scalar(select(func.count()).select_from(workloads).where(*mine)))

    @rule(
        org=st.sampled_from(ORGS),
        asks=st.lists(
            st.tuples(st.integers(0, GPUS), st.booleans(), st.sampled_from((False, False, False, True)), st.booleans()),
            min_size=1,
            max_size=3,
        ),
    )
    def create(self, org: str, asks: list[tuple[int, bool, bool, bool]]) -> None:
        for wanted, limited, wait, again in asks:
            self._create(org, wanted, limited, wait, again=again)

    @rule(org=st.sampled_from(ORGS))
    def fill(self, org: str) -> None:
        """As much as there is, one GPU after the other. Not every run has every rule."""
        for number in range(3):
            self._create(org, 1, limited=False, wait=False, again=bool(number % 2))

    def _create(self, org: str, wanted: int, limited: bool, wait: bool, *, again: bool = False) -> None:
        """Line 3, both ways: nothing lands where it may not; what is refused has nowhere to go."""
        self.made += 1
        name, limit = f"{self.run}-w{self.made}", LIMIT_S if limited else None
        policy = "on_machine_loss" if again else "never"
        small = Creation(name, vcpu=1, ram_gib=1, storage_gib=1)
        asked = replace(small, gpus=wanted, time_limit_seconds=limit, wait=wait, restart_policy=policy)
        could = self._could(org, wanted, limit)
        try:
            made = create(self.world, asked, MEMBER[org], fleets=self.fleets)
        except Refusal as refusal:
            assert refusal.code in ("NO_CAPACITY", "QUOTA_EXCEEDED"), refusal
            assert could is not True, refusal
            return
        assert wait or could is not False
        if made["machine"] is not None:
            self._placed()

    def _could(self, org: str, wanted: int, limit: int | None) -> bool | None:
        """Whether the model would place it now; None: it does not say, for something waits before it."""
        with self.world.db.read() as tx:
            if tx.scalar(select(func.count()).select_from(workloads).where(workloads.c.queued)):
                return None
        held = self._held()
        gpus_held = self._gpus_of(org)
        if (wanted and sum(gpus_held) + wanted > QUOTA) or len(gpus_held) + 1 > VCPUS:
            return False
        return any(
            not self.model.refuses(box, org, self.clock.now, limit) and self.model.free(box, held) >= wanted
            for box in self.model.boxes
        )

    @rule(org=st.sampled_from(ORGS), number=st.integers(0, 9))
    def terminate(self, org: str, number: int) -> None:
        live = [work for work in self.model.known.values() if work.org == org]
        if not live:
            return
        work = live[number % len(live)]
        path = f"{org}/workspaces/research/compute-clusters/{work.name}"
        assert self.ask(MEMBER[org], "DELETE", path, changes=not self._stops(work)).status_code in (200, 202, 409)
        work.told_to_stop = True

    def _stops(self, work: Work) -> bool:
        """Whether it was told to stop already, by somebody or by its time limit."""
        asked = select(workloads.c.stop_asked_at).where(workloads.c.name == work.name, workloads.c.ended_at.is_(None))
        with self.world.db.read() as tx:
            return tx.scalar(asked) is not None

    @rule(org=st.sampled_from(ORGS), number=st.integers(0, 9))
    def finish(self, org: str, number: int) -> None:
        """Work is terminated, and its machine stops it and says so."""
        self.terminate(org, number)
        for index, box in enumerate(self.model.boxes):
            if box.up:
                self.report(index)
                self.report(index)

    # ---- time

    @rule(minutes=st.integers(1, 40))
    def wait(self, minutes: int) -> None:
        """Time goes by with every machine heard; what is past its limit is told to stop."""
        self.clock.forward(minutes * 60)
        for number, box in enumerate(self.model.boxes):
            if box.up:
                self.report(number)
        with self.world.db.write() as tx:
            workload_life.tick(tx)

    @rule()
    def advance(self) -> None:
        """The queue goes on where it may."""
        with self.world.db.write() as tx:
            for org in ORGS:
                queue.advance(tx, self.fleets, self.world.ids.orgs[org], self.world.ids.clusters["default"])
        self._placed()

    @rule()
    def restart(self) -> None:
        """The control plane forgets what it had in memory."""
        self.fleets = Fleets()

    # ---- what must hold

    def _held(self) -> set[str]:
        with self.world.db.read() as tx:
            live = select(gpus.c.uuid).join(gpu_holds, gpu_holds.c.gpu_id == gpus.c.id)
            return {row["uuid"] for row in tx.all(live.where(gpu_holds.c.released_at.is_(None)))}

    def _gpus_of(self, org: str) -> list[int]:
        mine = (allocations.c.org_id == self.world.ids.orgs[org], allocations.c.released_at.is_(None))
        with self.world.db.read() as tx:
            return [row["gpus"] for row in tx.all(select(allocations.c.gpus).where(*mine))]

    def _placed(self) -> None:
        """Judge what was placed since the last look (line 3)."""
        query = (
            select(allocations.c.id, workloads.c.name, workloads.c.time_limit_s, workloads.c.restart_policy)
            .add_columns(allocations.c.org_id)
            .add_columns(machines.c.name.label("machine"))
            .join(workloads, workloads.c.id == allocations.c.workload_id)
            .join(machines, machines.c.id == allocations.c.machine_id)
            .where(allocations.c.released_at.is_(None))
        )
        with self.world.db.read() as tx:
            rows = tx.all(query)
        orgs = {id: org for org, id in self.world.ids.orgs.items()}
        for row in rows:
            if row["id"] in self.model.known:
                continue
            org = orgs[row["org_id"]]
            box = next(box for box in self.model.boxes if box.name == row["machine"] and box.org == org)
            assert not self.model.refuses(box, org, self.clock.now, row["time_limit_s"]), row
            sick = {card.uuid for card in box.cards if card.faulty}
            assert not sick & self._gpus_in(row["id"]), "on a fenced GPU"
            again = row["restart_policy"] == "on_machine_loss"
            self.model.known[row["id"]] = Work(org, row["name"], box.name, row["time_limit_s"], again)

    def _gpus_in(self, allocation: str) -> set[str]:
        with self.world.db.read() as tx:
            query = select(gpus.c.uuid).join(gpu_holds, gpu_holds.c.gpu_id == gpus.c.id)
            return {row["uuid"] for row in tx.all(query.where(gpu_holds.c.allocation_id == allocation))}

    @invariant()
    def holds(self) -> None:
        check_invariants(self.world.db)  # lines 1 and 2
        for org in ORGS:
            assert sum(self._gpus_of(org)) <= QUOTA and len(self._gpus_of(org)) <= VCPUS  # line 2: each has one vCPU
        self._goes_on()
        self._reads_on()

    def _goes_on(self) -> None:
        """Line 4: an allocation ends only when its machine said so after it was told, or was removed."""
        with self.world.db.read() as tx:
            live = {row["id"] for row in tx.all(select(allocations.c.id).where(allocations.c.released_at.is_(None)))}
            ended = {
                row["id"]: row
                for row in tx.all(
                    select(allocations.c.id, allocations.c.stop_asked_at, allocations.c.must_end_by).where(
                        allocations.c.id.in_(set(self.model.known) - live)
                    )
                )
            }
        for id, row in ended.items():
            over = row["must_end_by"] is not None and row["must_end_by"] <= self.clock.now
            assert row["stop_asked_at"] is not None or over, f"{self.model.known[id]} was ended by nobody"
            del self.model.known[id]
        assert set(self.model.known) <= live

    @rule()
    def look(self) -> None:
        """Line 6: each organisation lists its own machines and no others; each other's answer as absent ones."""
        for org in ORGS:
            path = f"/api/v1/orgs/{org}/clusters/default/nodes"
            listed = self.world.client(ADMIN[org]).get(path).json()["items"]
            assert {one["name"] for one in listed} == {
                box.name for box in self.model.boxes if box.org == org and not box.removed
            }

    def _reads_on(self) -> None:
        """Line 9: who reads the journal after the last entry seen misses nothing and reads nothing twice."""
        with self.world.db.read() as tx:
            fresh = [row["seq"] for row in journal.after(tx, self.seq, 10_000)]
            since = select(journal_table.c.seq).where(journal_table.c.seq > self.first).order_by(journal_table.c.seq)
            whole = [row["seq"] for row in tx.all(since)]
        assert fresh == sorted(set(fresh))
        self.read += fresh
        self.seq = self.read[-1] if self.read else self.seq
        assert self.read == whole


@pytest.mark.timeout(600)
def test_no_order_of_acts_breaks_what_must_hold(world_on_both: World, clock: Clock) -> None:
    numbers_ = count()

    class Run(Site):
        world, numbers = world_on_both, numbers_

    Run.clock = clock
    with world_on_both.db.write() as tx:
        tx.run(update(access).values(gpus=QUOTA, vcpu=VCPUS))
    asked = settings(
        max_examples=25,
        stateful_step_count=50,
        deadline=None,
        phases=PHASES,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    run_state_machine_as_test(Run, settings=asked)
