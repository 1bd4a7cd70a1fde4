"""Rows of agents' sessions and of when machines were last heard.

`machine_liveness` is a narrow table of its own: a flush of 1,000 rows costs under a
millisecond there and twenty in the machines' wide rows (facts).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, String, and_, bindparam, delete, insert, select, text, update

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


# A fleet that comes back asks these thousands of times a minute: built once, not at each call.
_BY_KEY = select(
    machines.c.id,
    machines.c.org_id,
    machines.c.cluster_id,
    machines.c.name,
    machines.c.removed_at,
    machines.c.quarantine,
    machines.c.session_epoch,
    select(sites.c.incarnation).scalar_subquery().label("incarnation"),
).where(machines.c.key_hash == bindparam("key_hash"))
_RAISE = (
    update(machines)
    .where(
        machines.c.id == bindparam("machine"), machines.c.org_id == bindparam("org"), machines.c.removed_at.is_(None)
    )
    .values(session_epoch=machines.c.session_epoch + 1, release=bindparam("said"), address=bindparam("from"))
    .returning(machines.c.session_epoch)
)
_INSTANCES = (
    select(machine_sessions.c.instance)
    .join(machines, machines.c.id == machine_sessions.c.machine_id)
    .where(machine_sessions.c.machine_id == bindparam("machine"), machines.c.org_id == bindparam("org"))
    .order_by(machine_sessions.c.epoch)
)
_LOCKED = (
    select(
        machines.c.state,
        machines.c.session_epoch,
        machines.c.removed_at,
        machines.c.quarantine,
        machines.c.behind,
        machines.c.unknown_work,
        machines.c.release,
        machines.c.inventory_digest,
        machines.c.conditions,
        machines.c.pressure,
        machines.c.data_path,
        machines.c.data_generation,
        machines.c.data_state,
        machines.c.data_message,
        machines.c.data_copies,
        machines.c.update_ask,
        machines.c.update_release,
        machines.c.update_before,
        machines.c.update_state,
        machines.c.update_message,
        machines.c.kernel_boot,
        machines.c.kernel_seq,
    )
    .where(machines.c.id == bindparam("machine"), machines.c.org_id == bindparam("org"))
    .with_for_update(key_share=True)
)
_STANDING = select(machines.c.removed_at, machines.c.quarantine).where(
    machines.c.id == bindparam("machine"), machines.c.org_id == bindparam("org")
)
_REMEMBER = insert(machine_sessions)


def by_key(tx: Tx, key_hash: bytes) -> Row | None:
    """Return whose credential this is (a removed machine's tombstone too), with the site's `incarnation`."""
    return tx.conn.execute(_BY_KEY, {"key_hash": key_hash}).mappings().first()


def raise_epoch(tx: Tx, machine: MachineRef, release: str, address: str) -> int | None:
    """Begin a session of an enrolled machine; return its epoch (None: the machine was removed meanwhile)."""
    given = {"machine": machine.id, "org": machine.org_id, "said": release, "from": address}
    epoch: int | None = tx.conn.execute(_RAISE, given).scalar()
    return epoch


def instances(tx: Tx, machine: MachineRef) -> Sequence[str]:
    """Return the instances of the sessions that are remembered, oldest first."""
    return tx.conn.execute(_INSTANCES, {"machine": machine.id, "org": machine.org_id}).scalars().all()


def remember(tx: Tx, machine: MachineRef, epoch: int, hello: Hello) -> None:
    """Add a session to those remembered."""
    tx.conn.execute(
        _REMEMBER,
        {
            "machine_id": machine.id,
            "epoch": epoch,
            "instance": hello.instance,
            "boot_id": hello.boot_id,
            "pid": hello.pid,
            "opened_at": tx.now,
        },
    )


def forget_older(tx: Tx, machine: MachineRef, epoch: int) -> None:
    """Forget a machine's sessions up to that epoch."""
    tx.run(delete(machine_sessions).where(_of(machine), machine_sessions.c.epoch <= epoch))


def forget(tx: Tx, machine: MachineRef) -> None:
    """Forget a machine's past sessions: an admin has decided about its copies."""
    tx.run(delete(machine_sessions).where(_of(machine)))


def _of(machine: MachineRef) -> ColumnElement[bool]:
    mine = select(machines.c.id).where(machines.c.id == machine.id, machines.c.org_id == machine.org_id)
    return machine_sessions.c.machine_id.in_(mine)


def locked(tx: Tx, machine: MachineRef) -> Row | None:
    """Return what sessions need of a machine's row, locked until the transaction ends.

    Take the tenancy's lock before.
    """
    return tx.conn.execute(_LOCKED, {"machine": machine.id, "org": machine.org_id}).mappings().first()


def standing(tx: Tx, machine: MachineRef) -> Row | None:
    """Return whether a machine is removed or in quarantine."""
    return tx.conn.execute(_STANDING, {"machine": machine.id, "org": machine.org_id}).mappings().first()


def quarantine_all(tx: Tx, kind: str, reason: str) -> None:
    """Keep new work off every machine of the site; the database is behind what each of them may run."""
    tx.run(update(machines).where(machines.c.removed_at.is_(None)).values(behind=True))
    open = and_(machines.c.removed_at.is_(None), machines.c.quarantine.is_(None))
    tx.run(update(machines).where(open).values(quarantine=kind, quarantine_reason=reason))


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
