"""Using the hosted cluster, making dedicated ones, listing and renaming (spec 10, "Kinds of cluster")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from corral.domain import clusters as rules
from corral.domain import ids
from corral.domain.errors import Refusal, not_found
from corral.domain.events import Subject
from corral.store import clusters as rows
from corral.store.transaction import Row
from corral.usecases import orgs
from corral.usecases.context import Context


@dataclass(frozen=True)
class Cluster:
    """A cluster as one organisation uses it, with what it has there."""

    id: str
    slug: str
    name: str
    hosted: bool
    machine_limit: int | None
    """None: no limit (a dedicated cluster)."""
    machines: int
    up: int
    gpus: int
    joined_at: datetime


@dataclass(frozen=True)
class _Counts:
    machines: int = 0
    up: int = 0
    gpus: int = 0


def use_hosted(ctx: Context) -> Cluster:
    """Let the organisation use the hosted cluster; again: the same answer."""
    orgs.locked(ctx)
    present = rows.hosted_tenancy(ctx.tx, ctx.scope)
    if present is not None:
        return one(ctx, present["slug"])
    cluster_id, slug = _hosted_id(ctx), rules.hosted_slug(rows.slugs(ctx.tx, ctx.scope))
    rows.add_tenancy(ctx.tx, ctx.scope, cluster_id, slug, rules.HOSTED_NAME)
    ctx.record("cluster.hosted.joined", Subject(org=ctx.org.id, cluster=cluster_id), slug=slug)
    return one(ctx, slug)


def create_dedicated(ctx: Context, slug: str, name: str) -> Cluster:
    """Make a cluster for one organisation. Errors: `INVALID_NAME`, `NAME_TAKEN`."""
    slug, name = ids.slug(slug, "cluster's short name"), ids.display_name(name, "cluster's name")
    orgs.locked(ctx)
    if slug in rows.slugs(ctx.tx, ctx.scope):
        raise Refusal("NAME_TAKEN", f"The organisation has a cluster '{slug}' already. Choose another short name.")
    cluster_id = ctx.new_id()
    rows.add_cluster(ctx.tx, cluster_id, hosted=False)
    rows.add_tenancy(ctx.tx, ctx.scope, cluster_id, slug, name)
    ctx.record("cluster.created", Subject(org=ctx.org.id, cluster=cluster_id), slug=slug, name=name)
    return one(ctx, slug)


def listed(ctx: Context, after: str | None, limit: int) -> Sequence[Cluster]:
    """Return the clusters that the organisation uses, by short name."""
    counts, limit_of_site = _counts(ctx), rows.hosted_machine_limit(ctx.tx)
    return [_cluster(row, counts, limit_of_site) for row in rows.listed(ctx.tx, ctx.scope, after, limit)]


def one(ctx: Context, slug: str) -> Cluster:
    """Return a cluster with its counts. Errors: `NOT_FOUND`."""
    row = find(ctx, slug)
    return _cluster(row, _counts(ctx, row["cluster_id"]), rows.hosted_machine_limit(ctx.tx))


def rename(ctx: Context, slug: str, name: str) -> Cluster:
    """Change how a cluster is shown; its short name never changes. Errors: `NOT_FOUND`, `INVALID_NAME`."""
    name = ids.display_name(name, "cluster's name")
    row = find(ctx, slug)
    if row["name"] != name:
        rows.rename(ctx.tx, ctx.scope, row["cluster_id"], name)
        subject = Subject(org=ctx.org.id, cluster=row["cluster_id"])
        ctx.record("cluster.changed", subject, before={"name": row["name"]}, after={"name": name})
    return one(ctx, slug)


def find(ctx: Context, slug: str) -> Row:
    """Return the tenancy's row of a cluster that the organisation uses. Errors: `NOT_FOUND`."""
    # Nothing has a name that no short name can be, and a database would stumble over some (NUL, half a surrogate pair).
    row = rows.tenancy_by_slug(ctx.tx, ctx.scope, slug) if ids.SLUG.fullmatch(slug) else None
    if row is None:
        raise not_found()
    return row


def machine_limit(row: Row, limit_of_site: int | None) -> int | None:
    """Return how many machines the organisation may have in this cluster (None: no limit)."""
    return limit_of_site if row["hosted"] else None


def _hosted_id(ctx: Context) -> str:
    """Return the id of the site's one hosted cluster, made when its first organisation comes."""
    rows.lock_site(ctx.tx)
    present = rows.hosted_cluster(ctx.tx)
    if present is not None:
        return str(present["id"])
    cluster_id = ctx.new_id()
    rows.add_cluster(ctx.tx, cluster_id, hosted=True)
    return cluster_id


def _counts(ctx: Context, cluster_id: str | None = None) -> dict[str, _Counts]:
    return {
        row["cluster_id"]: _Counts(row["machines"], row["up"], int(row["gpus"]))
        for row in rows.counts(ctx.tx, ctx.scope, cluster_id)
    }


def _cluster(row: Row, counts: dict[str, _Counts], limit_of_site: int | None) -> Cluster:
    has = counts.get(row["cluster_id"], _Counts())
    limit = machine_limit(row, limit_of_site)
    return Cluster(
        row["cluster_id"],
        row["slug"],
        row["name"],
        bool(row["hosted"]),
        limit,
        has.machines,
        has.up,
        has.gpus,
        row["joined_at"],
    )
