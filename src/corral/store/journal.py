"""Reading the journal: events and audit are views of it (design decision 7)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from typing import Any

from sqlalchemy import Select, and_, delete, func, or_, select, update

from corral.domain.events import is_of
from corral.store.tables.journal import journal
from corral.store.tables.site import sites
from corral.store.transaction import Row, Scope, Tx


@dataclass(frozen=True)
class Filter:
    """What to show. None and empty mean: no restriction. Times are half-open [since, until)."""

    view: str = "event"
    """event | audit."""
    types: Collection[str] = ()
    workspaces: Collection[str] | None = None
    """Ids: only entries of these workspaces (a member's view)."""
    clusters: Collection[str] | None = None
    machine: str | None = None
    workload: str | None = None
    actor: str | None = None
    since: datetime | None = None
    until: datetime | None = None


def newest_first(tx: Tx, scope: Scope | None, want: Filter, *, before: int | None, limit: int) -> Sequence[Row]:
    """Return up to `limit` entries with a sequence below `before`. `scope` None = the site's own entries."""
    query = _filtered(scope, want).order_by(journal.c.seq.desc()).limit(limit)
    return tx.all(query if before is None else query.where(journal.c.seq < before))


MATCHED = (
    "org_id",
    "event",
    "audit",
    "type",
    "at",
    "workspace_id",
    "cluster_id",
    "machine_id",
    "workload_id",
    "actor_name",
)
"""What `matches` looks at."""


def matches(row: Row | Mapping[str, Any], scope: Scope, want: Filter) -> bool:
    """Say of one row what `_filtered` asks in SQL; a property test holds the two together."""
    if row["org_id"] != scope.org or not row["audit" if want.view == "audit" else "event"]:
        return False
    if want.types and not any(is_of(row["type"], pattern) for pattern in want.types):
        return False
    if want.workspaces is not None and row["workspace_id"] not in want.workspaces:
        return False
    if want.clusters is not None and row["cluster_id"] not in want.clusters:
        return False
    for column, value in (
        ("machine_id", want.machine),
        ("workload_id", want.workload),
        ("actor_name", want.actor),
    ):
        if value is not None and row[column] != value:
            return False
    return (want.since is None or row["at"] >= want.since) and (want.until is None or row["at"] < want.until)


def between(tx: Tx, scope: Scope, want: Filter, after: int, until: int, limit: int) -> Sequence[Row]:
    """Return the tenant's matching entries with `after` < seq <= `until`, oldest first."""
    query = _filtered(scope, want).where(journal.c.seq > after, journal.c.seq <= until)
    return tx.all(query.order_by(journal.c.seq).limit(limit))


def after(tx: Tx, seq: int, limit: int) -> Sequence[Row]:
    """Return every tenant's entries after `seq`, oldest first: for the one tailer, which filters by scope."""
    return tx.all(select(journal).where(journal.c.seq > seq).order_by(journal.c.seq).limit(limit))


def newest(tx: Tx) -> int:
    """Return the newest sequence (0 when there is none)."""
    return int(tx.scalar(select(func.max(journal.c.seq))) or 0)


def floor(tx: Tx) -> int:
    """Return the sequence up to which events were forgotten by age."""
    return int(tx.scalar(select(sites.c.journal_floor)) or 0)


def forget_events(tx: Tx, before: datetime, limit: int) -> bool:
    """Forget, of the next `limit` entries above the floor, the events from before then; return whether more may be due.

    Goes by sequence and stops at the first entry that is young enough, so nothing is scanned twice.
    """
    rows = tx.all(
        select(journal.c.seq, journal.c.at).where(journal.c.seq > floor(tx)).order_by(journal.c.seq).limit(limit)
    )
    old = list(takewhile(lambda row: row["at"] < before, rows))
    if not old:
        return False
    upto = old[-1]["seq"]
    tx.run(delete(journal).where(journal.c.seq > floor(tx), journal.c.seq <= upto, ~journal.c.audit))
    tx.run(update(sites).values(journal_floor=upto))
    return len(old) == limit


def _filtered(scope: Scope | None, want: Filter) -> Select[Any]:
    terms = [journal.c.org_id.is_(None) if scope is None else journal.c.org_id == scope.org]
    terms.append(journal.c.audit if want.view == "audit" else journal.c.event)
    if want.types:
        # "cluster.node.*" means everything that begins so.
        exact = [t for t in want.types if not t.endswith(".*")]
        starts = [journal.c.type.startswith(t[:-1], autoescape=True) for t in want.types if t.endswith(".*")]
        terms.append(or_(journal.c.type.in_(exact), *starts))
    if want.workspaces is not None:
        terms.append(journal.c.workspace_id.in_(list(want.workspaces)))
    if want.clusters is not None:
        terms.append(journal.c.cluster_id.in_(list(want.clusters)))
    for column, value in (
        (journal.c.machine_id, want.machine),
        (journal.c.workload_id, want.workload),
        (journal.c.actor_name, want.actor),
    ):
        if value is not None:
            terms.append(column == value)
    if want.since is not None:
        terms.append(journal.c.at >= want.since)
    if want.until is not None:
        terms.append(journal.c.at < want.until)
    return select(journal).where(and_(*terms))
