"""Windows begin and end by the clock: each edge is told once, and what waits is tried again (spec 10, "Reservations").

A window is in force by its times alone: nothing waits for these passes but the journal and the queue. An edge that
came while the control plane was away is told when it is back. Machines know their windows' times: at an edge none of
them is looked at anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from corral.domain.events import Entry, Subject
from corral.store import fleet
from corral.store import reservations as rows
from corral.store.reservations import Due
from corral.store.transaction import SITE, Scope, Tx
from corral.usecases import reservations


def due(tx: Tx, after: Due | None, limit: int) -> list[Due]:
    """Return windows, of every tenant, with an edge that was not told, by tenancy."""
    return rows.due(tx, after, limit)


def tell(tx: Tx, windows: Sequence[Due]) -> int:
    """Record the edges of one tenancy's windows; return how many: one that was told meanwhile is not told again."""
    first = windows[0]
    scope = Scope(first.org_id)
    fleet.lock(tx, scope, first.cluster_id)
    return sum(_tell(tx, scope, window) for window in windows)


def _tell(tx: Tx, scope: Scope, window: Due) -> int:
    row = rows.get(tx, scope, window.cluster_id, window.id)
    if row is None:
        return 0  # removed meanwhile
    edges = [name for name, mark in (("began", rows.begin), ("ended", rows.end)) if mark(tx, scope, window.id)]
    if edges:
        fleet.touch(tx, scope, window.cluster_id)
    data = {"reservation": window.id, **reservations.told(tx, scope, row)}
    for edge in edges:
        tx.record(Entry(f"cluster.reservation.{edge}", Subject(scope.org, window.cluster_id), data), SITE)
    return len(edges)
