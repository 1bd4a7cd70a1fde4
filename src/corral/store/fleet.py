"""The fleet as placement sees it, and the lock that everything which changes it takes first.

Design decision 5: the tenancy row (cluster, organisation) is locked before any change to what
placement judges by (cordon, labels, access, quota, Down, removal, allocations). Its `version`
counts those changes and each machine carries the version of its own last change, so the
placement worker re-reads only the machines that changed since it looked; likewise the queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import ColumnElement, Select, and_, bindparam, func, or_, select, update

from corral.domain.asks import Gpu, MachineFacts
from corral.domain.inventory import GpuState, assignable
from corral.domain.machines import MachineState, Standing, closed_because
from corral.domain.quotas import Amounts
from corral.domain.resources import Resources
from corral.store.inventory import held, holding, latched
from corral.store.quotas import counted
from corral.store.reserved import windows_on
from corral.store.tables.clusters import tenancies
from corral.store.tables.machines import gpus, machines
from corral.store.tables.orgs import members
from corral.store.tables.reservations import reservations
from corral.store.tables.users import ssh_keys
from corral.store.tables.workloads import allocations, workload_ssh_keys
from corral.store.transaction import Row, Scope, Tx, Wake

_M = machines.c
_READ = (
    *("id", "name", "cluster_id", "pool", "state", "state_since", "cordon_reason", "quarantine", "pressure"),
    *("vcpu", "ram_mib", "storage_mib", "data_state", "removed_at"),
)
_TENANCY = and_(tenancies.c.cluster_id == bindparam("cluster"), tenancies.c.org_id == bindparam("org"))
_LOOK = select(tenancies.c.version).where(_TENANCY)
_LOCK = _LOOK.with_for_update(key_share=True)
_VERSION = update(tenancies).where(_TENANCY).values(version=bindparam("new"))
_QUEUE = (
    update(tenancies).where(_TENANCY).values(version=tenancies.c.version + 1, queue_version=tenancies.c.version + 1)
)
_MACHINES = (
    update(machines)
    .where(_M.org_id == bindparam("org"), _M.id.in_(bindparam("ids", expanding=True)))
    .values(fleet_version=bindparam("new"))
)


def lock_order(org_id: str, cluster_id: str) -> tuple[str, str]:
    """Return by what tenancies are sorted before several are locked: in one order, nobody waits in a circle."""
    return cluster_id, org_id


def lock(tx: Tx, scope: Scope, cluster_id: str) -> int:
    """Lock the tenancy until the transaction ends; return its version. Take it before any other row lock."""
    return _version(tx, _LOCK, scope, cluster_id)


def lock_org(tx: Tx, scope: Scope) -> None:
    """Lock every tenancy of an organisation: for what changes allocations in any of them."""
    _lock_all(tx, tenancies.c.org_id == scope.org)


def lock_for_keys_of(tx: Tx, user_id: str) -> None:
    """Lock every tenancy that a person's SSH keys are attached in, or can be meanwhile."""
    attached = select(workload_ssh_keys.c.org_id).join(ssh_keys, ssh_keys.c.id == workload_ssh_keys.c.key_id)
    member = select(members.c.org_id).where(members.c.user_id == user_id)
    theirs = tenancies.c.org_id.in_(attached.where(ssh_keys.c.user_id == user_id))
    _lock_all(tx, or_(theirs, tenancies.c.org_id.in_(member)))


def _lock_all(tx: Tx, which: ColumnElement[bool]) -> None:
    """In the order of `lock_order`."""
    tx.all(
        select(tenancies.c.version)
        .where(which)
        .order_by(tenancies.c.cluster_id, tenancies.c.org_id)
        .with_for_update(key_share=True)
    )


def version_of(tx: Tx, scope: Scope, cluster_id: str) -> int:
    """Return the tenancy's version, without a lock."""
    return _version(tx, _LOOK, scope, cluster_id)


def _version(tx: Tx, ask: Select[tuple[int]], scope: Scope, cluster_id: str) -> int:
    row = tx.one(ask, {"cluster": cluster_id, "org": scope.org})
    if row is None:
        raise LookupError(f"no tenancy of {scope.org} in {cluster_id}")
    return int(row["version"])


def touch(tx: Tx, scope: Scope, cluster_id: str, machine_ids: Collection[str] = ()) -> int:
    """Say that these machines (or only rules, when none) changed for placement; return the new version.

    Locks the tenancy, and wakes the placement worker after the commit.
    """
    version = lock(tx, scope, cluster_id) + 1
    tx.run(_VERSION, {"cluster": cluster_id, "org": scope.org, "new": version})
    if machine_ids:
        tx.run(_MACHINES, {"org": scope.org, "ids": list(machine_ids), "new": version})
    tx.wake(Wake.PLACEMENT, cluster_id, scope.org)
    return version


def queue_changed(tx: Tx, scope: Scope, cluster_id: str) -> None:
    """Say that what waits changed: `store/workloads.py` does so wherever it writes that. Locks the tenancy."""
    tx.run(_QUEUE, {"cluster": cluster_id, "org": scope.org})
    tx.wake(Wake.PLACEMENT, cluster_id, scope.org)


def queue_changed_since(tx: Tx, scope: Scope, cluster_id: str, version: int) -> bool:
    """Return whether what waits changed after `version`."""
    where = (tenancies.c.cluster_id == cluster_id, tenancies.c.org_id == scope.org)
    return tx.one(select(tenancies.c.version).where(*where, tenancies.c.queue_version > version)) is not None


