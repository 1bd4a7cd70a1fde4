"""The hosted cluster's machine limit: the site's, and an organisation's own (spec 10, "Kinds of cluster")."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import insert

from corral.domain import join_tokens as rules
from corral.domain.errors import Refusal
from corral.store import journal
from corral.store.tables.orgs import orgs
from corral.store.transaction import Scope
from corral.usecases import clusters, join_tokens, site
from corral.usecases.context import new_id
from tests.racing import outcome, while_locked
from tests.world import World


def token(world: World, org: str = "acme", ttl: int = 3600) -> None:
    with world.act("admin" if org == "acme" else "rival", org=org) as ctx:
        join_tokens.create(ctx, "default", rules.asked({}, ttl))


def set_limit(world: World, machines: int | None, org: str = "acme") -> clusters.Limit:
    with world.act("operator", org=org) as ctx:
        return clusters.set_machine_limit(ctx, machines)


def made_until_refused(world: World, org: str = "acme") -> int:
    count = 0
    while outcome(lambda: token(world, org)) == "done":
        count += 1
    return count


def audit(world: World, org: str | None) -> list[dict[str, Any]]:
    scope = Scope(world.ids.orgs[org]) if org else None
    with world.db.read() as tx:
        want = journal.Filter("audit", ["org.machine_limit"])
        return [dict(row["data"]) for row in journal.newest_first(tx, scope, want, before=None, limit=99)]


def test_an_organisations_own_limit_holds_for_it_alone(world_on_both: World) -> None:
    world = world_on_both
    world.add_machine("gpu-1")
    assert set_limit(world, 3) == clusters.Limit(3, 3, 1, 0)
    assert made_until_refused(world) == 2
    assert made_until_refused(world, "rival") == 10
    with world.act("member", org="acme") as ctx:
        assert clusters.one(ctx, "default").machine_limit == 3


def test_without_an_own_limit_the_sites_holds(world_on_both: World) -> None:
    world = world_on_both
    set_limit(world, 1)
    assert set_limit(world, None).in_force == 10
    with world.act("operator") as ctx:
        site.change(ctx, None, 2)
    assert made_until_refused(world) == 2


def test_a_lowered_limit_takes_nothing_away(world_on_both: World) -> None:
    world = world_on_both
    for number in range(3):
        world.add_machine(f"gpu-{number}")
    assert set_limit(world, 1) == clusters.Limit(1, 1, 3, 0)
    with world.act("admin", org="acme") as ctx:
        assert clusters.one(ctx, "default").machines == 3
    assert outcome(lambda: token(world)) == "LIMIT_REACHED"


def test_a_limit_is_set_before_the_hosted_cluster_is_used(world_on_both: World) -> None:
    world = world_on_both
    with world.db.write() as tx:
        tx.run(insert(orgs).values(id=new_id(tx.now), slug="fresh", name="Fresh", created_at=tx.now))
    assert set_limit(world, 4, "fresh") == clusters.Limit(4, 4, 0, 0)
    with world.act("operator", org="fresh") as ctx:
        assert clusters.use_hosted(ctx).machine_limit == 4


def test_both_audits_tell_a_changed_limit_once(world_on_both: World) -> None:
    for _ in range(2):
        set_limit(world_on_both, 20)
    assert audit(world_on_both, "acme") == [{"before": None, "after": 20}]
    assert audit(world_on_both, None) == [{"org": "acme", "before": None, "after": 20}]
    assert audit(world_on_both, "rival") == []


def test_a_token_waits_for_a_limit_that_is_lowered_meanwhile(world_on_both: World) -> None:
    world = world_on_both
    then = while_locked(
        world, "operator", lambda ctx: clusters.set_machine_limit(ctx, 0), lambda: outcome(lambda: token(world))
    )
    assert then == "LIMIT_REACHED"


def test_of_simultaneous_tokens_at_an_own_limit_exactly_the_rest_are_made(world_on_both: World) -> None:
    world, start = world_on_both, threading.Barrier(12)
    set_limit(world, 5)
    world.add_machine("gpu-1")

    def attempt(_: int) -> str:
        start.wait()
        return outcome(lambda: token(world))

    with ThreadPoolExecutor(12) as pool:
        came = list(pool.map(attempt, range(12)))
    assert sorted(came) == ["LIMIT_REACHED"] * 8 + ["done"] * 4


def test_the_refusal_names_whom_to_ask(world: World) -> None:
    set_limit(world, 0)
    with world.act("operator") as ctx:
        site.change(ctx, "ops@example.org", None)
    with pytest.raises(Refusal) as refused:
        token(world)
    assert "ops@example.org" in refused.value.message
    assert refused.value.details == {"limit": 0, "machines": 0, "tokens": 0, "contact": "ops@example.org"}


@pytest.mark.parametrize("machines", [-1, 10**9])
def test_a_limit_is_a_number_of_machines(world: World, machines: int) -> None:
    assert outcome(lambda: set_limit(world, machines)) == "INVALID_REQUEST"
