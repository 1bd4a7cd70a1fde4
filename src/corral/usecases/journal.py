"""Events and audit as people read them (spec 10, "Events, audit, alerts"): views of the one journal.

Admins see all of their organisation's entries; members see events of the workspaces they
belong to. A cursor is `incarnation.sequence`: one of another incarnation answers `reset`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from corral.domain.errors import Refusal, not_found
from corral.domain.events import EVENTS_KEPT, TYPES, check_types
from corral.store import clusters, connections, journal, machines, orgs
from corral.store import site as site_rows
from corral.store.journal import Filter
from corral.store.transaction import Row, Scope, Tx
from corral.usecases.context import Context

__all__ = ["Cursor", "Filter", "Query", "between", "incarnation", "newest", "parse_cursor", "resolve", "sees", "show"]


FORGOTTEN_AT_ONCE = 2_000


@dataclass(frozen=True)
class Query:
    """What a person filters by: names as they write them."""

    view: str
    types: Sequence[str] = ()
    workspace: str | None = None
    cluster: str | None = None
    """A short name, also one that a cluster had when it was left; or an id."""
    machine: str | None = None
    """A name, which needs `cluster`; or the id, also of one that was removed."""
    workload: str | None = None
    """A compute cluster's name or id; needs `workspace`."""
    actor: str | None = None
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True)
class Cursor:
    incarnation: str
    seq: int

    def __str__(self) -> str:
        return f"{self.incarnation}.{self.seq}"


def parse_cursor(text: str) -> Cursor | None:
    """Return the cursor in `text`, or None when it is none."""
    incarnation, _, seq = text.rpartition(".")
    return Cursor(incarnation, int(seq)) if seq.isascii() and seq.isdigit() and len(seq) < 19 and incarnation else None


def incarnation(ctx: Context) -> str:
    """Return the site's incarnation, the first half of every cursor."""
    return site_rows.incarnation(ctx.tx)


def floor(ctx: Context) -> int:
    """Return the sequence up to which events were forgotten by age."""
    return journal.floor(ctx.tx)


def forget_old(tx: Tx) -> bool:
    """Forget a batch of events that are older than is kept; return whether more may be due. The audit stays."""
    return journal.forget_events(tx, tx.now - EVENTS_KEPT, FORGOTTEN_AT_ONCE)


def newest(ctx: Context) -> int:
    """Return the newest sequence there is (0: none)."""
    return journal.newest(ctx.tx)


def show(ctx: Context, want: Filter, before: int | None, limit: int) -> Sequence[Row]:
    """Return entries, newest first, below sequence `before`."""
    return journal.newest_first(ctx.tx, ctx.scope, want, before=before, limit=limit)


def between(ctx: Context, want: Filter, after: int, until: int, limit: int) -> Sequence[Row]:
    """Return matching entries with `after` < sequence <= `until`, oldest first."""
    return journal.between(ctx.tx, ctx.scope, want, after, until, limit)


def sees(scope: Scope, want: Filter, row: Row | Mapping[str, Any]) -> bool:
    """Return whether an entry is of this organisation and matches."""
    return journal.matches(row, scope, want)


def resolve(ctx: Context, query: Query) -> Filter:
    """Turn names into ids, within what the caller may see. Errors: `NOT_FOUND`, `INVALID_REQUEST`."""
    check_types(query.types, TYPES, "type")
    want = Filter(view=query.view, types=tuple(query.types), actor=query.actor, since=query.since, until=query.until)
    if not ctx.admin or query.workspace is not None:
        want = replace(want, workspaces=_workspaces(ctx, query.workspace))
    if query.cluster is not None:
        want = replace(want, clusters=_clusters(ctx, query.cluster))
    if query.machine is not None:
        want = replace(want, machine=_machine(ctx, want.clusters, query.machine))
    if query.workload is not None:
        want = replace(want, workload=_workload(ctx, want, query.workload))
    return want


def _workspaces(ctx: Context, slug: str | None) -> frozenset[str]:
    """Return the ids the caller may see; one only, when named."""
    if slug is None:
        return frozenset(orgs.workspaces_of_user(ctx.tx, ctx.scope, ctx.user.id))
    row = orgs.workspace_with_part(ctx.tx, ctx.scope, slug, ctx.user.id)
    if row is None or (row["part"] is None and not ctx.admin):
        raise not_found()
    return frozenset({row["id"]})


def _clusters(ctx: Context, name: str) -> Sequence[str]:
    """Return the ids of the clusters that are called so, or were when they were left: what happened there stays."""
    found = clusters.called(ctx.tx, ctx.scope, name)
    if not found:
        raise not_found()
    return found


def _machine(ctx: Context, within: Collection[str] | None, named: str) -> str:
    row = machines.get(ctx.tx, ctx.scope, named)
    if row is None and within is None:
        raise Refusal("INVALID_REQUEST", "machine: name its cluster too (cluster=…), or give its id.", field="machine")
    if row is None and within is not None:
        found = (machines.by_name(ctx.tx, ctx.scope, cluster_id, named) for cluster_id in within)
        row = next((one for one in found if one is not None), None)
    if row is None:
        raise not_found()
    return str(row["id"])


def _workload(ctx: Context, want: Filter, name: str) -> str:
    if want.workspaces is None or len(want.workspaces) != 1:
        raise Refusal("INVALID_REQUEST", "workload: name its workspace too (workspace=…).", field="workload")
    row = connections.find(ctx.tx, ctx.scope, next(iter(want.workspaces)), name)
    if row is None:
        raise not_found()
    return str(row["id"])
