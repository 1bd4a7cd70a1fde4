"""Work a site does not know: what closes a machine, what an admin's word changes, what a machine cannot claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from sqlalchemy import delete, update

from corral.domain.allocations import MAX_AHEAD, Desired, Report, Seen
from corral.domain.compute_clusters import Creation
from corral.domain.inventory import Gpu, GpuState, Inventory
from corral.domain.sessions import Opened
from corral.domain.sessions import Report as Said
from corral.store import machines as machine_rows
from corral.store.tables.access import access_pools
from corral.store.tables.machines import machines as machine_table
from corral.store.tables.workloads import allocations, gpu_holds, workload_ssh_keys, workloads
from corral.store.transaction import Row, Scope
from corral.usecases import compute_clusters, desired, machines, reports
from tests.placing import allocation, check_invariants, code_of, create, ref, saying, terminate, wanted, workload
from tests.world import World

STRAY = "01900000-0000-7000-8000-000000000001"
OTHER = "01900000-0000-7000-8000-000000000002"


@pytest.fixture
def world(world_on_both: World) -> World:
    world_on_both.add_machine("gpu-1", gpu_count=2)
    return world_on_both


def session(world: World, machine: str = "gpu-1") -> Opened:
    where = ref(world, machine)
    return Opened(where.id, where.org_id, where.cluster_id, where.name, 0, "")


def hear(world: World, *seen: Report, inventory: Inventory | None = None) -> reports.Processed:
    with world.db.write() as tx:
        return reports.receive(tx, session(world), Said("", "", inventory, (), seen))


def describe(world: World, works: Sequence[Desired], asked: Sequence[str]) -> None:
    with world.db.write() as tx:
        reports.described(tx, session(world), works, asked)


def machine(world: World) -> Row:
    with world.db.read() as tx:
        row = machine_rows.get(tx, Scope(world.ids.orgs["acme"]), world.ids.machines["gpu-1"])
    assert row is not None
    return row


def release(world: World) -> None:
    with world.act("admin", org="acme") as ctx:
        machines.release_quarantine(ctx, "default", "gpu-1")


def stray(id: str = STRAY, *gpus: str) -> Report:
    return Report(id, 1, Seen.RUNNING, gpus=gpus)


def forgotten(world: World, name: str) -> Desired:
    """Run something, then restore a database in which it never was; return what its machine was told."""
    create(world, Creation(name, gpus=1))
    told: Desired = wanted(world, "gpu-1")[name]
    with world.db.write() as tx:
        for table in (gpu_holds, allocations, workload_ssh_keys, workloads):
            tx.run(delete(table))
        tx.run(update(machine_table).values(behind=True))
    return told


# ---- an admin's word


def test_what_an_admin_accepted_does_not_close_the_machine_again(world: World) -> None:
    assert hear(world, stray()).outcome.describe == [STRAY]
    release(world)
    again = hear(world, stray())
    assert (machine(world)["quarantine"], list(again.outcome.describe)) == (None, [])
    assert code_of(world, Creation("next", gpus=2)) == ""
    hear(world, stray(), stray(OTHER))
    assert machine(world)["quarantine"] == "unknown_work"


def test_what_ended_and_comes_again_needs_another_word(world: World) -> None:
    hear(world, stray())
    release(world)
    hear(world)
    hear(world, stray())
    assert machine(world)["quarantine"] == "unknown_work"


def test_gpus_of_accepted_work_are_given_to_nobody_until_it_ends(world: World) -> None:
    hear(world, stray(STRAY, "GPU-gpu-1-0"))
    release(world)
    hear(world, stray(STRAY, "GPU-gpu-1-0"), inventory=_inventory(vcpu=32))
    assert code_of(world, Creation("both", gpus=2)) == "NO_CAPACITY"
    assert create(world, Creation("one", gpus=1))["machine"] == "gpu-1"
    one = saying(world, "one", Seen.RUNNING)
    assert one.gpus == ["GPU-gpu-1-1"]
    hear(world, one)
    assert code_of(world, Creation("other", gpus=1)) == ""
    check_invariants(world.db)


def _inventory(vcpu: int) -> Inventory:
    gpus = [Gpu("nvidia", f"GPU-gpu-1-{n}", f"0000:0{n}:00.0", "H100", 81920, "", GpuState.OK, "", "") for n in (0, 1)]
    return Inventory(f"d{vcpu}", "gpu-1", vcpu, 64 * 1024, 1024 * 1024, gpus, {})


def test_accepted_work_does_not_make_this_site_look_behind(world: World) -> None:
    create(world, Creation("dev", gpus=1))
    hear(world, saying(world, "dev", Seen.RUNNING), stray())
    release(world)
    hear(world, stray())
    assert workload(world, "dev")["state"] == "active"  # missing: a difference, not its end


def test_of_what_cannot_be_read_nothing_is_concluded(world: World) -> None:
    create(world, Creation("dev", gpus=1))
    hear(world, saying(world, "dev", Seen.RUNNING))
    held = allocation(world, "dev")["id"]
    with world.db.write() as tx:
        reports.receive(tx, session(world), Said("", "", None, (), [stray()], {held}))
    assert (workload(world, "dev")["state"], allocation(world, "dev")["released_at"]) == ("active", None)
    hear(world, stray())
    assert workload(world, "dev")["state"] == "terminated"


# ---- what a machine may make known


def test_a_machine_makes_known_only_what_it_was_asked_about_and_while_it_is_closed(world: World) -> None:
    told = forgotten(world, "dev")
    hear(world, stray())
    describe(world, [told], [STRAY])
    assert wanted(world, "gpu-1") == {}
    hear(world)
    describe(world, [told], [told.id])
    assert wanted(world, "gpu-1") == {}
    with world.db.write() as tx:
        tx.run(update(machine_table).values(behind=True))
    asked = hear(world, stray(told.id)).outcome.describe
    describe(world, [told], asked)
    assert list(wanted(world, "gpu-1")) == ["dev"]


def test_a_machine_makes_no_work_in_a_workspace_that_may_not_use_it(world: World) -> None:
    told = forgotten(world, "dev")
    hear(world, stray(told.id))
    describe(world, [replace(told, workspace=world.ids.workspaces["acme/private"])], [told.id])
    assert wanted(world, "gpu-1") == {}
    with world.db.write() as tx:
        tx.run(update(access_pools).values(pool="elsewhere"))
    describe(world, [told], [told.id])
    assert wanted(world, "gpu-1") == {}
    with world.db.read() as tx:
        assert tx.all(workloads.select()) == []


def test_on_a_site_that_was_not_restored_a_machine_makes_nothing_known_by_itself(world: World) -> None:
    told = forgotten(world, "dev")
    with world.db.write() as tx:
        tx.run(update(machine_table).values(behind=False))
    hear(world, stray(told.id))
    describe(world, [told], [told.id])
    assert (wanted(world, "gpu-1"), machine(world)["quarantine"]) == ({}, "unknown_work")
    release(world)
    assert machine(world)["quarantine"] is None


def test_a_back_up_put_back_without_a_word_shows_in_what_a_machine_knows_later(world: World) -> None:
    told = forgotten(world, "dev")
    create(world, Creation("kept", gpus=1))
    with world.db.write() as tx:
        tx.run(update(machine_table).values(behind=False))
    kept = saying(world, "kept", Seen.RUNNING)
    told = replace(told, gpus=tuple({"GPU-gpu-1-0", "GPU-gpu-1-1"} - set(kept.gpus)))
    hear(world, replace(kept, generation=kept.generation + 1), stray(told.id))
    describe(world, [told], [told.id])
    assert set(wanted(world, "gpu-1")) == {"kept", "dev"}


def test_once_all_is_known_after_a_restore_nothing_more_is_believed(world: World) -> None:
    told = forgotten(world, "dev")
    hear(world)
    hear(world, stray(told.id))
    describe(world, [told], [told.id])
    assert wanted(world, "gpu-1") == {}


# ---- generations


def test_a_generation_that_cannot_be_closes_the_machine_and_breaks_nothing(world: World) -> None:
    create(world, Creation("dev", gpus=1))
    for claim in (2**31 - 1, 2**53):
        hear(world, saying(world, "dev", Seen.RUNNING, generation=claim))
        assert machine(world)["quarantine"] == "unknown_work"
        assert allocation(world, "dev")["generation"] == 1
    terminate(world, "dev")
    assert wanted(world, "gpu-1")["dev"].generation == 2


def test_a_machine_that_is_ahead_as_far_as_can_be_is_followed_beyond_31_bits(world: World) -> None:
    create(world, Creation("dev", gpus=1))
    with world.db.write() as tx:
        tx.run(update(allocations).values(generation=2**31 - 2))
    hear(world, saying(world, "dev", Seen.RUNNING, generation=2**31 - 2 + MAX_AHEAD))
    terminate(world, "dev")
    assert wanted(world, "gpu-1")["dev"].generation == 2**31 + MAX_AHEAD


def test_what_lingers_with_a_generation_that_cannot_be_is_told_a_number_that_can(world: World) -> None:
    create(world, Creation("dev", gpus=1))
    hear(world, saying(world, "dev", Seen.FAILED, message="x"))
    hear(world, saying(world, "dev", Seen.RUNNING, generation=2**53))
    assert (wanted(world, "gpu-1")["dev"].stop, wanted(world, "gpu-1")["dev"].generation) == (True, 2)


def test_adopted_work_with_a_generation_that_cannot_be_is_left_alone(world: World) -> None:
    told = replace(forgotten(world, "dev"), generation=2**53)
    hear(world, stray(told.id))
    describe(world, [told], [told.id])
    with world.db.read() as tx:
        assert desired.for_machine(tx, ref(world, "gpu-1")) == []


def test_a_login_as_long_as_can_be_terminates_too(world: World) -> None:
    login = "l" * 100
    create(world, Creation("dev", gpus=1))
    with world.act("admin", "acme", "research") as ctx:
        compute_clusters.terminate(replace(ctx, user_or_none=replace(ctx.user, login=login)), "dev")
    assert workload(world, "dev")["stop_reason"] == f"terminated by {login}"