@dataclass(frozen=True)
class Changes:
    """Machines as they are now; `live`: by machine and workspace, what quotas count there."""

    machines: Sequence[MachineFacts] = ()
    removed: Sequence[str] = ()
    """Ids."""
    live: Mapping[str, Mapping[str, Amounts]] = field(default_factory=dict)


# What is asked whenever something changed: built once, not at each call.
_CHANGED = and_(
    _M.cluster_id == bindparam("cluster"), _M.org_id == bindparam("org"), _M.fleet_version > bindparam("version")
)
_CHANGED_MACHINES = select(*(_M[name] for name in _READ)).where(_CHANGED)
_AMOUNTS = ("gpus", "vcpu", "ram_mib", "storage_mib")
_IS_LIVE = allocations.c.released_at.is_(None)
_HELD = (
    select(allocations.c.machine_id, allocations.c.workspace_id, allocations.c.gpu_model, _IS_LIVE.label("live"))
    .add_columns(*(func.sum(allocations.c[name]).label(name) for name in _AMOUNTS))
    .join(machines, _M.id == allocations.c.machine_id)
    .where(_CHANGED, holding())
    .group_by(allocations.c.machine_id, allocations.c.workspace_id, allocations.c.gpu_model, _IS_LIVE)
)
_GPUS = (
    select(gpus.c.id, gpus.c.machine_id, gpus.c.uuid, gpus.c.slot, gpus.c.model, gpus.c.state, gpus.c.busy)
    .add_columns(held().label("held"), latched().label("fenced"))
    .join(machines, _M.id == gpus.c.machine_id)
    .where(_CHANGED, gpus.c.gone.is_(False))
)
_RESERVED = (
    select(reservations.c.id)
    .where(reservations.c.cluster_id == bindparam("cluster"), reservations.c.org_id == bindparam("org"))
    .where(reservations.c.ended_at.is_(None))
    .limit(1)
)


def changed_since(tx: Tx, scope: Scope, cluster_id: str, version: int) -> Changes:
    """Return the machines that changed after `version` (-1: all of them)."""
    what = {"cluster": cluster_id, "org": scope.org, "version": version}
    rows = tx.all(_CHANGED_MACHINES, what)
    if not rows:
        return Changes()
    (taken, live), gpus = _taken(tx, what), _gpus(tx, what)
    present = [row for row in rows if not row["removed_at"]]
    any_reserved = tx.one(_RESERVED, {"cluster": cluster_id, "org": scope.org}) is not None
    windows = windows_on(tx, scope, present) if any_reserved else {}
    facts = [
        replace(_facts(row, taken.get(row["id"], Resources()), gpus.get(row["id"], ())), windows=windows.get(id, ()))
        for id, row in ((row["id"], row) for row in present)
    ]
    return Changes(facts, [row["id"] for row in rows if row["removed_at"]], live)


def _taken(tx: Tx, what: Mapping[str, object]) -> tuple[dict[str, Resources], dict[str, dict[str, Amounts]]]:
    """Return what is held of each machine, and what of that is live, by workspace."""
    held: dict[str, Resources] = {}
    live: dict[str, dict[str, Amounts]] = {}
    for row in tx.all(_HELD, what):
        machine = row["machine_id"]
        held[machine] = held.get(machine, Resources()) + Resources(*(int(row[name]) for name in _AMOUNTS))
        if row["live"]:
            live.setdefault(machine, {}).setdefault(row["workspace_id"], Counter()).update(counted(row))
    return held, live


def _gpus(tx: Tx, what: Mapping[str, object]) -> dict[str, list[Row]]:
    """Return each machine's GPUs with whether one is `held`, or `fenced`; replaced ones are left out."""
    found: dict[str, list[Row]] = {}
    for row in tx.all(_GPUS, what):
        found.setdefault(row["machine_id"], []).append(row)
    return found


def _facts(row: Row, held: Resources, gpus: Sequence[Row]) -> MachineFacts:
    models = Counter(gpu["model"] for gpu in gpus)
    total = Resources(len(gpus), row["vcpu"], row["ram_mib"], row["storage_mib"])
    free = [gpu for gpu in gpus if not gpu["held"]]
    given = [gpu for gpu in free if assignable(GpuState(gpu["state"]), gpu["busy"], gpu["fenced"])]
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
        data=row["data_state"] == "ready",
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
        select(gpus.c.id, gpus.c.uuid, gpus.c.model).where(
            gpus.c.org_id == scope.org,
            gpus.c.machine_id == machine_id,
            gpus.c.gone.is_(False),
            gpus.c.uuid.in_(list(uuids)),
            ~held(),
        )
    )


def free_on(tx: Tx, scope: Scope, machine_id: str) -> Resources:
    """Return the vCPU, RAM and storage of a machine that nothing holds."""
    names = ("vcpu", "ram_mib", "storage_mib")
    total = tx.one(select(*(_M[name] for name in names)).where(_M.org_id == scope.org, _M.id == machine_id))
    held = tx.one(
        select(*(func.coalesce(func.sum(allocations.c[name]), 0).label(name) for name in names)).where(
            allocations.c.org_id == scope.org, allocations.c.machine_id == machine_id, holding()
        )
    )
    if total is None or held is None:
        return Resources()
    return Resources(0, *(int(total[name]) - int(held[name]) for name in names))
