"""Rows of GPUs' faults: latches keyed by (organisation, vendor, UUID, code), and what counters are measured against.

A GPU is fenced while it has a live latch (`cleared_at` is null), wherever in the organisation it is:
`store/inventory.latched` is what placement asks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sqlalchemy import ColumnElement, RowMapping, and_, exists, insert, select, update

from corral.domain.faults import MAX_EVIDENCE, Baseline, Counters, Fault
from corral.domain.inventory import GpuState
from corral.domain.machines import MachineRef
from corral.store.tables.faults import gpu_baselines, gpu_faults
from corral.store.tables.machines import gpus, machines
from corral.store.tables.workloads import allocations, gpu_holds, workloads
from corral.store.transaction import Scope, Tx

_F = gpu_faults.c
_B = gpu_baselines.c

Identity = tuple[str, str]
"""(vendor, UUID)."""


def _identity(row: RowMapping) -> Identity:
    return row["vendor"], row["uuid"]


def live(tx: Tx, scope: Scope, uuids: Collection[str]) -> Mapping[Identity, Sequence[RowMapping]]:
    """Return the live latches of GPUs with these UUIDs, the oldest of each first."""
    found: dict[Identity, list[RowMapping]] = {}
    query = select(gpu_faults).where(_F.org_id == scope.org, _F.uuid.in_(list(uuids)), _F.cleared_at.is_(None))
    for row in tx.all(query.order_by(_F.since, _F.code)) if uuids else ():
        found.setdefault(_identity(row), []).append(row)
    return found


def live_on(tx: Tx, ref: MachineRef) -> Mapping[Identity, Sequence[RowMapping]]:
    """Return the live latches of the GPUs that a machine has, the oldest of each first.

    `left`: the machine that each was on last was removed.
    """
    of_it = exists().where(
        gpus.c.org_id == _F.org_id, gpus.c.machine_id == ref.id, gpus.c.vendor == _F.vendor, gpus.c.uuid == _F.uuid
    )
    found: dict[Identity, list[RowMapping]] = {}
    left = machines.c.removed_at.is_not(None).label("left")
    query = select(gpu_faults, left).join(machines, machines.c.id == _F.machine_id)
    query = query.where(_F.org_id == ref.org_id, _F.cleared_at.is_(None), of_it)
    for row in tx.all(query.order_by(_F.since, _F.code)):
        found.setdefault(_identity(row), []).append(row)
    return found


def latch(tx: Tx, id: str, ref: MachineRef, gpu: Identity, fault: Fault) -> None:
    """Latch a fault of a GPU that this machine has. The tenancy is locked, so nobody else there does it meanwhile;
    of two in different clusters the index refuses the second, whose report is taken in again."""
    vendor, uuid = gpu
    tx.run(
        insert(gpu_faults).values(
            id=id,
            org_id=ref.org_id,
            vendor=vendor,
            uuid=uuid,
            machine_id=ref.id,
            code=fault.code,
            evidence=fault.evidence[:MAX_EVIDENCE],
            since=tx.now,
            last_at=tx.now,
            count=max(fault.times, 1),
            kernel_boot=fault.boot,
            kernel_seq=fault.seq,
        )
    )


def repeat(tx: Tx, scope: Scope, id: str, fault: Fault) -> None:
    """Count a fault that is latched already."""
    line = {"kernel_boot": fault.boot, "kernel_seq": fault.seq} if fault.seq >= 0 else {}
    tx.run(
        update(gpu_faults)
        .where(_F.org_id == scope.org, _F.id == id)
        .values(count=_F.count + fault.times, last_at=tx.now, **line)
    )


def clear(tx: Tx, scope: Scope, ids: Collection[str], by: str) -> None:
    """Clear latches; what they were stays as history."""
    tx.run(
        update(gpu_faults)
        .where(_F.org_id == scope.org, _F.id.in_(list(ids)), _F.cleared_at.is_(None))
        .values(cleared_at=tx.now, cleared_by=by)
    )


def came(tx: Tx, ref: MachineRef, ids: Collection[str]) -> None:
    """Say that these latches' GPUs are on this machine now, and not replaced."""
    tx.run(
        update(gpu_faults)
        .where(_F.org_id == ref.org_id, _F.id.in_(list(ids)))
        .values(machine_id=ref.id, replaced_at=None)
    )


def replaced(tx: Tx, scope: Scope, ids: Collection[str]) -> None:
    """Note that people were told that these latches' GPU left its slot to another."""
    tx.run(update(gpu_faults).where(_F.org_id == scope.org, _F.id.in_(list(ids))).values(replaced_at=tx.now))


def elsewhere(tx: Tx, ref: MachineRef, uuids: Collection[str]) -> set[Identity]:
    """Return which GPUs with these UUIDs another enrolled machine of the organisation has and sees."""
    rows = tx.all(
        select(gpus.c.vendor, gpus.c.uuid)
        .join(machines, and_(machines.c.id == gpus.c.machine_id, machines.c.removed_at.is_(None)))
        .where(
            gpus.c.org_id == ref.org_id,
            gpus.c.machine_id != ref.id,
            gpus.c.uuid.in_(list(uuids)),
            gpus.c.gone.is_(False),
            gpus.c.state != GpuState.MISSING.value,
        )
    )
    return {_identity(row) for row in rows}


