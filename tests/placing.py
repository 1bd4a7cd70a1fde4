"""Short ways to create, report and look, for tests of placed work in the world of tests/world.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import func, select

from corral.domain.allocations import Outcome, Report, Seen
from corral.domain.compute_clusters import Creation
from corral.domain.errors import Refusal
from corral.domain.machines import MachineRef
from corral.domain.permissions import ROUTES
from corral.store import fleet
from corral.store.engine import Database
from corral.store.tables.machines import gpus, machines
from corral.store.tables.workloads import allocations, gpu_holds, workloads
from corral.store.transaction import Row, Scope, Tx
from corral.usecases import allocation_reports, compute_clusters, desired
from corral.usecases.compute_clusters import ComputeCluster
from corral.usecases.context import Context
from corral.usecases.fleets import Fleets
from corral.usecases.idempotency import Stored
from corral.usecases.identity import Caller, Place
from corral.usecases.placement import CreateAsk, create_many
from tests.world import World

RULE = ROUTES[("POST", "/api/v1/orgs/{org}/workspaces/{ws}/compute-clusters")]


def ask(world: World, creation: Creation, who: str = "member", workspace: str = "research") -> CreateAsk:
    org = "rival" if who == "rival" else "acme"

    def render(_ctx: Context, made: ComputeCluster) -> dict[str, Any]:
        where = made.machine.name if made.machine else None
        return {"id": made.id, "name": made.name, "machine": where, "queued": made.queued, "reason": made.reason}

    return CreateAsk(Caller(world.tokens[who], "192.0.2.1"), RULE, Place(org, workspace), creation, render)


def create(world: World, creation: Creation, who: str = "member", *, fleets: Fleets | None = None) -> dict[str, Any]:
    """Create one; raises its refusal."""
    with world.db.write() as tx:
        answer = create_many(tx, fleets or Fleets(), [ask(world, creation, who)])[0]
    if isinstance(answer, Refusal):
        raise answer
    assert isinstance(answer, Stored)
    return answer.answer


def code_of(world: World, creation: Creation, who: str = "member", *, fleets: Fleets | None = None) -> str:
    """Return the code with which it is refused; "" when it is not."""
    try:
        create(world, creation, who, fleets=fleets)
    except Refusal as refusal:
        return refusal.code
    return ""


def ref(world: World, name: str) -> MachineRef:
    return MachineRef(world.ids.machines[name], world.ids.orgs["acme"], world.ids.clusters["default"], name)


def workload(world: World, name: str) -> Row:
    """Return the newest workload of that name."""
    with world.db.read() as tx:
        row = tx.one(select(workloads).where(workloads.c.name == name).order_by(workloads.c.id.desc()))
    assert row is not None
    return row


def allocation(world: World, name: str) -> Row:
    """Return the newest allocation of the newest workload of that name."""
    with world.db.read() as tx:
        row = tx.one(
            select(allocations)
            .where(allocations.c.workload_id == workload(world, name)["id"])
            .order_by(allocations.c.placed_at.desc())
        )
    assert row is not None
    return row


def saying(world: World, name: str, state: Seen, **values: Any) -> Report:
    """Return what a well-behaved machine would say of a workload's allocation."""
    held = allocation(world, name)
    with world.db.read() as tx:
        rows = tx.all(
            select(gpus.c.uuid)
            .join(gpu_holds, gpu_holds.c.gpu_id == gpus.c.id)
            .where(gpu_holds.c.allocation_id == held["id"])
        )
    return replace(Report(held["id"], held["generation"], state, gpus=[row["uuid"] for row in rows]), **values)


def report(world: World, machine: str, seen: Sequence[Report]) -> Outcome:
    with world.db.write() as tx:
        fleet.lock(tx, Scope(world.ids.orgs["acme"]), world.ids.clusters["default"])
        return allocation_reports.apply(tx, ref(world, machine), seen)


def terminate(world: World, name: str, who: str = "member") -> None:
    with world.act(who, "acme", "research") as ctx:
        compute_clusters.terminate(ctx, name)


def wanted(world: World, machine: str) -> dict[str, Any]:
    """Return what should run on a machine, by the workload's name."""
    with world.db.read() as tx:
        return {one.name: one for one in desired.for_machine(tx, ref(world, machine))}


def check_invariants(db: Database) -> None:
    """A GPU is in at most one live allocation; nothing is oversold (spec 60, lines 1 and 2)."""
    with db.read() as tx:
        live = gpu_holds.c.released_at.is_(None)
        twice = select(gpu_holds.c.gpu_id).where(live).group_by(gpu_holds.c.gpu_id).having(func.count() > 1)
        assert tx.all(twice) == []
        for name in ("vcpu", "ram_mib", "storage_mib"):
            assert _oversold(tx, name) == []
        held = select(allocations.c.id, allocations.c.gpus, func.count(gpu_holds.c.gpu_id).label("n")).outerjoin(
            gpu_holds, (gpu_holds.c.allocation_id == allocations.c.id) & live
        )
        rows = tx.all(held.where(allocations.c.released_at.is_(None)).group_by(allocations.c.id, allocations.c.gpus))
        assert [row for row in rows if row["gpus"] != row["n"]] == []


def _oversold(tx: Tx, name: str) -> Sequence[Row]:
    total = func.sum(allocations.c[name])
    return tx.all(
        select(machines.c.name, total)
        .join(allocations, allocations.c.machine_id == machines.c.id)
        .where(allocations.c.released_at.is_(None))
        .group_by(machines.c.id, machines.c.name, machines.c[name])
        .having(total > machines.c[name])
    )
