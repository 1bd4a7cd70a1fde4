"""Using the hosted cluster and leaving clusters; listing, renaming, limits (spec 10, "Kinds of cluster")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from corral.domain import clusters as rules
from corral.domain import ids
from corral.domain.errors import Refusal, not_found
from corral.domain.events import Subject
from corral.store import clusters as rows
from corral.store import fleet, join_tokens
from corral.store import machines as machine_rows
from corral.store import orgs as org_rows
from corral.store.transaction import Row
from corral.usecases import orgs
from corral.usecases.context import Context


@dataclass(frozen=True)
class Counts:
    """An organisation's machines in a cluster, and their GPUs."""

    machines: int = 0
    up: int = 0
    down: int = 0
    cordoned: int = 0
    gpus: int = 0


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
    down: int
    cordoned: int
    gpus: int
    joined_at: datetime


@dataclass(frozen=True)
class Leaving:
    """What it comes to when a cluster is taken out of the organisation."""

    slug: str
    hosted: bool
    machines: int
    """They stay enrolled, closed to new work."""
    machine_names: Sequence[str]
    """The first few."""
    tokens: int
    """Unused join tokens, which are revoked."""
    running: Sequence[Row]
    """What lives or still runs there: `workspace`, `name`, `kind`, `state`; the first few."""
    workspaces: Sequence[str]
    """Those that have access: while there is one, the cluster cannot be left."""


@dataclass(frozen=True)
class Limit:
    """An organisation's machine limit on the hosted cluster, and what of it is taken."""

    machines: int | None
    """The organisation's own; None: the site's holds."""
    in_force: int
    enrolled: int
    tokens: int


def use_hosted(ctx: Context) -> Cluster:
    """Let the organisation use the hosted cluster; again: the same answer.

    One that was left comes back with the machines that stayed enrolled.
    """
    orgs.locked(ctx)
    present = rows.hosted_tenancy(ctx.tx, ctx.scope)
    if present is not None and present["left_at"] is None:
        return one(ctx, present["slug"])
    slug = rules.hosted_slug(rows.slugs(ctx.tx, ctx.scope))
    if present is not None:
        cluster_id = str(present["cluster_id"])
        fleet.touch(ctx.tx, ctx.scope, cluster_id)
        rows.come_back(ctx.tx, ctx.scope, cluster_id, slug, present["name"])
        machines = machine_rows.enrolled(ctx.tx, ctx.scope, cluster_id)
    else:
        cluster_id, machines = hosted_id(ctx), 0
        rows.add_tenancy(ctx.tx, ctx.scope, cluster_id, slug, rules.HOSTED_NAME)
    ctx.record("cluster.hosted.joined", Subject(org=ctx.org.id, cluster=cluster_id), slug=slug, machines=machines)
    return one(ctx, slug)


def create_dedicated(ctx: Context, slug: str, name: str) -> Cluster:
    """Make a cluster for one organisation. Errors: `INVALID_NAME`, `NAME_TAKEN`."""
    slug, name = _named(slug, name)
    orgs.locked(ctx)
    _check_free(ctx, slug)
    cluster_id = ctx.new_id()
    rows.add_cluster(ctx.tx, cluster_id, hosted=False)
    rows.add_tenancy(ctx.tx, ctx.scope, cluster_id, slug, name)
    ctx.record_for_both("cluster.created", Subject(org=ctx.org.id, cluster=cluster_id), slug=slug, name=name)
    return one(ctx, slug)


def give_back(ctx: Context, id: str, slug: str, name: str) -> Cluster:
    """Give an organisation a dedicated cluster back that it left, with the machines that stayed enrolled.

    Errors: `INVALID_NAME`, `NAME_TAKEN`; `NOT_FOUND` where it has left none of this id.
    """
    slug, name = _named(slug, name)
    orgs.locked(ctx)
    if not ids.is_uuid(id) or rows.left_dedicated(ctx.tx, ctx.scope, id) is None:
        raise not_found()
    _check_free(ctx, slug)
    fleet.touch(ctx.tx, ctx.scope, id)
    rows.come_back(ctx.tx, ctx.scope, id, slug, name)
    machines = machine_rows.enrolled(ctx.tx, ctx.scope, id)
    subject = Subject(org=ctx.org.id, cluster=id)
    ctx.record_for_both("cluster.created", subject, slug=slug, name=name, given_back=machines)
    return one(ctx, slug)


def hosted_offered(ctx: Context) -> bool:
    """Return whether the organisation could begin to use the hosted cluster: it does not use it."""
    present = rows.hosted_tenancy(ctx.tx, ctx.scope)
    return present is None or present["left_at"] is not None


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
    orgs.locked(ctx)
    row = find(ctx, slug)
    if row["name"] != name:
        rows.rename(ctx.tx, ctx.scope, row["cluster_id"], name)
        subject = Subject(org=ctx.org.id, cluster=row["cluster_id"])
        ctx.record("cluster.changed", subject, before={"name": row["name"]}, after={"name": name})
    return one(ctx, slug)


def would_leave(ctx: Context, slug: str) -> Leaving:
    """Return what leaving a cluster comes to; changes nothing. Errors: `NOT_FOUND`."""
    return _leaving(ctx, find(ctx, slug))


