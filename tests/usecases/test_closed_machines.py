"""What reservations, latched faults and missing data locations close, as creations and the queue meet it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, insert, select, update

from corral.domain.allocations import Seen
from corral.domain.compute_clusters import Creation
from corral.domain.errors import Refusal
from corral.domain.reservations import Window, refused_by
from corral.domain.workloads import STOP_GRACE
from corral.store import fleet, inventory, reservations, reserved
from corral.store.machines import Wanted
from corral.store.reservations import For
from corral.store.tables.faults import gpu_faults
from corral.store.tables.machines import gpus, machines
from corral.store.tables.reservations import reservations as reservation_table
from corral.store.tables.workloads import allocations
from corral.store.transaction import Scope
from corral.usecases import machines as machine_acts
from corral.usecases.context import new_id
from corral.usecases.fleets import Fleets
from corral.usecases.placement_rows import Fenced
from corral.usecases.queue import advance, explain, reasons, say
from tests.conftest import Clock
from tests.placing import code_of, create, report, saying, terminate, workload
from tests.world import World

GRACE_S = int(STOP_GRACE.total_seconds())


@pytest.fixture
def world(world_on_both: World) -> World:
    world_on_both.add_machine("a", gpu_count=2, pool="x")
    world_on_both.add_machine("b", gpu_count=2, pool="y")
    return world_on_both


def touch(world: World, *names: str) -> None:
    with world.db.write() as tx:
        ids = [world.ids.machines[name] for name in names]
        fleet.touch(tx, Scope(world.ids.orgs["acme"]), world.ids.clusters["default"], ids)


def reserve(world: World, start: float, end: float, *, pool: str | None = None, nodes: str = "", whom: str = "") -> str:
    """Reserve from so many hours after now to so many, as the use case does; return the reservation's id."""
    scope = Scope(world.ids.orgs["acme"])
    with world.db.write() as tx:
        covered = tx.all(select(machines.c.id).where((machines.c.pool == pool) | machines.c.name.in_(nodes.split())))
        fleet.touch(tx, scope, world.ids.clusters["default"], [row["id"] for row in covered])
        id = new_id(tx.now)
        when = {"starts_at": tx.now + timedelta(hours=start), "ends_at": tx.now + timedelta(hours=end), "reason": ""}
        place = {"id": id, "cluster_id": world.ids.clusters["default"], "pool": pool}
        named = For(
            [world.ids.machines[name] for name in nodes.split()],
            [world.ids.workspaces[f"acme/{w}"] for w in whom.split()],
        )
        reservations.add(tx, scope, {**place, **when, "created_by": world.ids.users["admin"]}, named)
    return id


def latch(world: World, uuid: str, code: str = "xid_79", *, org: str = "acme", told: bool = True) -> None:
    with world.db.write() as tx:
        who = {"org_id": world.ids.orgs[org], "vendor": "nvidia", "uuid": uuid, "code": code}
        row = {"id": new_id(tx.now), "machine_id": world.ids.machines["a"], "since": tx.now, "last_at": tx.now}
        tx.run(insert(gpu_faults).values(**who, **row))
    if told:
        touch(world, "a", "b")


def go_on(world: World, fleets: Fleets) -> None:
    where = (world.ids.orgs["acme"], world.ids.clusters["default"])
    with world.db.write() as tx:
        advance(tx, fleets, *where)
    with world.db.read() as tx:
        _, changed = reasons(tx, fleets, *where)
    with world.db.write() as tx:
        say(tx, where[0], changed)


def why(world: World, creation: Creation, fleets: Fleets | None = None) -> dict[str, str]:
    """Return the reason of each machine that does not take it."""
    with pytest.raises(Refusal) as refused:
        create(world, creation, fleets=fleets)
    assert refused.value.code == "NO_CAPACITY"
    return {one["name"]: one["reason"] for one in refused.value.details["machines"]}


# ---- reservations


