"""Rows of people's SSH keys, and where they are attached."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import RowMapping, delete, func, insert, or_, select, update

from corral.store.tables.users import ssh_keys
from corral.store.tables.workloads import allocations, workload_ssh_keys
from corral.store.transaction import Scope, Tx


def listed(tx: Tx, user_id: str, after: str | None, limit: int) -> Sequence[RowMapping]:
    """Return a person's keys by name, from after `after`."""
    query = select(ssh_keys).where(ssh_keys.c.user_id == user_id)
    query = query if after is None else query.where(ssh_keys.c.name > after)
    return tx.all(query.order_by(ssh_keys.c.name).limit(limit))


def by_fingerprint(tx: Tx, user_id: str, fingerprint: str) -> RowMapping | None:
    return tx.one(select(ssh_keys).where(ssh_keys.c.user_id == user_id, ssh_keys.c.fingerprint == fingerprint))


def names(tx: Tx, user_id: str) -> set[str]:
    return {row["name"] for row in tx.all(select(ssh_keys.c.name).where(ssh_keys.c.user_id == user_id))}


def count(tx: Tx, user_id: str) -> int:
    return int(tx.scalar(select(func.count()).select_from(ssh_keys).where(ssh_keys.c.user_id == user_id)))


def add(tx: Tx, id: str, user_id: str, values: Mapping[str, str]) -> None:
    """Keep a key (`values`: name, public_key, fingerprint)."""
    tx.run(insert(ssh_keys).values(id=id, user_id=user_id, created_at=tx.now, **values))


def find(tx: Tx, user_id: str, named: Collection[str]) -> Sequence[RowMapping]:
    """Return a person's keys of these names, ids or fingerprints, and keep them from being removed meanwhile."""
    wanted = list(named)
    query = select(ssh_keys).where(
        ssh_keys.c.user_id == user_id,
        or_(ssh_keys.c.name.in_(wanted), ssh_keys.c.id.in_(wanted), ssh_keys.c.fingerprint.in_(wanted)),
    )
    return tx.all(query.order_by(ssh_keys.c.id).with_for_update(read=True))


def lock(tx: Tx, user_id: str, named: str) -> RowMapping | None:
    """Lock one key, by id, else by name, so that nobody attaches it meanwhile."""
    mine = select(ssh_keys).where(ssh_keys.c.user_id == user_id).with_for_update()
    return tx.one(mine.where(ssh_keys.c.id == named)) or tx.one(mine.where(ssh_keys.c.name == named))


def attached(tx: Tx, user_id: str, key_id: str) -> Sequence[RowMapping]:
    """Return `org_id` and `workload_id` of what a person's key (locked) is attached to, in any organisation."""
    return tx.all(
        select(workload_ssh_keys.c.org_id, workload_ssh_keys.c.workload_id)
        .join(ssh_keys, ssh_keys.c.id == workload_ssh_keys.c.key_id)
        .where(ssh_keys.c.user_id == user_id, workload_ssh_keys.c.key_id == key_id)
        .order_by(workload_ssh_keys.c.workload_id)
    )


def detach(tx: Tx, scope: Scope, workload_id: str, key_id: str) -> Sequence[str]:
    """Detach a key from one workload and number its live allocations anew; return their machines' ids."""
    tx.run(
        delete(workload_ssh_keys).where(
            workload_ssh_keys.c.org_id == scope.org,
            workload_ssh_keys.c.workload_id == workload_id,
            workload_ssh_keys.c.key_id == key_id,
        )
    )
    rows = tx.all(
        update(allocations)
        .where(
            allocations.c.org_id == scope.org,
            allocations.c.workload_id == workload_id,
            allocations.c.released_at.is_(None),
        )
        .values(generation=allocations.c.generation + 1)
        .returning(allocations.c.machine_id)
    )
    return [row["machine_id"] for row in rows]


def remove(tx: Tx, user_id: str, key_id: str) -> None:
    tx.run(delete(ssh_keys).where(ssh_keys.c.user_id == user_id, ssh_keys.c.id == key_id))
