"""Quotas in every dimension: judged in the transaction that allocates, for all that allocates, on both databases."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from corral.domain.allocations import Seen
from corral.domain.compute_clusters import Creation
from corral.domain.errors import Refusal
from corral.domain.quotas import Quota
from corral.store.tables.machines import gpus, machines
from corral.store.tables.workloads import allocations, gpu_holds, workload_ssh_keys, workloads
from corral.store.transaction import Scope
from corral.usecases import access
from corral.usecases import machines as machine_acts
from corral.usecases.adoption import adopt
from corral.usecases.fleets import Fleets
from corral.usecases.placement import create_many
from corral.usecases.queue import advance, explain, reasons, say
from tests.conftest import Clock
from tests.placing import (
    allocation,
    ask,
    check_invariants,
    code_of,
    create,
    ref,
    report,
    saying,
    terminate,
    wanted,
    workload,
)
from tests.world import World

DAY = 86_400


@pytest.fixture
def world(world_on_both: World) -> World:
    """Two machines: `a` with 4 H100, and `b` with 4 A100 and twice the vCPU, RAM and storage."""
    world_on_both.add_machine("a", gpu_count=4)
    world_on_both.add_machine("b", gpu_count=4)
    with world_on_both.db.write() as tx:
        mine = machines.c.name == "b"
        tx.run(update(machines).where(mine).values(vcpu=32, ram_mib=128 * 1024, storage_mib=2 * 1024 * 1024))
        tx.run(update(gpus).where(gpus.c.uuid.startswith("GPU-b-")).values(model="A100"))
    return world_on_both


def limit(world: World, **quota: Any) -> None:
    with world.act("admin", "acme", "research") as ctx:
        access.put(ctx, "default", ["*"], Quota(**quota))


def refusal(world: World, creation: Creation) -> Refusal:
    with pytest.raises(Refusal) as refused:
        create(world, creation)
    return refused.value


def go_on(world: World, fleets: Fleets | None = None) -> int:
    """Do what the placement worker does with a queue; return the version that it told."""
    where, fleets = (world.ids.orgs["acme"], world.ids.clusters["default"]), fleets or Fleets()
    with world.db.write() as tx:
        advance(tx, fleets, *where)
    with world.db.read() as tx:
        version, changed = reasons(tx, fleets, *where)
    with world.db.write() as tx:
        say(tx, where[0], changed)
    return version


def end(world: World, name: str, machine: str) -> None:
    report(world, machine, [saying(world, name, Seen.RUNNING)])
    terminate(world, name)
    report(world, machine, [saying(world, name, Seen.GONE)])


@pytest.mark.parametrize(
    ("quota", "named"),
    [
        ({"gpus": 2}, {"quota": "gpus", "limit": 2, "in_use": 1, "asked": 2}),
        ({"gpu_models": {"H100": 2}}, {"quota": "gpu_models", "gpu_model": "H100", "limit": 2, "in_use": 1}),
        ({"vcpu": 11}, {"quota": "vcpu", "limit": 11, "in_use": 4, "asked": 8, "over_by": 1}),
        ({"ram_gib": 47}, {"quota": "ram_gib", "limit": 47, "in_use": 16, "asked": 32, "over_by": 1}),
        ({"storage_gib": 700}, {"quota": "storage_gib", "in_use": 256, "asked": 512, "over_by": 68}),
        ({"gpu_hours_month": 1_500}, {"quota": "gpu_hours_month", "month": "2026-03", "in_use": 732}),
    ],
)
def test_no_quota_is_exceeded_and_the_refusal_says_which_and_by_how_much(
    world: World, quota: dict[str, Any], named: dict[str, Any]
) -> None:
    limit(world, **quota)
    create(world, Creation("one", gpus=1, machine="a"))
    refused = refusal(world, Creation("two", gpus=2, machine="a", gpu_model="H100"))
    assert refused.code == "QUOTA_EXCEEDED"
    assert refused.details.items() >= named.items()
    assert "Workspace 'research' on cluster 'default'" in refused.message
    assert code_of(world, Creation("fits", gpus=1, machine="a", vcpu=1, ram_gib=1, storage_gib=1)) == ""
    check_invariants(world.db)


def test_an_ask_that_names_no_model_gets_one_that_its_quota_leaves(world: World) -> None:
    limit(world, gpu_models={"H100": 1})
    assert create(world, Creation("one", gpus=1))["machine"] == "a"
    assert create(world, Creation("two", gpus=1))["machine"] == "b"
    limit(world, gpu_models={"H100": 1, "A100": 1})
    refused = refusal(world, Creation("three", gpus=1))
    assert (refused.code, refused.details["gpu_model"]) == ("QUOTA_EXCEEDED", "H100")
    assert code_of(world, Creation("cpu")) == ""


def test_an_ask_that_names_no_model_waits_for_a_machine_of_another_one(world: World) -> None:
    limit(world, gpu_models={"H100": 1, "A100": 1})
    assert code_of(world, Creation("h100", gpus=2, gpu_model="H100", wait=True)) == "QUOTA_EXCEEDED"
    assert create(world, Creation("any", gpus=2, wait=True))["reason"].startswith("quota: 0 of 1 ")
    world.add_machine("c", gpu_count=2)
    with world.db.write() as tx:
        tx.run(update(gpus).where(gpus.c.uuid.startswith("GPU-c-")).values(model="L40S"))
    go_on(world)
    assert allocation(world, "any")["gpu_model"] == "L40S"


def test_the_model_of_an_allocations_gpus_is_kept(world: World) -> None:
    create(world, Creation("one", gpus=1, machine="b"))
    create(world, Creation("none"))
    assert [allocation(world, name)["gpu_model"] for name in ("one", "none")] == ["A100", ""]


def test_a_fair_share_goes_where_it_stays_within_the_quota(world: World) -> None:
    create(world, Creation("part", gpus=2, machine="b", vcpu=1, ram_gib=1, storage_gib=1))
    limit(world, vcpu=5)
    made = create(world, Creation("small", gpus=1))  # the best fit, `b`, would be 8 vCPU
    assert made["machine"] == "a"
    refused = refusal(world, Creation("more", gpus=1))
    assert (refused.code, refused.details["asked"], refused.details["in_use"]) == ("QUOTA_EXCEEDED", 4, 5)


def test_a_fair_share_that_only_another_machine_leaves_room_for_says_so(world: World) -> None:
    limit(world, vcpu=5)
    create(world, Creation("full", gpus=4, vcpu=1, machine="a"))
    refused = refusal(world, Creation("more", gpus=1))
    assert (refused.code, refused.details["quota"], refused.details["asked"]) == ("QUOTA_EXCEEDED", "vcpu", 8)
    assert create(world, Creation("more", gpus=1, wait=True))["queued"]


def test_what_waits_counts_first_in_each_dimension(world: World) -> None:
    limit(world, ram_gib=40, gpu_models={"H100": 2})
    create(world, Creation("one", ram_gib=20, gpus=1, machine="a"))
    create(world, Creation("waits", ram_gib=30, wait=True))
    refused = refusal(world, Creation("later", ram_gib=1))
    assert (refused.details["quota"], refused.details["waiting"], refused.details["over_by"]) == ("ram_gib", 30, 11)
    create(world, Creation("model", gpus=2, gpu_model="H100", ram_gib=1, wait=True))
    end(world, "one", "a")
    go_on(world)
    assert [workload(world, name)["queued"] for name in ("waits", "model")] == [False, False]


def test_what_waits_for_one_quota_leaves_another_dimension_alone(world: World) -> None:
    limit(world, gpu_models={"H100": 1})
    create(world, Creation("one", gpus=1, gpu_model="H100"))
    waiting = create(world, Creation("waits", gpus=1, gpu_model="H100", wait=True))
    assert waiting["reason"].startswith("quota: 1 of 1 H100 GPUs are in use")
    assert create(world, Creation("other", gpus=1, gpu_model="A100"))["machine"] == "b"
    assert code_of(world, Creation("never", gpus=2, gpu_model="H100", wait=True)) == "QUOTA_EXCEEDED"


def test_what_its_quota_holds_back_for_what_waits_before_holds_back_no_machine(world: World) -> None:
    limit(world, gpus=2)
    fleets = Fleets()
    in_private(world, fleets, Creation("full", gpus=4, machine="a"))
    create(world, Creation("first", gpus=2, machine="a", wait=True))
    held = create(world, Creation("second", gpus=1, machine="b", wait=True))
    assert held["reason"].startswith("quota: 0 of 2 GPUs are in use, 2 more")
    assert in_private(world, fleets, Creation("whole", gpus=4, machine="b")) == [""]


def in_private(world: World, fleets: Fleets, *creations: Creation) -> list[str]:
    """Create them at once in another workspace, which has no quota; return their refusals' codes ("": none)."""
    with world.act("admin", "acme", "private") as ctx:
        access.put(ctx, "default", ["*"], Quota())
    asks = [ask(world, creation, "admin", "private") for creation in creations]
    with world.db.write() as tx:
        answers = create_many(tx, fleets, asks)
    return [answer.code if isinstance(answer, Refusal) else "" for answer in answers]


