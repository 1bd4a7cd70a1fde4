"""Prices over HTTP: decimal strings, whom they belong to, history (spec 10, "Prices, usage, budgets")."""

from __future__ import annotations

import json
from typing import Any

import pytest

from corral.usecases import clusters
from tests.conftest import Clock
from tests.world import World

HOSTED = "/api/v1/orgs/acme/clusters/default/prices"
OWN = "/api/v1/orgs/acme/clusters/own/prices"
SITE = "/api/v1/site/prices"
TABLE = {
    "currency": "EUR",
    "gpu_hour": {"NVIDIA H100 80GB HBM3": "2.5", "*": "1.90"},
    "vcpu_hour": "0.01",
    "ram_gib_hour": "0.002",
    "storage_gib_month": "0.05",
}
SHOWN = {**TABLE, "gpu_hour": {"*": "1.90", "NVIDIA H100 80GB HBM3": "2.50"}, "ram_gib_hour": "0.002"}


@pytest.fixture
def world(world: World) -> World:
    """With a dedicated cluster `own` of acme's."""
    with world.act("operator", org="acme") as ctx:
        clusters.create_dedicated(ctx, "own", "Own")
    return world


def test_prices_are_set_and_seen_as_decimal_strings(world: World) -> None:
    assert world.client("member").get(OWN).json()["current"] is None
    answer = world.client("admin").put(OWN, json=TABLE)
    current = {**SHOWN, "valid_from": "2026-03-01T12:00:00Z", "set_by": "admin"}
    whole = {"cluster": "own", "hosted": False, "current": current, "history": None, "next_page_token": None}
    assert (answer.status_code, answer.json()) == (200, whole)
    assert world.client("member").get(OWN).json() == whole


def test_the_hosted_clusters_prices_are_the_operators(world: World) -> None:
    refused = world.client("admin").put(HOSTED, json=TABLE)
    assert (refused.status_code, refused.json()["code"]) == (403, "FORBIDDEN")
    assert "operator" in refused.json()["message"]
    assert world.client("operator").put(HOSTED, json=TABLE).status_code == 200
    assert world.client("operator").put(OWN, json=TABLE).status_code == 403
    other = {"currency": "USD"}
    assert world.client("operator").put(SITE, json=other).json()["current"]["set_by"] == "operator"
    theirs = world.client("rival").get("/api/v1/orgs/rival/clusters/default/prices").json()
    assert (theirs["current"]["currency"], theirs["current"]["set_by"]) == ("USD", "the operator")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vcpu_hour", 0.01),
        ("vcpu_hour", 1),
        ("vcpu_hour", None),
        ("vcpu_hour", "1e3"),
        ("vcpu_hour", "-1"),
        ("vcpu_hour", "1000000.000001"),
        ("ram_gib_hour", "0.0000001"),
        ("storage_gib_month", "\ud800"),
        ("gpu_hour", {"H100": 2.5}),
        ("gpu_hour", {"H100": "2,5"}),
        ("gpu_hour", {"": "2.5"}),
        ("gpu_hour", {"H\u0000": "2.5"}),
        ("gpu_hour", ["H100"]),
        ("currency", "euro"),
        ("currency", 978),
        ("disk_hour", "1"),
    ],
)
def test_a_bad_table_names_its_field_and_changes_nothing(world: World, field: str, value: Any) -> None:
    body = json.dumps({**TABLE, field: value}).encode()
    headers = {"Content-Type": "application/json"}
    answer = world.client("admin").request("PUT", OWN, content=body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
    assert answer.json()["details"]["field"].startswith(field)
    assert world.client("admin").get(OWN).json()["current"] is None


def test_history_is_shown_in_pages_when_it_is_asked_for(world: World, clock: Clock) -> None:
    for number in range(3):
        clock.forward(1)
        world.client("admin").put(OWN, json={"currency": "EUR", "vcpu_hour": str(number)})
    first = world.client("member").get(OWN, params={"history": "true", "page_size": 2}).json()
    params = {"history": "true", "page_token": first["next_page_token"]}
    rest = world.client("member").get(OWN, params=params).json()
    assert [one["vcpu_hour"] for one in first["history"] + rest["history"]] == ["2.00", "1.00", "0.00"]
    assert (first["current"]["vcpu_hour"], rest["next_page_token"]) == ("2.00", None)
    assert world.client("member").get(OWN, params={"history": "true", "page_token": "eHl6"}).status_code == 400


def test_the_sites_own_door_shows_history_too(world: World, clock: Clock) -> None:
    assert world.client("operator").get(SITE, params={"history": "true"}).json()["history"] == []
    for code in ("EUR", "USD"):
        clock.forward(1)
        assert world.client("operator").put(SITE, json={"currency": code}).status_code == 200
    history = world.client("operator").get(SITE, params={"history": "true"}).json()["history"]
    assert [(one["currency"], one["set_by"]) for one in history] == [("USD", "operator"), ("EUR", "operator")]


def test_prices_that_change_too_often_say_when_to_come_again(world: World) -> None:
    for number in range(25):
        answer = world.client("admin").put(OWN, json={"currency": "EUR", "vcpu_hour": str(number)})
    assert (answer.status_code, answer.json()["code"]) == (429, "RATE_LIMITED")
    assert answer.headers["Retry-After"] == "86400"
