"""Alerts as people see them: admins all of the organisation's, members those about their workspaces (spec 05)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from corral.domain import alerts as rules
from corral.domain.errors import Refusal
from corral.store import alerts as rows
from corral.store.alerts import Filter
from corral.store.transaction import Row, Tx
from corral.usecases import journal
from corral.usecases.context import Context

KEPT_FOR = timedelta(days=90)
FORGOTTEN_AT_ONCE = 2_000
"""After it closed."""


@dataclass(frozen=True)
class Query:
    """What a person filters by: names as they write them. `machine` needs `cluster`."""

    open: bool | None = None
    kind: str | None = None
    workspace: str | None = None
    cluster: str | None = None
    machine: str | None = None


def listed(ctx: Context, query: Query, before: str | None, limit: int) -> Sequence[Row]:
    """Return alerts, the newest first, with ids below `before`. Errors: `NOT_FOUND`, `INVALID_REQUEST`."""
    if query.cluster is not None and query.machine is None:
        raise Refusal("INVALID_REQUEST", "cluster: it says where `machine` is: name that too.", field="cluster")
    # Names and what members see are those of events.
    seen = journal.resolve(
        ctx, journal.Query("event", workspace=query.workspace, cluster=query.cluster, machine=query.machine)
    )
    kind = rules.opening_kind(query.kind).value if query.kind is not None else None
    want = Filter(query.open, kind, seen.machine, seen.workspaces)
    return rows.newest_first(ctx.tx, ctx.scope, want, before, limit)


def forget_old(tx: Tx) -> bool:
    """Forget a batch of alerts that closed long ago; return whether more may be due."""
    return rows.forget_closed(tx, tx.now - KEPT_FOR, FORGOTTEN_AT_ONCE)
