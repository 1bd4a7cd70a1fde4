"""Rows of agents' sessions and of when machines were last heard.

`machine_liveness` is a narrow table of its own: a flush of 1,000 rows costs under a
millisecond there and twenty in the machines' wide rows (facts).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import String, bindparam, delete, insert, select, text, update

from corral.domain.machines import MachineRef, MachineState
from corral.domain.sessions import Hello
from corral.store.machines import ref_of
from corral.store.tables.machines import machine_sessions, machines
from corral.store.tables.site import sites
from corral.store.transaction import Row, Tx
from corral.store.types import UtcTime

_FLUSH = text(
    "INSERT INTO machine_liveness (machine_id, last_seen) VALUES (:machine_id, :last_seen) "
    "ON CONFLICT (machine_id) DO UPDATE SET last_seen = excluded.last_seen"
).bindparams(bindparam("machine_id", type_=String), bindparam("last_seen", type_=UtcTime))


def incarnation(tx: Tx) -> str:
    """Return the site's incarnation."""
    return str(tx.scalar(select(sites.c.incarnation)))


def raise_epoch(tx: Tx, machine: MachineRef, release: str, address: str) -> int | None:
    """Begin a session of an enrolled machine; return its epoch (None: the machine was removed meanwhile)."""
    epoch = tx.scalar(
        update(machines)
        .where(machines.c.id == machine.id, machines.c.org_id == machine.org_id, machines.c.removed_at.is_(None))
        .values(session_epoch=machines.c.session_epoch + 1, release=release, address=address)
        .returning(machines.c.session_epoch)
    )
    return None if epoch is None else int(epoch)


def instances(tx: Tx, machine_id: str) -> Sequence[str]:
    """Return the instances of the sessions that are remembered, oldest first."""
    rows = tx.all(
        select(machine_sessions.c.instance)
        .where(machine_sessions.c.machine_id == machine_id)
        .order_by(machine_sessions.c.epoch)
    )
    return [row["instance"] for row in rows]


def remember(tx: Tx, machine_id: str, epoch: int, hello: Hello, keep: int) -> None:
    """Add a session to those remembered, of which the last `keep` stay."""
    tx.run(
        insert(machine_sessions).values(
            machine_id=machine_id,
            epoch=epoch,
            instance=hello.instance,
            boot_id=hello.boot_id,
            pid=hello.pid,
            opened_at=tx.now,
        )
    )
    tx.run(
        delete(machine_sessions).where(
            machine_sessions.c.machine_id == machine_id, machine_sessions.c.epoch <= epoch - keep
        )
    )


def forget(tx: Tx, machine_id: str) -> None:
    """Forget a machine's past sessions: an admin has decided about its copies."""
    tx.run(delete(machine_sessions).where(machine_sessions.c.machine_id == machine_id))


def locked(tx: Tx, machine: MachineRef) -> Row | None:
    """Return a machine's row, locked until the transaction ends. Take the tenancy's lock before."""
    return tx.one(
        select(machines)
        .where(machines.c.id == machine.id, machines.c.org_id == machine.org_id)
        .with_for_update(key_share=True)
    )


def flush(tx: Tx, seen: Mapping[str, datetime]) -> None:
    """Write down when machines were last heard, all in one go."""
    if seen:
        tx.run(_FLUSH, [{"machine_id": id, "last_seen": seen[id]} for id in sorted(seen)])


def up(tx: Tx) -> Sequence[MachineRef]:
    """Return every machine of the site that counts as Up: liveness judges all tenants' alike."""
    rows = tx.all(
        select(machines.c.id, machines.c.org_id, machines.c.cluster_id, machines.c.name).where(
            machines.c.state == MachineState.UP.value, machines.c.removed_at.is_(None)
        )
    )
    return [ref_of(row) for row in rows]
