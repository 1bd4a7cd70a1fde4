"""Access: what a workspace may use of a cluster, changed under the lock that placement takes (spec 00, spec 05)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from corral.domain import access as pool_rules
from corral.domain import gpu_hours
from corral.domain import quotas as rules
from corral.domain.errors import not_found
from corral.domain.events import Subject
from corral.domain.gpu_hours import Ledger
from corral.domain.quotas import Amounts, Quota
from corral.domain.resources import MIB_PER_GIB
from corral.domain.workspaces import NAMED, check_nothing_lives
from corral.store import access as rows
from corral.store import clusters as cluster_rows
from corral.store import fleet, workspaces
from corral.store import quotas as quota_rows
from corral.store.transaction import Row
from corral.usecases import orgs
from corral.usecases.context import Context


@dataclass(frozen=True)
class Used:
    """What live allocations count against a quota. GPU-hours are of this UTC month.

    `gpu_hours_kept`: with what live work may still use of the month, which is what a new ask is judged by.
    """

    gpus: int
    gpu_models: Mapping[str, int]
    vcpu: int
    ram_gib: int
    storage_gib: int
    gpu_hours_month: float
    gpu_hours_kept: float


@dataclass(frozen=True)
class Access:
    cluster: str
    cluster_id: str
    hosted: bool
    pools: Sequence[str]
    quota: Quota
    used: Used
    changed_at: datetime


def listed(ctx: Context, after: str | None, limit: int) -> Sequence[Access]:
    """Return the workspace's access, by the cluster's short name."""
    pools = rows.pools(ctx.tx, ctx.scope, ctx.workspace.id)
    quotas = quota_rows.of_workspace(ctx.tx, ctx.scope, ctx.workspace.id)
    live = quota_rows.live(ctx.tx, ctx.scope, ctx.workspace.id)
    return [
        Access(
            row["slug"],
            row["cluster_id"],
            row["hosted"],
            pools.get(row["cluster_id"], ()),
            quotas[row["cluster_id"]],
            _used(ctx, row["cluster_id"], live.get(row["cluster_id"], Counter())),
            row["changed_at"],
        )
        for row in rows.listed(ctx.tx, ctx.scope, ctx.workspace.id, after, limit)
    ]


def _used(ctx: Context, cluster_id: str, live: Amounts) -> Used:
    place = (ctx.tx, ctx.scope, ctx.workspace.id, cluster_id)
    so_far = Ledger(ctx.now)
    so_far.add_time(quota_rows.used_before(*place))
    for held in quota_rows.holding_gpus(*place):
        so_far.add(held["gpus"], held["placed_at"], ctx.now)
    month, kept = gpu_hours.month_of(ctx.now), quota_rows.ledger(*place)
    return Used(
        live[rules.GPUS],
        {model: gpus for (name, model), gpus in sorted(live.items()) if name == rules.MODELS},
        live[rules.VCPU],
        -(-live[rules.RAM] // MIB_PER_GIB),
        -(-live[rules.STORAGE] // MIB_PER_GIB),
        gpu_hours_month=rules.in_hours(so_far.of(month)),
        gpu_hours_kept=rules.in_hours(kept.of(month)),
    )


def put(ctx: Context, cluster: str, pools: Sequence[str], quota: Quota) -> Access:
    """Set the pools and the quota. Errors: `NOT_FOUND`, `INVALID_LABEL`, `INVALID_REQUEST`.

    What runs keeps running, also over a lowered quota: the quota judges new work.
    """
    granted, wanted = pool_rules.pools(pools), rules.checked(quota)
    cluster_id = _locked(ctx, cluster)
    _set(ctx, ctx.workspace.id, cluster_id, (granted, wanted))
    return next(one for one in listed(ctx, None, orgs.ALL) if one.cluster_id == cluster_id)


def grant_pool(ctx: Context, workspace_id: str, cluster_id: str, pool: str) -> None:
    """Add one pool (or `*`) to what a workspace has of a cluster, keeping its quota. The organisation is locked."""
    fleet.lock(ctx.tx, ctx.scope, cluster_id)
    pools = rows.pools(ctx.tx, ctx.scope, workspace_id).get(cluster_id, ())
    quota = quota_rows.of_workspace(ctx.tx, ctx.scope, workspace_id).get(cluster_id, rules.NO_LIMIT)
    _set(ctx, workspace_id, cluster_id, (pool_rules.pools((*pools, pool)), quota))


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


def _set(ctx: Context, workspace_id: str, cluster_id: str, wanted: tuple[Sequence[str], Quota]) -> None:
    before = _before(ctx, workspace_id, cluster_id)
    after = _told(*wanted)
    if before == after:
        return
    fleet.touch(ctx.tx, ctx.scope, cluster_id)
    rows.put(ctx.tx, ctx.scope, workspace_id, cluster_id, wanted[1])
    rows.put_pools(ctx.tx, ctx.scope, workspace_id, cluster_id, wanted[0])
    subject = Subject(org=ctx.org.id, cluster=cluster_id, workspace=workspace_id)
    ctx.record("workspace.access", subject, before=before, after=after)


def _before(ctx: Context, workspace_id: str, cluster_id: str) -> dict[str, object] | None:
    quota = quota_rows.of_workspace(ctx.tx, ctx.scope, workspace_id).get(cluster_id)
    if quota is None:
        return None
    return _told(rows.pools(ctx.tx, ctx.scope, workspace_id).get(cluster_id, ()), quota)


def _told(pools: Sequence[str], quota: Quota) -> dict[str, object]:
    """Return pools and quota as the journal has them: what has no limit is left out."""
    limits = {name: limit for name, limit in asdict(quota).items() if limit not in (None, {})}
    return {"pools": list(pools), "quota": limits}
