"""Rows of machines' GPUs, and counts of them without a query per machine."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, RowMapping, and_, exists, func, insert, or_, select, update

from corral.domain.inventory import HELD_BY_UNKNOWN, Gpu, GpuCounts, GpuState, Kept
from corral.domain.machines import MachineRef
from corral.store.tables.faults import gpu_faults
from corral.store.tables.machines import gpus
from corral.store.tables.orgs import workspaces
from corral.store.tables.workloads import allocations, gpu_holds, workloads
from corral.store.transaction import Scope, Tx


@dataclass(frozen=True)
class Row:
    id: str
    kept: Kept


@dataclass(frozen=True)
class Summary:
    """A machine's GPUs by number, and their models."""

    counts: GpuCounts
    models: tuple[str, ...]


EMPTY = Summary(GpuCounts(), ())


def of_machine(tx: Tx, ref: MachineRef) -> Sequence[Row]:
    """Return the machine's GPUs, replaced ones too, oldest first."""
    query = select(gpus).where(gpus.c.org_id == ref.org_id, gpus.c.machine_id == ref.id).order_by(gpus.c.id)
    return [Row(row["id"], Kept(_gpu(row), row["gone"])) for row in tx.all(query)]


def add(tx: Tx, ref: MachineRef, new: Mapping[str, Kept]) -> None:
    """Add GPUs, by the ids they get."""
    if new:
        mine = {"org_id": ref.org_id, "machine_id": ref.id}
        tx.run(insert(gpus), [{"id": id, **mine, **_columns(kept)} for id, kept in new.items()])


def save(tx: Tx, ref: MachineRef, id: str, kept: Kept) -> None:
    tx.run(
        update(gpus)
        .where(gpus.c.org_id == ref.org_id, gpus.c.machine_id == ref.id, gpus.c.id == id)
        .values(**_columns(kept))
    )


def hold_for_unknown(tx: Tx, ref: MachineRef, uuids: Collection[str]) -> None:
    """Say of these of the machine's GPUs, and no others, that work unknown to this site has them."""
    mine = [gpus.c.org_id == ref.org_id, gpus.c.machine_id == ref.id]
    listed = gpus.c.uuid.in_(list(uuids))
    tx.run(update(gpus).where(*mine, gpus.c.busy == HELD_BY_UNKNOWN, ~listed).values(busy=""))
    tx.run(update(gpus).where(*mine, gpus.c.busy == "", listed).values(busy=HELD_BY_UNKNOWN))


def with_holders(tx: Tx, ref: MachineRef) -> Sequence[RowMapping]:
    """Return the machine's GPUs in slot order, each with the `workload` and `workspace` that hold it (None: nobody)."""
    return tx.all(
        select(gpus, workloads.c.name.label("workload"), workspaces.c.slug.label("workspace"))
        .select_from(gpus)
        .outerjoin(allocations, allocations.c.id == holder())
        .outerjoin(workloads, workloads.c.id == allocations.c.workload_id)
        .outerjoin(workspaces, workspaces.c.id == allocations.c.workspace_id)
        .where(gpus.c.org_id == ref.org_id, gpus.c.machine_id == ref.id, gpus.c.gone.is_(False))
        .order_by(gpus.c.slot, gpus.c.uuid)
    )


def holding() -> ColumnElement[bool]:
    """Live allocations, and released ones that their machine still runs: both hold what they were given."""
    return or_(allocations.c.released_at.is_(None), allocations.c.lingers_since.is_not(None))


def holder() -> ColumnElement[str]:
    """The id of the allocation that holds the GPU, the live one if there is one; null: nothing does."""
    hold = select(gpu_holds.c.allocation_id).where(gpu_holds.c.gpu_id == gpus.c.id).correlate(gpus)
    live = hold.where(gpu_holds.c.released_at.is_(None))
    lingers = (
        hold.join(allocations, allocations.c.id == gpu_holds.c.allocation_id)
        .where(allocations.c.machine_id == gpus.c.machine_id, allocations.c.lingers_since.is_not(None))
        .order_by(gpu_holds.c.allocation_id)
        .limit(1)
    )
    return func.coalesce(live.scalar_subquery(), lingers.scalar_subquery())


def held() -> ColumnElement[bool]:
    """Something holds the GPU: what is given anew, and what is shown as free, is not."""
    return holder().is_not(None)


def latched() -> ColumnElement[bool]:
    """A fault of the GPU is latched: it is fenced. Keyed by what it is, so a latch follows it to another machine."""
    f = gpu_faults.c
    its = (f.org_id == gpus.c.org_id, f.vendor == gpus.c.vendor, f.uuid == gpus.c.uuid)
    return exists().where(*its, f.cleared_at.is_(None))


def any_latched(tx: Tx, gpu_ids: Collection[str]) -> bool:
    """Return whether one of these GPUs is fenced."""
    return (
        bool(gpu_ids) and tx.one(select(gpus.c.id).where(gpus.c.id.in_(list(gpu_ids)), latched()).limit(1)) is not None
    )


def summaries(tx: Tx, scope: Scope, machine_ids: Collection[str]) -> Mapping[str, Summary]:
    """Return each machine's GPU counts and models, in one query; machines without GPUs are left out."""
    healthy = and_(gpus.c.state == GpuState.OK.value, ~latched())
    each = (
        select(gpus.c.machine_id, gpus.c.model, gpus.c.busy, healthy.label("healthy"), held().label("held"))
        .where(gpus.c.org_id == scope.org, gpus.c.machine_id.in_(list(machine_ids)), gpus.c.gone.is_(False))
        .subquery()
    )
    query = (
        select(
            each.c.machine_id,
            each.c.model,
            func.count().label("total"),
            func.count().filter(each.c.healthy).label("healthy"),
            func.count().filter(and_(each.c.healthy, each.c.held)).label("held"),
            func.count().filter(and_(each.c.healthy, each.c.busy == "", ~each.c.held)).label("free"),
        )
        .group_by(each.c.machine_id, each.c.model)
        .order_by(each.c.machine_id, each.c.model)
    )
    found: dict[str, Summary] = {}
    for row in tx.all(query) if machine_ids else ():
        found[row["machine_id"]] = _plus(found.get(row["machine_id"], EMPTY), row)
    return found


def _plus(summary: Summary, row: RowMapping) -> Summary:
    was = summary.counts
    counts = GpuCounts(
        was.total + row["total"], was.healthy + row["healthy"], was.held + row["held"], was.free + row["free"]
    )
    return Summary(counts, (*summary.models, row["model"]) if row["model"] else summary.models)


def _gpu(row: RowMapping) -> Gpu:
    return Gpu(
        row["vendor"],
        row["uuid"],
        row["slot"],
        row["model"],
        row["memory_mib"],
        row["serial"],
        GpuState(row["state"]),
        row["detail"],
        row["busy"],
    )


def _columns(kept: Kept) -> dict[str, Any]:
    gpu = kept.gpu
    return {
        "vendor": gpu.vendor,
        "uuid": gpu.uuid,
        "slot": gpu.slot,
        "model": gpu.model,
        "memory_mib": gpu.memory_mib,
        "serial": gpu.serial,
        "state": gpu.state.value,
        "detail": gpu.detail,
        "busy": gpu.busy,
        "gone": kept.gone,
    }
