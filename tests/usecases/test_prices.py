"""Setting and seeing clusters' prices (spec 10, "Prices, usage, budgets")."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import delete, select

from corral.domain.errors import Refusal
from corral.domain.prices import CHANGES_MAX, PriceTable
from corral.store.tables.access import access, access_pools
from corral.store.tables.clusters import clusters as cluster_table
from corral.store.tables.clusters import tenancies
from corral.store.tables.journal import journal
from corral.store.tables.prices import prices as table
from corral.usecases import clusters, prices, site
from corral.usecases.prices import Prices
from tests.conftest import Clock
from tests.world import World

CHEAP, DEAR = PriceTable("EUR", {"*": 1_000_000}), PriceTable("USD", {"H100": 5_000_000}, 1, 2, 3)


@pytest.fixture
def world(world_on_both: World) -> World:
    """With a dedicated cluster `own` of acme's."""
    with world_on_both.act("operator", org="acme") as ctx:
        clusters.create_dedicated(ctx, "own", "Own")
    return world_on_both


def put(world: World, who: str, cluster: str, what: PriceTable, org: str = "acme") -> None:
    with world.act(who, org=org) as ctx:
        prices.put(ctx, cluster, what)


def put_hosted(world: World, what: PriceTable) -> None:
    with world.act("operator") as ctx:
        prices.put_hosted(ctx, what)


def seen(world: World, who: str, cluster: str, org: str = "acme") -> Prices | None:
    with world.act(who, org=org) as ctx:
        return prices.show(ctx, cluster).current


def refusal(world: World, who: str, cluster: str, org: str = "acme") -> Refusal:
    with pytest.raises(Refusal) as refused:
        put(world, who, cluster, CHEAP, org)
    return refused.value


def entries(world: World) -> list[tuple[str | None, Any]]:
    """Return the journal's entries about prices: whose audit they are in, and what they say."""
    with world.db.read() as tx:
        mine = select(journal.c.org_id, journal.c.data).where(journal.c.type == "cluster.prices")
        return [(row["org_id"], row["data"]) for row in tx.all(mine.order_by(journal.c.seq))]


def test_the_hosted_clusters_prices_are_the_operators_through_either_door(world: World, clock: Clock) -> None:
    assert seen(world, "member", "default") is None
    put_hosted(world, CHEAP)
    clock.forward(1)
    put(world, "operator", "default", DEAR, "rival")
    shown = seen(world, "member", "default")
    assert shown == Prices(DEAR, clock.now, prices.OPERATOR)
    assert shown == seen(world, "rival", "default", "rival")
    assert [org for org, _ in entries(world)] == [None, None]


def test_an_admin_does_not_set_the_hosted_clusters_and_learns_whom_to_ask(world: World) -> None:
    with world.act("operator") as ctx:
        site.change(ctx, "ops@example.org", None)
    for who in ("admin", "owner"):
        refused = refusal(world, who, "default")
        assert refused.code == "FORBIDDEN"
        assert "ops@example.org" in refused.message
    assert seen(world, "admin", "default") is None


def test_a_dedicated_clusters_prices_are_its_organisations(world: World, clock: Clock) -> None:
    put(world, "admin", "own", CHEAP)
    assert seen(world, "member", "own") == Prices(CHEAP, clock.now, "admin")
    assert refusal(world, "operator", "own").code == "FORBIDDEN"
    assert refusal(world, "rival", "own", "rival").code == "NOT_FOUND"
    assert [org for org, _ in entries(world)] == [world.ids.orgs["acme"]]


def test_the_hosted_cluster_has_prices_before_its_first_organisation_comes(world: World) -> None:
    with world.db.write() as tx:
        for rows in (access_pools, access):
            tx.run(delete(rows))
        tx.run(delete(tenancies).where(tenancies.c.slug == "default"))
        tx.run(delete(cluster_table).where(cluster_table.c.hosted))
    with world.act("operator") as ctx:
        assert prices.show_hosted(ctx).current is None
    put_hosted(world, CHEAP)
    with world.act("owner", org="acme") as ctx:
        slug = clusters.use_hosted(ctx).slug
    shown = seen(world, "owner", slug)
    assert shown is not None and shown.table == CHEAP


def test_the_same_again_changes_nothing_and_a_change_says_before_and_after(world: World, clock: Clock) -> None:
    for what in (CHEAP, CHEAP, DEAR, DEAR):
        clock.forward(1)
        put_hosted(world, what)
    said = [data for _, data in entries(world)]
    assert said == [{"before": None, "after": CHEAP.shown()}, {"before": CHEAP.shown(), "after": DEAR.shown()}]
    with world.act("operator") as ctx:
        assert [one.table for one in prices.hosted_history(ctx, None, 9)] == [DEAR, CHEAP]


def test_history_is_kept_newest_first_in_pages(world: World, clock: Clock) -> None:
    for number in range(5):
        clock.forward(1)
        put(world, "admin", "own", PriceTable("EUR", {}, number))
    paged: list[int] = []
    before: datetime | None = None
    while True:
        with world.act("member", org="acme") as ctx:
            page = prices.history(ctx, "own", before, 2)
        if not page:
            break
        paged += [one.table.vcpu_hour for one in page]
        before = page[-1].valid_from
    assert paged == [4, 3, 2, 1, 0]


def test_who_set_the_hosted_clusters_prices_is_not_told_to_organisations(world: World) -> None:
    put_hosted(world, CHEAP)
    with world.act("admin", org="acme") as ctx:
        assert {one.set_by for one in prices.history(ctx, "default", None, 9)} == {prices.OPERATOR}
    with world.act("operator") as ctx:
        current = prices.show_hosted(ctx).current
    assert current is not None and current.set_by == "operator"


def test_two_changes_in_one_moment_both_stand_and_the_later_holds(world: World, clock: Clock) -> None:
    put_hosted(world, CHEAP)
    clock.now -= timedelta(seconds=1)  # as seen by one who began earlier and waited
    put_hosted(world, DEAR)
    shown = seen(world, "member", "default")
    assert shown is not None and shown.table == DEAR


def test_prices_change_only_so_often_within_a_day(world: World, clock: Clock) -> None:
    for number in range(CHANGES_MAX):
        put(world, "admin", "own", PriceTable("EUR", {}, number))
    assert refusal(world, "admin", "own").code == "RATE_LIMITED"
    clock.forward(24 * 3600)
    put(world, "admin", "own", CHEAP)


def put_own(world: World, what: PriceTable) -> None:
    put(world, "admin", "own", what)


@pytest.mark.parametrize("door", [put_hosted, put_own])
def test_of_those_who_set_the_same_prices_at_once_one_changes_them(
    world: World, door: Callable[[World, PriceTable], None]
) -> None:
    start = Barrier(8)

    def attempt(_: int) -> None:
        start.wait()
        door(world, CHEAP)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(attempt, range(8)))
    with world.db.read() as tx:
        assert len(tx.all(select(table.c.id))) == 1
    assert len(entries(world)) == 1
