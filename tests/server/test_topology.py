"""A workspace's GPU map and topology over HTTP: only what its pools grant, in pages, nothing of other workspaces."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from corral.store.engine import Database
from corral.store.tables.access import access_pools
from corral.store.tables.machines import gpus, machines
from corral.store.tables.workloads import allocations
from tests.world import World

WS = "/api/v1/orgs/acme/workspaces/research"


@pytest.fixture
def world(db: Database, tmp_path: Path) -> World:
    return World(db, tmp_path)


@pytest.fixture
def placed(world: World) -> World:
    """Three machines in two racks of one site, and one outside of the pool."""
    for name, rack, pool in (("c", "r1", "x"), ("a", "r2", "x"), ("b", "r1", "x"), ("hidden", "r1", "y")):
        id = world.add_machine(name, pool=pool)
        with world.db.write() as tx:
            tx.run(update(machines).where(machines.c.id == id).values(site="east", rack=rack, fabric=f"f{rack[1]}"))
    with world.db.write() as tx:
        mine = access_pools.c.workspace_id == world.ids.workspaces["acme/research"]
        tx.run(update(access_pools).where(mine).values(pool="x"))
    return world


def pages(world: World, path: str, size: int, who: str = "member") -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = []
    params: dict[str, Any] = {"page_size": size}
    while True:
        answer = world.client(who).get(f"{WS}/{path}", params=params)
        assert answer.status_code == 200, answer.json()
        answers.append(answer.json())
        if answers[-1]["next_page_token"] is None:
            return answers
        params["page_token"] = answers[-1]["next_page_token"]


def leaves(page: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    return [
        (site["name"], rack["name"], fabric["name"], machine["name"])
        for site in page["sites"]
        for rack in site["racks"]
        for fabric in rack["fabrics"]
        for machine in fabric["machines"]
    ]


WHERE = [("east", "r1", "f1", "b"), ("east", "r1", "f1", "c"), ("east", "r2", "f2", "a")]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_the_tree_holds_each_machine_of_the_pools_once_whatever_the_page(placed: World, size: int) -> None:
    found = pages(placed, "topology", size)
    assert [leaf for page in found for leaf in leaves(page)] == WHERE


@pytest.mark.parametrize("size", [1, 3, 4, 100])
def test_the_map_holds_each_gpu_of_the_pools_once_whatever_the_page(placed: World, size: int) -> None:
    for name in ("0", "a0", "a1", "a2", "a3", "a4"):
        placed.add_machine(name, gpu_count=0, pool="x")
    items = [item for page in pages(placed, "gpus", size) for item in page["items"]]
    assert [item["machine"] for item in items] == ["a", "a", "b", "b", "c", "c"]
    assert len({item["uuid"] for item in items}) == 6
    assert {(item["machine"], item["rack"]) for item in items} == {("a", "r2"), ("b", "r1"), ("c", "r1")}


def test_a_gpu_of_another_workspace_is_allocated_without_a_name(placed: World) -> None:
    placed.add_workload("mine", "a", gpu_count=1)
    id = placed.add_workload("theirs", "b", gpu_count=1)
    with placed.db.write() as tx:
        other = placed.ids.workspaces["acme/private"]
        tx.run(update(allocations).where(allocations.c.workload_id == id).values(workspace_id=other))
    items = [item for page in pages(placed, "gpus", 100) for item in page["items"]]
    told = [(item["machine"], item["use"], item["workload"]) for item in items]
    assert told[:4] == [("a", "allocated", "mine"), ("a", "free", ""), ("b", "allocated", ""), ("b", "free", "")]
    tree = pages(placed, "topology", 100)[0]
    assert "theirs" not in str(tree) and "mine" in str(tree)


def test_a_gpu_that_went_missing_stays_on_the_map(placed: World) -> None:
    with placed.db.write() as tx:
        tx.run(update(gpus).where(gpus.c.machine_id == placed.ids.machines["a"]).values(state="missing"))
    items = [item for page in pages(placed, "gpus", 100) for item in page["items"]]
    assert [item["use"] for item in items if item["machine"] == "a"] == ["missing", "missing"]


def test_a_machine_says_why_nothing_can_be_created_on_it(placed: World) -> None:
    placed.client("admin").post("/api/v1/orgs/acme/clusters/default/nodes/b/cordon", json={"reason": "fans"})
    machine = pages(placed, "topology", 1)[0]["sites"][0]["racks"][0]["fabrics"][0]["machines"][0]
    assert (machine["name"], machine["status"]) == ("b", "cordoned: fans")


@pytest.mark.parametrize("path", ["gpus", "topology"])
@pytest.mark.parametrize(
    "key", ["x", "[]", '["a"]', '["a","b","c",4,5]', '["\\u0000","","","",""]', '["\\ud800","","",""]']
)
def test_a_page_token_that_no_list_gave_is_refused(placed: World, path: str, key: str) -> None:
    token = base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")
    answer = placed.client("member").get(f"{WS}/{path}", params={"page_token": token})
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
