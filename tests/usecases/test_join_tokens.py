"""Making, listing and revoking join tokens (spec 10, "Join tokens")."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import insert, select

from corral.domain import join_tokens as rules
from corral.domain.errors import Refusal
from corral.store.tables.access import access_pools
from corral.store.tables.clusters import join_tokens as table
from corral.store.tables.orgs import members, orgs, workspaces
from corral.usecases import clusters, join_tokens, site
from corral.usecases import workspaces as workspace_use
from corral.usecases.context import Context, Workspace, new_id
from tests.conftest import Clock
from tests.racing import outcome, while_locked
from tests.world import World


def make(world: World, cluster: str = "default", ttl: int = 3600) -> join_tokens.NewJoinToken:
    with world.act("admin", org="acme") as ctx:
        return join_tokens.create(ctx, cluster, rules.asked({}, ttl))


def refused(world: World, cluster: str = "default") -> str:
    with pytest.raises(Refusal) as refusal:
        make(world, cluster)
    return refusal.value.code


def unused(world: World) -> list[str]:
    with world.act("admin", org="acme") as ctx:
        return [token.id for token in join_tokens.listed(ctx, "default", None, 100)]


def test_the_limit_counts_machines_and_unused_tokens(world_on_both: World, clock: Clock) -> None:
    for number in range(7):
        world_on_both.add_machine(f"gpu-{number}")
    tokens = [make(world_on_both, ttl=60) for _ in range(3)]
    assert refused(world_on_both) == "LIMIT_REACHED"
    with world_on_both.act("admin", org="acme") as ctx:
        join_tokens.revoke(ctx, "default", tokens[0].id)
    make(world_on_both)
    assert refused(world_on_both) == "LIMIT_REACHED"
    clock.forward(60)
    make(world_on_both)


def test_of_simultaneous_tokens_at_the_limit_exactly_the_rest_are_made(world_on_both: World) -> None:
    for number in range(6):
        world_on_both.add_machine(f"gpu-{number}")
    start = threading.Barrier(16)

    def attempt(_: int) -> bool:
        start.wait()
        try:
            make(world_on_both)
        except Refusal:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(attempt, range(16))) == 4


def test_another_organisations_machines_do_not_count(world_on_both: World) -> None:
    for number in range(10):
        world_on_both.add_machine(f"gpu-{number}", org="rival")
    make(world_on_both)


def test_a_dedicated_cluster_has_no_limit(world_on_both: World) -> None:
    with world_on_both.act("operator", org="acme") as ctx:
        clusters.create_dedicated(ctx, "big", "Big")
    for _ in range(12):
        make(world_on_both, "big")


def test_unused_tokens_are_listed_and_never_their_secret(world_on_both: World, clock: Clock) -> None:
    first = make(world_on_both, ttl=60)
    clock.forward(1)
    second = make(world_on_both)
    assert unused(world_on_both) == [first.id, second.id]
    with world_on_both.act("admin", org="acme") as ctx:
        shown = join_tokens.listed(ctx, "default", None, 100)
    assert shown[0].created_by == "admin"
    assert first.token.split("_")[2] not in repr(shown)
    clock.forward(60)
    assert unused(world_on_both) == [second.id]


def test_only_a_hash_is_stored(world_on_both: World) -> None:
    token = make(world_on_both).token
    with world_on_both.db.read() as tx:
        row = tx.one(select(table))
    assert token.split("_")[2] not in repr(row)


def test_a_revoked_token_cannot_be_revoked_again_nor_a_foreign_one(world_on_both: World) -> None:
    token = make(world_on_both)
    with world_on_both.act("rival", org="rival") as ctx, pytest.raises(Refusal) as foreign:
        join_tokens.revoke(ctx, "default", token.id)
    with world_on_both.act("admin", org="acme") as ctx:
        join_tokens.revoke(ctx, "default", token.id)
    with world_on_both.act("admin", org="acme") as ctx, pytest.raises(Refusal) as again:
        join_tokens.revoke(ctx, "default", token.id)
    assert foreign.value.code == again.value.code == "NOT_FOUND"
    assert str(foreign.value) == str(again.value)
    assert unused(world_on_both) == []


# --- from a workspace


def make_in(world: World, org: str, cluster: str | None = None, pool: str = "") -> join_tokens.NewJoinToken:
    who = "admin" if org == "acme" else "rival"
    with world.act(who, org=org, workspace="private" if org == "acme" else "research") as ctx:
        return join_tokens.create_for_workspace(ctx, cluster, rules.asked({"pool": pool} if pool else {}, 3600))


def granted(world: World, workspace: str) -> set[str]:
    with world.db.read() as tx:
        mine = access_pools.c.workspace_id == world.ids.workspaces[workspace]
        return {row["pool"] for row in tx.all(select(access_pools.c.pool).where(mine))}


def test_from_a_workspace_the_labels_pool_is_granted_to_it(world_on_both: World) -> None:
    make_in(world_on_both, "acme")
    assert granted(world_on_both, "acme/private") == set()
    make_in(world_on_both, "acme", pool="h100")
    make_in(world_on_both, "acme", "default", pool="a100")
    make_in(world_on_both, "acme", pool="h100")
    assert granted(world_on_both, "acme/private") == {"h100", "a100"}


def test_what_a_workspace_may_use_already_is_not_granted_again(world_on_both: World) -> None:
    make_in(world_on_both, "rival", pool="h100")
    assert granted(world_on_both, "rival/research") == {"*"}


def fresh(world: World) -> None:
    """Make an organisation `fresh` of `rival`'s without any cluster, with a workspace `research`."""
    with world.db.write() as tx:
        id = world.ids.orgs["fresh"] = new_id(tx.now)
        tx.run(insert(orgs).values(id=id, slug="fresh", name="Fresh", created_at=tx.now))
        tx.run(insert(members).values(org_id=id, user_id=world.ids.users["rival"], role="owner", joined_at=tx.now))
        workspace = world.ids.workspaces["fresh/research"] = new_id(tx.now)
        tx.run(insert(workspaces).values(id=workspace, org_id=id, slug="research", name="R", created_at=tx.now))


