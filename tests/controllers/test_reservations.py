"""Windows' beginnings and ends are told once each, whoever looks, and after any outage; on both databases."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select

from corral.controllers import reservations as loop
from corral.controllers.reservations import Reservations
from corral.domain.compute_clusters import Creation
from corral.domain.events import TYPES, Class
from corral.domain.reservations import Given
from corral.store import fleet, journal
from corral.store.tables.machines import machines
from corral.store.transaction import Scope, Signal, Tx, Wake
from corral.usecases import queue, reservation_edges, reservations
from corral.usecases.fleets import Fleets
from tests.conftest import Clock
from tests.live_server import eventually
from tests.placing import create, workload
from tests.usecases.test_reservations import asked
from tests.world import World

BEGAN, ENDED = "cluster.reservation.began", "cluster.reservation.ended"


def make(world: World, given: Given, org: str = "acme") -> str:
    with world.act("admin" if org == "acme" else "rival", org) as ctx:
        return reservations.create(ctx, "default", given).id


def told(world: World, org: str = "acme") -> list[tuple[str, str]]:
    """Return (type, reservation) of every edge that was recorded, oldest first."""
    with world.db.read() as tx:
        want = journal.Filter(view="event", types=(BEGAN, ENDED))
        found = journal.newest_first(tx, Scope(world.ids.orgs[org]), want, before=None, limit=999)
        return [(row["type"], row["data"]["reservation"]) for row in reversed(found)]


def look(world: World) -> None:
    Reservations(world.db, 60).pass_once()


def version_of(world: World, machine: str) -> int:
    with world.db.read() as tx:
        return int(tx.scalar(select(machines.c.fleet_version).where(machines.c.id == world.ids.machines[machine])))


def test_each_edge_is_told_once_and_at_its_time(world_on_both: World, clock: Clock) -> None:
    world_on_both.add_machine("a")
    id = make(world_on_both, asked(1, 2, ["a"], reason="fans"))
    look(world_on_both)
    assert told(world_on_both) == []
    clock.forward(3599)
    look(world_on_both)
    assert told(world_on_both) == []
    for seconds, edges in ((1, [(BEGAN, id)]), (3599, [(BEGAN, id)]), (1, [(BEGAN, id), (ENDED, id)])):
        clock.forward(seconds)
        look(world_on_both)
        look(world_on_both)
        assert told(world_on_both) == edges
    assert TYPES[BEGAN][0] is TYPES[ENDED][0] is Class.EVENT


def test_edges_that_came_while_nobody_looked_are_told_afterwards(world_on_both: World, clock: Clock) -> None:
    world_on_both.add_machine("a")
    id = make(world_on_both, asked(1, 2, ["a"]))
    clock.forward(9 * 3600)
    look(world_on_both)
    assert told(world_on_both) == [(BEGAN, id), (ENDED, id)]


def test_what_was_removed_is_not_told_of(world_on_both: World, clock: Clock) -> None:
    world_on_both.add_machine("a")
    ids = [make(world_on_both, asked(hour, hour + 1, ["a"])) for hour in (0, 1)]
    look(world_on_both)
    for id in ids:
        with world_on_both.act("admin", "acme") as ctx:
            reservations.remove(ctx, "default", id)
    clock.forward(9 * 3600)
    look(world_on_both)
    assert told(world_on_both) == [(BEGAN, ids[0])]


def test_what_is_removed_while_its_edge_is_about_to_be_told_is_not_told_of(world_on_both: World, clock: Clock) -> None:
    world_on_both.add_machine("a")
    id = make(world_on_both, asked(0, 1, ["a"]))
    with world_on_both.db.read() as tx:
        due = reservation_edges.due(tx, None, 9)
    with world_on_both.act("admin", "acme") as ctx:
        reservations.remove(ctx, "default", id)
    with world_on_both.db.write() as tx:
        assert reservation_edges.tell(tx, due) == 0
    assert [window.id for window in due] == [id] and told(world_on_both) == []


def test_edges_of_every_tenant_are_told_in_batches(
    world_on_both: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "BATCH", 2)
    world_on_both.add_machine("a")
    world_on_both.add_machine("theirs", "rival")
    mine = [make(world_on_both, asked(hour, hour + 1, ["a"])) for hour in range(5)]
    theirs = make(world_on_both, asked(0, 1, ["theirs"]), "rival")
    clock.forward(3600 * 4.5)
    look(world_on_both)
    assert sorted(told(world_on_both)) == sorted([*((BEGAN, id) for id in mine), *((ENDED, id) for id in mine[:4])])
    assert told(world_on_both, "rival") == [(BEGAN, theirs), (ENDED, theirs)]


def test_a_tenancy_that_fails_keeps_no_other_from_being_told(
    world_on_both: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world_on_both.add_machine("a")
    world_on_both.add_machine("theirs", "rival")
    mine, theirs = make(world_on_both, asked(0, 1, ["a"])), make(world_on_both, asked(0, 1, ["theirs"]), "rival")
    lock = fleet.lock
    for broken, works in (("acme", "rival"), ("rival", "acme")):

        def fails(tx: Tx, scope: Scope, cluster_id: str, broken: str = broken) -> int:
            if scope.org == world_on_both.ids.orgs[broken]:
                raise RuntimeError("its rows are locked")
            return lock(tx, scope, cluster_id)

        with monkeypatch.context() as patched:
            patched.setattr(fleet, "lock", fails)
            look(world_on_both)
        assert told(world_on_both, works)
    look(world_on_both)
    assert (told(world_on_both), told(world_on_both, "rival")) == ([(BEGAN, mine)], [(BEGAN, theirs)])


def test_several_that_look_at_once_tell_each_edge_once(world_on_both: World, clock: Clock) -> None:
    world_on_both.add_machine("a")
    ids = [make(world_on_both, asked(hour, hour + 1, ["a"])) for hour in range(3)]
    clock.forward(9 * 3600)
    start = threading.Barrier(4)

    def attempt(_: int) -> int:
        with world_on_both.db.read() as tx:
            due = reservation_edges.due(tx, None, 99)
        start.wait()  # all have seen the same edges due
        with world_on_both.db.write() as tx:
            return reservation_edges.tell(tx, due)

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(attempt, range(4))) == [0, 0, 0, 6]
    assert sorted(told(world_on_both)) == sorted((edge, id) for id in ids for edge in (BEGAN, ENDED))


def test_an_edge_has_what_waits_tried_again(world_on_both: World, clock: Clock) -> None:
    """By what is remembered of the machines: they know their windows' times, and none is read anew."""
    world_on_both.add_machine("a", pool="h100")
    make(world_on_both, asked(0, 1, pool="h100"))
    where, fleets = (world_on_both.ids.orgs["acme"], world_on_both.ids.clusters["default"]), Fleets()
    assert create(world_on_both, Creation("waits", gpus=1, wait=True), fleets=fleets)["queued"]
    woken: list[Signal] = []

    def listen(signals: Sequence[Signal], _seq: int | None) -> None:
        woken.extend(signals)

    world_on_both.db.subscribe(listen)
    for seconds, placed in ((0, False), (3600, True)):
        before = version_of(world_on_both, "a")
        clock.forward(seconds)
        look(world_on_both)
        assert [(signal.wake, signal.org, signal.id) for signal in woken] == [(Wake.PLACEMENT, *where)]
        assert version_of(world_on_both, "a") == before
        with world_on_both.db.write() as tx:
            queue.advance(tx, fleets, *where)
        assert (workload(world_on_both, "waits")["step"] == "placed") is placed
        woken.clear()


def test_the_running_app_tells_them(world: World, clock: Clock) -> None:
    world.add_machine("a")
    id = make(world, asked(0, 1, ["a"]))
    with world.running():
        eventually(lambda: told(world) == [(BEGAN, id)])
        clock.forward(3600)
        eventually(lambda: told(world) == [(BEGAN, id), (ENDED, id)])
