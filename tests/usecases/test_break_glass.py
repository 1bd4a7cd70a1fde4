"""Break-glass: who may look, how long, and its trace in the tenant's audit (spec 05)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import select, update

from corral.domain import break_glass as rules
from corral.domain.errors import Refusal
from corral.domain.permissions import ROUTES, Role, Rule
from corral.store import journal
from corral.store.tables.break_glass import break_glass as table
from corral.store.tables.users import users
from corral.store.transaction import Scope
from corral.usecases import break_glass, orgs
from corral.usecases.identity import Caller, Place, enter
from tests.conftest import Clock
from tests.racing import outcome
from tests.world import World

CLUSTERS = ROUTES[("GET", "/api/v1/orgs/{org}/clusters")]
RENAME = ROUTES[("PATCH", "/api/v1/orgs/{org}/clusters/{cluster}")]


def begin(world: World, who: str = "operator", org: str = "acme", ttl: int = 3600) -> str:
    with world.act(who, org=org) as ctx:
        return break_glass.begin(ctx, "ticket 7", ttl).id


def end(world: World, id: str, who: str = "operator", org: str = "acme") -> None:
    with world.act(who, org=org) as ctx:
        break_glass.end(ctx, id)


def enters(world: World, rule: Rule = CLUSTERS, who: str = "operator", org: str = "acme") -> str:
    """Return whose role the person has in the organisation by this rule, or the refusal's code."""
    try:
        with world.db.read() as tx:
            ctx = enter(tx, Caller(world.tokens[who]), rule, Place(org))
    except Refusal as refusal:
        return refusal.code
    return f"{ctx.role.value if ctx.role else None}, looking: {bool(ctx.look)}"


def audit(world: World, type: str, org: str | None = "acme") -> list[dict[str, Any]]:
    scope = Scope(world.ids.orgs[org]) if org else None
    with world.db.read() as tx:
        found = journal.newest_first(tx, scope, journal.Filter("audit", [type]), before=None, limit=99)
    return [dict(row["data"]) for row in found]


def test_the_operator_reads_as_an_admin_while_it_lives_and_no_longer(world_on_both: World, clock: Clock) -> None:
    world = world_on_both
    assert enters(world) == "FORBIDDEN"
    begin(world, ttl=60)
    assert enters(world) == "admin, looking: True"
    assert enters(world, org="rival") == "FORBIDDEN"
    clock.forward(60)
    assert enters(world) == "FORBIDDEN"


def test_ended_it_opens_nothing_at_once(world_on_both: World) -> None:
    id = begin(world_on_both)
    end(world_on_both, id, "owner")
    assert enters(world_on_both) == "FORBIDDEN"


def test_it_opens_what_the_one_operator_reads_and_nobody_else(world_on_both: World) -> None:
    world = world_on_both
    world.add_user("second", operator=True)
    begin(world)
    assert enters(world, who="second") == "FORBIDDEN"
    assert enters(world, who="rival") == "NOT_FOUND"
    assert enters(world, who="member") == "member, looking: False"


def test_it_changes_nothing(world: World) -> None:
    begin(world)
    assert enters(world, RENAME) == "FORBIDDEN"


def test_an_operator_who_is_an_admin_acts_as_one_and_leaves_no_trace_of_looking(world: World) -> None:
    world.add_member("operator", "acme", Role.ADMIN)
    begin(world)
    assert enters(world) == "admin, looking: False"


def test_an_operator_who_is_a_member_looks_as_an_admin_while_it_lives(world: World) -> None:
    world.add_member("operator", "acme", Role.MEMBER)
    assert enters(world) == "member, looking: False"
    begin(world)
    assert enters(world) == "admin, looking: True"
    assert enters(world, RENAME) == "FORBIDDEN"


def test_who_is_no_operator_any_more_looks_no_more(world: World) -> None:
    world.add_member("operator", "acme", Role.MEMBER)
    begin(world)
    with world.db.write() as tx:
        tx.run(update(users).where(users.c.login == "operator").values(operator=False))
    assert enters(world) == "member, looking: False"


