"""Clusters over HTTP: numbers, the offer, leaving with its preview, the operator's side (spec 10)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from corral.domain.permissions import Role
from tests.world import World

ORG = "/api/v1/orgs/acme"
DEFAULT = ORG + "/clusters/default"
REQUESTS = ORG + "/cluster-requests"


def without_access(world: World) -> None:
    answer = world.client("admin").delete(f"{ORG}/workspaces/research/access/default")
    assert answer.status_code in (200, 204), answer.text


def dedicated(world: World, slug: str = "big", **more: Any) -> dict[str, Any]:
    answer = world.client("operator").post(f"{ORG}/dedicated-clusters", json={"slug": slug, "name": "Big", **more})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def test_a_cluster_is_shown_with_its_numbers(world: World) -> None:
    world.add_machine("a", gpu_count=3)
    world.add_machine("b", gpu_count=1, state="down")
    world.client("admin").post(f"{DEFAULT}/nodes/a/cordon", json={})
    shown = world.client("member").get(DEFAULT).json()
    numbers = ("machines", "up", "down", "cordoned", "gpus", "machine_limit")
    assert [shown[name] for name in numbers] == [2, 1, 1, 1, 4, 10]
    listed = world.client("member").get(f"{ORG}/clusters").json()
    assert listed == {"items": [shown], "next_page_token": None, "hosted_offered": False}


def test_the_hosted_cluster_is_offered_to_who_does_not_use_it(world: World) -> None:
    without_access(world)
    assert world.client("admin").delete(DEFAULT).status_code == 200
    listed = world.client("member").get(f"{ORG}/clusters").json()
    assert listed == {"items": [], "next_page_token": None, "hosted_offered": True}
    back = world.client("admin").post(f"{ORG}/hosted-cluster")
    assert back.json() == {"id": world.ids.clusters["default"], "slug": "default", "hosted": True}
    assert world.client("member").get(f"{ORG}/clusters").json()["hosted_offered"] is False


def test_leaving_is_previewed_refused_while_in_use_and_done(world: World) -> None:
    world.add_machine("gpu-1")
    world.client("admin").post(f"{DEFAULT}/enrollment-tokens", json={})
    preview = world.client("admin").delete(DEFAULT, params={"dry_run": "true"})
    told = {
        "slug": "default",
        "hosted": True,
        "machines": 1,
        "machine_names": ["gpu-1"],
        "tokens": 1,
        "running": [],
    }
    assert (preview.status_code, preview.json()) == (200, {**told, "dry_run": True, "workspaces": ["research"]})
    refused = world.client("admin").delete(DEFAULT)
    assert (refused.status_code, refused.json()["code"]) == (409, "CLUSTER_IN_USE")
    assert refused.json()["details"] == {"workspaces": ["research"], "count": 1}
    without_access(world)
    done = world.client("admin").delete(DEFAULT)
    assert (done.status_code, done.json()) == (200, {**told, "dry_run": False, "workspaces": []})
    assert world.client("admin").delete(DEFAULT).status_code == 404
    assert world.client("admin").get(f"{DEFAULT}/nodes").status_code == 404


def test_the_operator_lists_gives_back_and_deletes_dedicated_clusters(world: World) -> None:
    made = dedicated(world)
    operator = world.client("operator")
    (seen,) = operator.get("/api/v1/site/clusters").json()["items"]
    assert {name: seen[name] for name in ("id", "org", "slug", "name", "machines", "left_at")} == {
        "id": made["id"],
        "org": "acme",
        "slug": "big",
        "name": "Big",
        "machines": 0,
        "left_at": None,
    }
    refused = operator.delete(f"/api/v1/site/clusters/{made['id']}")
    assert (refused.status_code, refused.json()["code"]) == (409, "CLUSTER_IN_USE")
    world.client("admin").delete(f"{ORG}/clusters/big")
    assert dedicated(world, "again", id=made["id"])["id"] == made["id"]
    world.client("admin").delete(f"{ORG}/clusters/again")
    assert operator.get("/api/v1/site/clusters").json()["items"][0]["left_at"] == "2026-03-01T12:00:00Z"
    assert operator.delete(f"/api/v1/site/clusters/{made['id']}").status_code == 204
    assert operator.get("/api/v1/site/clusters").json()["items"] == []


@pytest.mark.parametrize("id", ["", "absent", "a\x00", "\ud800"])
def test_an_id_that_none_has_is_not_found(world_on_both: World, id: str) -> None:
    body = json.dumps({"slug": "big", "name": "Big", "id": id}).encode()
    headers = {"Content-Type": "application/json"}
    answer = world_on_both.client("operator").post(f"{ORG}/dedicated-clusters", content=body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")


def test_the_operators_clusters_come_in_pages(world: World) -> None:
    made = [dedicated(world, f"c{number}")["id"] for number in range(3)]
    first = world.client("operator").get("/api/v1/site/clusters", params={"page_size": 2}).json()
    token = first["next_page_token"]
    rest = world.client("operator").get("/api/v1/site/clusters", params={"page_size": 2, "page_token": token}).json()
    assert [one["id"] for one in [*first["items"], *rest["items"]]] == sorted(made)
    assert rest["next_page_token"] is None


def test_an_organisations_machine_limit_is_set_and_shown(world: World) -> None:
    operator = world.client("operator")
    answer = operator.put(f"{ORG}/machine-limit", json={"machines": 3})
    assert answer.json() == {"machines": 3, "in_force": 3, "enrolled": 0, "tokens": 0}
    assert world.client("member").get(DEFAULT).json()["machine_limit"] == 3
    assert {one["slug"]: one["machine_limit"] for one in operator.get("/api/v1/orgs").json()["items"]} == {
        "acme": 3,
        "rival": None,
    }
    assert operator.put(f"{ORG}/machine-limit", json={"machines": None}).json()["in_force"] == 10
    for bad in ({}, {"machines": -1}, {"machines": "3"}, {"machines": True}, {"limit": 3}):
        answer = operator.put(f"{ORG}/machine-limit", json=bad)
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST"), bad


def test_a_cluster_is_asked_for_and_answered(world: World) -> None:
    admin, operator = world.client("admin"), world.client("operator")
    asked = admin.post(REQUESTS, json={"name": "Training", "note": "100 GPUs"})
    assert asked.status_code == 201
    id = asked.json()["id"]
    assert operator.get("/api/v1/site/cluster-requests").json()["items"] == [asked.json()]
    answer = f"/api/v1/site/cluster-requests/{id}/answer"
    for bad in ({}, {"name": "x"}, {"slug": "big", "decline": "no"}, {"decline": ""}, {"name": "x", "decline": "no"}):
        refused = operator.post(answer, json=bad)
        assert (refused.status_code, refused.json()["code"]) == (400, "INVALID_REQUEST"), bad
    headers = {"Idempotency-Key": "k"}
    made = operator.post(answer, json={"slug": "big"}, headers=headers)
    assert (made.status_code, made.json()["state"], made.json()["cluster"]) == (200, "made", "big")
    assert operator.post(answer, json={"slug": "big"}, headers=headers).json() == made.json()
    again = operator.post(answer, json={"slug": "other"})
    assert (again.status_code, again.json()["code"]) == (409, "CONFLICT")
    assert admin.get(REQUESTS).json()["items"] == [made.json()]
    assert admin.delete(f"{REQUESTS}/{id}").status_code == 409
    assert operator.post("/api/v1/site/cluster-requests/absent/answer", json={"slug": "x"}).status_code == 404


def test_requests_come_in_pages_on_both_sides(world: World) -> None:
    for number in range(3):
        world.client("admin").post(REQUESTS, json={"name": f"n{number}"})
    for who, path in (("admin", REQUESTS), ("operator", "/api/v1/site/cluster-requests")):
        seen, token = [], None
        while True:
            params = {"page_size": 2, **({"page_token": token} if token else {})}
            page = world.client(who).get(path, params=params).json()
            seen += [one["name"] for one in page["items"]]
            token = page["next_page_token"]
            if token is None:
                break
        assert sorted(seen) == ["n0", "n1", "n2"]


@pytest.mark.parametrize("who", ["lead", "member", "outsider"])
def test_members_see_clusters_and_neither_leave_nor_ask(world: World, who: str) -> None:
    client = world.client(who)
    assert client.get(f"{ORG}/clusters").status_code == 200
    for answer in (client.delete(DEFAULT), client.get(REQUESTS), client.post(REQUESTS, json={"name": "x"})):
        assert answer.status_code == 403


def test_the_first_machine_of_an_organisation_joins_the_hosted_cluster_in_the_same_step(world: World) -> None:
    world.client("operator").post("/api/v1/orgs", json={"slug": "fresh", "name": "Fresh"})
    with world.act("operator", org="fresh") as ctx:
        world.ids.orgs["fresh"] = ctx.org.id
    world.add_member("founder", "fresh", Role.OWNER)
    founder = world.client("founder")
    path = "/api/v1/orgs/fresh/clusters/{}/enrollment-tokens"
    assert founder.post(path.format("other"), json={}).status_code == 404
    assert founder.post(path.format("default"), json={"ttl_seconds": 1}).status_code == 400
    assert founder.get("/api/v1/orgs/fresh/clusters").json()["items"] == []
    assert founder.post(path.format("default"), json={}).status_code == 201
    (only,) = founder.get("/api/v1/orgs/fresh/clusters").json()["items"]
    assert (only["slug"], only["hosted"]) == ("default", True)
