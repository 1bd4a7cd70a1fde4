"""Placement labels changed in place (spec 10, "Placement labels"), on both databases."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, update

from corral.domain.errors import Refusal
from corral.domain.workspaces import Some
from corral.store import journal
from corral.store.tables.access import access_pools
from corral.store.tables.machines import machines
from corral.store.tables.workloads import allocations
from corral.store.transaction import Row, Scope
from corral.usecases import machine_labels, reservations
from corral.usecases import machines as machine_acts
from corral.usecases.machine_labels import Move
from tests.usecases.test_reservations import asked, grant, make
from tests.world import World


def place(world: World, machine: str = "m", **labels: object) -> Move:
    with world.act("admin", "acme") as ctx:
        return machine_labels.place(ctx, "default", machine, labels)


def row(world: World, machine: str = "m") -> Row:
    with world.db.read() as tx:
        found = tx.one(select(machines).where(machines.c.id == world.ids.machines[machine]))
    assert found is not None
    return found


def where(world: World) -> dict[str, str]:
    return {key: row(world)[key] for key in ("pool", "site", "rack", "fabric")}


def entries(world: World, view: str) -> list[dict[str, Any]]:
    with world.db.read() as tx:
        want = journal.Filter(view=view, types=("cluster.node.placement",))
        found = journal.newest_first(tx, Scope(world.ids.orgs["acme"]), want, before=None, limit=9)
        return [dict(entry) for entry in found]


@pytest.fixture
def world(world_on_both: World) -> World:
    """`m` carries pool h100; `research` may use every machine, `private` those of pool h100."""
    world_on_both.add_machine("m", pool="h100")
    grant(world_on_both, "acme/private", "h100")
    return world_on_both


def test_what_is_left_out_is_kept_and_what_is_empty_is_removed(world: World) -> None:
    place(world, site="berlin", rack="r1")
    place(world, rack="", fabric="ib-1")
    assert where(world) == {"pool": "h100", "site": "berlin", "rack": "", "fabric": "ib-1"}


def test_other_labels_are_not_changed(world: World) -> None:
    own = {"owner": "vision", "tier": "1"}
    with world.db.write() as tx:
        tx.run(update(machines).values(labels=own))
    place(world, pool="a100", site="berlin")
    assert row(world)["labels"] == own
    place(world, owner="somebody")
    assert row(world)["labels"] == own


@pytest.mark.parametrize("value", ["a b", "x" * 64, "é", "a\n", "\x00", 7, None, True])
def test_a_bad_value_changes_nothing(world: World, value: object) -> None:
    with pytest.raises(Refusal) as refusal:
        place(world, site="berlin", rack=value)
    assert refusal.value.code == "INVALID_LABEL"
    assert where(world)["site"] == ""


def test_a_value_may_have_letters_digits_and_a_few_signs(world: World) -> None:
    assert place(world, fabric="Az09-._:/").after["fabric"] == "Az09-._:/"
    assert place(world, rack="x" * 63).after["rack"] == "x" * 63


def test_the_change_is_told_with_before_and_after_once(world: World) -> None:
    place(world, pool="a100")
    for view in ("event", "audit"):
        (entry,) = entries(world, view)
        none = {"site": "", "rack": "", "fabric": ""}
        assert entry["data"] == {"name": "m", "before": {"pool": "h100", **none}, "after": {"pool": "a100", **none}}
        assert (entry["machine_id"], entry["actor_name"]) == (world.ids.machines["m"], "admin")


def test_what_changes_nothing_is_not_told_and_touches_nothing(world: World) -> None:
    before = row(world)["fleet_version"]
    for labels in ({}, {"pool": "h100"}, {"rack": ""}):
        assert place(world, **labels).before == place(world, **labels).after
    assert entries(world, "audit") == []
    assert row(world)["fleet_version"] == before


def test_placement_looks_at_the_machine_again(world: World) -> None:
    before = row(world)["fleet_version"]
    place(world, pool="a100")
    assert row(world)["fleet_version"] > before


def test_who_can_use_it_is_told_before_and_after_and_running_work_stays(world: World) -> None:
    world.add_workload("dev", "m", gpu_count=1)
    with world.db.write() as tx:
        tx.run(update(allocations).values(workspace_id=world.ids.workspaces["acme/private"]))
    world.add_workload("ours", "m")
    with world.act("admin", "acme") as ctx:
        told = machine_labels.preview(ctx, "default", "m", {"pool": "a100"})
    assert where(world)["pool"] == "h100" and entries(world, "audit") == []
    assert told == place(world, pool="a100")
    assert (told.workspaces_before, told.workspaces_after) == (Some(["private", "research"], 0), Some(["research"], 0))
    assert [(work.workspace, work.name) for work in told.stays] == [("private", "dev")]
    with world.db.read() as tx:
        assert {held["stop_asked_at"] for held in tx.all(select(allocations))} == {None}


def test_of_many_workspaces_the_first_are_named_and_the_rest_counted_and_what_stays_is_right_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral.store.workspaces.LISTED", 1)
    with world.db.write() as tx:
        tx.run(update(access_pools).values(pool="*"))
    world.add_workload("ours", "m")
    with world.act("admin", "acme") as ctx:
        told = machine_labels.preview(ctx, "default", "m", {"pool": "a100"})
        effect = reservations.preview(ctx, "default", asked(1, 2, ["m"])).effect
        spared = reservations.preview(ctx, "default", asked(1, 2, ["m"], workspaces=["private"])).effect
        affected = machine_acts.affected(ctx, "default", "m")
    assert told.workspaces_before == told.workspaces_after == affected.workspaces == Some(["private"], 1)
    assert told.stays == []  # "research" is not named, and can use it
    assert (effect.kept_out, effect.kept_out_left_out) == (["private"], 1)
    assert (spared.kept_out, spared.kept_out_left_out) == (["research"], 0)


def test_a_preview_tells_what_reserves_the_machine_then(world: World) -> None:
    one = make(world, asked(1, 2, pool="a100"))
    make(world, asked(1, 2, pool="h100"))
    assert [window.id for window in place(world, pool="a100").windows] == [one.id]


def test_a_foreign_or_absent_machine_is_not_found(world: World) -> None:
    world.add_machine("theirs", "rival")
    for name in ("theirs", "absent"):
        with pytest.raises(Refusal) as refusal:
            place(world, name, pool="x")
        assert refusal.value.code == "NODE_NOT_FOUND"
