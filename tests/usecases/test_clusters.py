"""Using the hosted cluster, and dedicated ones (spec 10, "Kinds of cluster")."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import func, insert, select, update

from corral.domain.errors import Refusal
from corral.store import clusters as rows
from corral.store import journal
from corral.store.tables.clusters import clusters as table
from corral.store.tables.machines import machines
from corral.store.tables.orgs import members, orgs
from corral.store.transaction import Scope
from corral.usecases import clusters
from corral.usecases.context import new_id
from tests.world import World


def new_org(world: World, slug: str) -> str:
    """Make an organisation without any cluster, owned by `owner`."""
    with world.db.write() as tx:
        id = world.ids.orgs[slug] = new_id(tx.now)
        tx.run(insert(orgs).values(id=id, slug=slug, name=slug, created_at=tx.now))
        owner = {"org_id": id, "user_id": world.ids.users["owner"], "role": "owner"}
        tx.run(insert(members).values(**owner, joined_at=tx.now))
    return id


def test_using_the_hosted_cluster_twice_gives_the_same_answer(world_on_both: World) -> None:
    org = new_org(world_on_both, "fresh")
    with world_on_both.act("owner", org="fresh") as ctx:
        first = clusters.use_hosted(ctx)
    with world_on_both.act("owner", org="fresh") as ctx:
        assert clusters.use_hosted(ctx) == first
    assert (first.slug, first.hosted, first.machine_limit) == ("default", True, 10)
    with world_on_both.db.read() as tx:
        want = journal.Filter(view="audit", types=["cluster.hosted.joined"])
        assert len(journal.newest_first(tx, Scope(org), want, before=None, limit=9)) == 1


def test_a_site_has_one_hosted_cluster_however_many_begin_at_once(world_on_both: World) -> None:
    names = [f"fresh-{number}" for number in range(8)]
    for name in names:
        new_org(world_on_both, name)

    def begin(name: str) -> str:
        with world_on_both.act("owner", org=name) as ctx:
            return clusters.use_hosted(ctx).id

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(begin, names)) == {world_on_both.ids.clusters["default"]}
    with world_on_both.db.read() as tx:
        assert tx.scalar(select(func.count()).where(table.c.hosted)) == 1


def test_the_hosted_cluster_takes_another_name_when_default_is_taken(world_on_both: World) -> None:
    new_org(world_on_both, "fresh")
    with world_on_both.act("operator", org="fresh") as ctx:
        clusters.create_dedicated(ctx, "default", "Own")
    with world_on_both.act("owner", org="fresh") as ctx:
        assert clusters.use_hosted(ctx).slug == "cloud"


def test_a_short_name_is_taken_once_in_an_organisation(world_on_both: World) -> None:
    with world_on_both.act("operator", org="acme") as ctx, pytest.raises(Refusal) as refused:
        clusters.create_dedicated(ctx, "default", "Own")
    assert refused.value.code == "NAME_TAKEN"


@pytest.mark.parametrize("slug", ["", "A", "a/b", "..", "a" * 64, "-a", "a\x00", "\u202ea"])
def test_a_bad_short_name_is_refused(world: World, slug: str) -> None:
    with world.act("operator", org="acme") as ctx, pytest.raises(Refusal) as refused:
        clusters.create_dedicated(ctx, slug, "Own")
    assert refused.value.code == "INVALID_NAME"


def test_counts_are_the_organisations_own(world_on_both: World) -> None:
    world_on_both.add_machine("a", gpu_count=3)
    world_on_both.add_machine("b", gpu_count=0)
    world_on_both.add_machine("c", gpu_count=2, state="down")
    world_on_both.add_machine("d", org="rival", gpu_count=8)
    with world_on_both.act("admin", org="acme") as ctx:
        (only,) = clusters.listed(ctx, None, 10)
    assert (only.machines, only.up, only.gpus) == (3, 2, 5)


def test_renaming_changes_the_shown_name_only(world_on_both: World) -> None:
    with world_on_both.act("admin", org="acme") as ctx:
        assert clusters.rename(ctx, "default", " Lab ").name == "Lab"
    with world_on_both.act("rival", org="rival") as ctx:
        assert clusters.one(ctx, "default").name == "Hosted"
    with world_on_both.act("admin", org="acme") as ctx, pytest.raises(Refusal) as refused:
        clusters.rename(ctx, "elsewhere", "x")
    assert refused.value.code == "NOT_FOUND"


def test_one_cluster_is_shown_by_counting_that_one(world_on_both: World) -> None:
    world = world_on_both
    with world.act("admin", org="acme") as ctx:
        big = clusters.create_dedicated(ctx, "big", "Big")
    world.add_machine("here", gpu_count=3)
    world.add_machine("there", gpu_count=2)
    with world.db.write() as tx:
        tx.run(update(machines).where(machines.c.name == "there").values(cluster_id=big.id))
    with world.act("admin", org="acme") as ctx:
        counted = rows.counts(ctx.tx, ctx.scope, big.id)
        shown = {one.slug: (one.machines, one.gpus) for one in (clusters.one(ctx, "big"), clusters.one(ctx, "default"))}
        listed = {one.slug: (one.machines, one.gpus) for one in clusters.listed(ctx, None, 10)}
    assert [(row["cluster_id"], row["machines"], row["up"], int(row["gpus"])) for row in counted] == [(big.id, 1, 1, 2)]
    assert shown == listed == {"big": (1, 2), "default": (1, 3)}
