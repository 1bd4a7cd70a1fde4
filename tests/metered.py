"""Workloads that hold something for a chosen time, and price tables set at one, for tests of usage and budgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import delete, insert

from corral.domain.prices import PriceTable
from corral.store.tables.prices import prices
from corral.store.tables.workloads import allocations, gpu_holds, workloads
from corral.usecases.context import new_id
from tests.world import World


@dataclass(frozen=True)
class Held:
    """One workload's allocation: from when to when (None: it lives), and how much."""

    placed: datetime
    released: datetime | None = None
    gpus: int = 0
    model: str = ""
    vcpu: int = 1
    ram_mib: int = 1024
    storage_mib: int = 1024
    workspace: str = "acme/research"
    by: str = "member"
    cluster: str = "default"


def hold(world: World, name: str, held: Held, machine: str = "m") -> str:
    """Make a workload of that name with its allocation; returns the workload's id."""
    org = held.workspace.partition("/")[0]
    if machine not in world.ids.machines:
        world.add_machine(machine, org)
    with world.db.write() as tx:
        id = new_id(tx.now)
        place = {
            "org_id": world.ids.orgs[org],
            "workspace_id": world.ids.workspaces[held.workspace],
            "cluster_id": world.ids.clusters[held.cluster],
        }
        row: dict[str, Any] = {"id": id, **place, "name": name, "created_by": world.ids.users[held.by], "ask": {}}
        row |= {"kind": "compute_cluster", "state": "active", "state_since": held.placed, "image": "base"}
        tx.run(insert(workloads).values(**row, created_at=held.placed, ended_at=held.released))
        what = {"gpus": held.gpus, "vcpu": held.vcpu, "ram_mib": held.ram_mib, "storage_mib": held.storage_mib}
        when = {"placed_at": held.placed, "released_at": held.released}
        where = {"machine_id": world.ids.machines[machine], "workload_id": id, "gpu_model": held.model}
        tx.run(insert(allocations).values(id=new_id(tx.now), **place, **where, **what, **when, seen_gpus=[]))
    return id


def price(world: World, valid_from: datetime, table: PriceTable, cluster: str = "default") -> None:
    """Set a cluster's price table as of a moment."""
    with world.db.write() as tx:
        values: Mapping[str, Any] = {**vars(table), "gpu_hour": dict(table.gpu_hour), "set_by": "somebody"}
        row = {"id": new_id(tx.now), "cluster_id": world.ids.clusters[cluster], "valid_from": valid_from}
        tx.run(insert(prices).values(**row, **values))


def forget(world: World) -> None:
    """Remove everything that was held and priced."""
    with world.db.write() as tx:
        for table in (gpu_holds, allocations, workloads, prices):
            tx.run(delete(table))
