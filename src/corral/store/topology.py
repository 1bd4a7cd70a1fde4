"""Rows of a workspace's machines and GPUs by where they are, in pages of machines or of GPUs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, RowMapping, Select, Subquery, and_, exists, select, tuple_

from corral.store.inventory import holder, latched
from corral.store.machines import for_lists, usable_by
from corral.store.tables.clusters import tenancies
from corral.store.tables.machines import gpus, machines
from corral.store.tables.workloads import allocations, workloads
from corral.store.transaction import Scope, Tx


class MachinePlace(NamedTuple):
    """By what machines are sorted: where they are, then their name; `id` tells those of two clusters apart."""

    site: str
    rack: str
    fabric: str
    name: str
    id: str


class GpuPlace(NamedTuple):
    """By what GPUs are sorted: their machine, then their slot."""

    machine: str
    machine_id: str
    slot: str
    uuid: str


def machines_of_workspace(
    tx: Tx, scope: Scope, workspace_id: str, after: MachinePlace | None, limit: int
) -> Sequence[RowMapping]:
    """Return the machines whose pools the workspace is granted, by place, with their `cluster`."""
    key = tuple_(machines.c.site, machines.c.rack, machines.c.fabric, machines.c.name, machines.c.id)
    query = (
        for_lists()
        .add_columns(tenancies.c.slug.label("cluster"))
        .join(tenancies, _tenancy(scope))
        .where(*usable_by(scope, workspace_id))
        .order_by(*key)
        .limit(limit)
    )
    return tx.all(query if after is None else query.where(key > tuple_(*after)))


def gpus_of_workspace(
    tx: Tx, scope: Scope, workspace_id: str, after: GpuPlace | None, limit: int
) -> Sequence[RowMapping]:
    """Return the GPUs of those machines, by machine and slot, each with its `machine`, `cluster` and place."""
    here = _machines_of_page(scope, workspace_id, after, limit)
    key = tuple_(here.c.name, here.c.id, gpus.c.slot, gpus.c.uuid)
    query = (
        _gpus(scope)
        .add_columns(here.c.name.label("machine"), tenancies.c.slug.label("cluster"))
        .add_columns(here.c.pool, here.c.site, here.c.rack, here.c.fabric)
        .join(here, here.c.id == gpus.c.machine_id)
        .join(tenancies, and_(tenancies.c.cluster_id == here.c.cluster_id, tenancies.c.org_id == scope.org))
        .order_by(*key)
        .limit(limit)
    )
    return tx.all(query if after is None else query.where(key > tuple_(*after)))


def _machines_of_page(scope: Scope, workspace_id: str, after: GpuPlace | None, limit: int) -> Subquery:
    """As many of the machines with GPUs as a page of so many can have: a GPU of each, but of the one that was last."""
    key = tuple_(machines.c.name, machines.c.id)
    any_gpu = exists().where(gpus.c.org_id == scope.org, gpus.c.machine_id == machines.c.id, gpus.c.gone.is_(False))
    columns = [machines.c[name] for name in ("id", "name", "cluster_id", "pool", "site", "rack", "fabric")]
    query = select(*columns).where(*usable_by(scope, workspace_id), any_gpu).order_by(*key).limit(limit + 1)
    return (query if after is None else query.where(key >= tuple_(after.machine, after.machine_id))).subquery()


def gpus_on(tx: Tx, scope: Scope, machine_ids: Collection[str]) -> Sequence[RowMapping]:
    """Return the GPUs of these machines, by slot."""
    if not machine_ids:
        return []
    here = _gpus(scope).where(gpus.c.machine_id.in_(list(machine_ids)))
    return tx.all(here.order_by(gpus.c.machine_id, gpus.c.slot, gpus.c.uuid))


def _tenancy(scope: Scope) -> ColumnElement[bool]:
    return and_(tenancies.c.cluster_id == machines.c.cluster_id, tenancies.c.org_id == scope.org)


def _gpus(scope: Scope) -> Select[Any]:
    """GPUs that were not replaced, each with whether it is `fenced`, and the `workload` that holds it (None: free)."""
    columns = [gpus.c[name] for name in ("machine_id", "uuid", "slot", "model", "memory_mib", "state", "busy")]
    return (
        select(*columns, latched().label("fenced"))
        .add_columns(workloads.c.name.label("workload"), allocations.c.workspace_id)
        .select_from(gpus)
        .outerjoin(allocations, allocations.c.id == holder())
        .outerjoin(workloads, workloads.c.id == allocations.c.workload_id)
        .where(gpus.c.org_id == scope.org, gpus.c.gone.is_(False))
    )
