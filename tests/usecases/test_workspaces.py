"""Workspaces, the people in them, and their access to clusters (spec 05)."""

from __future__ import annotations

import pytest

from corral.domain.errors import Refusal
from corral.domain.permissions import Part
from corral.domain.quotas import Quota
from corral.store import fleet, journal
from corral.store.journal import Filter
from corral.store.transaction import Scope, Signal, Wake
from corral.usecases import access, workspaces
from tests.world import World


def test_a_member_sees_only_workspaces_they_belong_to(world_on_both: World) -> None:
    for who, seen in (("admin", ["private", "research"]), ("member", ["research"]), ("outsider", [])):
        with world_on_both.act(who, "acme") as ctx:
            assert [one.slug for one in workspaces.listed(ctx, None, 10)] == seen


def test_a_short_name_is_taken_once_and_free_again_after_removal(world_on_both: World) -> None:
    world = world_on_both
    with pytest.raises(Refusal) as refused, world.act("admin", "acme") as ctx:
        workspaces.create(ctx, "research", "Research")
    assert refused.value.code == "NAME_TAKEN"
    with world.act("admin", "acme", "private") as ctx:
        workspaces.remove(ctx)
    with world.act("admin", "acme") as ctx:
        made = workspaces.create(ctx, "private", "Private")
    assert made.id != world.ids.workspaces["acme/private"]


def test_another_organisation_may_use_the_same_short_name(world: World) -> None:
    with world.act("rival", "rival") as ctx:
        assert workspaces.create(ctx, "private", "Ours").slug == "private"


def test_a_workspace_with_live_workloads_stays(world: World) -> None:
    world.add_machine("gpu-1")
    world.add_workload("dev", "gpu-1")
    with pytest.raises(Refusal) as refused, world.act("admin", "acme", "research") as ctx:
        workspaces.remove(ctx)
    assert refused.value.code == "CONFLICT"
    assert "dev" in refused.value.message
    with pytest.raises(Refusal) as refused, world.act("admin", "acme", "research") as ctx:
        access.remove(ctx, "default")
    assert refused.value.code == "CONFLICT"


def test_a_removed_workspace_takes_its_access_along(world: World) -> None:
    with world.act("admin", "acme", "research") as ctx:
        workspaces.remove(ctx)
    with world.act("admin", "acme") as ctx:
        workspaces.create(ctx, "research", "Research")
    with world.act("admin", "acme", "research") as ctx:
        assert list(access.listed(ctx, None, 10)) == []
        assert list(workspaces.members(ctx, None, 10)) == []


def test_only_members_of_the_organisation_come_into_a_workspace(world: World) -> None:
    with pytest.raises(Refusal) as refused, world.act("admin", "acme", "research") as ctx:
        workspaces.set_member(ctx, "rival", Part.LEAD)
    assert refused.value.code == "NOT_FOUND"
    with world.act("admin", "acme", "research") as ctx:
        assert workspaces.set_member(ctx, "outsider", Part.LEAD).part == "lead"
        assert workspaces.set_member(ctx, "outsider", Part.MEMBER).part == "member"


def test_who_is_taken_out_of_a_workspace_loses_their_streams(world: World) -> None:
    heard: list[Signal] = []
    world.db.subscribe(lambda signals, seq: heard.extend(signals))
    with world.act("admin", "acme", "research") as ctx:
        workspaces.remove_member(ctx, "member")
    assert heard == [Signal(Wake.STREAMS, world.ids.users["member"])]
    with pytest.raises(Refusal) as refused, world.act("admin", "acme", "research") as ctx:
        workspaces.remove_member(ctx, "member")
    assert refused.value.code == "NOT_FOUND"


def test_access_is_set_shown_and_taken_away(world_on_both: World) -> None:
    world = world_on_both
    with world.act("admin", "acme", "private") as ctx:
        made = access.put(ctx, "default", ["h100", "a100"], Quota(gpus=8))
        assert (made.pools, made.quota.gpus, made.used.gpus, made.hosted) == (("a100", "h100"), 8, 0, True)
    with world.act("admin", "acme", "private") as ctx:
        assert access.put(ctx, "default", ["*"], Quota()).pools == ("*",)
        access.remove(ctx, "default")
        assert list(access.listed(ctx, None, 10)) == []
        with pytest.raises(Refusal):
            access.remove(ctx, "default")


def test_access_shows_what_is_in_use(world: World) -> None:
    world.add_machine("gpu-1", gpu_count=4)
    world.add_workload("dev", "gpu-1", gpu_count=3)
    with world.act("member", "acme", "research") as ctx:
        assert access.listed(ctx, None, 10)[0].used.gpus == 3


def test_a_change_of_access_is_one_audit_entry_and_wakes_placement(world: World) -> None:
    cluster, scope = world.ids.clusters["default"], Scope(world.ids.orgs["acme"])
    heard: list[Signal] = []
    world.db.subscribe(lambda signals, seq: heard.extend(signals))
    with world.db.write() as tx:
        before = fleet.lock(tx, scope, cluster)
    for _ in range(2):
        with world.act("admin", "acme", "research") as ctx:
            access.put(ctx, "default", ["h100"], Quota(gpus=4))
    with world.db.write() as tx:
        assert fleet.lock(tx, scope, cluster) == before + 1
        entries = journal.newest_first(tx, scope, Filter("audit"), before=None, limit=10)
    assert heard == [Signal(Wake.PLACEMENT, cluster, scope.org)]
    assert [entry["type"] for entry in entries] == ["workspace.access"]
    assert entries[0]["data"] == {
        "before": {"pools": ["*"], "quota": {}},
        "after": {"pools": ["h100"], "quota": {"gpus": 4}},
    }


def test_a_pool_is_added_to_what_is_granted(world: World) -> None:
    place = (world.ids.workspaces["acme/private"], world.ids.clusters["default"])
    with world.act("admin", "acme") as ctx:
        access.grant_pool(ctx, *place, "h100")
        access.grant_pool(ctx, *place, "a100")
    with world.act("admin", "acme", "private") as ctx:
        assert access.listed(ctx, None, 10)[0].pools == ("a100", "h100")


def test_a_cluster_of_another_organisation_is_not_found(world: World) -> None:
    for cluster in ("absent", "other"):
        with pytest.raises(Refusal) as refused, world.act("admin", "acme", "research") as ctx:
            access.put(ctx, cluster, ["*"], Quota())
        assert refused.value.code == "NOT_FOUND"