def test_nothing_lands_in_a_window_that_is_not_its_own(world: World) -> None:
    reserve(world, 0, 2, pool="x", whom="private")
    reserve(world, -1, 3, nodes="b")
    assert why(world, Creation("dev", gpus=1)) == {
        "a": "reserved for private until 2026-03-01 14:00 UTC",
        "b": "reserved for nobody until 2026-03-01 15:00 UTC",
    }
    reserve(world, 0, 2, nodes="a", whom="research private")
    assert code_of(world, Creation("dev", gpus=1)) == "NO_CAPACITY"  # where two cover it, both must allow it


def test_the_named_workspaces_work_runs_inside_its_window(world: World) -> None:
    reserve(world, 0, 2, pool="x", whom="research")
    reserve(world, 0, 2, pool="y")
    assert create(world, Creation("dev", gpus=1))["machine"] == "a"


def test_before_a_window_work_and_its_stop_grace_must_end_by_its_start_to_the_second(world: World) -> None:
    reserve(world, 1, 2, nodes="a b")
    assert "from 2026-03-01 13:00 to 2026-03-01 14:00" in why(world, Creation("endless"))["a"]
    assert code_of(world, Creation("late", time_limit_seconds=3600 - GRACE_S + 1)) == "NO_CAPACITY"
    assert code_of(world, Creation("late", time_limit_seconds=3600 - GRACE_S + 1, machine="a")) == "NO_CAPACITY"
    assert code_of(world, Creation("fits", time_limit_seconds=3600 - GRACE_S)) == ""


def test_what_is_remembered_judges_by_the_moment_though_nothing_was_read_again(world: World, clock: Clock) -> None:
    fleets = Fleets()
    reserve(world, 1, 2, nodes="a b")
    assert code_of(world, Creation("fits", time_limit_seconds=1800), fleets=fleets) == ""
    clock.forward(3600)
    assert set(why(world, Creation("inside", time_limit_seconds=60), fleets).values()) == {
        "reserved for nobody until 2026-03-01 14:00 UTC"
    }
    clock.forward(3600)
    assert code_of(world, Creation("after"), fleets=fleets) == ""


def test_a_machine_that_comes_into_the_pool_later_is_covered_and_one_that_leaves_is_not(world: World) -> None:
    fleets = Fleets()
    reserve(world, 0, 2, pool="x")
    assert create(world, Creation("one", gpus=1), fleets=fleets)["machine"] == "b"
    for name, pool in (("a", "y"), ("b", "x")):
        touch(world, name)
        with world.db.write() as tx:
            tx.run(update(machines).where(machines.c.name == name).values(pool=pool))
    assert create(world, Creation("two", gpus=1), fleets=fleets)["machine"] == "a"


def test_a_removed_reservation_closes_nothing(world: World) -> None:
    id = reserve(world, 0, 2, nodes="a b")
    with world.db.write() as tx:
        tx.run(update(reservation_table).where(reservation_table.c.id == id).values(ended_at=tx.now))
    touch(world, "a", "b")
    assert code_of(world, Creation("dev", gpus=1)) == ""


def test_what_waits_for_a_window_says_until_when_and_goes_on_after_it(world: World, clock: Clock) -> None:
    reserve(world, 0, 2, nodes="a b")
    fleets = Fleets()
    made = create(world, Creation("waits", gpus=2, wait=True), fleets=fleets)
    assert made["reason"].startswith("a: reserved for nobody until 2026-03-01 14:00 UTC; b: reserved")
    clock.forward(7200)
    go_on(world, fleets)
    assert not workload(world, "waits")["queued"]


def test_what_a_window_keeps_out_does_not_hold_back_whom_it_lets_in(world: World) -> None:
    reserve(world, 1, 3, nodes="a b")
    fleets = Fleets()
    create(world, Creation("endless", gpus=2, wait=True), fleets=fleets)
    assert code_of(world, Creation("short", gpus=2, time_limit_seconds=600), fleets=fleets) == ""
    create(world, Creation("queued", gpus=2, time_limit_seconds=600, wait=True), fleets=fleets)
    go_on(world, fleets)
    assert (workload(world, "endless")["queued"], workload(world, "queued")["queued"]) == (True, False)


