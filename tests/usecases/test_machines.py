"""What reports change of a machine, and what people do with one (spec 10), on both databases."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, insert, select, update

from corral.domain.errors import Refusal
from corral.domain.inventory import Condition, Gpu, GpuCounts, GpuState, Inventory
from corral.domain.machines import MachineRef, MachineState
from corral.domain.workspaces import Some
from corral.store import fleet, journal
from corral.store import inventory as gpu_rows
from corral.store import machines as machine_rows
from corral.store.machines import Wanted
from corral.store.tables.access import access, access_pools
from corral.store.tables.clusters import tenancies
from corral.store.tables.machines import gpus, machines
from corral.store.tables.orgs import orgs
from corral.store.tables.site import sites
from corral.store.tables.workloads import allocations, gpu_holds
from corral.store.transaction import Scope
from corral.usecases import machines as use
from corral.usecases import removal, topology
from tests.world import World

FIRST = "00000000-0000-7000-8000-000000000000"


def ref(world: World, name: str, org: str = "acme") -> MachineRef:
    return MachineRef(world.ids.machines[name], world.ids.orgs[org], world.ids.clusters["default"], name)


def row(world: World, name: str) -> dict[str, Any]:
    with world.db.read() as tx:
        found = tx.one(select(machines).where(machines.c.id == world.ids.machines[name]))
        assert found is not None
        return dict(found)


def entries(world: World, view: str, *types: str) -> list[dict[str, Any]]:
    with world.db.read() as tx:
        scope = Scope(world.ids.orgs["acme"])
        want = journal.Filter(view=view, types=types)
        return [dict(entry) for entry in journal.newest_first(tx, scope, want, before=None, limit=99)]


def version(world: World) -> int:
    with world.db.read() as tx:
        return int(tx.scalar(select(tenancies.c.version).where(tenancies.c.org_id == world.ids.orgs["acme"])))


def gpu(number: int, state: GpuState = GpuState.OK, busy: str = "") -> Gpu:
    return Gpu("nvidia", f"GPU-{number}", f"0000:{number:02x}:00.0", "H100", 81920, "", state, "", busy)


def inventory(digest: str, *gpus: Gpu, vcpu: int = 32) -> Inventory:
    return Inventory(digest, "host", vcpu, 1024, 2048, gpus, {"kernel": "6.1", "odd": "a\x00b"})


def report(world: World, name: str, what: Inventory) -> bool:
    with world.db.write() as tx:
        return use.judge_inventory(tx, ref(world, name), what)


def kept(world: World, name: str) -> dict[str, tuple[str, bool]]:
    with world.db.read() as tx:
        return {
            r.kept.gpu.uuid: (r.kept.gpu.state.value, r.kept.gone) for r in gpu_rows.of_machine(tx, ref(world, name))
        }


# --- reports


def test_an_inventory_is_saved_and_told(world_on_both: World) -> None:
    world_on_both.add_machine("m", gpu_count=0)
    before = version(world_on_both)
    assert report(world_on_both, "m", inventory("d1", gpu(1), gpu(2)))
    saved = row(world_on_both, "m")
    assert (saved["vcpu"], saved["ram_mib"], saved["storage_mib"], saved["hostname"]) == (32, 1024, 2048, "host")
    assert saved["inventory"] == {"kernel": "6.1", "odd": "a\x00b"}
    assert saved["fleet_version"] == version(world_on_both) > before
    (entry,) = entries(world_on_both, "event", "cluster.node.inventory")
    assert entry["data"]["after"] == {"vcpu": 32, "ram_mib": 1024, "storage_mib": 2048}
    assert [told["uuid"] for told in entry["data"]["gpus"]] == ["GPU-1", "GPU-2"]


def test_the_same_inventory_again_writes_nothing(world_on_both: World) -> None:
    world_on_both.add_machine("m", gpu_count=0)
    report(world_on_both, "m", inventory("d1", gpu(1)))
    before = version(world_on_both)
    assert not report(world_on_both, "m", inventory("d1", gpu(1)))
    assert version(world_on_both) == before
    assert len(entries(world_on_both, "event", "cluster.node.inventory")) == 1


def test_what_placement_does_not_judge_by_wakes_nobody(world_on_both: World) -> None:
    world_on_both.add_machine("m", gpu_count=0)
    report(world_on_both, "m", inventory("d1", gpu(1)))
    before = version(world_on_both)
    assert not report(world_on_both, "m", replace(inventory("d2", gpu(1)), facts={"kernel": "6.2"}))
    assert row(world_on_both, "m")["inventory"] == {"kernel": "6.2"}
    assert version(world_on_both) == before


def test_a_missing_gpu_stays_listed_and_a_replaced_one_goes(world_on_both: World) -> None:
    world_on_both.add_machine("m", gpu_count=0)
    report(world_on_both, "m", inventory("d1", gpu(1), gpu(2)))
    report(world_on_both, "m", inventory("d2", gpu(2)))
    assert kept(world_on_both, "m") == {"GPU-1": ("missing", False), "GPU-2": ("ok", False)}
    report(world_on_both, "m", inventory("d3", gpu(2), replace(gpu(3), slot=gpu(1).slot)))
    assert kept(world_on_both, "m") == {"GPU-1": ("missing", True), "GPU-2": ("ok", False), "GPU-3": ("ok", False)}
    with world_on_both.act("admin", org="acme") as ctx:
        shown = use.one(ctx, "default", "m")
    assert [one["uuid"] for one in shown.gpus] == ["GPU-3", "GPU-2"]
    assert (shown.machine.gpus.counts.total, shown.machine.gpus.counts.free) == (2, 2)


def test_two_machines_may_claim_one_uuid(world_on_both: World) -> None:
    for name in ("a", "b"):
        world_on_both.add_machine(name, gpu_count=0)
        report(world_on_both, name, inventory("d1", gpu(1)))
    assert kept(world_on_both, "a") == kept(world_on_both, "b") == {"GPU-1": ("ok", False)}


def test_a_removed_machines_inventory_still_does_no_harm(world_on_both: World) -> None:
    world_on_both.add_machine("m", gpu_count=0)
    with world_on_both.act("admin", org="acme") as ctx:
        removal.remove(ctx, "default", "m", force=False)
    report(world_on_both, "m", inventory("d1", gpu(1)))
    with world_on_both.act("admin", org="acme") as ctx:
        assert use.listed(ctx, "default", Wanted(), None, 10) == []


def test_a_condition_is_told_when_it_begins_and_ends(world_on_both: World) -> None:
    world_on_both.add_machine("m")
    full = Condition("disk_pressure", "3% free", True)
    stuck = Condition("gpu_probe_failed", "no answer", False)

    def say(*conditions: Condition) -> bool:
        with world_on_both.db.write() as tx:
            return use.judge_conditions(tx, ref(world_on_both, "m"), conditions)

    assert say(stuck, full)
    assert row(world_on_both, "m")["pressure"] == "disk_pressure: 3% free"
    assert not say(stuck, full)
    assert say(replace(full, message="2% free"))
    assert say()
    assert row(world_on_both, "m")["pressure"] == ""
    told = [(e["data"]["kind"], e["data"]["began"]) for e in entries(world_on_both, "event", "cluster.node.condition")]
    assert told[::-1] == [
        ("disk_pressure", True),
        ("gpu_probe_failed", True),
        ("gpu_probe_failed", False),
        ("disk_pressure", False),
    ]


def test_up_and_down_are_told_once(world_on_both: World) -> None:
    world_on_both.add_machine("m", state="idle")
    with world_on_both.db.write() as tx:
        assert use.set_state(tx, ref(world_on_both, "m"), MachineState.UP)
        assert not use.set_state(tx, ref(world_on_both, "m"), MachineState.UP)
        assert use.set_state(tx, ref(world_on_both, "m"), MachineState.DOWN)
        assert not use.set_state(tx, ref(world_on_both, "m"), MachineState.DOWN)
    types = [entry["type"] for entry in entries(world_on_both, "event", "cluster.node.*")]
    assert types == ["cluster.node.down", "cluster.node.up"]


def test_a_report_that_comes_between_keeps_a_machine_up(world_on_both: World) -> None:
    world_on_both.add_machine("m")  # heard now
    with world_on_both.db.write() as tx:
        before = tx.now - timedelta(seconds=60)
        assert not use.set_state(tx, ref(world_on_both, "m"), MachineState.DOWN, unseen_since=before)
        assert use.set_state(tx, ref(world_on_both, "m"), MachineState.DOWN, unseen_since=tx.now)


def test_an_idle_machine_never_goes_down(world_on_both: World) -> None:
    world_on_both.add_machine("m", state="idle")
    with world_on_both.db.write() as tx:
        assert not use.set_state(tx, ref(world_on_both, "m"), MachineState.DOWN)


# --- what people do


def test_a_cordon_shows_reason_who_and_when_and_is_audited_once(world_on_both: World) -> None:
    world_on_both.add_machine("m")
    before = version(world_on_both)
    for _ in range(2):
        with world_on_both.act("admin", org="acme") as ctx:
            machine = use.cordon(ctx, "default", "m", None)
    assert machine.closed == "cordoned: maintenance"
    assert (machine.row["cordoned_by"], machine.row["cordoned_at"]) == ("admin", ctx.now)
    assert version(world_on_both) > before
    assert len(entries(world_on_both, "audit", "cluster.node.cordoned")) == 1
    with world_on_both.act("admin", org="acme") as ctx:
        assert use.uncordon(ctx, "default", "m").closed == ""
    (entry,) = entries(world_on_both, "audit", "cluster.node.uncordoned")
    assert entry["data"]["before"] == "maintenance"


def test_a_quarantine_is_released_by_an_admin(world_on_both: World) -> None:
    world_on_both.add_machine("m")
    with world_on_both.db.write() as tx:
        machine_rows.save(tx, ref(world_on_both, "m"), {"quarantine": "clone", "quarantine_reason": "two report"})
    with world_on_both.act("admin", org="acme") as ctx:
        assert use.release_quarantine(ctx, "default", "m").closed == ""
    (entry,) = entries(world_on_both, "audit", "cluster.node.quarantine_released")
    assert entry["data"] == {"name": "m", "before": "clone", "reason": "two report"}


def test_a_dry_run_tells_who_is_affected_and_changes_nothing(world_on_both: World) -> None:
    world_on_both.add_machine("m")
    world_on_both.add_workload("dev", "m", gpu_count=1)
    with world_on_both.act("admin", org="acme") as ctx:
        told = use.affected(ctx, "default", "m")
    assert [(work.workspace, work.name, work.gpus) for work in told.running] == [("research", "dev", 1)]
    assert told.workspaces == Some(["research"], 0)


def test_another_organisations_machine_is_not_there(world_on_both: World) -> None:
    world_on_both.add_machine("theirs", org="rival")
    acts = (
        lambda ctx: use.one(ctx, "default", "theirs"),
        lambda ctx: use.cordon(ctx, "default", "theirs", None),
        lambda ctx: removal.remove(ctx, "default", "theirs", force=True),
    )
    for act in acts:
        with world_on_both.act("admin", org="acme") as ctx, pytest.raises(Refusal) as refused:
            act(ctx)
        assert refused.value.code == "NODE_NOT_FOUND"
    with world_on_both.act("admin", org="acme") as ctx:
        assert use.listed(ctx, "default", Wanted(), None, 10) == []


# --- what people see


def test_machines_are_listed_in_pages_and_filtered(world_on_both: World) -> None:
    for name, pool, state in (("a", "x", "up"), ("b", "y", "down"), ("c", "x", "up"), ("d", "", "up")):
        world_on_both.add_machine(name, pool=pool, state=state)

    def names(want: Wanted, after: str | None = None, limit: int = 10) -> list[str]:
        with world_on_both.act("admin", org="acme") as ctx:
            return [machine.row["name"] for machine in use.listed(ctx, "default", want, after, limit)]

    assert names(Wanted(), limit=2) == ["a", "b"]
    assert names(Wanted(), "b") == ["c", "d"]
    assert names(Wanted(MachineState.UP)) == ["a", "c", "d"]
    assert names(Wanted(pools=["x"])) == ["a", "c"]


def test_a_list_asks_no_question_for_each_machine(world_on_both: World) -> None:
    def questions() -> int:
        asked: list[str] = []
        listen = lambda *given: asked.append(given[2])  # noqa: E731
        with world_on_both.act("admin", org="acme", workspace="research") as ctx:
            event.listen(ctx.tx.conn, "before_cursor_execute", listen)
            use.listed(ctx, "default", Wanted(), None, 100)
            use.of_workspace(ctx, None, 100)
            event.remove(ctx.tx.conn, "before_cursor_execute", listen)
        return len(asked)

    world_on_both.add_machine("m-0")
    few = questions()
    for number in range(1, 9):
        world_on_both.add_machine(f"m-{number}")
    assert questions() == few


def offered(world: World, who: str = "member") -> dict[str, tuple[int, int, str]]:
    with world.act(who, org="acme", workspace="research") as ctx:
        return {
            one.row["name"]: (one.gpus.counts.free, one.gpus.counts.total, one.status)
            for one in use.of_workspace(ctx, None, 100)
        }


def test_a_workspace_sees_available_and_total_and_why_nothing_can_be_created(world_on_both: World) -> None:
    world_on_both.add_machine("free")
    world_on_both.add_machine("full")
    world_on_both.add_machine("cpu", gpu_count=0)
    world_on_both.add_machine("gone", state="down")
    world_on_both.add_machine("faulty")
    world_on_both.add_machine("closed")
    world_on_both.add_machine("theirs", org="rival")
    world_on_both.add_workload("dev", "full", gpu_count=2)
    with world_on_both.db.write() as tx:
        tx.run(update(gpus).where(gpus.c.machine_id == world_on_both.ids.machines["faulty"]).values(state="missing"))
    with world_on_both.act("admin", org="acme") as ctx:
        use.cordon(ctx, "default", "closed", "disk swap")
    assert offered(world_on_both) == {
        "closed": (2, 2, "cordoned: disk swap"),
        "cpu": (0, 0, "available"),
        "faulty": (0, 2, "all GPUs faulty"),
        "free": (2, 2, "available"),
        "full": (0, 2, "Sold Out"),
        "gone": (2, 2, "down"),
    }


def test_what_was_released_and_still_runs_holds_its_gpus_wherever_they_are_shown(world_on_both: World) -> None:
    """Placement gives nobody a GPU that its machine still uses: nobody is told that it is free."""
    world_on_both.add_machine("m", gpu_count=2)
    world_on_both.add_workload("ended", "m", gpu_count=1)
    with world_on_both.db.write() as tx:
        fleet.touch(tx, Scope(world_on_both.ids.orgs["acme"]), world_on_both.ids.clusters["default"])
        tx.run(update(gpu_holds).values(released_at=tx.now))
        tx.run(update(allocations).values(released_at=tx.now, lingers_since=tx.now))

    def shown() -> tuple[object, ...]:
        with world_on_both.act("admin", "acme", "research") as ctx:
            details = use.one(ctx, "default", "m")
            holders = [gpu["workload"] for gpu in details.gpus]
            uses = [one.gpu.use.value for one in topology.gpus(ctx, None, 9)]
            free = fleet.changed_since(ctx.tx, ctx.scope, world_on_both.ids.clusters["default"], -1).machines[0].gpus
        return details.machine.gpus.counts, holders, uses, len(free), offered(world_on_both)["m"][:2]

    assert shown() == (GpuCounts(2, 2, 1, 1), ["ended", None], ["allocated", "free"], 1, (1, 2))
    with world_on_both.db.write() as tx:  # and was given away once more, before its machine said so
        again = tx.one(select(allocations))
        hold = tx.one(select(gpu_holds))
        assert again is not None and hold is not None
        live = {"id": FIRST, "lingers_since": None, "released_at": None}
        tx.run(insert(allocations).values({**again, **live}))
        tx.run(insert(gpu_holds).values({**hold, "allocation_id": FIRST, "released_at": None}))
    assert shown() == (GpuCounts(2, 2, 1, 1), ["ended", None], ["allocated", "free"], 1, (1, 2))
    with world_on_both.db.write() as tx:
        tx.run(update(allocations).values(lingers_since=None, released_at=tx.now))
        tx.run(update(gpu_holds).values(released_at=tx.now))
    assert shown() == (GpuCounts(2, 2, 0, 2), [None, None], ["free", "free"], 2, (2, 2))


def grant(world: World, *pools: str, quota: int | None = None) -> None:
    """Replace what `research` is granted of the hosted cluster."""
    mine = access_pools.c.workspace_id == world.ids.workspaces["acme/research"]
    place = {"workspace_id": world.ids.workspaces["acme/research"], "cluster_id": world.ids.clusters["default"]}
    with world.db.write() as tx:
        tx.run(access_pools.delete().where(mine))
        for pool in pools:
            tx.run(access_pools.insert().values(**place, pool=pool))
        tx.run(update(access).where(access.c.workspace_id == place["workspace_id"]).values(gpus=quota))


def test_machines_outside_a_workspaces_pools_are_not_shown(world_on_both: World) -> None:
    world_on_both.add_machine("x", pool="x")
    world_on_both.add_machine("y", pool="y")
    world_on_both.add_machine("none")
    grant(world_on_both, "x", "z", "")  # a pool without a name is none: the last grants nothing
    assert list(offered(world_on_both)) == ["x"]
    with world_on_both.act("admin", org="acme") as ctx:
        assert use.affected(ctx, "default", "x").workspaces == Some(["research"], 0)
        assert use.affected(ctx, "default", "y").workspaces == Some([], 0)
        assert use.affected(ctx, "default", "none").workspaces == Some([], 0)


def test_a_reached_quota_is_said(world_on_both: World) -> None:
    world_on_both.add_machine("m")
    world_on_both.add_workload("dev", "m", gpu_count=1)
    grant(world_on_both, "*", quota=2)
    assert offered(world_on_both)["m"][2] == "available"
    grant(world_on_both, "*", quota=1)
    assert offered(world_on_both)["m"][2] == "quota reached"


def test_pages_of_a_workspaces_machines_go_over_clusters(world_on_both: World) -> None:
    for name in ("a", "b", "c"):
        world_on_both.add_machine(name)
    with world_on_both.act("member", org="acme", workspace="research") as ctx:
        first = use.of_workspace(ctx, None, 2)
        last = first[-1].row
        rest = use.of_workspace(ctx, (last["name"], last["id"]), 2)
    assert [one.row["name"] for one in [*first, *rest]] == ["a", "b", "c"]


def test_whom_to_ask_is_the_organisations_line_else_the_sites(world_on_both: World) -> None:
    with world_on_both.db.write() as tx:
        tx.run(update(sites).values(contact="ops@site"))
    with world_on_both.act("member", org="acme") as ctx:
        assert use.contact(ctx) == "ops@site"
    with world_on_both.db.write() as tx:
        tx.run(update(orgs).values(contact="it@acme"))
    with world_on_both.act("member", org="acme") as ctx:
        assert use.contact(ctx) == "it@acme"
