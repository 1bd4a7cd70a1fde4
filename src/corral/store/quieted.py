"""What machines cause is rate-limited in the journal (design decision 7): rows have the newest, the journal has less.

A machine's root can change what it reports with every report. Of each machine, and of each workload on it,
only so many entries a minute are written; one more says that others were left out.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, select

from corral.domain.events import LEFT_OUT, LIMITED, TYPES, Class
from corral.domain.machines import MachineRef
from corral.store.tables.journal import journal

if TYPE_CHECKING:
    from corral.store.transaction import Tx

A_MINUTE = 20
"""Entries that a machine itself causes and that are written in a minute."""
_LOOK_BACK = 10 * A_MINUTE
"""Newest entries, whoever caused them, among which its own of the last minute are counted."""
_J = journal.c
_NEWEST = select(_J.at, _J.actor_kind, _J.type, _J.machine_id, _J.workload_id)

Key = tuple[str, str | None]
"""Machine and workload (None: the machine as a whole)."""


def within_limit(conn: Connection, now: datetime, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what is to be written of a transaction's entries, in order. Asks only where a machine did something."""
    room: dict[Key, int] = {}
    kept = []
    for entry in entries:
        if entry["actor_kind"] != "machine" or entry["type"] not in LIMITED:
            kept.append(entry)
            continue
        key = (entry["machine_id"], entry["workload_id"])
        left = room[key] if key in room else A_MINUTE - _written(conn, now, key)
        room[key] = left - 1
        if left >= 0:
            kept.append(entry if left else _left_out(entry))
    return kept


def _written(conn: Connection, now: datetime, key: Key) -> int:
    """Return how many entries of its own doing the last minute has, the one that says what was left out too."""
    machine, workload = key
    about = _J.machine_id == machine if workload is None else _J.workload_id == workload
    newest = conn.execute(_NEWEST.where(about).order_by(_J.seq.desc()).limit(_LOOK_BACK))
    since = now - timedelta(minutes=1)
    return sum(
        row.at > since
        and row.actor_kind == "machine"
        and (row.machine_id, row.workload_id) == key
        and (row.type in LIMITED or row.type == LEFT_OUT)
        for row in newest
    )


def caused(tx: Tx, ref: MachineRef, type: str, within: timedelta) -> int:
    """Return how many of its newest entries of a type a machine caused itself in the last `within`."""
    newest = tx.conn.execute(_NEWEST.where(_J.machine_id == ref.id).order_by(_J.seq.desc()).limit(_LOOK_BACK))
    since = tx.now - within
    return sum(row.at > since and row.actor_kind == "machine" and row.type == type for row in newest)


def _left_out(entry: dict[str, Any]) -> dict[str, Any]:
    kind = TYPES[LEFT_OUT][0]
    seen_as = {"event": kind is not Class.AUDIT, "audit": kind is not Class.EVENT}
    data = {"name": entry["data"].get("name", entry["actor_name"]), "reason": f"more than {A_MINUTE} in a minute"}
    return {**entry, "type": LEFT_OUT, **seen_as, "data": data}
