"""The fleet as placement sees it, and the lock that everything which changes it takes first.

Design decision 5: the tenancy row (cluster, organisation) is locked before any change to what
placement judges by (cordon, labels, access, quota, Down, removal, allocations). Its `version`
counts those changes and each machine carries the version of its own last change, so the
placement worker re-reads only the machines that changed since it looked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from sqlalchemy import ColumnElement, func, or_, select, update

from corral.domain.fleet import Gpu, MachineFacts
from corral.domain.inventory import GpuState
from corral.domain.machines import MachineState, Standing, closed_because
from corral.domain.resources import Resources
from corral.store.tables.clusters import tenancies
from corral.store.tables.machines import gpus, machines
from corral.store.tables.workloads import allocations, gpu_holds
from corral.store.transaction import Row, Scope, Tx, Wake

_M = machines.c


def lock(tx: Tx, scope: Scope, cluster_id: str) -> int:
    """Lock the tenancy until the transaction ends; return its version. Take it before any other row lock."""
    row = tx.one(
        select(tenancies.c.version)
        .where(tenancies.c.cluster_id == cluster_id, tenancies.c.org_id == scope.org)
        .with_for_update()
    )
    if row is None:
        raise LookupError(f"no tenancy of {scope.org} in {cluster_id}")
    return int(row["version"])


def touch(tx: Tx, scope: Scope, cluster_id: str, machine_ids: Collection[str] = ()) -> int:
    """Say that these machines (or only rules, when none) changed for placement; return the new version.

    Locks the tenancy, and wakes the placement worker after the commit.
    """
    version = lock(tx, scope, cluster_id) + 1
    tx.run(
        update(tenancies)
        .where(tenancies.c.cluster_id == cluster_id, tenancies.c.org_id == scope.org)
        .values(version=version)
    )
    if machine_ids:
        tx.run(
            update(machines)
            .where(machines.c.org_id == scope.org, machines.c.id.in_(list(machine_ids)))
            .values(fleet_version=version)
        )
    tx.wake(Wake.PLACEMENT, cluster_id)
    return version


def changed_since(tx: Tx, scope: Scope, cluster_id: str, version: int) -> tuple[list[MachineFacts], list[str]]:
    """Return the machines that changed after `version` (-1: all of them), and the ids of those removed."""
    rows = tx.all(
        select(
            *(_M[name] for name in ("id", "name", "pool", "state", "state_since", "cordon_reason", "quarantine")),
            *(_M[name] for name in ("pressure", "vcpu", "ram_mib", "storage_mib", "removed_at")),
        ).where(*_changed(scope, cluster_id, version))
    )
    if not rows:
        return [], []
    held = _held(tx, scope, cluster_id, version)
    gpus = _gpus(tx, scope, cluster_id, version)
    facts = [
        _facts(row, held.get(row["id"], Resources()), gpus.get(row["id"], [])) for row in rows if not row["removed_at"]
    ]
    return facts, [row["id"] for row in rows if row["removed_at"]]


def _changed(scope: Scope, cluster_id: str, version: int) -> list[ColumnElement[bool]]:
    return [_M.cluster_id == cluster_id, _M.org_id == scope.org, _M.fleet_version > version]


def _holding() -> ColumnElement[bool]:
    """Live allocations, and released ones that their machine still runs: both hold what they were given."""
    return or_(allocations.c.released_at.is_(None), allocations.c.lingers_since.is_not(None))


def _held_gpu() -> ColumnElement[bool]:
    return (
        select(gpu_holds.c.gpu_id)
        .join(allocations, allocations.c.id == gpu_holds.c.allocation_id)
        .where(gpu_holds.c.gpu_id == gpus.c.id, _holding())
        .exists()
    )


def _held(tx: Tx, scope: Scope, cluster_id: str, version: int) -> dict[str, Resources]:
    columns = ("gpus", "vcpu", "ram_mib", "storage_mib")
    rows = tx.all(
        select(allocations.c.machine_id, *(func.sum(allocations.c[name]).label(name) for name in columns))
        .join(machines, _M.id == allocations.c.machine_id)
        .where(*_changed(scope, cluster_id, version), _holding())
        .group_by(allocations.c.machine_id)
    )
    return {row["machine_id"]: Resources(*(int(row[name]) for name in columns)) for row in rows}


def _gpus(tx: Tx, scope: Scope, cluster_id: str, version: int) -> dict[str, list[Row]]:
    """Return each machine's GPUs with whether one is `held`; replaced ones are left out."""
    rows = tx.all(
        select(gpus.c.id, gpus.c.machine_id, gpus.c.uuid, gpus.c.slot, gpus.c.model, gpus.c.state, gpus.c.busy)
        .add_columns(_held_gpu().label("held"))
        .join(machines, _M.id == gpus.c.machine_id)
        .where(*_changed(scope, cluster_id, version), gpus.c.gone.is_(False))
    )
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["machine_id"], []).append(row)
    return found


def _facts(row: Row, held: Resources, gpus: Sequence[Row]) -> MachineFacts:
    models = Counter(gpu["model"] for gpu in gpus)
    total = Resources(len(gpus), row["vcpu"], row["ram_mib"], row["storage_mib"])
    free = [gpu for gpu in gpus if not gpu["held"]]
    given = [gpu for gpu in free if gpu["state"] == GpuState.OK.value and not gpu["busy"]]
    return MachineFacts(
        id=row["id"],
        name=row["name"],
        pool=row["pool"],
        closed=_closed(row),
        total=total,
        free=total - held,
        models=models,
        gpus=[Gpu(gpu["slot"], gpu["uuid"], gpu["id"], gpu["model"]) for gpu in given],
        unusable=len(free) - len(given),
    )


def _closed(row: Row) -> str:
    if row["state"] == MachineState.DOWN.value:
        return f"down since {row['state_since']:%Y-%m-%d %H:%M:%S} UTC"
    standing = Standing(MachineState(row["state"]), row["cordon_reason"], row["quarantine"], row["pressure"])
    reason = closed_because(standing)
    return f"takes no new work: {reason}" if reason and reason == row["pressure"] else reason


def free_gpus(tx: Tx, scope: Scope, machine_id: str, uuids: Collection[str]) -> Sequence[Row]:
    """Return those GPUs of a machine, faulty ones too, that nothing holds."""
    return tx.all(
        select(gpus.c.id, gpus.c.uuid).where(
            gpus.c.org_id == scope.org,
            gpus.c.machine_id == machine_id,
            gpus.c.gone.is_(False),
            gpus.c.uuid.in_(list(uuids)),
            ~_held_gpu(),
        )
    )


def free_on(tx: Tx, scope: Scope, machine_id: str) -> Resources:
    """Return the vCPU, RAM and storage of a machine that nothing holds."""
    names = ("vcpu", "ram_mib", "storage_mib")
    total = tx.one(select(*(_M[name] for name in names)).where(_M.org_id == scope.org, _M.id == machine_id))
    held = tx.one(
        select(*(func.coalesce(func.sum(allocations.c[name]), 0).label(name) for name in names)).where(
            allocations.c.org_id == scope.org, allocations.c.machine_id == machine_id, _holding()
        )
    )
    if total is None or held is None:
        return Resources()
    return Resources(0, *(int(total[name]) - int(held[name]) for name in names))
