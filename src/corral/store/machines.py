"""Rows of machines: what placement, sessions and people ask of them. GPUs are in `store/gpus.py`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import RowMapping, exists, func, insert, select, update

from corral.domain.machines import MachineRef, MachineState
from corral.store.tables.machines import liveness, machines
from corral.store.transaction import Scope, Tx


def ref_of(row: RowMapping) -> MachineRef:
    """Return which machine a row of `machines` is."""
    return MachineRef(row["id"], row["org_id"], row["cluster_id"], row["name"])


def get(tx: Tx, scope: Scope, id: str) -> RowMapping | None:
    """Return a machine by its id, removed ones too, with `last_seen` (None: never heard)."""
    return tx.one(_with_last_seen().where(machines.c.org_id == scope.org, machines.c.id == id))


def by_name(tx: Tx, scope: Scope, cluster_id: str, name: str) -> RowMapping | None:
    """Return the enrolled machine of that name, with `last_seen`."""
    return tx.one(
        _with_last_seen().where(
            machines.c.org_id == scope.org,
            machines.c.cluster_id == cluster_id,
            machines.c.name == name,
            machines.c.removed_at.is_(None),
        )
    )


def by_key(tx: Tx, key_hash: bytes) -> RowMapping | None:
    """Return whose credential this is; a removed machine's tombstone too (`removed_at` is set then)."""
    return tx.one(select(machines).where(machines.c.key_hash == key_hash))


def names(tx: Tx, scope: Scope, cluster_id: str, base: str) -> set[str]:
    """Return the enrolled machines' names that are `base` or begin with `base-`."""
    rows = tx.all(
        select(machines.c.name).where(
            machines.c.org_id == scope.org,
            machines.c.cluster_id == cluster_id,
            machines.c.removed_at.is_(None),
            (machines.c.name == base) | machines.c.name.startswith(f"{base}-", autoescape=True),
        )
    )
    return {row["name"] for row in rows}


def enrolled(tx: Tx, scope: Scope, cluster_id: str) -> int:
    """Return how many machines of the organisation are enrolled in the cluster."""
    query = select(func.count()).where(
        machines.c.org_id == scope.org, machines.c.cluster_id == cluster_id, machines.c.removed_at.is_(None)
    )
    return int(tx.scalar(query))


def add(tx: Tx, ref: MachineRef, key_hash: bytes, values: Mapping[str, Any]) -> None:
    """Enrol a machine; `values` are its labels, host name, address and release. It is Idle and has nothing yet."""
    tx.run(
        insert(machines).values(
            id=ref.id,
            org_id=ref.org_id,
            cluster_id=ref.cluster_id,
            name=ref.name,
            key_hash=key_hash,
            state=MachineState.IDLE.value,
            state_since=tx.now,
            inventory={},
            conditions=[],
            joined_at=tx.now,
            **values,
        )
    )


def set_state(
    tx: Tx, ref: MachineRef, was: Collection[MachineState], to: MachineState, *, unseen_since: datetime | None = None
) -> bool:
    """Change the state of a machine that is in one of `was`; return whether it was.

    With `unseen_since` only if nothing was heard of it after that moment: liveness reads
    last-seen again in the same statement, so a report that comes between wins.
    """
    terms = [
        machines.c.id == ref.id,
        machines.c.org_id == ref.org_id,
        machines.c.removed_at.is_(None),
        machines.c.state.in_([state.value for state in was]),
    ]
    if unseen_since is not None:
        heard = exists().where(liveness.c.machine_id == machines.c.id, liveness.c.last_seen > unseen_since)
        terms.append(~heard)
    return tx.run(update(machines).where(*terms).values(state=to.value, state_since=tx.now)) == 1


def save(tx: Tx, ref: MachineRef, values: Mapping[str, Any]) -> None:
    """Write columns of an enrolled machine. What placement judges by needs `fleet.touch` first."""
    tx.run(update(machines).where(machines.c.id == ref.id, machines.c.org_id == ref.org_id).values(**values))


@dataclass(frozen=True)
class Wanted:
    """Which machines to list. `pools` None = every pool."""

    state: MachineState | None = None
    pools: Collection[str] | None = None


def listed(tx: Tx, scope: Scope, cluster_id: str, want: Wanted, after: str | None, limit: int) -> Sequence[RowMapping]:
    """Return enrolled machines by name, from after `after`, with `last_seen`."""
    query = (
        _with_last_seen()
        .where(machines.c.org_id == scope.org, machines.c.cluster_id == cluster_id, machines.c.removed_at.is_(None))
        .order_by(machines.c.name)
        .limit(limit)
    )
    if want.state is not None:
        query = query.where(machines.c.state == want.state.value)
    if want.pools is not None:
        query = query.where(machines.c.pool.in_(list(want.pools)))
    return tx.all(query if after is None else query.where(machines.c.name > after))


def _with_last_seen() -> Any:
    return select(machines, liveness.c.last_seen).outerjoin(liveness, liveness.c.machine_id == machines.c.id)
