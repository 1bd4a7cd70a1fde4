"""The hosted cluster's short name and its limit (spec 10, "Kinds of cluster")."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from corral.domain import clusters
from corral.domain.errors import Refusal


@pytest.mark.parametrize(
    ("taken", "slug"),
    [
        (set(), "default"),
        ({"default"}, "cloud"),
        ({"default", "cloud"}, "hosted-cloud"),
        ({"default", "cloud", "hosted-cloud"}, "hosted-cloud-2"),
        ({"cloud"}, "default"),
    ],
)
def test_the_hosted_cluster_takes_the_first_free_short_name(taken: set[str], slug: str) -> None:
    assert clusters.hosted_slug(taken) == slug


def code(act: Callable[[], object]) -> str:
    with pytest.raises(Refusal) as refused:
        act()
    return refused.value.code


def test_unused_tokens_count_toward_the_limit() -> None:
    clusters.check_room(clusters.Room(limit=10, machines=6, tokens=3), "")
    assert code(lambda: clusters.check_room(clusters.Room(limit=10, machines=6, tokens=4), "")) == "LIMIT_REACHED"


def test_the_limits_refusal_names_the_operators_contact_line() -> None:
    for contact, said in (("", "the site's operator for"), ("ops@example.org", "operator (ops@example.org) for")):
        with pytest.raises(Refusal) as refused:
            clusters.check_room(clusters.Room(0, 0, 0), contact)
        assert said in refused.value.message
        assert refused.value.details["contact"] == contact


def test_a_cluster_is_in_use_while_a_workspace_has_access_and_the_refusal_names_some() -> None:
    clusters.check_unused("default", [])
    with pytest.raises(Refusal) as refused:
        clusters.check_unused("default", [f"w{number}" for number in range(clusters.NAMED + 1)])
    assert refused.value.code == "CLUSTER_IN_USE"
    assert refused.value.details["count"] == clusters.NAMED + 1
    assert len(refused.value.details["workspaces"]) == clusters.NAMED


@pytest.mark.parametrize(("left", "machines", "deletable"), [(True, 0, True), (True, 1, False), (False, 0, False)])
def test_only_a_cluster_that_was_left_and_is_empty_is_deleted(left: bool, machines: int, deletable: bool) -> None:
    if deletable:
        clusters.check_deletable("acme", left=left, machines=machines)
    else:
        assert code(lambda: clusters.check_deletable("acme", left=left, machines=machines)) == "CLUSTER_IN_USE"


@pytest.mark.parametrize("machines", [0, 1_000_000])
def test_a_limit_of_any_size_that_can_be_is_taken(machines: int) -> None:
    assert clusters.machine_limit(machines, "machines") == machines


@pytest.mark.parametrize("text", ["x" * 2001, "\x1b[2J", "a\u202eb", "a\x00"])
def test_a_note_is_text_that_shows(text: str) -> None:
    assert code(lambda: clusters.note(text, "note")) == "INVALID_REQUEST"
    assert clusters.note(" two\nlines\t", "note") == "two\nlines"


def test_requests_are_limited() -> None:
    clusters.check_open_requests(clusters.OPEN_REQUESTS_MAX - 1)
    assert code(lambda: clusters.check_open_requests(clusters.OPEN_REQUESTS_MAX)) == "CONFLICT"


def test_an_entry_names_the_first_tokens_and_counts_all() -> None:
    told = clusters.revoked([f"t{number}" for number in range(clusters.TOKENS_NAMED + 5)])
    assert told["tokens"] == clusters.TOKENS_NAMED + 5
    assert told["revoked"] == [f"t{number}" for number in range(clusters.TOKENS_NAMED)]
