"""A restored, older database: what runs is adopted where it is unambiguous, and nothing is stopped or doubled."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import delete, update

from corral.domain.allocations import Desired, Seen
from corral.domain.compute_clusters import Creation
from corral.store import allocations as rows
from corral.store import workloads as workload_rows
from corral.store.database_errors import IntegrityError
from corral.store.tables.access import access
from corral.store.tables.workloads import allocations, gpu_holds, workload_ssh_keys, workloads
from corral.store.transaction import Scope
from corral.usecases.adoption import Adoption, adopt
from tests.conftest import Clock
from tests.placing import allocation, check_invariants, code_of, create, ref, report, saying, wanted, workload
from tests.world import World


@pytest.fixture
def world(world_on_both: World) -> World:
    world_on_both.add_machine("gpu-1", gpu_count=2)
    return world_on_both


def forgotten(world: World, name: str, gpus: int = 1) -> Desired:
    """Run something, then restore a database in which it never was; return what its machine was told."""
    create(world, Creation(name, gpus=gpus, time_limit_seconds=600))
    told: Desired = wanted(world, "gpu-1")[name]
    with world.db.write() as tx:
        for table in (gpu_holds, allocations, workload_ssh_keys, workloads):
            tx.run(delete(table))
    return told


def take_in(world: World, *described: Desired) -> Adoption:
    with world.db.write() as tx:
        return adopt(tx, ref(world, "gpu-1"), described, behind=True)


def test_what_runs_is_adopted_as_it_runs(world: World, clock: Clock) -> None:
    told = forgotten(world, "dev")
    clock.forward(100)
    told = replace(told, seconds_left=500)
    assert take_in(world, told) == Adoption([told.id], [])
    row, held = workload(world, "dev"), allocation(world, "dev")
    assert (row["id"], row["state"], held["id"]) == (told.workload, "active", told.id)
    assert wanted(world, "gpu-1")["dev"] == replace(told, generation=told.generation + 1)
    report(world, "gpu-1", [saying(world, "dev", Seen.RUNNING)])
    assert workload(world, "dev")["state"] == "active"
    check_invariants(world.db)


def test_its_gpus_are_not_given_to_others(world: World) -> None:
    take_in(world, forgotten(world, "dev", gpus=2))
    assert code_of(world, Creation("next", gpus=1)) == "NO_CAPACITY"


def test_a_name_that_was_taken_meanwhile_is_made_unique(world: World) -> None:
    told = forgotten(world, "dev")
    create(world, Creation("dev"))
    take_in(world, told)
    assert workload(world, "dev-2")["id"] == told.workload


def test_what_was_told_to_stop_is_adopted_stopping(world: World) -> None:
    told = replace(forgotten(world, "dev"), stop=True)
    take_in(world, told)
    assert wanted(world, "gpu-1")["dev"].stop


def test_what_waited_when_the_back_up_was_made_is_placed_where_it_runs(world: World) -> None:
    told = forgotten(world, "dev", gpus=2)
    create(world, Creation("full", gpus=2))
    queued = create(world, Creation("dev", gpus=2, wait=True))
    with world.db.write() as tx:
        for table in (gpu_holds, allocations):
            tx.run(delete(table))
        tx.run(update(workloads).where(workloads.c.name == "full").values(ended_at=tx.now))
    told = replace(told, workload=queued["id"])
    assert take_in(world, told).adopted == [told.id]
    assert (workload(world, "dev")["queued"], workload(world, "dev")["state"]) == (False, "active")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"org": "00000000-0000-7000-8000-000000000000"}, "its workspace does not exist here"),
        ({"workspace": "00000000-0000-7000-8000-000000000000"}, "its workspace does not exist here"),
        ({"kind": "quantum"}, "its kind of workload is not known to this release"),
        ({"id": "../../etc"}, "its id cannot be used here"),
        ({"gpus": ("GPU-elsewhere",)}, "one of its GPUs is not on this machine, or belongs to other work"),
        ({"gpus": ("GPU-gpu-1-0",) * 2}, "one of its GPUs is not on this machine, or belongs to other work"),
    ],
)
def test_what_is_ambiguous_is_left_alone_saying_why(world: World, change: dict[str, object], why: str) -> None:
    told = replace(forgotten(world, "dev"), **change)  # type: ignore[arg-type]
    assert take_in(world, told) == Adoption([], [(told.id, why)])
    assert wanted(world, "gpu-1") == {}


def test_a_gpu_that_was_given_away_meanwhile_is_not_given_twice(world: World) -> None:
    told = forgotten(world, "dev")
    create(world, Creation("other", gpus=2))
    assert take_in(world, told).adopted == []
    check_invariants(world.db)


def test_resources_and_quota_hold_for_what_is_adopted_too(world: World) -> None:
    told = forgotten(world, "dev")
    big = replace(told, resources=replace(told.resources, vcpu=99))
    assert take_in(world, big).ambiguous == [(told.id, "its vCPU, RAM or storage is more than this machine has free")]
    with world.db.write() as tx:
        tx.run(update(access).values(gpus=0))
    assert take_in(world, told).ambiguous[0][1].startswith("quota: 0 of 0 GPUs")


def test_a_workload_is_on_one_machine_whatever_its_writer_believed(world: World) -> None:
    create(world, Creation("dev", gpus=1))
    held = allocation(world, "dev")
    again = {**held, "id": held["id"][:-1] + ("0" if held["id"][-1] != "0" else "1")}
    with pytest.raises(IntegrityError), world.db.write() as tx:
        rows.insert_many(tx, [again], [])


def test_what_does_not_wait_any_more_is_not_taken_out_of_the_queue_again(world: World) -> None:
    create(world, Creation("dev", gpus=1))
    row = workload(world, "dev")
    with pytest.raises(LookupError), world.db.write() as tx:
        workload_rows.unqueue(tx, Scope(row["org_id"]), row["cluster_id"], {row["id"]: {}})


@pytest.mark.parametrize("name", ["queued", "queue_no", "ended_at"])
def test_the_queue_is_changed_only_where_whoever_remembers_it_is_told(world: World, name: str) -> None:
    create(world, Creation("dev", gpus=1))
    row = workload(world, "dev")
    with pytest.raises(TypeError), world.db.write() as tx:
        workload_rows.save(tx, Scope(row["org_id"]), row["id"], **{name: None})