def test_explain_says_which_quota_holds_it_back(world: World) -> None:
    limit(world, gpu_hours_month=10, gpu_models={"H100": 0})
    with world.act("member", "acme", "research") as ctx:
        over = explain(ctx, Fleets(), Creation("x", gpus=1))
        fits = explain(ctx, Fleets(), Creation("x", gpus=1, time_limit_seconds=3600))
        model = explain(ctx, Fleets(), Creation("x", gpus=1, machine="a", time_limit_seconds=3600))
    assert over.machine is None and "GPU-hours of 2026-03" in over.quota
    assert (fits.machine, fits.quota) == ("b", "")
    assert (model.machine, model.quota) == (None, "quota: 0 of 0 H100 GPUs are in use; 1 asked is 1 too many")
    assert {answer.machine: answer.reason for answer in fits.answers} == {
        "a": "the workspace's quota leaves too few H100",
        "b": "",
    }


# ---- GPU-hours a month


def test_work_without_a_limit_needs_a_whole_month_of_its_own(world: World) -> None:
    limit(world, gpu_hours_month=744)
    refused = refusal(world, Creation("two", gpus=2))
    assert refused.details["over_by"] == 720  # of what is left of March
    assert code_of(world, Creation("one", gpus=1)) == ""
    assert code_of(world, Creation("more", gpus=1, time_limit_seconds=3600 * 12)) == "QUOTA_EXCEEDED"
    assert code_of(world, Creation("cpu")) == ""


