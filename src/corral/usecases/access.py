"""Access: what a workspace may use of a cluster, changed under the lock that placement takes (spec 00, spec 05)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from corral.domain import access as rules
from corral.domain.errors import not_found
from corral.domain.events import Subject
from corral.domain.workspaces import NAMED, check_nothing_lives
from corral.store import access as rows
from corral.store import clusters as cluster_rows
from corral.store import fleet, workspaces
from corral.store.transaction import Row
from corral.usecases import orgs
from corral.usecases.context import Context


@dataclass(frozen=True)
class Access:
    """`gpu_quota` None: no limit; `gpus_in_use` counts live allocations."""

    cluster: str
    cluster_id: str
    hosted: bool
    pools: Sequence[str]
    gpu_quota: int | None
    gpus_in_use: int
    changed_at: datetime


def listed(ctx: Context, after: str | None, limit: int) -> Sequence[Access]:
    """Return the workspace's access, by the cluster's short name."""
    pools = rows.pools(ctx.tx, ctx.scope, ctx.workspace.id)
    in_use = rows.gpus_in_use(ctx.tx, ctx.scope, ctx.workspace.id)
    return [
        Access(
            row["slug"],
            row["cluster_id"],
            row["hosted"],
            pools.get(row["cluster_id"], ()),
            row["gpus"],
            in_use.get(row["cluster_id"], 0),
            row["changed_at"],
        )
        for row in rows.listed(ctx.tx, ctx.scope, ctx.workspace.id, after, limit)
    ]


def put(ctx: Context, cluster: str, pools: Sequence[str], gpu_quota: int | None) -> Access:
    """Set the pools and the quota. Errors: `NOT_FOUND`, `INVALID_LABEL`, `INVALID_REQUEST`.

    What runs keeps running, also over a lowered quota: the quota judges new work.
    """
    granted, quota = rules.pools(pools), rules.gpu_quota(gpu_quota)
    cluster_id = _locked(ctx, cluster)
    _set(ctx, ctx.workspace.id, cluster_id, (granted, quota))
    return next(one for one in listed(ctx, None, orgs.ALL) if one.cluster_id == cluster_id)


def grant_pool(ctx: Context, workspace_id: str, cluster_id: str, pool: str) -> None:
    """Add one pool (or `*`) to what a workspace has of a cluster, keeping its quota. The organisation is locked."""
    fleet.lock(ctx.tx, ctx.scope, cluster_id)
    present = rows.get(ctx.tx, ctx.scope, workspace_id, cluster_id)
    pools = rows.pools(ctx.tx, ctx.scope, workspace_id).get(cluster_id, ())
    quota = present["gpus"] if present is not None else None
    _set(ctx, workspace_id, cluster_id, (rules.pools((*pools, pool)), quota))


def remove(ctx: Context, cluster: str) -> None:
    """Take the access away. Errors: `NOT_FOUND`; `CONFLICT` while the workspace has live workloads there."""
    cluster_id = _locked(ctx, cluster)
    before = _before(ctx, ctx.workspace.id, cluster_id)
    if before is None:
        raise not_found()
    live = workspaces.live_workloads(ctx.tx, ctx.scope, ctx.workspace.id, cluster_id, NAMED + 1)
    check_nothing_lives(live, f"The workspace '{ctx.workspace.slug}' on '{cluster}'")
    fleet.touch(ctx.tx, ctx.scope, cluster_id)
    rows.remove(ctx.tx, ctx.scope, ctx.workspace.id, cluster_id)
    subject = Subject(org=ctx.org.id, cluster=cluster_id, workspace=ctx.workspace.id)
    ctx.record("workspace.access", subject, before=before, after=None)


def _locked(ctx: Context, cluster: str) -> str:
    """Return the cluster's id, with organisation and tenancy locked and the workspace still there."""
    orgs.locked(ctx)
    tenancy: Row | None = cluster_rows.tenancy_by_slug(ctx.tx, ctx.scope, cluster)
    if tenancy is None or not workspaces.is_live(ctx.tx, ctx.scope, ctx.workspace.id):
        raise not_found()
    cluster_id = str(tenancy["cluster_id"])
    fleet.lock(ctx.tx, ctx.scope, cluster_id)
    return cluster_id


def _set(ctx: Context, workspace_id: str, cluster_id: str, wanted: tuple[Sequence[str], int | None]) -> None:
    before = _before(ctx, workspace_id, cluster_id)
    after = {"pools": list(wanted[0]), "gpu_quota": wanted[1]}
    if before == after:
        return
    fleet.touch(ctx.tx, ctx.scope, cluster_id)
    rows.put(ctx.tx, ctx.scope, workspace_id, cluster_id, wanted[1])
    rows.put_pools(ctx.tx, ctx.scope, workspace_id, cluster_id, wanted[0])
    subject = Subject(org=ctx.org.id, cluster=cluster_id, workspace=workspace_id)
    ctx.record("workspace.access", subject, before=before, after=after)


def _before(ctx: Context, workspace_id: str, cluster_id: str) -> dict[str, object] | None:
    row = rows.get(ctx.tx, ctx.scope, workspace_id, cluster_id)
    if row is None:
        return None
    pools = rows.pools(ctx.tx, ctx.scope, workspace_id).get(cluster_id, ())
    return {"pools": list(pools), "gpu_quota": row["gpus"]}