def machines_with(tx: Tx, scope: Scope, gpu: Identity) -> Sequence[RowMapping]:
    """Return id and cluster of every enrolled machine that lists the GPU."""
    vendor, uuid = gpu
    return tx.all(
        select(machines.c.id, machines.c.cluster_id)
        .join(gpus, gpus.c.machine_id == machines.c.id)
        .where(
            machines.c.org_id == scope.org,
            machines.c.removed_at.is_(None),
            gpus.c.vendor == vendor,
            gpus.c.uuid == uuid,
            gpus.c.gone.is_(False),
        )
        .order_by(machines.c.cluster_id, machines.c.id)
    )


def held_by(tx: Tx, ref: MachineRef, gpu: Identity) -> Sequence[RowMapping]:
    """Return id, name and workspace of the workloads that hold a GPU of a machine now."""
    vendor, uuid = gpu
    return tx.all(
        select(workloads.c.id, workloads.c.name, workloads.c.workspace_id)
        .join(allocations, allocations.c.workload_id == workloads.c.id)
        .join(gpu_holds, and_(gpu_holds.c.allocation_id == allocations.c.id, gpu_holds.c.released_at.is_(None)))
        .join(gpus, gpus.c.id == gpu_holds.c.gpu_id)
        .where(gpus.c.org_id == ref.org_id, gpus.c.machine_id == ref.id, gpus.c.vendor == vendor, gpus.c.uuid == uuid)
    )


# --- what counters are measured against


def baselines(tx: Tx, scope: Scope, uuids: Collection[str]) -> Mapping[Identity, Baseline]:
    """Return the baselines of GPUs with these UUIDs, those that have one."""
    query = select(gpu_baselines).where(_B.org_id == scope.org, _B.uuid.in_(list(uuids)))
    return {
        _identity(row): Baseline(Counters.of(row["counters"]), row["kernel_boot"], row["kernel_seq"])
        for row in (tx.all(query) if uuids else ())
    }


def save_baselines(tx: Tx, scope: Scope, known: Collection[Identity], now: Mapping[Identity, Baseline]) -> None:
    """Write baselines; `known` are the GPUs that have one already."""
    new = [{"org_id": scope.org, **_its(gpu), **_values(tx, now[gpu])} for gpu in now if gpu not in known]
    if new:
        tx.run(insert(gpu_baselines), new)
    for gpu in (gpu for gpu in now if gpu in known):
        of_it = [_B.org_id == scope.org, *(_B[name] == value for name, value in _its(gpu).items())]
        tx.run(update(gpu_baselines).where(*of_it).values(**_values(tx, now[gpu])))


def _its(gpu: Identity) -> dict[str, str]:
    return {"vendor": gpu[0], "uuid": gpu[1]}


def _values(tx: Tx, baseline: Baseline) -> dict[str, Any]:
    return {
        "counters": baseline.counters.plain(),
        "kernel_boot": baseline.boot,
        "kernel_seq": baseline.seq,
        "at": tx.now,
    }


# --- what people see


class Shown(str, Enum):
    """Which faults a list has."""

    OPEN = "open"  # latched, on a GPU that a machine has
    GONE = "gone"  # latched, but its GPU is on no machine now: it comes back with it
    CLEARED = "cleared"
    ALL = "all"


@dataclass(frozen=True)
class Wanted:
    shown: Shown = Shown.OPEN
    machine: str | None = None
    """Its name."""


def listed(tx: Tx, scope: Scope, cluster_id: str, want: Wanted, after: str | None, limit: int) -> Sequence[RowMapping]:
    """Return faults of a cluster's machines, newest first, with `machine`, `model`, `slot` and whether it is `here`."""
    here = and_(gpus.c.id.is_not(None), gpus.c.gone.is_(False), machines.c.removed_at.is_(None))
    query = (
        select(gpu_faults, machines.c.name.label("machine"), gpus.c.model, gpus.c.slot, here.label("here"))
        .join(machines, machines.c.id == _F.machine_id)
        .outerjoin(
            gpus,
            and_(
                gpus.c.org_id == _F.org_id,
                gpus.c.machine_id == _F.machine_id,
                gpus.c.vendor == _F.vendor,
                gpus.c.uuid == _F.uuid,
            ),
        )
        .where(_F.org_id == scope.org, machines.c.org_id == scope.org, machines.c.cluster_id == cluster_id)
        .where(*_terms(want, here))
        .order_by(_F.id.desc())
        .limit(limit)
    )
    return tx.all(query if after is None else query.where(_F.id < after))


def _terms(want: Wanted, here: ColumnElement[bool]) -> list[ColumnElement[bool]]:
    terms: list[ColumnElement[bool]] = []
    if want.machine is not None:
        terms.append(machines.c.name == want.machine)
    if want.shown is Shown.CLEARED:
        terms.append(_F.cleared_at.is_not(None))
    elif want.shown is not Shown.ALL:
        terms += [_F.cleared_at.is_(None), here if want.shown is Shown.OPEN else ~here]
    return terms
