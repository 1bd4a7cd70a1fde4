"""Asking for a dedicated cluster: answered once, seen by who asked and by the operator (spec 10)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from corral.domain.clusters import OPEN_REQUESTS_MAX
from corral.domain.errors import Refusal
from corral.store import journal
from corral.store.transaction import Scope
from corral.usecases import cluster_requests as use
from corral.usecases import clusters
from tests.conftest import Clock
from tests.racing import outcome
from tests.world import World


def ask(world: World, name: str = "Training", note: str = "", org: str = "acme") -> str:
    with world.act("admin" if org == "acme" else "rival", org=org) as ctx:
        return use.ask(ctx, name, note).id


def make(world: World, id: str, slug: str = "big", name: str | None = None) -> use.Request:
    with world.act("operator") as ctx:
        return use.make(ctx, id, slug, name)


def decline(world: World, id: str, why: str = "no room") -> use.Request:
    with world.act("operator") as ctx:
        return use.decline(ctx, id, why)


def withdraw(world: World, id: str) -> None:
    with world.act("admin", org="acme") as ctx:
        use.withdraw(ctx, id)


def requests(world: World) -> list[tuple[str, str]]:
    with world.act("admin", org="acme") as ctx:
        return [(one.name, one.state) for one in use.listed(ctx, None, 99)]


def audit(world: World, type: str, org: str | None = "acme") -> list[dict[str, Any]]:
    scope = Scope(world.ids.orgs[org]) if org else None
    with world.db.read() as tx:
        found = journal.newest_first(tx, scope, journal.Filter("audit", [type]), before=None, limit=99)
    return [dict(row["data"]) for row in found]


def test_the_operator_makes_what_was_asked_for_and_it_appears(world_on_both: World) -> None:
    world = world_on_both
    id = ask(world, "Training", "for\nthe big run")
    made = make(world, id)
    assert (made.org, made.created_by, made.note) == ("acme", "admin", "for\nthe big run")
    assert (made.state, made.cluster, made.answered_at is None) == ("made", "big", False)
    with world.act("member", org="acme") as ctx:
        assert next((one.slug, one.name) for one in clusters.listed(ctx, None, 9)) == ("big", "Training")
    assert audit(world, "org.cluster.requested") == [{"request": id, "name": "Training"}]
    told = {"request": id, "answer": "made", "cluster": "big"}
    assert audit(world, "org.cluster.answered") == [told]
    assert audit(world, "org.cluster.answered", None) == [{"org": "acme", **told}]


def test_the_operator_may_show_it_under_another_name(world: World) -> None:
    make(world, ask(world), "big", "Hall 7")
    with world.act("admin", org="acme") as ctx:
        assert clusters.one(ctx, "big").name == "Hall 7"


def test_a_declined_request_says_why(world_on_both: World) -> None:
    declined = decline(world_on_both, ask(world_on_both), "no room until May")
    assert (declined.state, declined.answer, declined.cluster) == ("declined", "no room until May", None)
    assert requests(world_on_both) == [("Training", "declined")]
    assert audit(world_on_both, "org.cluster.answered")[0]["reason"] == "no room until May"


def test_a_withdrawn_request_is_over(world_on_both: World) -> None:
    id = ask(world_on_both)
    withdraw(world_on_both, id)
    for act in (withdraw, make, decline):
        assert outcome(lambda act=act: act(world_on_both, id)) == "CONFLICT"  # type: ignore[misc]
    assert requests(world_on_both) == [("Training", "withdrawn")]
    assert audit(world_on_both, "org.cluster.requested")[0] == {"request": id, "name": "Training", "withdrawn": True}
    assert audit(world_on_both, "org.cluster.answered") == []


def test_of_many_answers_at_once_one_counts(world_on_both: World) -> None:
    world, start = world_on_both, threading.Barrier(9)
    id = ask(world)

    def attempt(number: int) -> str:
        acts: list[Callable[[], object]] = [
            lambda: make(world, id, f"big-{number}"),
            lambda: decline(world, id),
            lambda: withdraw(world, id),
        ]
        start.wait()
        return outcome(acts[number % 3])

    with ThreadPoolExecutor(9) as pool:
        came = list(pool.map(attempt, range(9)))
    assert sorted(came) == ["CONFLICT"] * 8 + ["done"]
    with world.act("admin", org="acme") as ctx:
        made = [one.slug for one in clusters.listed(ctx, None, 9) if not one.hosted]
    assert len(made) == (requests(world) == [("Training", "made")])


def test_a_short_name_that_is_taken_leaves_the_request_open(world_on_both: World) -> None:
    id = ask(world_on_both)
    assert outcome(lambda: make(world_on_both, id, "default")) == "NAME_TAKEN"
    assert outcome(lambda: make(world_on_both, id, "No Slug")) == "INVALID_NAME"
    assert requests(world_on_both) == [("Training", "open")]
    assert make(world_on_both, id).state == "made"


def test_an_organisation_has_so_many_open_requests(world_on_both: World) -> None:
    world, start = world_on_both, threading.Barrier(12)

    def attempt(_: int) -> str:
        start.wait()
        return outcome(lambda: ask(world))

    with ThreadPoolExecutor(12) as pool:
        came = list(pool.map(attempt, range(12)))
    assert came.count("done") == OPEN_REQUESTS_MAX
    assert came.count("CONFLICT") == 12 - OPEN_REQUESTS_MAX
    ask(world, org="rival")
    with world.act("admin", org="acme") as ctx:
        id = use.listed(ctx, None, 1)[0].id
    withdraw(world, id)
    ask(world)


def test_another_organisations_request_is_not_there(world_on_both: World) -> None:
    theirs = ask(world_on_both, "Secret", org="rival")
    assert requests(world_on_both) == []
    assert outcome(lambda: withdraw(world_on_both, theirs)) == "NOT_FOUND"
    assert outcome(lambda: withdraw(world_on_both, "absent")) == "NOT_FOUND"
    assert make(world_on_both, theirs, "big").org == "rival"
    with world_on_both.act("admin", org="acme") as ctx:
        assert [one.slug for one in clusters.listed(ctx, None, 9)] == ["default"]


def test_open_requests_come_first_and_every_one_once_in_pages(world_on_both: World, clock: Clock) -> None:
    world, ids = world_on_both, []
    for number in range(5):
        clock.forward(1)
        ids.append(ask(world, f"n{number}", org="rival" if number % 2 else "acme"))
    for number in (1, 2):
        clock.forward(1)
        decline(world, ids[number])
    seen: list[str] = []
    after = None
    while True:
        with world.act("operator") as ctx:
            page = use.of_site(ctx, after, 2)
        seen += [one.name for one in page]
        if len(page) < 2:
            break
        after = use.place_of(page[-1])
    assert seen == ["n0", "n3", "n4", "n2", "n1"]


@pytest.mark.parametrize(
    ("name", "note", "code"),
    [("", "", "INVALID_NAME"), ("a\u202eb", "", "INVALID_NAME"), ("a", "x" * 2001, "INVALID_REQUEST")],
)
def test_a_bad_name_or_note_is_refused(world: World, name: str, note: str, code: str) -> None:
    with pytest.raises(Refusal) as refused:
        ask(world, name, note)
    assert refused.value.code == code


@pytest.mark.parametrize("why", ["", "  ", "\x1b[2J", "x" * 2001])
def test_declining_needs_a_why(world: World, why: str) -> None:
    id = ask(world)
    assert outcome(lambda: decline(world, id, why)) == "INVALID_REQUEST"
    assert requests(world) == [("Training", "open")]
