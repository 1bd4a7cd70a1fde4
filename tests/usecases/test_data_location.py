"""Choosing, changing and forgetting a data location, and its machine's word of it (spec 10), on both databases."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import event, select, update

from corral.domain.compute_clusters import Creation
from corral.domain.data_location import Asked, Chosen, Seen, State, Wanted
from corral.domain.errors import Refusal
from corral.store.tables.clusters import tenancies
from corral.store.tables.journal import journal
from corral.store.tables.machines import machines
from corral.store.transaction import Row, Signal, Wake
from corral.usecases import data_location as use
from corral.usecases import queue
from corral.usecases.fleets import Fleets
from tests.placing import allocation, code_of, create, ref, wanted, workload
from tests.world import World

PATH = "/mnt/nvme0/corral"
DISKS = [
    {"mount": "/", "device": "/dev/sda2", "kind": "ext4", "size_mib": 900, "free_mib": 500, "os": True},
    {"mount": "/mnt/nvme0", "device": "/dev/nvme0n1", "kind": "xfs", "size_mib": 9000, "free_mib": 5000, "os": False},
]


@pytest.fixture
def world(world_on_both: World) -> World:
    """One machine with two disks."""
    world_on_both.add_machine("m")
    with world_on_both.db.write() as tx:
        tx.run(update(machines).values(inventory={"disks": DISKS}))
    return world_on_both


def choose(world: World, path: str = PATH, max_bytes: int = 0) -> Row:
    with world.act("admin", "acme") as ctx:
        return use.choose(ctx, ("default", "m"), Asked(path, max_bytes), {})


def forget(world: World, *, dry_run: bool = False) -> Row:
    with world.act("admin", "acme") as ctx:
        return use.forget(ctx, ("default", "m"), dry_run=dry_run)


def row(world: World) -> Row:
    with world.db.read() as tx:
        found = tx.one(select(machines).where(machines.c.id == world.ids.machines["m"]))
    assert found is not None
    return found


def says(world: World, state: State, message: str = "", copies: int = 0, generation: int | None = None) -> None:
    with world.db.write() as tx:
        told = row(world)["data_generation"] if generation is None else generation
        use.judge(tx, ref(world, "m"), row(world), Seen(told, state, message, copies))


def told(world: World, type: str) -> list[dict[str, Any]]:
    with world.db.read() as tx:
        return [r["data"] for r in tx.all(select(journal.c.data).where(journal.c.type == type).order_by(journal.c.seq))]


def version(world: World) -> int:
    with world.db.read() as tx:
        return int(tx.scalar(select(tenancies.c.version).where(tenancies.c.org_id == world.ids.orgs["acme"])))


def test_it_is_chosen_told_to_the_machine_and_audited(world: World) -> None:
    signals: list[Signal] = []
    stop = world.db.subscribe(lambda heard, _seq: signals.extend(heard))
    made = choose(world, max_bytes=9)
    stop()
    assert (made["data_path"], made["data_mount"], made["data_state"]) == (PATH, "/mnt/nvme0", "making")
    assert Signal(Wake.DESIRED, world.ids.machines["m"]) in signals
    with world.db.read() as tx:
        assert use.wanted(tx, ref(world, "m")) == Wanted(1, Chosen(PATH, "/mnt/nvme0", 9))
    after = {"path": PATH, "mount": "/mnt/nvme0", "max_bytes": 9}
    assert told(world, "cluster.node.data_location") == [{"name": "m", "before": None, "after": after}]


def test_the_same_again_is_no_change_and_a_failed_one_is_tried_anew(world: World) -> None:
    choose(world)
    says(world, State.READY)
    assert choose(world)["data_generation"] == 1
    assert len(told(world, "cluster.node.data_location")) == 1
    says(world, State.FAILED, "no disk is mounted")
    again = choose(world)
    assert (again["data_generation"], again["data_state"], again["data_message"]) == (2, "making", "")
    assert len(told(world, "cluster.node.data_location")) == 2


def test_another_folder_is_made_anew_and_another_limit_is_not(world: World) -> None:
    choose(world)
    says(world, State.READY, copies=2)
    limited = choose(world, max_bytes=5)
    assert (limited["data_generation"], limited["data_state"], limited["data_copies"]) == (1, "ready", 2)
    moved = choose(world, "/srv/corral")
    assert (moved["data_generation"], moved["data_state"], moved["data_copies"]) == (2, "making", 0)
    before, after = (told(world, "cluster.node.data_location")[-1][key] for key in ("before", "after"))
    assert (before["path"], before["max_bytes"], after["path"], after["mount"]) == (PATH, 5, "/srv/corral", "/")


def test_a_path_that_will_not_do_changes_nothing(world: World) -> None:
    with pytest.raises(Refusal) as refused:
        choose(world, "/etc/corral")
    assert refused.value.code == "INVALID_PATH"
    assert (row(world)["data_path"], told(world, "cluster.node.data_location")) == (None, [])


def test_a_failure_is_shown_and_told_once(world: World) -> None:
    choose(world)
    for _ in range(2):
        says(world, State.FAILED, "the disk is full")
    assert (row(world)["data_state"], row(world)["data_message"]) == ("failed", "the disk is full")
    says(world, State.READY)
    assert told(world, "cluster.node.data_location_made") == [
        {"name": "m", "path": PATH, "ok": False, "reason": "the disk is full"},
        {"name": "m", "path": PATH, "ok": True},
    ]


def test_an_older_choices_word_says_nothing(world: World) -> None:
    choose(world)
    choose(world, "/srv/corral")
    says(world, State.READY, generation=1)
    assert row(world)["data_state"] == "making"


def test_the_same_word_again_writes_nothing_and_only_readiness_is_placements_business(world: World) -> None:
    choose(world)
    before = version(world)
    says(world, State.READY)
    ready = version(world)
    assert ready > before
    with world.db.write() as tx:
        again, stands = Seen(1, State.READY), row(world)
        asked: list[str] = []
        event.listen(tx.conn, "before_cursor_execute", lambda _c, _cur, statement, *_: asked.append(statement))
        use.judge(tx, ref(world, "m"), stands, again)
    assert asked == []
    says(world, State.READY, copies=3)
    assert (version(world), row(world)["data_copies"]) == (ready, 3)
    says(world, State.FAILED, "gone")
    assert version(world) > ready


def test_a_machine_in_quarantine_is_told_nothing_of_it(world: World) -> None:
    choose(world)
    with world.db.write() as tx:
        tx.run(update(machines).values(quarantine="clone"))
        assert use.wanted(tx, ref(world, "m")) is None


def test_it_is_forgotten_and_the_machine_is_told_so(world: World) -> None:
    choose(world)
    says(world, State.READY)
    forget(world, dry_run=True)
    assert row(world)["data_path"] == PATH
    assert forget(world)["data_path"] is None
    with world.db.read() as tx:
        assert use.wanted(tx, ref(world, "m")) == Wanted(2, None)
    assert told(world, "cluster.node.data_location")[-1]["after"] is None
    says(world, State.READY, generation=2)
    assert row(world)["data_state"] == ""
    forget(world)
    assert len(told(world, "cluster.node.data_location")) == 2


@pytest.mark.parametrize("dry_run", [True, False])
def test_while_there_are_copies_it_is_not_forgotten(dry_run: bool, world: World) -> None:
    choose(world)
    says(world, State.READY, copies=2)
    with pytest.raises(Refusal) as refused:
        forget(world, dry_run=dry_run)
    assert (refused.value.code, refused.value.details["copies"]) == ("DATA_LOCATION_IN_USE", 2)
    assert row(world)["data_path"] == PATH


# -- compute clusters with drives


def drives(name: str = "dev", **asked: Any) -> Creation:
    return Creation(name, drives=("weights", "cache"), **asked)


def test_one_with_drives_waits_for_a_data_location_and_says_so(world: World) -> None:
    with pytest.raises(Refusal, match="no data location"):
        create(world, drives())
    assert code_of(world, drives()) == "NO_CAPACITY"
    assert "no data location" in create(world, drives(wait=True))["reason"]
    choose(world)
    with world.db.write() as tx:
        queue.advance(tx, Fleets(), world.ids.orgs["acme"], world.ids.clusters["default"])
    assert workload(world, "dev")["queued"], "placed before the folder was there"
    says(world, State.READY)
    with world.db.write() as tx:
        queue.advance(tx, Fleets(), world.ids.orgs["acme"], world.ids.clusters["default"])
    assert allocation(world, "dev")["machine_id"] == world.ids.machines["m"]
    assert wanted(world, "m")["dev"].drives == ("weights", "cache")
    with pytest.raises(Refusal) as refused:
        forget(world)
    assert refused.value.details["workloads"] == ["dev"]


def test_one_without_drives_needs_no_data_location(world: World) -> None:
    assert create(world, Creation("dev"))["machine"] == "m"
    assert wanted(world, "m")["dev"].drives == ()
