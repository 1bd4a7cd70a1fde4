"""Asking the operator for a dedicated cluster, and the answer (spec 10, "Kinds of cluster")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from corral.domain import clusters as rules
from corral.domain import ids
from corral.domain.errors import Refusal, not_found
from corral.domain.events import Subject
from corral.store import cluster_requests as rows
from corral.store.transaction import Row
from corral.usecases import clusters, orgs
from corral.usecases.context import Context
from corral.usecases.dedicated_clusters import in_org


@dataclass(frozen=True)
class Request:
    """A request for a dedicated cluster; `cluster` is the short name of what was made for it."""

    id: str
    org: str
    name: str
    note: str
    created_by: str
    created_at: datetime
    state: str
    """open | made | declined | withdrawn."""
    answered_at: datetime | None
    answer: str
    """Why it was declined."""
    cluster: str | None


def ask(ctx: Context, name: str, note: str) -> Request:
    """Ask for a dedicated cluster. Errors: `INVALID_NAME`, `INVALID_REQUEST`; `CONFLICT` where too many are open."""
    name, note = ids.display_name(name, "cluster's name"), rules.note(note, "note")
    orgs.locked(ctx)
    rules.check_open_requests(rows.count_open(ctx.tx, ctx.scope))
    id = ctx.new_id()
    rows.add(ctx.tx, ctx.scope, id, ctx.user.id, name, note)
    ctx.record("org.cluster.requested", Subject(org=ctx.org.id), request=id, name=name)
    return _one(ctx, id)


def listed(ctx: Context, before: str | None, limit: int) -> Sequence[Request]:
    """Return the organisation's requests, newest first."""
    return [_request(row) for row in rows.listed(ctx.tx, ctx.scope, before, limit)]


def withdraw(ctx: Context, id: str) -> None:
    """Take a request back. Errors: `NOT_FOUND`; `CONFLICT` when it is over already."""
    orgs.locked(ctx)
    request = _one(ctx, id)
    _end(ctx, id, rules.Answer.WITHDRAWN)
    ctx.record("org.cluster.requested", Subject(org=ctx.org.id), request=id, name=request.name, withdrawn=True)


# --- the operator's


def of_site(ctx: Context, after: tuple[int, str] | None, limit: int) -> Sequence[Request]:
    """Return the site's requests: open ones first, oldest first; then those that are over, newest first.

    `after`: the place (`place_of`) of the last one seen.
    """
    over, id = after or (0, None)
    found = [] if over else list(rows.open_ones(ctx.tx, id, limit))
    if len(found) < limit:
        found += rows.ended_ones(ctx.tx, id if over else None, limit - len(found))
    return [_request(row) for row in found]


def place_of(request: Request) -> tuple[int, str]:
    """Return where a request stands in the operator's list: whether it is over, and its id."""
    return int(request.state != rules.OPEN), request.id


def make(ctx: Context, id: str, slug: str, name: str | None) -> Request:
    """Answer with a cluster, called as was asked unless `name` says otherwise.

    Errors: `NOT_FOUND`, `INVALID_NAME`, `NAME_TAKEN`; `CONFLICT` when it is over already.
    """
    ctx, request = _asked(ctx, id)
    _end(ctx, id, rules.Answer.MADE)
    made = clusters.create_dedicated(ctx, slug, name or request.name)
    rows.set_cluster(ctx.tx, ctx.scope, id, made.id)
    _record(ctx, id, rules.Answer.MADE, cluster=made.slug)
    return _one(ctx, id)


def decline(ctx: Context, id: str, why: str) -> Request:
    """Answer that there will be none. Errors: `NOT_FOUND`, `INVALID_REQUEST`; `CONFLICT` when it is over already."""
    why = rules.note(why, "decline")
    if not why:
        raise Refusal("INVALID_REQUEST", "decline: say why; those who asked read it.", field="decline")
    ctx, _ = _asked(ctx, id)
    _end(ctx, id, rules.Answer.DECLINED, why)
    _record(ctx, id, rules.Answer.DECLINED, reason=why)
    return _one(ctx, id)


def _asked(ctx: Context, id: str) -> tuple[Context, Request]:
    """Return the operator's context in the organisation that asked, locked, and the request. Errors: `NOT_FOUND`."""
    org_id = rows.org_of(ctx.tx, id)
    if org_id is None:
        raise not_found()
    ctx = in_org(ctx, org_id)
    orgs.locked(ctx)
    return ctx, _one(ctx, id)


def _end(ctx: Context, id: str, answer: rules.Answer, note: str = "") -> None:
    if not rows.answer(ctx.tx, ctx.scope, id, answer.value, note):
        raise rules.answered(_one(ctx, id).state)


def _record(ctx: Context, id: str, answer: rules.Answer, **data: Any) -> None:
    told = {"request": id, "answer": answer.value, **data}
    ctx.record_for_both("org.cluster.answered", Subject(org=ctx.org.id), **told)


def _one(ctx: Context, id: str) -> Request:
    row = rows.get(ctx.tx, ctx.scope, id)
    if row is None:
        raise not_found()
    return _request(row)


def _request(row: Row) -> Request:
    asked = (row["id"], row["org"], row["name"], row["note"], row["login"], row["created_at"])
    return Request(*asked, row["answer"] or rules.OPEN, row["answered_at"], row["answer_note"], row["cluster"])