@pytest.mark.parametrize("machine", [None, "a"])
def test_when_a_window_is_over_what_it_kept_out_stands_first_again_though_nothing_changed(
    world: World, clock: Clock, machine: str | None
) -> None:
    reserve(world, 1, 3, nodes="a b")
    fleets = Fleets()
    create(world, Creation("endless", gpus=2, machine=machine, wait=True), fleets=fleets)
    assert set(why(world, Creation("large", gpus=9, time_limit_seconds=60), fleets).values()) == {
        "2 of 2 GPUs free, 9 asked"
    }
    clock.forward(3 * 3600)
    assert set(why(world, Creation("later", gpus=1, machine=machine), fleets).values()) == {
        "kept for work that has waited longer"
    }


def test_a_reservation_and_a_creation_at_once_are_judged_one_after_the_other(world: World) -> None:
    """Whichever is first: what is placed after the reservation was made is never in its window."""

    def do(number: int) -> str:
        if number == 3:
            reserve(world, 0, 2, nodes="a b")
            return "reserved"
        return code_of(world, Creation(f"w{number}", vcpu=1, ram_gib=1, storage_gib=1))

    with ThreadPoolExecutor(4) as pool:
        codes = sorted(pool.map(do, range(8)))
    placed = codes.count("")
    assert set(codes) <= {"", "NO_CAPACITY", "reserved"}
    assert code_of(world, Creation("after")) == "NO_CAPACITY"
    with world.db.read() as tx:
        assert tx.scalar(select(func.count()).select_from(allocations)) == placed


# ---- faults


def test_a_gpu_with_a_live_latch_is_never_given_and_is_not_counted_as_free(world: World) -> None:
    latch(world, "GPU-a-0")
    latch(world, "GPU-a-0", "ecc_uncorrected")
    assert why(world, Creation("dev", gpus=2, machine="a")) == {"a": "1 of 2 GPUs free (1 faulty or busy), 2 asked"}
    create(world, Creation("one", gpus=1, machine="a"))
    with world.db.read() as tx:
        counts = inventory.summaries(tx, Scope(world.ids.orgs["acme"]), [world.ids.machines["a"]])
    assert vars(counts[world.ids.machines["a"]].counts) == {"total": 2, "healthy": 1, "held": 1, "free": 0}


def test_a_cleared_latch_and_another_organisations_fence_nothing(world: World) -> None:
    latch(world, "GPU-a-0", org="rival")
    latch(world, "GPU-a-1")
    with world.db.write() as tx:
        tx.run(update(gpu_faults).where(gpu_faults.c.uuid == "GPU-a-1").values(cleared_at=tx.now))
    touch(world, "a")
    assert code_of(world, Creation("dev", gpus=2, machine="a")) == ""


# ---- data locations


@pytest.mark.parametrize(("state", "where"), [("", None), ("making", None), ("failed", None), ("ready", "b")])
def test_a_kept_drive_needs_a_machine_whose_data_location_is_ready(world: World, state: str, where: str | None) -> None:
    touch(world, "b")
    with world.db.write() as tx:
        tx.run(update(machines).where(machines.c.name == "b").values(data_state=state))
    creation = Creation("dev", gpus=1, drives=("imagenet",))
    with world.act("member", "acme", "research") as ctx:
        assert explain(ctx, Fleets(), creation).machine == where
    if where is None:
        assert why(world, creation) == {"a": "no data location", "b": "no data location"}
    else:
        assert create(world, creation)["machine"] == where


