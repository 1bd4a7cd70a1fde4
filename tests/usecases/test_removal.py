"""What removing a machine does to its work, by restart policy (spec 10, "Remove a machine"), on both databases."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, update

from corral.domain.allocations import Seen
from corral.domain.compute_clusters import Creation
from corral.domain.errors import Refusal
from corral.store import machines as machine_rows
from corral.store.tables.journal import journal
from corral.store.tables.machines import machines
from corral.store.tables.workloads import workloads
from corral.store.transaction import Signal, Wake
from corral.usecases import compute_clusters, queue, removal, workload_life
from corral.usecases.fleets import Fleets
from corral.usecases.removal import Removal
from tests.conftest import Clock
from tests.placing import allocation, check_invariants, create, report, saying, terminate, wanted, workload
from tests.world import World

AGAIN = "on_machine_loss"


@pytest.fixture
def world(world_on_both: World) -> World:
    """One machine of two GPUs with `again` and `once` on it, each holding one."""
    world_on_both.add_machine("gpu-1", gpu_count=2)
    create(world_on_both, Creation("again", gpus=1, vcpu=1, restart_policy=AGAIN))
    create(world_on_both, Creation("once", gpus=1, vcpu=1))
    for name in ("again", "once"):
        report(world_on_both, "gpu-1", [saying(world_on_both, n, Seen.RUNNING) for n in ("again", "once")])
        assert workload(world_on_both, name)["state"] == "active"
    return world_on_both


def remove(world: World, name: str = "gpu-1", *, force: bool = True) -> Removal:
    with world.act("admin", "acme") as ctx:
        return removal.remove(ctx, "default", name, force=force)


def advance(world: World, fleets: Fleets | None = None) -> None:
    with world.db.write() as tx:
        queue.advance(tx, fleets or Fleets(), world.ids.orgs["acme"], world.ids.clusters["default"])


def waiting(world: World) -> list[str]:
    """Return what waits, first come first."""
    with world.db.read() as tx:
        rows = tx.all(select(workloads.c.name).where(workloads.c.queued).order_by(workloads.c.queue_no, workloads.c.id))
        return [row["name"] for row in rows]


def told(world: World, type: str) -> list[dict[str, Any]]:
    with world.db.read() as tx:
        rows = tx.all(select(journal.c.data).where(journal.c.type == type).order_by(journal.c.seq))
        return [row["data"] for row in rows]


def test_a_machine_with_work_is_not_removed_and_says_what_runs(world: World) -> None:
    with pytest.raises(Refusal) as refused:
        remove(world, force=False)
    assert refused.value.code == "NODE_IN_USE"
    assert refused.value.details["running"][0] == {
        "workspace": "research",
        "name": "again",
        "kind": "compute_cluster",
    }
    assert workload(world, "again")["state"] == workload(world, "once")["state"] == "active"


def test_by_force_its_work_waits_for_another_machine_or_is_lost_as_the_policy_says(world: World) -> None:
    signals: list[Signal] = []
    stop = world.db.subscribe(lambda heard, _seq: signals.extend(heard))
    done = remove(world)
    stop()
    assert (done.stopped, done.placed_again, done.lost) == (
        ["research/again", "research/once"],
        ["research/again"],
        ["research/once"],
    )
    once, again = workload(world, "once"), workload(world, "again")
    assert (once["state"], once["reason"]) == ("failed", "lost: machine gpu-1 was removed")
    assert (again["state"], again["step"], again["queued"], again["ended_at"]) == (
        "provisioning",
        "waiting",
        True,
        None,
    )
    assert "gpu-1 was removed" in again["reason"]
    for name in ("again", "once"):
        assert allocation(world, name)["release_reason"] == "lost"
        assert Signal(Wake.STREAMS, workload(world, name)["id"]) in signals
    assert Signal(Wake.MACHINE_REMOVED, world.ids.machines["gpu-1"]) in signals
    assert told(world, "workload.placed_again") == [
        {
            "name": "again",
            "before": "active",
            "after": "provisioning",
            "machine": "gpu-1",
            "reason": again["reason"],
        }
    ]
    assert told(world, "cluster.node.removed") == [
        {
            "name": "gpu-1",
            "forced": True,
            "stopped": ["research/again", "research/once"],
            "placed_again": ["research/again"],
            "lost": ["research/once"],
        }
    ]
    check_invariants(world.db)


def test_what_is_placed_again_gets_a_new_allocation_and_runs_once(world: World, clock: Clock) -> None:
    old = allocation(world, "again")["id"]
    remove(world)
    clock.forward(1)
    world.add_machine("gpu-2")
    advance(world)
    new = allocation(world, "again")
    assert (new["machine_id"], new["id"] != old) == (world.ids.machines["gpu-2"], True)
    assert workload(world, "again")["step"] == "placed"
    assert (list(wanted(world, "gpu-1")), list(wanted(world, "gpu-2"))) == ([], ["again"])
    report(world, "gpu-2", [saying(world, "again", Seen.RUNNING)])
    assert workload(world, "again")["state"] == "active"
    check_invariants(world.db)


def test_a_preview_says_what_force_would_do_and_changes_nothing(world: World) -> None:
    with world.act("admin", "acme") as ctx:
        would = removal.preview(ctx, "default", "gpu-1")
    assert (would.placed_again, would.lost) == (["research/again"], ["research/once"])
    assert workload(world, "again")["state"] == "active"
    done = remove(world)
    assert (done.stopped, done.placed_again, done.lost) == (would.stopped, would.placed_again, would.lost)


@pytest.mark.parametrize("machine_state", ["up", "down"])
def test_what_never_ran_or_is_out_of_sync_is_placed_again_too(machine_state: str, world_on_both: World) -> None:
    world = world_on_both
    world.add_machine("gpu-1")
    create(world, Creation("again", gpus=1, restart_policy=AGAIN))
    if machine_state == "down":
        with world.db.write() as tx:
            tx.run(update(machines).values(state="down"))
            tx.run(update(workloads).values(state="out_of_sync", wanted="running", seen="down"))
    assert remove(world).placed_again == ["research/again"]
    row = workload(world, "again")
    assert (row["state"], row["wanted"], row["seen"]) == ("provisioning", "", "")


def test_what_was_told_to_stop_is_not_placed_again(world: World) -> None:
    terminate(world, "again")
    assert remove(world).lost == ["research/again", "research/once"]
    assert (workload(world, "again")["state"], waiting(world)) == ("failed", [])


def test_it_waits_in_the_order_of_creation(world: World, clock: Clock) -> None:
    for name in ("later", "last"):
        clock.forward(1)
        create(world, Creation(name, gpus=2, wait=True))
    remove(world)
    assert waiting(world) == ["again", "later", "last"]


def test_one_that_was_created_earlier_and_waits_still_stands_before_it(world_on_both: World, clock: Clock) -> None:
    world = world_on_both
    world.add_machine("gpu-1", gpu_count=1)
    create(world, Creation("early", gpus=8, wait=True, pool=None))
    clock.forward(1)
    create(world, Creation("cpu", restart_policy=AGAIN, machine="gpu-1"))
    clock.forward(1)
    create(world, Creation("late", gpus=8, wait=True))
    assert remove(world).placed_again == ["research/cpu"]
    assert waiting(world) == ["early", "cpu", "late"]


def test_several_of_one_machine_keep_their_order(world_on_both: World, clock: Clock) -> None:
    world_on_both.add_machine("gpu-1", gpu_count=4)
    for name in ("a", "b", "c"):
        create(world_on_both, Creation(name, gpus=1, vcpu=1, restart_policy=AGAIN))
        clock.forward(1)
    remove(world_on_both)
    assert waiting(world_on_both) == ["a", "b", "c"]


def test_it_asks_no_more_for_the_machine_that_is_gone(world_on_both: World, clock: Clock) -> None:
    world_on_both.add_machine("gpu-1")
    create(world_on_both, Creation("dev", machine="gpu-1", restart_policy=AGAIN))
    remove(world_on_both)
    assert workload(world_on_both, "dev")["ask"]["machine"] is None
    clock.forward(1)
    world_on_both.add_machine("gpu-2")
    advance(world_on_both)
    assert allocation(world_on_both, "dev")["machine_id"] == world_on_both.ids.machines["gpu-2"]


def test_of_its_time_limit_what_is_left_counts_on_when_it_is_placed_again(world_on_both: World, clock: Clock) -> None:
    world = world_on_both
    world.add_machine("gpu-1")
    create(world, Creation("dev", gpus=1, time_limit_seconds=3600, restart_policy=AGAIN))
    clock.forward(600)
    remove(world)
    assert workload(world, "dev")["must_end_by"] is None
    clock.forward(7200)
    with world.db.write() as tx:
        workload_life.tick(tx)
    assert workload(world, "dev")["state"] == "provisioning", "ended while it waited"
    world.add_machine("gpu-2")
    advance(world)
    assert (allocation(world, "dev")["must_end_by"] - clock.now).total_seconds() == 3000
    clock.forward(1000)
    remove(world, "gpu-2")
    world.add_machine("gpu-3")
    advance(world)
    assert (allocation(world, "dev")["must_end_by"] - clock.now).total_seconds() == 2000
    assert workload(world, "dev")["time_limit_s"] == 3600


def test_what_is_out_of_time_is_lost(world_on_both: World, clock: Clock) -> None:
    world_on_both.add_machine("gpu-1")
    create(world_on_both, Creation("dev", time_limit_seconds=60, restart_policy=AGAIN))
    clock.forward(60)
    assert remove(world_on_both).lost == ["research/dev"]


def test_what_waits_to_be_placed_again_can_be_terminated(world: World) -> None:
    remove(world)
    terminate(world, "again")
    assert (workload(world, "again")["state"], waiting(world)) == ("terminated", [])


def test_a_remembered_queue_hears_of_what_waits_again(world: World, clock: Clock) -> None:
    fleets = Fleets()
    advance(world, fleets)
    remove(world)
    clock.forward(1)
    world.add_machine("gpu-2")
    advance(world, fleets)
    assert allocation(world, "again")["machine_id"] == world.ids.machines["gpu-2"]


def test_its_credential_stays_known_as_a_tombstone_and_its_drive_copies_are_forgotten(world: World) -> None:
    with world.db.write() as tx:
        place = {"data_path": "/data/corral", "data_mount": "/data", "data_max_bytes": 5}
        tx.run(update(machines).values(**place, data_state="ready", data_copies=3, data_generation=4))
    remove(world)
    with world.db.read() as tx:
        row = tx.one(select(machines))
        assert row is not None
        stone = machine_rows.by_key(tx, row["key_hash"])
    assert stone is not None
    assert stone["removed_at"] is not None
    assert (row["data_path"], row["data_mount"], row["data_state"], row["data_copies"]) == (None, "", "", 0)
    assert row["data_generation"] == 5


def test_another_organisations_machine_is_not_there(world: World) -> None:
    world.add_machine("theirs", org="rival")
    with pytest.raises(Refusal) as refused:
        remove(world, "theirs")
    assert refused.value.code == "NODE_NOT_FOUND"


def test_people_see_the_policy_and_nothing_of_the_machine_that_is_gone(world: World) -> None:
    remove(world)
    with world.act("member", "acme", "research") as ctx:
        shown = compute_clusters.show(ctx, "again")
        assert (shown.restart_policy, shown.machine, shown.placed_at, shown.gpu_uuids) == (AGAIN, None, None, [])
        assert compute_clusters.terminate(ctx, "again", dry_run=True).stops == ["'again' leaves the queue"]
        assert [change.type for change in compute_clusters.history(ctx, shown.id)][-1] == "workload.placed_again"
