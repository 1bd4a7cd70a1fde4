"""Creating compute clusters and the queue, by the rules of spec 20 and 30, on both databases."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.exc import IntegrityError

from corral.domain import quotas
from corral.domain.allocations import Seen
from corral.domain.compute_clusters import Creation
from corral.domain.errors import Refusal
from corral.domain.quotas import Quota
from corral.store import access, fleet
from corral.store.engine import Database
from corral.store.tables.machines import gpus, machines
from corral.store.transaction import Scope
from corral.usecases import queue
from corral.usecases.compute_clusters import show
from corral.usecases.fleets import Fleets
from corral.usecases.placement import create_many
from tests.conftest import Clock
from tests.placing import ask, check_invariants, code_of, create, report, saying, terminate, workload
from tests.world import World


@pytest.fixture
def world(world_on_both: World) -> World:
    world_on_both.add_machine("a", gpu_count=2, pool="x")
    world_on_both.add_machine("b", gpu_count=4, pool="y")
    return world_on_both


def set_machine(world: World, name: str, **values: object) -> None:
    """Change what placement judges by, as every use case does: the fleet is touched first."""
    with world.db.write() as tx:
        fleet.touch(tx, Scope(world.ids.orgs["acme"]), world.ids.clusters["default"], [world.ids.machines[name]])
        tx.run(update(machines).where(machines.c.id == world.ids.machines[name]).values(**values))


def grant(world: World, pools: tuple[str, ...], quota: int | None = None, **others: Any) -> None:
    scope, cluster = Scope(world.ids.orgs["acme"]), world.ids.clusters["default"]
    with world.db.write() as tx:
        fleet.touch(tx, scope, cluster)
        access.put(tx, scope, world.ids.workspaces["acme/research"], cluster, Quota(quota, **others))
        access.put_pools(tx, scope, world.ids.workspaces["acme/research"], cluster, pools)


def advance(world: World, fleets: Fleets | None = None) -> None:
    """Do what the placement worker does with a queue."""
    where = (world.ids.orgs["acme"], world.ids.clusters["default"])
    with world.db.write() as tx:
        queue.advance(tx, fleets or Fleets(), *where)
    with world.db.read() as tx:
        _, changed = queue.reasons(tx, fleets or Fleets(), *where)
    with world.db.write() as tx:
        queue.say(tx, world.ids.orgs["acme"], changed)


def refusal(world: World, creation: Creation, who: str = "member") -> Refusal:
    with pytest.raises(Refusal) as refused:
        create(world, creation, who)
    return refused.value


def test_the_tightest_machine_takes_it_with_its_fair_share(world: World) -> None:
    assert create(world, Creation("dev", gpus=1))["machine"] == "a"
    with world.act("member", "acme", "research") as ctx:
        made = show(ctx, "dev")
    assert (made.vcpu, made.ram_mib, made.storage_mib, made.gpu_uuids) == (8, 32 * 1024, 512 * 1024, ["GPU-a-0"])


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"cordon_reason": "maintenance"}, "cordoned: maintenance"),
        ({"state": "down"}, "down since 2026-03-01 12:00:00 UTC"),
        ({"state": "idle"}, "has not reported yet"),
        ({"pressure": "disk_pressure: 1 GiB left"}, "takes no new work: disk_pressure: 1 GiB left"),
        ({"quarantine": "clone"}, "quarantined: two copies of it report"),
        ({"vcpu": 0}, "0 of 0 vCPU free, 1 asked"),
    ],
)
def test_nothing_lands_where_it_may_not_and_the_remembered_fleet_knows(
    world: World, values: dict[str, object], reason: str
) -> None:
    fleets = Fleets()
    assert create(world, Creation("first", machine="b"), fleets=fleets)["machine"] == "b"
    set_machine(world, "b", **values)
    with pytest.raises(Refusal) as refused:
        create(world, Creation("second", machine="b"), fleets=fleets)
    assert refused.value.code == "NO_CAPACITY"
    assert refused.value.details["machines"] == [{"name": "b", "reason": reason}]


def test_a_faulty_or_busy_gpu_is_never_given(world: World) -> None:
    with world.db.write() as tx:
        tx.run(update(gpus).where(gpus.c.uuid == "GPU-a-0").values(state="unreadable"))
        tx.run(update(gpus).where(gpus.c.uuid == "GPU-a-1").values(busy="pid 42"))
    assert refusal(world, Creation("dev", gpus=1, machine="a")).details["machines"] == [
        {"name": "a", "reason": "0 of 2 GPUs free (2 faulty or busy), 1 asked"}
    ]


def test_machines_outside_the_workspaces_pools_look_like_none(world: World) -> None:
    grant(world, ("x",))
    outside, absent = (refusal(world, Creation("dev", machine=name)) for name in ("b", "zz"))
    assert (outside.code, outside.message.replace("'b'", "'zz'")) == (absent.code, absent.message)
    assert [one["name"] for one in refusal(world, Creation("dev", gpus=4)).details["machines"]] == ["a"]
    assert refusal(world, Creation("dev", pool="y")).code == "NO_ACCESS"


def test_another_organisations_machines_are_never_used(world: World) -> None:
    assert refusal(world, Creation("dev"), "rival").details["machines"] == []


def test_no_access_no_cluster_taken_name_unknown_key(world: World) -> None:
    assert code_of(world, Creation("dev", cluster="nope")) == "NOT_FOUND"
    assert code_of(world, Creation("dev", ssh_keys=["nope"])) == "INVALID_REQUEST"
    create(world, Creation("dev"))
    assert code_of(world, Creation("dev")) == "NAME_TAKEN"
    assert code_of(world, Creation("x"), "outsider") == "NOT_FOUND"


def test_the_quota_is_never_exceeded_and_says_by_how_much(world: World) -> None:
    grant(world, ("*",), quota=2)
    create(world, Creation("one", gpus=1))
    refused = refusal(world, Creation("two", gpus=2))
    assert (refused.code, refused.details["over_by"], refused.details["in_use"]) == ("QUOTA_EXCEEDED", 1, 1)
    assert code_of(world, Creation("cpu")) == ""
    assert code_of(world, Creation("huge", gpus=3, wait=True)) == "QUOTA_EXCEEDED"


def test_an_ask_that_is_refused_spoils_nothing_for_the_others(world: World) -> None:
    asks = [ask(world, Creation(name, gpus=n)) for name, n in (("a", 2), ("b", 99), ("a", 1), ("c", 4))]
    with world.db.write() as tx:
        answers = create_many(tx, Fleets(), asks)
    assert [getattr(answer, "code", "made") for answer in answers] == ["made", "NO_CAPACITY", "NAME_TAKEN", "made"]
    check_invariants(world.db)


# ---- the queue


def test_what_waits_goes_on_first_come_first_served_and_says_why(world: World, clock: Clock) -> None:
    create(world, Creation("full", gpus=4, machine="b"))
    first = create(world, Creation("first", gpus=4, wait=True, time_limit_seconds=60))
    create(world, Creation("second", gpus=4, wait=True))
    assert first["queued"]
    assert first["reason"] == "a: 2 of 2 GPUs free, 4 asked; b: 0 of 4 GPUs free, 4 asked"
    clock.forward(100)
    report(world, "b", [saying(world, "full", Seen.RUNNING)])
    terminate(world, "full")
    advance(world)
    assert workload(world, "first")["queued"]
    report(world, "b", [saying(world, "full", Seen.GONE)])
    advance(world)
    row = workload(world, "first")
    assert (row["queued"], row["step"], row["reason"]) == (False, "placed", "")
    assert (row["must_end_by"] - clock.now).total_seconds() == 60
    assert workload(world, "second")["queued"]
    check_invariants(world.db)


def test_a_later_ask_takes_nothing_that_an_earlier_one_waits_for(world: World) -> None:
    create(world, Creation("part", gpus=1, machine="b"))
    create(world, Creation("first", gpus=4, pool="y", wait=True))
    refused = refusal(world, Creation("later", gpus=1, pool="y"))
    assert refused.details["machines"] == [{"name": "b", "reason": "kept for work that has waited longer"}]
    assert create(world, Creation("elsewhere", gpus=1))["machine"] == "a"


def test_what_waits_later_does_not_go_on_before_what_waits_for_the_same_machine(world: World) -> None:
    create(world, Creation("part", gpus=2, machine="b"))
    create(world, Creation("rest", gpus=2, machine="b"))
    create(world, Creation("first", gpus=4, machine="b", wait=True))
    create(world, Creation("small", gpus=1, pool="y", wait=True))
    report(world, "b", [saying(world, "part", Seen.RUNNING), saying(world, "rest", Seen.RUNNING)])
    terminate(world, "part")
    report(world, "b", [saying(world, "part", Seen.GONE), saying(world, "rest", Seen.RUNNING)])
    advance(world)
    assert [workload(world, name)["queued"] for name in ("first", "small")] == [True, True]
    assert workload(world, "small")["reason"] == "b: kept for work that has waited longer"


def test_a_quota_that_waits_holds_back_its_own_workspace_only_and_no_machine(world: World) -> None:
    grant(world, ("*",), quota=2)
    create(world, Creation("one", gpus=1))
    assert create(world, Creation("two", gpus=2, wait=True))["reason"].startswith("quota: 1 of 2 GPUs are in use")
    assert code_of(world, Creation("three", gpus=1)) == "QUOTA_EXCEEDED"
    assert code_of(world, Creation("cpu")) == ""
    grant(world, ("*",), quota=3)
    advance(world)
    assert not workload(world, "two")["queued"]


def test_a_workspace_has_so_many_that_wait_and_no_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MAX_WAITING", 2)
    fleets = Fleets()
    for number in range(2):
        create(world, Creation(f"w{number}", vcpu=1000, wait=True), fleets=fleets)
    refused = refusal(world, Creation("w2", vcpu=1000, wait=True))
    assert (refused.code, refused.details) == ("QUEUE_FULL", {"waiting": 2})
    assert code_of(world, Creation("w2", vcpu=1000, wait=True), fleets=fleets) == "QUEUE_FULL"
    # Others' places, and what need not wait, are not touched by that.
    assert code_of(world, Creation("w2", vcpu=1000, wait=True), "rival") == ""
    assert code_of(world, Creation("w3", machine="a", wait=True), fleets=fleets) == ""
    terminate(world, "w0")
    assert code_of(world, Creation("w4", vcpu=1000, wait=True), fleets=fleets) == ""


def test_terminating_what_waits_ends_it_at_once(world: World) -> None:
    create(world, Creation("waits", gpus=4, machine="a", wait=True))
    terminate(world, "waits")
    assert workload(world, "waits")["state"] == "terminated"
    advance(world)
    assert workload(world, "waits")["queued"] is False


def test_the_reason_is_written_again_only_when_it_changed(world: World) -> None:
    create(world, Creation("waits", gpus=4, machine="a", wait=True))
    set_machine(world, "a", cordon_reason="broken")
    advance(world)
    assert workload(world, "waits")["reason"] == "a: cordoned: broken"


# ---- races


def test_two_replicas_race_for_the_last_gpu_and_one_wins(db_url: str, world: World, clock: Clock) -> None:
    create(world, Creation("taken", gpus=1, machine="a"))
    replicas = [Database(db_url, clock=clock) if not world.db.is_sqlite else world.db for _ in range(2)]

    def race(number: int) -> str:
        with replicas[number].write() as tx:
            creation = Creation(f"racer-{number}", gpus=1, machine="a")
            answer = create_many(tx, Fleets(), [ask(world, creation)])[0]
        return getattr(answer, "code", "made")

    try:
        with ThreadPoolExecutor(2) as pool:
            assert sorted(pool.map(race, range(2))) == ["NO_CAPACITY", "made"]
    finally:
        for replica in replicas:
            if replica is not world.db:
                replica.close()
    check_invariants(world.db)


def test_eight_writers_at_the_quotas_edge_never_exceed_it(world: World) -> None:
    grant(world, ("*",), quota=3)

    def write(number: int) -> str:
        return code_of(world, Creation(f"w{number}", gpus=1))

    with ThreadPoolExecutor(8) as pool:
        codes = sorted(pool.map(write, range(8)))
    assert codes == ["", "", ""] + ["QUOTA_EXCEEDED"] * 5
    check_invariants(world.db)


def test_the_database_itself_refuses_a_gpu_twice(world: World) -> None:
    stale = Fleets()
    create(world, Creation("one", gpus=2, machine="a"), fleets=stale)
    with world.db.write() as tx:
        known = stale.locked(tx, Scope(world.ids.orgs["acme"]), world.ids.clusters["default"])
        known.fleet.replace(known.fleet.machines["a"].facts)  # it forgets what it gave away
    with pytest.raises(IntegrityError):
        create(world, Creation("two", gpus=1, vcpu=1, ram_gib=1, storage_gib=1, machine="a"), fleets=stale)
    check_invariants(world.db)