def test_a_list_of_machines_asks_for_no_window_that_is_to_come(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add_machine("c", pool="z")
    reserve(world, 0, 1, nodes="a")
    reserve(world, 0, 1, pool="z")
    for hour in range(1, 5):
        reserve(world, hour, hour + 1, nodes="a b")
    made: list[str] = []

    def counting(*values: Any) -> Window:
        made.append(values[0])
        return Window(*values)

    monkeypatch.setattr("corral.store.reserved.Window", counting)

    def reserved_now() -> list[str]:
        with world.act("admin", "acme") as ctx:
            found = machine_acts.listed(ctx, "default", Wanted(), None, 9)
        assert all(one.closed == one.reserved for one in found)
        return [one.row["name"] for one in found if one.reserved]

    assert reserved_now() == ["a", "c"]
    assert len(made) == 2
    clock.forward(3600)
    assert reserved_now() == ["a", "b"]


def test_what_keeps_a_workspace_away_is_the_first_of_the_windows_that_are_not_for_it(
    world: World, clock: Clock
) -> None:
    world.add_machine("c", pool="z")
    for start, nodes, pool, whom in (
        (0, "a", None, "research"),
        (2, "a b", None, ""),
        (4, "a c", None, "private"),
        (1, "", "z", "research"),
        (3, "", "z", ""),
        (6, "c", None, "private research"),
    ):
        reserve(world, start, start + 1, nodes=nodes, pool=pool, whom=whom)
    mine, seen = world.ids.workspaces["acme/research"], set[str]()
    for _ in range(8):
        with world.act("member", "acme", "research") as ctx:
            offered = machine_acts.of_workspace(ctx, None, 9)
            windows = reserved.windows_on(ctx.tx, ctx.scope, [one.row for one in offered])
            for one in offered:
                its = windows.get(one.row["id"], ())
                closed = refused_by(its, mine, ctx.now, sure_end=ctx.now)
                to_come = "" if closed else refused_by(its, mine, ctx.now, sure_end=None)
                assert (one.status, one.reserved) == (closed or "available", to_come)
                seen |= {closed, to_come}
        clock.forward(3600)
    assert len(seen) > 6


def uuids(world: World, machine: str) -> list[str]:
    with world.db.read() as tx:
        mine = select(gpus.c.uuid).where(gpus.c.machine_id == world.ids.machines[machine])
        return [row["uuid"] for row in tx.all(mine)]


def test_a_fence_that_placement_has_not_heard_of_is_asked_of_the_database(world: World) -> None:
    """A machine of another cluster may list the GPU too: its fault counts in no version here."""
    fleets = Fleets()
    create(world, Creation("one", machine="a", gpus=1), fleets=fleets)
    create(world, Creation("two", machine="b", gpus=2), fleets=fleets)
    create(world, Creation("waits", machine="a", gpus=2, wait=True), fleets=fleets)
    terminate(world, "one")
    report(world, "a", [saying(world, "one", Seen.GONE)])
    with world.db.read() as tx:
        fleets.seen(tx, Scope(world.ids.orgs["acme"]), world.ids.clusters["default"])
    latch(world, uuids(world, "a")[0], told=False)
    with pytest.raises(Fenced), world.db.write() as tx:
        advance(tx, fleets, world.ids.orgs["acme"], world.ids.clusters["default"])
    fleets.forget()
    with world.db.write() as tx:
        advance(tx, fleets, world.ids.orgs["acme"], world.ids.clusters["default"])
    assert workload(world, "waits")["queued"]
    known = Fleets()
    code_of(world, Creation("x", machine="b", gpus=1), fleets=known)
    terminate(world, "waits")
    with world.db.read() as tx:
        known.seen(tx, Scope(world.ids.orgs["acme"]), world.ids.clusters["default"])
    latch(world, uuids(world, "a")[1], told=False)
    with pytest.raises(Fenced):
        create(world, Creation("y", machine="a", gpus=1), fleets=known)


def test_who_waits_for_a_reserved_machine_comes_first_when_its_window_is_over(world: World, clock: Clock) -> None:
    """Also when the queue was judged a moment before that, and nobody has told of the end yet."""
    reserve(world, 0, 1, nodes="a")
    fleets = Fleets()
    create(world, Creation("first", machine="a", gpus=2, wait=True), fleets=fleets)
    clock.forward(3600 - 0.4)
    assert code_of(world, Creation("early", pool="x", gpus=2), fleets=fleets) == "NO_CAPACITY"
    clock.forward(0.6)
    assert code_of(world, Creation("late", pool="x", gpus=2), fleets=fleets) == "NO_CAPACITY"
    with world.db.write() as tx:
        advance(tx, fleets, world.ids.orgs["acme"], world.ids.clusters["default"])
    assert not workload(world, "first")["queued"]
