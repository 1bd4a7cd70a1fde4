"""Making, listing and revoking join tokens (spec 10, "Join tokens")."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from corral.domain import clusters as cluster_rules
from corral.domain import secrets
from corral.domain.access import may_use
from corral.domain.clusters import HOSTED_SLUGS
from corral.domain.errors import Refusal, not_found
from corral.domain.events import Subject
from corral.domain.join_tokens import Asked
from corral.store import access as access_rows
from corral.store import clusters as cluster_rows
from corral.store import join_tokens as rows
from corral.store import workspaces
from corral.store.transaction import Row
from corral.usecases import access, clusters, orgs
from corral.usecases.context import Context


@dataclass(frozen=True)
class JoinToken:
    """An unused token, as lists and logs show it: never its secret."""

    id: str
    public_id: str
    labels: Mapping[str, str]
    created_by: str | None
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True)
class NewJoinToken:
    """The one answer that has the secret."""

    id: str
    token: str
    labels: Mapping[str, str]
    expires_at: datetime


def create(ctx: Context, cluster: str, asked: Asked) -> NewJoinToken:
    """Make a token. Errors: `NOT_FOUND`, `LIMIT_REACHED` (hosted cluster).

    An organisation without a cluster begins to use the hosted one with its first machine: the token is asked for
    by the short name that the hosted cluster then has.
    """
    orgs.locked(ctx)
    return _make(ctx, _named(ctx, cluster), asked)


def create_for_workspace(ctx: Context, cluster: str | None, asked: Asked) -> NewJoinToken:
    """Make a token from a workspace, and grant the workspace the label's pool (without that label: nothing).

    An organisation without a cluster begins to use the hosted one. Errors: `NOT_FOUND`,
    `LIMIT_REACHED`; `CLUSTER_REQUIRED` when there are several clusters and none is named.
    """
    orgs.locked(ctx)
    if not workspaces.is_live(ctx.tx, ctx.scope, ctx.workspace.id):
        raise not_found()
    row = _named(ctx, cluster) if cluster is not None else clusters.find(ctx, _only_cluster(ctx))
    made = _make(ctx, row, asked)
    pool, cluster_id = asked.labels.get("pool", ""), row["cluster_id"]
    granted = access_rows.pools(ctx.tx, ctx.scope, ctx.workspace.id).get(cluster_id, ())
    if pool and not may_use(granted, pool):
        access.grant_pool(ctx, ctx.workspace.id, cluster_id, pool)
    return made


def _make(ctx: Context, row: Row, asked: Asked) -> NewJoinToken:
    """Make a token of a cluster, under the organisation's lock."""
    _check_room(ctx, row)
    secret = secrets.make(secrets.JOIN, os.urandom(secrets.RANDOM_BYTES))
    made = NewJoinToken(ctx.new_id(), secret.text, dict(asked.labels), ctx.now + asked.ttl)
    values = {
        "id": made.id,
        "cluster_id": row["cluster_id"],
        "labels": made.labels,
        "created_by": ctx.user.id,
        "expires_at": made.expires_at,
    }
    rows.add(ctx.tx, ctx.scope, secret, values)
    ctx.record(
        "cluster.token.created", _subject(ctx, row["cluster_id"]), token=secret.public_id, labels=dict(made.labels)
    )
    return made


def _named(ctx: Context, cluster: str) -> Row:
    """Return the tenancy of that name, under the organisation's lock. Errors: `NOT_FOUND`."""
    if cluster == HOSTED_SLUGS[0] and not cluster_rows.listed(ctx.tx, ctx.scope, None, 1):
        clusters.use_hosted(ctx)
    return clusters.find(ctx, cluster)


def _only_cluster(ctx: Context) -> str:
    found = cluster_rows.listed(ctx.tx, ctx.scope, None, 2)
    if len(found) > 1:
        raise Refusal(
            "CLUSTER_REQUIRED", "The organisation uses several clusters: name one in 'cluster'.", field="cluster"
        )
    return str(found[0]["slug"]) if found else clusters.use_hosted(ctx).slug


def listed(ctx: Context, cluster: str, after: str | None, limit: int) -> Sequence[JoinToken]:
    """Return the tokens that may still be used, oldest first. Errors: `NOT_FOUND`."""
    cluster_id = clusters.find(ctx, cluster)["cluster_id"]
    return [
        JoinToken(row["id"], row["public_id"], row["labels"], row["login"], row["created_at"], row["expires_at"])
        for row in rows.unused(ctx.tx, ctx.scope, cluster_id, after, limit)
    ]


def revoke(ctx: Context, cluster: str, id: str) -> None:
    """Revoke an unused token. Errors: `NOT_FOUND`, also for one that was used, or revoked before."""
    cluster_id = clusters.find(ctx, cluster)["cluster_id"]
    row = rows.revoke(ctx.tx, ctx.scope, cluster_id, id)
    if row is None:
        raise not_found()
    ctx.record("cluster.token.revoked", _subject(ctx, cluster_id), token=row["public_id"])


def _check_room(ctx: Context, row: Row) -> None:
    limit = clusters.machine_limit(row, cluster_rows.hosted_machine_limit(ctx.tx))
    if limit is None:
        return
    room = cluster_rules.Room(limit, *clusters.taken(ctx, row["cluster_id"]))
    cluster_rules.check_room(room, cluster_rows.site_contact(ctx.tx))


def _subject(ctx: Context, cluster_id: str) -> Subject:
    return Subject(org=ctx.org.id, cluster=cluster_id)
