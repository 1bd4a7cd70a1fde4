"""Rows of access: which pools of a cluster a workspace may use. Its quota there: `store/quotas.py`."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, RowMapping, and_, delete, insert, or_, select, update

from corral.domain.access import EVERY_POOL
from corral.domain.quotas import Quota
from corral.store import quotas
from corral.store.tables.access import access, access_pools
from corral.store.tables.clusters import clusters, tenancies
from corral.store.transaction import Scope, Tx


def covers(pool: ColumnElement[str]) -> ColumnElement[bool]:
    """A row of `access_pools` grants machines of this pool ("": of none): `domain/access.may_use`."""
    return or_(access_pools.c.pool == EVERY_POOL, and_(pool != "", access_pools.c.pool == pool))


def listed(tx: Tx, scope: Scope, workspace_id: str, after: str | None, limit: int) -> Sequence[RowMapping]:
    """Return the workspace's access with the cluster's `slug` and `hosted`, by short name, from after `after`."""
    query = (
        select(access, tenancies.c.slug, tenancies.c.name, clusters.c.hosted)
        .join(tenancies, (tenancies.c.cluster_id == access.c.cluster_id) & (tenancies.c.org_id == access.c.org_id))
        .join(clusters, clusters.c.id == access.c.cluster_id)
        .where(access.c.org_id == scope.org, access.c.workspace_id == workspace_id)
    )
    if after is not None:
        query = query.where(tenancies.c.slug > after)
    return tx.all(query.order_by(tenancies.c.slug).limit(limit))


def get(tx: Tx, scope: Scope, workspace_id: str, cluster_id: str) -> RowMapping | None:
    return tx.one(
        select(access).where(
            access.c.org_id == scope.org, access.c.workspace_id == workspace_id, access.c.cluster_id == cluster_id
        )
    )


def pools(tx: Tx, scope: Scope, workspace_id: str) -> dict[str, tuple[str, ...]]:
    """Return the pools granted to a workspace, sorted, by cluster id."""
    rows = tx.all(
        select(access_pools.c.cluster_id, access_pools.c.pool)
        .join(
            access,
            (access.c.workspace_id == access_pools.c.workspace_id) & (access.c.cluster_id == access_pools.c.cluster_id),
        )
        .where(access.c.org_id == scope.org, access.c.workspace_id == workspace_id)
        .order_by(access_pools.c.pool)
    )
    found: dict[str, tuple[str, ...]] = {}
    for row in rows:
        found[row["cluster_id"]] = (*found.get(row["cluster_id"], ()), row["pool"])
    return found


def put(tx: Tx, scope: Scope, workspace_id: str, cluster_id: str, quota: Quota) -> None:
    """Make or change the access and its quota; its pools are set by `put_pools`. The caller has touched the fleet."""
    values = {**{name: getattr(quota, name) for name in quotas.LIMITS}, "changed_at": tx.now}
    changed = tx.run(
        update(access)
        .where(access.c.org_id == scope.org, access.c.workspace_id == workspace_id, access.c.cluster_id == cluster_id)
        .values(**values)
    )
    if not changed:
        row = {"org_id": scope.org, "workspace_id": workspace_id, "cluster_id": cluster_id}
        tx.run(insert(access).values(**row, **values))
    quotas.put_models(tx, workspace_id, cluster_id, quota.gpu_models)


def put_pools(tx: Tx, scope: Scope, workspace_id: str, cluster_id: str, pools: Sequence[str]) -> None:
    """Replace the pools of an access. Errors: `LookupError` when the organisation has no such access."""
    if get(tx, scope, workspace_id, cluster_id) is None:
        raise LookupError(f"no access of {workspace_id} to {cluster_id} in {scope.org}")
    here = (access_pools.c.workspace_id == workspace_id) & (access_pools.c.cluster_id == cluster_id)
    tx.run(delete(access_pools).where(here))
    rows = [{"workspace_id": workspace_id, "cluster_id": cluster_id, "pool": pool} for pool in pools]
    tx.run(insert(access_pools), rows)


def remove(tx: Tx, scope: Scope, workspace_id: str, cluster_id: str) -> bool:
    """Take the access away, pools too; False when there was none."""
    return bool(
        tx.run(
            delete(access).where(
                access.c.org_id == scope.org,
                access.c.workspace_id == workspace_id,
                access.c.cluster_id == cluster_id,
            )
        )
    )


def clusters_of(tx: Tx, scope: Scope, workspace_id: str) -> Sequence[str]:
    """Return the ids of the clusters the workspace has access to, sorted: the order in which they are locked."""
    rows = tx.all(
        select(access.c.cluster_id)
        .where(access.c.org_id == scope.org, access.c.workspace_id == workspace_id)
        .order_by(access.c.cluster_id)
    )
    return [row["cluster_id"] for row in rows]
