"""The fleet as placement sees it, and the lock that everything which changes it takes first.

Design decision 5: the tenancy row (cluster, organisation) is locked before any change to what
placement judges by (cordon, labels, access, quota, Down, removal, allocations). Its `version`
counts those changes and each machine carries the version of its own last change, so the
placement worker re-reads only the machines that changed since it looked.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import select, update

from corral.store.tables.clusters import tenancies
from corral.store.tables.machines import machines
from corral.store.transaction import Scope, Tx, Wake


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