def test_one_at_a_time_however_many_begin_at_once(world_on_both: World, clock: Clock) -> None:
    world, start = world_on_both, threading.Barrier(8)

    def attempt(_: int) -> str:
        start.wait()
        return outcome(lambda: begin(world, ttl=60))

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(attempt, range(8))) == ["CONFLICT"] * 7 + ["done"]
    begin(world, org="rival")
    clock.forward(60)
    begin(world)


def test_beginning_and_ending_stand_in_both_audits(world_on_both: World, clock: Clock) -> None:
    world = world_on_both
    id = begin(world, ttl=60)
    began = {"look": id, "reason": "ticket 7", "until": "2026-03-01T12:01:00+00:00"}
    assert audit(world, "org.break_glass.began") == [began]
    assert audit(world, "org.break_glass.began", None) == [{"org": "acme", **began}]
    assert audit(world, "org.break_glass.began", "rival") == []
    for _ in range(2):
        end(world, id, "owner")
    assert audit(world, "org.break_glass.ended") == [{"look": id, "operator": "operator"}]
    second = begin(world, ttl=60)
    clock.forward(60)
    end(world, second)
    assert len(audit(world, "org.break_glass.ended")) == 1


def test_owners_see_every_look_there_was(world_on_both: World, clock: Clock) -> None:
    world = world_on_both
    begin(world, ttl=60)
    clock.forward(61)
    end(world, begin(world))
    clock.forward(1)
    third = begin(world)
    begin(world, org="rival")
    with world.act("owner", org="acme") as ctx:
        found = break_glass.listed(ctx, None, 9)
        rest = break_glass.listed(ctx, third, 9)
    assert [(one.live, one.ended_at is None, one.operator, one.reason) for one in found] == [
        (True, True, "operator", "ticket 7"),
        (False, False, "operator", "ticket 7"),
        (False, True, "operator", "ticket 7"),
    ]
    assert [one.id for one in rest] == [one.id for one in found[1:]]


def test_another_organisations_look_is_not_there(world: World) -> None:
    theirs = begin(world, org="rival")
    assert outcome(lambda: end(world, theirs, "owner")) == "NOT_FOUND"
    assert outcome(lambda: end(world, "absent", "owner")) == "NOT_FOUND"
    assert enters(world, org="rival") == "admin, looking: True"


def test_it_ends_with_the_organisation(world_on_both: World) -> None:
    world = world_on_both
    begin(world, org="rival")
    with world.act("operator", org="rival") as ctx:
        orgs.remove(ctx)
    with world.db.read() as tx:
        assert tx.all(select(table).where(table.c.ended_at.is_(None))) == []
    assert enters(world, org="rival") == "NOT_FOUND"


@pytest.mark.parametrize("reason", ["", "  ", "x" * 501, "a\nb", "\u202eb"])
def test_a_reason_is_needed(reason: str) -> None:
    with pytest.raises(Refusal) as refused:
        rules.reason(reason)
    assert (refused.value.code, refused.value.details["field"]) == ("INVALID_REQUEST", "reason")


@pytest.mark.parametrize(("seconds", "fits"), [(59, False), (60, True), (28800, True), (28801, False)])
def test_it_lives_a_minute_to_eight_hours(seconds: int, fits: bool) -> None:
    assert (outcome(lambda: rules.ttl(seconds)) == "done") == fits


def test_where_there_is_no_room_it_is_traced_again_and_not_left_out(clock: Clock) -> None:
    traces = break_glass.Traces(keys_max=2)
    for path in ("/a", "/b", "/c"):
        assert traces.due("look", path, clock.now)
        traces.written("look", path, clock.now)
    assert [traces.due("look", path, clock.now) for path in ("/a", "/b", "/c", "/d")] == [True, False, False, True]


def test_the_same_page_is_traced_once_a_minute(clock: Clock) -> None:
    traces = break_glass.Traces()
    assert traces.due("look", "/a", clock.now)
    traces.written("look", "/a", clock.now)
    assert not traces.due("look", "/a", clock.now)
    assert traces.due("look", "/b", clock.now)
    assert traces.due("other", "/a", clock.now)
    clock.forward(60)
    assert traces.due("look", "/a", clock.now)


def test_a_clock_that_steps_back_hides_no_look(clock: Clock) -> None:
    traces = break_glass.Traces()
    traces.written("look", "/a", clock.now)
    clock.forward(-30)
    assert traces.due("look", "/a", clock.now)