def test_the_refusal_names_a_time_limit_that_is_then_taken(world: World) -> None:
    limit(world, gpu_hours_month=10)
    create(world, Creation("one", gpus=1, time_limit_seconds=3600 * 4))
    refused = refusal(world, Creation("two", gpus=2, time_limit_seconds=3600 * 4))
    fits = refused.details["time_limit_that_fits"]
    assert 3600 * 2.9 < fits < 3600 * 3
    assert code_of(world, Creation("two", gpus=2, time_limit_seconds=fits + 1)) == "QUOTA_EXCEEDED"
    assert code_of(world, Creation("two", gpus=2, time_limit_seconds=fits)) == ""


def test_what_has_ended_counts_what_it_used_and_no_more(world: World, clock: Clock) -> None:
    limit(world, gpu_hours_month=10)
    create(world, Creation("one", gpus=2, machine="a", time_limit_seconds=3600 * 4))
    clock.forward(3600)
    end(world, "one", "a")
    with world.act("member", "acme", "research") as ctx:
        used = access.listed(ctx, None, 1)[0].used
    assert (used.gpu_hours_month, used.gpu_hours_kept) == (2, 2)
    assert refusal(world, Creation("two", gpus=4, time_limit_seconds=7200)).details["in_use"] == 2
    assert code_of(world, Creation("two", gpus=4, time_limit_seconds=7200 - 10)) == ""


