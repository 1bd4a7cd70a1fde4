"""Journal entries as people see them: in lists, and as frames of the live stream (spec 10, "Events, audit, alerts").

Where somebody sits and which request it was stands in the audit only: events are shown to colleagues.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from corral.store.transaction import Row
from corral.usecases.journal import Cursor


def event(row: Row, incarnation: str) -> dict[str, Any]:
    """Return an entry as members see it."""
    at: datetime = row["at"]
    return {
        "id": str(Cursor(incarnation, row["seq"])),
        "seq": row["seq"],
        "at": at.isoformat().replace("+00:00", "Z"),
        "type": row["type"],
        "actor": row["actor_name"],
        "actor_kind": row["actor_kind"],
        "cluster_id": row["cluster_id"],
        "workspace_id": row["workspace_id"],
        "machine_id": row["machine_id"],
        "workload_id": row["workload_id"],
        "data": row["data"],
    }


def audit(row: Row, incarnation: str) -> dict[str, Any]:
    """Return an entry as admins see it in the audit."""
    return {**event(row, incarnation), "address": row["address"], "request_id": row["request_id"]}


def frame(row: Row, incarnation: str) -> bytes:
    """Return an entry as a frame of an event stream."""
    view = event(row, incarnation)
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (view["id"].encode(), row["type"].encode(), msgspec.json.encode(view))
