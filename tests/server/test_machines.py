"""Clusters and machines over HTTP: shapes, statuses, pages, dry runs (spec 10)."""

from __future__ import annotations

import pytest

from tests.world import World

CLUSTERS = "/api/v1/orgs/acme/clusters"
NODES = f"{CLUSTERS}/default/nodes"


def test_the_hosted_cluster_is_used_once(world: World) -> None:
    first = world.client("admin").post("/api/v1/orgs/acme/hosted-cluster")
    again = world.client("admin").post("/api/v1/orgs/acme/hosted-cluster")
    assert first.status_code == again.status_code == 200
    assert first.json() == again.json() == {"id": world.ids.clusters["default"], "slug": "default", "hosted": True}


def test_the_operator_makes_dedicated_clusters_and_admins_see_them(world: World) -> None:
    path = "/api/v1/orgs/acme/dedicated-clusters"
    assert world.client("owner").post(path, json={"slug": "big", "name": "Big"}).status_code == 403
    assert world.client("operator").post(path, json={"slug": "big", "name": "Big"}).status_code == 201
    assert world.client("operator").post(path, json={"slug": "big", "name": "Big"}).status_code == 409
    world.add_machine("m")
    first = world.client("member").get(CLUSTERS, params={"page_size": 1}).json()
    rest = world.client("member").get(CLUSTERS, params={"page_token": first["next_page_token"]}).json()
    assert [(one["slug"], one["machines"], one["up"], one["gpus"]) for one in [*first["items"], *rest["items"]]] == [
        ("big", 0, 0, 0),
        ("default", 1, 1, 2),
    ]


def test_a_cluster_is_renamed(world: World) -> None:
    answer = world.client("admin").patch(f"{CLUSTERS}/default", json={"name": "Lab"})
    assert (answer.status_code, answer.json()["name"], answer.json()["slug"]) == (200, "Lab", "default")
    assert world.client("admin").patch(f"{CLUSTERS}/default", json={"slug": "x"}).status_code == 400
    assert world.client("admin").patch(f"{CLUSTERS}/default", json={"name": "\u202e"}).status_code == 400


def test_machines_are_listed_in_pages_with_their_gpus(world: World) -> None:
    for name in ("a", "b", "c"):
        world.add_machine(name, pool="x")
    world.add_workload("dev", "a", gpu_count=1)
    first = world.client("admin").get(NODES, params={"page_size": 2}).json()
    assert [one["name"] for one in first["items"]] == ["a", "b"]
    assert first["items"][0]["gpus"] == {"total": 2, "healthy": 2, "allocated": 1, "free": 1, "models": ["H100"]}
    rest = world.client("admin").get(NODES, params={"page_token": first["next_page_token"], "pool": "x"}).json()
    assert [one["name"] for one in rest["items"]] == ["c"]
    assert rest["next_page_token"] is None
    assert world.client("admin").get(NODES, params={"state": "down"}).json()["items"] == []
    assert world.client("admin").get(NODES, params={"state": "DOWN"}).status_code == 400
    assert world.client("admin").get(NODES, params={"page_token": "?"}).status_code == 400


def test_a_machine_is_shown_with_who_holds_its_gpus(world: World) -> None:
    world.add_machine("m")
    world.add_workload("dev", "m", gpu_count=1)
    shown = world.client("admin").get(f"{NODES}/m").json()
    assert [(one["uuid"], one["workspace"], one["workload"]) for one in shown["gpus"]] == [
        ("GPU-m-0", "research", "dev"),
        ("GPU-m-1", None, None),
    ]
    assert [one["name"] for one in shown["running"]] == ["dev"]
    assert shown["machine"]["connected"] is False


@pytest.mark.parametrize("name", ["absent", "..%2fm", "a%00b", "%E2%80%AE", "x" * 300])
def test_a_name_that_is_none_is_not_found(world: World, name: str) -> None:
    answer = world.client("admin").get(f"{NODES}/{name}")
    assert answer.status_code == 404
    assert answer.json()["code"] in ("NODE_NOT_FOUND", "NOT_FOUND")


def test_members_and_strangers_do_not_see_the_machines_page(world: World) -> None:
    world.add_machine("m")
    assert world.client("member").get(NODES).status_code == 403
    assert world.client("rival").get(f"{NODES}/m").status_code == 404
    assert world.client().get(NODES).status_code == 401


def test_cordon_takes_a_reason_or_none(world: World) -> None:
    world.add_machine("m")
    admin = world.client("admin")
    assert admin.post(f"{NODES}/m/cordon").json()["closed"] == "cordoned: maintenance"
    shown = admin.post(f"{NODES}/m/cordon", json={"reason": "disk swap"}).json()["cordon"]
    assert shown == {"reason": "disk swap", "by": "admin", "at": "2026-03-01T12:00:00Z"}
    assert admin.post(f"{NODES}/m/cordon", json={"reason": 7}).status_code == 400
    assert admin.post(f"{NODES}/m/cordon", json={"reason": "a\x1b[2J"}).status_code == 400
    assert admin.post(f"{NODES}/m/uncordon").json()["cordon"] is None


def test_a_dry_run_changes_nothing(world: World) -> None:
    world.add_machine("m")
    world.add_workload("dev", "m")
    admin = world.client("admin")
    told = admin.post(f"{NODES}/m/cordon", params={"dry_run": "true"}, json={"reason": "x"}).json()
    assert told["dry_run"] is True
    assert told["workspaces"] == ["research"]
    assert [one["name"] for one in told["running"]] == ["dev"]
    assert admin.delete(f"{NODES}/m", params={"dry_run": "true", "force": "true"}).json()["running"] == told["running"]
    assert admin.get(f"{NODES}/m").json()["machine"]["cordon"] is None


def test_removal_is_refused_while_work_runs_unless_forced(world: World) -> None:
    world.add_machine("m")
    world.add_workload("dev", "m", gpu_count=1)
    admin = world.client("admin")
    refused = admin.delete(f"{NODES}/m")
    assert (refused.status_code, refused.json()["code"]) == (409, "NODE_IN_USE")
    assert admin.delete(f"{NODES}/m", params={"force": "true"}).status_code == 200
    assert admin.get(f"{NODES}/m").status_code == 404
    assert admin.delete(f"{NODES}/m", params={"force": "true"}).status_code == 404


def test_a_workspaces_members_see_its_machines(world: World) -> None:
    world.add_machine("m")
    world.add_workload("dev", "m", gpu_count=2)
    answer = world.client("member").get("/api/v1/orgs/acme/workspaces/research/machines").json()
    (one,) = answer["items"]
    assert (one["name"], one["cluster"], one["status"]) == ("m", "default", "Sold Out")
    assert (one["gpus_available"], one["gpus_total"], one["gpu_models"]) == (0, 2, ["H100"])
    assert answer["contact"] == ""
    path = "/api/v1/orgs/acme/workspaces/private/machines"
    assert world.client("member").get(path).status_code == 404
    assert world.client("admin").get(path).json()["items"] == []
