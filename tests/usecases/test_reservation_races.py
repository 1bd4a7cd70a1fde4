"""A reservation and placement at the same time: nothing lands in a window once it was answered; on both databases."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from corral.domain.compute_clusters import Creation
from corral.store import journal
from corral.store.transaction import Row, Scope
from corral.usecases import machine_labels, removal, reservations
from corral.usecases.fleets import Fleets
from tests.placing import code_of
from tests.usecases.test_reservations import asked, make, refused
from tests.world import World

ROUNDS = 12


def entries(world: World, *types: str) -> Sequence[Row]:
    with world.db.read() as tx:
        want = journal.Filter(view="event", types=types)
        return journal.newest_first(tx, Scope(world.ids.orgs["acme"]), want, before=None, limit=999)


def test_nothing_lands_in_a_window_after_it_was_answered(world_on_both: World) -> None:
    """Half of the machines are named, half are reserved by their pool, which some get only meanwhile."""
    world = world_on_both
    for number in range(ROUNDS):
        world.add_machine(f"m{number}", pool="" if number % 3 == 2 else f"p{number}")
    start = threading.Barrier(3)

    def place() -> None:
        fleets = Fleets()  # as the placement worker's: it lives through all rounds
        for number in range(ROUNDS):
            start.wait()
            for turn in range(4):
                code_of(world, Creation(f"w{number}-{turn}", machine=f"m{number}"), fleets=fleets)

    def reserve() -> None:
        for number in range(ROUNDS):
            start.wait()
            nodes, pool = ([f"m{number}"], None) if number % 3 == 0 else ([], f"p{number}")
            make(world, asked(0, 5, nodes, pool))

    def relabel() -> None:
        for number in range(ROUNDS):
            start.wait()
            with world.act("admin", "acme") as ctx:
                machine_labels.place(ctx, "default", f"m{number}", {"pool": f"p{number}"})

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(act) for act in (place, reserve, relabel)]:
            done.result(120)
    closed = closed_since(world)
    assert len(closed) == ROUNDS
    for entry in entries(world, "workload.placed"):
        assert entry["seq"] < closed[entry["data"]["machine"]], entry["data"]


def closed_since(world: World) -> dict[str, int]:
    """Return for each machine the sequence from which on it was closed: reserved, and of the pool by then."""
    reserved, carries = dict[str, int](), dict[str, int]()
    for entry in entries(world, "cluster.reservation.created", "cluster.node.placement"):
        after = entry["data"]["after"]
        if entry["type"] == "cluster.node.placement":
            carries[entry["data"]["name"]] = entry["seq"]
        elif after["nodes"]:
            reserved[after["nodes"][0]] = entry["seq"]
        else:
            reserved["m" + after["pool"][1:]] = entry["seq"]
    return {name: max(seq, carries.get(name, 0) if int(name[1:]) % 3 == 2 else 0) for name, seq in reserved.items()}


def test_of_reservations_at_once_for_one_machine_and_time_exactly_one_is_made(world_on_both: World) -> None:
    world = world_on_both
    world.add_machine("m", pool="h100")
    start = threading.Barrier(8)

    def attempt(number: int) -> str:
        start.wait()
        given = asked(1, 2, ["m"]) if number % 2 else asked(1, 2, pool="h100")
        try:
            return make(world, given).id
        except Exception as refusal:
            return getattr(refusal, "code", repr(refusal))

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(attempt, range(8)))
    assert answers.count("RESERVATION_CONFLICT") == 7
    assert refused(world, asked(1, 2, ["m"])).details["reservations"][0]["id"] in answers


def test_a_machine_is_reserved_and_removed_at_once_in_one_order_or_the_other(world_on_both: World) -> None:
    """Neither waits for ever on the other, and a reservation never names what was gone before it."""
    world = world_on_both
    for number in range(ROUNDS):
        world.add_machine(f"m{number}")
    start = threading.Barrier(2)

    def reserve(number: int) -> str:
        start.wait()
        try:
            return make(world, asked(1, 2, [f"m{number}"])).id
        except Exception as refusal:
            return getattr(refusal, "code", repr(refusal))

    def remove(number: int) -> None:
        start.wait()
        with world.act("admin", "acme") as ctx:
            removal.remove(ctx, "default", f"m{number}", force=False)

    for number in range(ROUNDS):
        with ThreadPoolExecutor(2) as pool:
            made, gone = pool.submit(reserve, number), pool.submit(remove, number)
            gone.result(60)
            if made.result(60) == "NODE_NOT_FOUND":
                continue
        with world.act("admin", "acme") as ctx:
            assert reservations.one(ctx, "default", made.result()).reservation.nodes == []