def test_only_this_months_part_of_what_has_ended_counts(world: World, clock: Clock) -> None:
    clock.now = datetime(2026, 3, 31, 20, tzinfo=timezone.utc)
    limit(world, gpu_hours_month=10)
    create(world, Creation("one", gpus=1, machine="a", time_limit_seconds=3600 * 10))
    clock.forward(3600 * 6)
    end(world, "one", "a")
    with world.act("member", "acme", "research") as ctx:
        assert access.listed(ctx, None, 1)[0].used.gpu_hours_month == 2


def test_a_new_month_lets_go_on_what_waits_for_hours_and_it_is_tried_though_nothing_changed(
    world: World, clock: Clock
) -> None:
    limit(world, gpu_hours_month=10)
    create(world, Creation("one", gpus=2, machine="a", time_limit_seconds=3600 * 4))
    clock.forward(3600 * 4)
    end(world, "one", "a")
    made = create(world, Creation("waits", gpus=1, wait=True, time_limit_seconds=3600 * 5))
    assert "8 of 10 GPU-hours of 2026-03" in made["reason"]
    fleets = Fleets()
    assert go_on(world, fleets) == -1
    assert workload(world, "waits")["queued"]
    clock.now = datetime(2026, 4, 1, tzinfo=timezone.utc)
    assert go_on(world, fleets) != -1
    assert not workload(world, "waits")["queued"]


def test_once_the_month_is_over_what_waited_for_hours_stands_first_though_nothing_changed(
    world: World, clock: Clock
) -> None:
    limit(world, gpu_hours_month=10)
    fleets, long, short = Fleets(), 3600 * 9, 60
    create(world, Creation("one", gpus=1, machine="b", time_limit_seconds=long), fleets=fleets)
    create(world, Creation("waits", gpus=1, machine="a", wait=True, time_limit_seconds=long), fleets=fleets)
    assert in_private(world, fleets, Creation("now", gpus=1, machine="a", time_limit_seconds=short)) == [""]
    clock.now = datetime(2026, 4, 1, tzinfo=timezone.utc)
    with world.db.read() as tx:
        before = fleets.seen(tx, Scope(world.ids.orgs["acme"]), world.ids.clusters["default"]).version
    assert in_private(world, fleets, Creation("later", gpus=1, machine="a")) == ["NO_CAPACITY"]
    with world.db.read() as tx:
        assert fleets.seen(tx, Scope(world.ids.orgs["acme"]), world.ids.clusters["default"]).version == before


def test_what_is_created_at_once_is_counted_one_after_the_other(world: World) -> None:
    limit(world, gpu_hours_month=3, gpu_models={"H100": 2, "A100": 1})
    asks = [ask(world, Creation(f"w{n}", gpus=1, time_limit_seconds=3600 - 10)) for n in range(5)]
    with world.db.write() as tx:
        answers = create_many(tx, Fleets(), asks)
    assert [getattr(answer, "code", "") for answer in answers] == ["", "", "", "QUOTA_EXCEEDED", "QUOTA_EXCEEDED"]
    limit(world, gpu_hours_month=4)
    asks = [ask(world, Creation(f"x{n}", gpus=1, time_limit_seconds=1800 - 10)) for n in range(3)]
    with world.db.write() as tx:
        answers = create_many(tx, Fleets(), asks)
    assert [getattr(answer, "code", "") for answer in answers] == ["", "", "QUOTA_EXCEEDED"]


def test_work_that_is_out_of_reach_counts_until_now(world: World, clock: Clock) -> None:
    create(world, Creation("stuck", gpus=1, machine="a", time_limit_seconds=3600))
    clock.forward(3600 * 8)
    limit(world, gpu_hours_month=10)
    assert refusal(world, Creation("two", gpus=1, time_limit_seconds=3600 * 3)).details["in_use"] == 8


# ---- everything else that allocates or shows


