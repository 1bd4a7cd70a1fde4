"""Dedicated clusters as the operator sees them: whose they are, and deleting one (spec 10).

One that its organisation left waits, with its machines, for the operator: who gives it back, or
deletes it once it has no machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from corral.domain import clusters as rules
from corral.domain.errors import not_found
from corral.domain.events import Subject
from corral.store import clusters as rows
from corral.store import fleet
from corral.store import machines as machine_rows
from corral.store import orgs as org_rows
from corral.store.transaction import Row
from corral.usecases import clusters, orgs
from corral.usecases.clusters import Counts
from corral.usecases.context import Context, Org


@dataclass(frozen=True)
class Dedicated:
    """A dedicated cluster as the operator sees it. `left_at` None: its organisation uses it."""

    id: str
    org: str
    slug: str
    name: str
    counts: Counts
    created_at: datetime
    left_at: datetime | None


def listed(ctx: Context, after: str | None, limit: int) -> Sequence[Dedicated]:
    """Return the site's dedicated clusters, by id."""
    found = rows.dedicated(ctx.tx, after, limit)
    counts = rows.counts_of(ctx.tx, [row["id"] for row in found])
    return [_dedicated(row, clusters.counted(counts[row["id"]]) if row["id"] in counts else Counts()) for row in found]


def remove(ctx: Context, id: str) -> None:
    """Delete a dedicated cluster for ever. Errors: `NOT_FOUND`; `CLUSTER_IN_USE` while it is used or has machines."""
    found = rows.one_dedicated(ctx.tx, id)
    if found is None:
        raise not_found()
    ctx = in_org(ctx, found["org_id"])
    orgs.locked(ctx)
    fleet.lock(ctx.tx, ctx.scope, id)
    row = rows.one_dedicated(ctx.tx, id)
    if row is None:
        raise not_found()
    machines = machine_rows.enrolled(ctx.tx, ctx.scope, id)
    rules.check_deletable(row["org"], left=row["left_at"] is not None, machines=machines)
    rows.remove(ctx.tx, id)
    data = {"slug": row["slug"], "name": row["name"], "deleted": True}
    ctx.record_for_both("cluster.removed", Subject(org=ctx.org.id, cluster=id), **data)


def in_org(ctx: Context, org_id: str) -> Context:
    """Return the operator's context in an organisation that is named by its id. Errors: `NOT_FOUND`."""
    row = org_rows.get(ctx.tx, org_id)
    if row is None:
        raise not_found()
    return replace(ctx, org_or_none=Org(row["id"], row["slug"], row["name"], row["contact"]))


def _dedicated(row: Row, counts: Counts) -> Dedicated:
    return Dedicated(row["id"], row["org"], row["slug"], row["name"], counts, row["created_at"], row["left_at"])
