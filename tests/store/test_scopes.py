"""The tenant stands in every WHERE: a store function given another organisation's scope finds and changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import func, insert, select

from corral.domain.sessions import Hello
from corral.store import access, allocations, sessions, ssh_keys, workloads
from corral.store.tables.access import access_pools
from corral.store.tables.users import ssh_keys as key_table
from corral.store.tables.workloads import allocation_log
from corral.store.transaction import Scope
from corral.usecases.context import new_id
from tests.placing import ref
from tests.world import World


@pytest.fixture
def world(world_on_both: World) -> World:
    world_on_both.add_machine("m")
    world_on_both.add_workload("dev", "m", gpu_count=1)
    return world_on_both


def test_what_allocations_hold_and_said_is_found_in_their_own_organisation_only(world: World) -> None:
    mine, rival = (Scope(world.ids.orgs[org]) for org in ("acme", "rival"))
    id, machine = world.ids.allocations["dev"], world.ids.machines["m"]
    with world.db.write() as tx:
        tx.run(insert(allocation_log).values(allocation_id=id, n=1, text="x", at=tx.now))
        assert [len(allocations.held_gpus(tx, scope, [id])[id]) for scope in (mine, rival)] == [1, 0]
        assert [allocations.log_ends(tx, scope, [id]) for scope in (mine, rival)] == [{id: 1}, {}]
        assert [len(allocations.log_of(tx, scope, id)) for scope in (mine, rival)] == [1, 0]
        assert [len(workloads.machine_traits(tx, [scope], [machine])) for scope in (mine, rival)] == [1, 0]


def test_sessions_are_those_of_the_organisations_own_machine(world: World) -> None:
    mine = ref(world, "m")
    theirs = replace(mine, org_id=world.ids.orgs["rival"])
    with world.db.write() as tx:
        sessions.remember(tx, mine, 1, Hello(1, "1", "A", "b", 1))
        assert sessions.instances(tx, theirs) == []
        sessions.forget(tx, theirs)
        sessions.forget_older(tx, theirs, 9)
        assert sessions.instances(tx, mine) == ["A"]


def test_pools_of_another_organisations_access_cannot_be_set(world: World) -> None:
    rival, workspace = Scope(world.ids.orgs["rival"]), world.ids.workspaces["acme/research"]
    with pytest.raises(LookupError), world.db.write() as tx:
        access.put_pools(tx, rival, workspace, world.ids.clusters["default"], ["mine"])
    with world.db.read() as tx:
        pools = select(access_pools.c.pool).where(access_pools.c.workspace_id == workspace)
        assert [row["pool"] for row in tx.all(pools)] == ["*"]


def test_a_key_is_removed_by_its_owner_only(world: World) -> None:
    with world.db.write() as tx:
        id, owner = new_id(tx.now), world.ids.users["member"]
        ssh_keys.add(tx, id, owner, {"name": "k", "public_key": "p", "fingerprint": "f"})
        workloads.attach(tx, [(Scope(world.ids.orgs["acme"]), world.ids.workloads["dev"], id)])
        for user, found in ((owner, 1), (world.ids.users["rival"], 0)):
            assert len(ssh_keys.attached(tx, user, id)) == found
        ssh_keys.remove(tx, world.ids.users["rival"], id)
        assert tx.scalar(select(func.count()).select_from(key_table)) == 1
