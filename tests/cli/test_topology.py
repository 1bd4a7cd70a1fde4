"""`corral workspace gpus` and `topology`: the map and the tree, for people and for programs."""

from __future__ import annotations

import json

from sqlalchemy import update

from corral.store.tables.machines import machines
from tests.cli.conftest import Cli, Running


def label(running: Running, name: str, **labels: str) -> None:
    id = running.world.add_machine(name)
    with running.world.db.write() as tx:
        tx.run(update(machines).where(machines.c.id == id).values(**labels))


def test_the_tree_shows_where_machines_are_and_what_their_gpus_do(running: Running, cli: Cli) -> None:
    label(running, "a", site="east", rack="r1", fabric="ib0")
    label(running, "b", site="east", rack="r2")
    running.world.add_workload("mine", "a", gpu_count=1)
    ran = cli("member", "workspace", "topology")
    assert ran.code == 0, ran.err
    assert ran.out.splitlines() == [
        "site east",
        "  rack r1",
        "    fabric ib0",
        "      a  available  2 H100: 1 allocated, 1 free",
        "  rack r2",
        "    fabric -",
        "      b  available  2 H100: 2 free",
    ]


def test_a_tree_of_several_pages_is_one(running: Running, cli: Cli) -> None:
    for n in range(105):
        label(running, f"m{n:03}", site="east", rack=f"r{n // 60}")
    tree = json.loads(cli("member", "--json", "workspace", "topology").out)
    assert [site["name"] for site in tree] == ["east"]
    assert [rack["name"] for rack in tree[0]["racks"]] == ["r0", "r1"]
    found = [m["name"] for rack in tree[0]["racks"] for fabric in rack["fabrics"] for m in fabric["machines"]]
    assert found == [f"m{n:03}" for n in range(105)]


def test_the_map_names_what_holds_a_gpu(running: Running, cli: Cli) -> None:
    label(running, "a", rack="r1")
    running.world.add_workload("mine", "a", gpu_count=1)
    lines = cli("member", "workspace", "gpus").out.splitlines()
    assert lines[0].split() == ["MACHINE", "SLOT", "GPU", "USE", "POOL", "SITE", "RACK", "FABRIC", "UUID"]
    assert "allocated: mine" in lines[1] and "free" in lines[2]