def test_what_is_adopted_stays_within_every_quota(world: World) -> None:
    create(world, Creation("dev", gpus=2, machine="a", time_limit_seconds=3600))
    told = wanted(world, "a")["dev"]
    with world.db.write() as tx:
        for table in (gpu_holds, allocations, workload_ssh_keys, workloads):
            tx.run(delete(table))
    for quota, words in (
        ({"gpu_models": {"H100": 1}}, "2 asked is 1 too many"),
        ({"vcpu": 7}, "0 of 7 vCPU"),
        ({"gpu_hours_month": 1}, "GPU-hours of 2026-03"),
    ):
        limit(world, **quota)
        with world.db.write() as tx:
            assert words in adopt(tx, ref(world, "a"), [told], behind=True).ambiguous[0][1]
    limit(world, gpus=2, gpu_models={"H100": 2}, vcpu=8, gpu_hours_month=3)
    with world.db.write() as tx:
        assert adopt(tx, ref(world, "a"), [told], behind=True).adopted == [told.id]
    assert allocation(world, "dev")["gpu_model"] == "H100"


def test_gpus_of_several_models_are_no_one_workloads(world: World) -> None:
    create(world, Creation("dev", gpus=2, machine="a"))
    told = wanted(world, "a")["dev"]
    with world.db.write() as tx:
        for table in (gpu_holds, allocations, workload_ssh_keys, workloads):
            tx.run(delete(table))
        tx.run(update(gpus).where(gpus.c.uuid == "GPU-a-0").values(model="A100"))
        assert adopt(tx, ref(world, "a"), [told], behind=True).ambiguous == [
            (told.id, "its GPUs are of several models")
        ]


def test_the_list_of_machines_says_where_the_quota_is_reached(world: World) -> None:
    world.add_machine("cpu", gpu_count=0)
    create(world, Creation("one", gpus=1, machine="a"))

    def statuses() -> dict[str, str]:
        with world.act("member", "acme", "research") as ctx:
            return {one.row["name"]: one.status for one in machine_acts.of_workspace(ctx, None, 9)}

    free = {"a": "available", "b": "available", "cpu": "available"}
    limit(world, gpus=2, gpu_models={"H100": 2}, vcpu=5, gpu_hours_month=5_000)
    assert statuses() == free
    limit(world, gpu_models={"H100": 1})
    assert statuses() == {**free, "a": "quota reached"}
    limit(world, gpus=1)
    assert statuses() == {**free, "a": "quota reached", "b": "quota reached"}
    limit(world, gpu_hours_month=100)
    assert statuses() == {**free, "a": "quota reached", "b": "quota reached"}
    limit(world, vcpu=4)
    assert set(statuses().values()) == {"quota reached"}


def test_access_shows_what_is_used_of_each(world: World, clock: Clock) -> None:
    create(world, Creation("one", gpus=2, machine="a", time_limit_seconds=3600 * 10))
    create(world, Creation("two", gpus=1, machine="b", vcpu=3, ram_gib=5, storage_gib=7, time_limit_seconds=3600))
    clock.forward(1800)
    with world.act("member", "acme", "research") as ctx:
        used = access.listed(ctx, None, 1)[0].used
    assert (used.gpus, used.gpu_models) == (3, {"A100": 1, "H100": 2})
    assert (used.vcpu, used.ram_gib, used.storage_gib) == (11, 37, 519)
    assert (used.gpu_hours_month, used.gpu_hours_kept) == (1.5, 21.01)


# ---- races


@pytest.mark.parametrize(
    "quota",
    [{"gpus": 3}, {"gpu_models": {"H100": 3, "A100": 0}}, {"vcpu": 12}, {"ram_gib": 48}, {"gpu_hours_month": 3}],
)
def test_eight_writers_at_the_edge_of_a_quota_never_exceed_it(world: World, quota: dict[str, Any]) -> None:
    with world.db.write() as tx:
        tx.run(update(machines).where(machines.c.name == "b").values(cordon_reason="x"))
    limit(world, **quota)
    creation = Creation("", gpus=1, time_limit_seconds=3600 - 10)

    def write(number: int) -> str:
        return code_of(world, replace(creation, name=f"w{number}"))

    with ThreadPoolExecutor(8) as pool:
        codes = sorted(pool.map(write, range(8)))
    assert codes == ["", "", ""] + ["QUOTA_EXCEEDED"] * 5
    with world.db.read() as tx:
        assert len(tx.all(select(allocations.c.id))) == 3
    check_invariants(world.db)