def leave(ctx: Context, slug: str) -> Leaving:
    """Take a cluster out of the organisation. Errors: `NOT_FOUND`, `CLUSTER_IN_USE`.

    Its machines stay enrolled and the organisation's, are in no list and take no new work, since no
    workspace has access; unused join tokens are revoked.
    """
    orgs.locked(ctx)
    row = find(ctx, slug)
    cluster_id = row["cluster_id"]
    fleet.touch(ctx.tx, ctx.scope, cluster_id)
    told = _leaving(ctx, row)
    rules.check_unused(slug, told.workspaces)
    revoked = join_tokens.revoke_unused(ctx.tx, ctx.scope, cluster_id)
    rows.leave(ctx.tx, ctx.scope, cluster_id)
    subject = Subject(org=ctx.org.id, cluster=cluster_id)
    data: dict[str, Any] = {"slug": slug, "name": row["name"], "machines": told.machines}
    ctx.record("cluster.removed", subject, **data, **rules.revoked(revoked))
    return told


def find(ctx: Context, slug: str) -> Row:
    """Return the tenancy's row of a cluster that the organisation uses. Errors: `NOT_FOUND`."""
    # Nothing has a name that no short name can be, and a database would stumble over some (NUL, half a surrogate pair).
    row = rows.tenancy_by_slug(ctx.tx, ctx.scope, slug) if ids.SLUG.fullmatch(slug) else None
    if row is None:
        raise not_found()
    return row


def machine_limit(row: Row, limit_of_site: int | None) -> int | None:
    """Return how many machines the organisation may have in this cluster (None: no limit)."""
    if not row["hosted"]:
        return None
    return limit_of_site if row["machine_limit"] is None else int(row["machine_limit"])


def set_machine_limit(ctx: Context, machines: int | None) -> Limit:
    """Set the organisation's own limit on the hosted cluster; None: the site's. Errors: `INVALID_REQUEST`.

    What is enrolled stays, also over a lowered limit: it judges new join tokens.
    """
    wanted = None if machines is None else rules.machine_limit(machines, "machines")
    before = orgs.locked(ctx)["machine_limit"]
    if before != wanted:
        org_rows.set_machine_limit(ctx.tx, ctx.scope, wanted)
        ctx.record_for_both("org.machine_limit", Subject(org=ctx.org.id), before=before, after=wanted)
    in_force = wanted if wanted is not None else rows.hosted_machine_limit(ctx.tx)
    tenancy = rows.hosted_tenancy(ctx.tx, ctx.scope)
    room = (0, 0) if tenancy is None else taken(ctx, tenancy["cluster_id"])
    return Limit(wanted, in_force or 0, *room)


def taken(ctx: Context, cluster_id: str) -> tuple[int, int]:
    """Return what counts toward the limit: enrolled machines, and join tokens that may still be used."""
    enrolled = machine_rows.enrolled(ctx.tx, ctx.scope, cluster_id)
    return enrolled, join_tokens.count_unused(ctx.tx, ctx.scope, cluster_id)


def _named(slug: str, name: str) -> tuple[str, str]:
    return ids.slug(slug, "cluster's short name"), ids.display_name(name, "cluster's name")


def _check_free(ctx: Context, slug: str) -> None:
    if slug in rows.slugs(ctx.tx, ctx.scope):
        raise Refusal("NAME_TAKEN", f"The organisation has a cluster '{slug}' already. Choose another short name.")


def hosted_id(ctx: Context) -> str:
    """Return the id of the site's one hosted cluster, made when its first organisation comes."""
    rows.lock_site(ctx.tx)
    present = rows.hosted_cluster(ctx.tx)
    if present is not None:
        return str(present["id"])
    cluster_id = ctx.new_id()
    rows.add_cluster(ctx.tx, cluster_id, hosted=True)
    return cluster_id


def _leaving(ctx: Context, row: Row) -> Leaving:
    cluster_id = row["cluster_id"]
    machines, tokens = taken(ctx, cluster_id)
    return Leaving(
        row["slug"],
        bool(row["hosted"]),
        machines,
        rows.machine_names(ctx.tx, ctx.scope, cluster_id, rules.NAMED),
        tokens,
        rows.running(ctx.tx, ctx.scope, cluster_id, rules.NAMED),
        rows.workspaces_with_access(ctx.tx, ctx.scope, cluster_id),
    )


def _counts(ctx: Context, cluster_id: str | None = None) -> dict[str, Counts]:
    return {row["cluster_id"]: counted(row) for row in rows.counts(ctx.tx, ctx.scope, cluster_id)}


def counted(row: Row) -> Counts:
    """Return the numbers of a row of `store.clusters.counts`."""
    return Counts(row["machines"], row["up"], row["down"], row["cordoned"], int(row["gpus"]))


def _cluster(row: Row, counts: dict[str, Counts], limit_of_site: int | None) -> Cluster:
    has = counts.get(row["cluster_id"], Counts())
    limit = machine_limit(row, limit_of_site)
    named = (row["cluster_id"], row["slug"], row["name"], bool(row["hosted"]))
    return Cluster(*named, limit, **vars(has), joined_at=row["joined_at"])
