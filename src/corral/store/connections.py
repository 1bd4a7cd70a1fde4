"""What a connection into a compute cluster needs, in one question: workload, allocation, machine, keys."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import RowMapping, and_, or_, select

from corral.store.tables.machines import machines
from corral.store.tables.users import ssh_keys, users
from corral.store.tables.workloads import allocations, workload_ssh_keys, workloads
from corral.store.transaction import Scope, Tx


def find(tx: Tx, scope: Scope, workspace_id: str, name: str) -> RowMapping | None:
    """Return the compute cluster of that live name, or of that id, with its live allocation and machine."""
    return tx.one(
        select(
            workloads.c.id,
            workloads.c.name,
            workloads.c.state,
            workloads.c.step,
            workloads.c.stop_asked_at,
            allocations.c.id.label("allocation_id"),
            allocations.c.generation,
            allocations.c.host_key,
            machines.c.id.label("machine_id"),
            machines.c.name.label("machine_name"),
        )
        .outerjoin(allocations, and_(allocations.c.workload_id == workloads.c.id, allocations.c.released_at.is_(None)))
        .outerjoin(machines, machines.c.id == allocations.c.machine_id)
        .where(
            workloads.c.org_id == scope.org,
            workloads.c.workspace_id == workspace_id,
            or_(and_(workloads.c.name == name, workloads.c.ended_at.is_(None)), workloads.c.id == name),
        )
        .order_by(workloads.c.ended_at.is_not(None))
        .limit(1)
    )


def attached_keys(tx: Tx, scope: Scope, workload_id: str) -> Sequence[RowMapping]:
    """Return the keys attached to a workload with their owners."""
    return tx.all(
        select(ssh_keys.c.id, ssh_keys.c.name, ssh_keys.c.fingerprint, ssh_keys.c.user_id, users.c.login)
        .join(workload_ssh_keys, workload_ssh_keys.c.key_id == ssh_keys.c.id)
        .join(users, users.c.id == ssh_keys.c.user_id)
        .where(workload_ssh_keys.c.org_id == scope.org, workload_ssh_keys.c.workload_id == workload_id)
        .order_by(users.c.login, ssh_keys.c.name)
    )