def clusters_of(world: World, org: str) -> list[str]:
    with world.act("rival", org=org) as ctx:
        return [cluster.slug for cluster in clusters.listed(ctx, None, 9)]


@pytest.mark.parametrize("named", [None, "default"])
def test_from_a_workspace_an_organisation_without_a_cluster_begins_to_use_the_hosted_one(
    world_on_both: World, named: str | None
) -> None:
    fresh(world_on_both)
    make_in(world_on_both, "fresh", named, pool="h100")
    assert granted(world_on_both, "fresh/research") == {"h100"}
    assert clusters_of(world_on_both, "fresh") == ["default"]


def test_of_many_first_machines_at_once_all_are_of_the_one_hosted_cluster(world_on_both: World) -> None:
    world, start = world_on_both, threading.Barrier(8)
    fresh(world)

    def attempt(number: int) -> str:
        start.wait()
        return make_in(world, "fresh", pool=f"p{number % 2}").id

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(attempt, range(8)))) == 8
    assert clusters_of(world, "fresh") == ["default"]
    assert granted(world, "fresh/research") == {"p0", "p1"}


def test_a_first_machine_that_is_refused_leaves_nothing_behind(world_on_both: World) -> None:
    world = world_on_both
    fresh(world)
    with world.act("operator") as ctx:
        site.change(ctx, None, 0)
    assert outcome(lambda: make_in(world, "fresh", pool="h100")) == "LIMIT_REACHED"
    assert clusters_of(world, "fresh") == []
    assert granted(world, "fresh/research") == set()


def test_a_cluster_that_was_left_comes_back_with_the_next_machine(world_on_both: World) -> None:
    world = world_on_both
    fresh(world)
    make_in(world, "fresh")
    with world.act("rival", org="fresh") as ctx:
        clusters.leave(ctx, "default")
    make_in(world, "fresh", pool="h100")
    assert clusters_of(world, "fresh") == ["default"]


def test_a_workspace_that_is_removed_meanwhile_is_granted_nothing(world_on_both: World) -> None:
    world = world_on_both

    def remove(ctx: Context) -> None:
        private = Workspace(world.ids.workspaces["acme/private"], ctx.org.id, "private", "Private")
        workspace_use.remove(replace(ctx, workspace_or_none=private))

    then = while_locked(world, "admin", remove, lambda: outcome(lambda: make_in(world, "acme", pool="h100")))
    assert then == "NOT_FOUND"
    assert granted(world, "acme/private") == set()


def test_with_several_clusters_one_must_be_named(world_on_both: World) -> None:
    with world_on_both.act("operator", org="acme") as ctx:
        clusters.create_dedicated(ctx, "big", "Big")
    with pytest.raises(Refusal) as refusal:
        make_in(world_on_both, "acme")
    assert refusal.value.code == "CLUSTER_REQUIRED"
    make_in(world_on_both, "acme", "big")
