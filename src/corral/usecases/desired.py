"""What a machine should run, derived from its allocations (design decision 1).

Whoever changes that raises the allocation's generation and wakes the machine; nothing is sent
as a command, so nothing can be lost or replayed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from corral.domain.allocations import Desired
from corral.domain.machines import MachineRef
from corral.domain.resources import Resources
from corral.store import allocations as rows
from corral.store import fleet
from corral.store.transaction import Row, Scope, Tx, Wake


def for_machine(tx: Tx, machine: MachineRef) -> list[Desired]:
    """Return every live allocation of a machine, those told to stop too, and what lingers there (to be stopped)."""
    scope = Scope(machine.org_id)
    found = [*rows.live_on(tx, scope, machine.id), *rows.lingering_on(tx, scope, machine.id)]
    gpus = rows.held_gpus(tx, scope, [row["id"] for row in found])
    keys = rows.usable_keys(tx, scope, [row["workload_id"] for row in found])
    return [
        _desired(row, [gpu["uuid"] for gpu in gpus[row["id"]]], keys.get(row["workload_id"], []), tx.now)
        for row in found
    ]


def wake_user(tx: Tx, scope: Scope, user_id: str) -> None:
    """A user's right to connect may have changed: their keys and open streams are judged again.

    For every change of a membership, role or workspace membership in this organisation. Locks its tenancies:
    reports and the clock write the same allocations, in orders of their own.
    """
    fleet.lock_org(tx, scope)
    _renew(tx, scope, rows.live_with_keys_of(tx, scope, user_id))
    tx.wake(Wake.STREAMS, user_id)


def _renew(tx: Tx, scope: Scope, live: Sequence[Row]) -> None:
    rows.next_generation(tx, scope, [row["id"] for row in live])
    for machine_id in sorted({row["machine_id"] for row in live}):
        tx.wake(Wake.DESIRED, machine_id)


def _desired(row: Row, gpus: Sequence[str], keys: Sequence[str], now: datetime) -> Desired:
    return Desired(
        id=row["id"],
        generation=row["generation"],
        stop=row["stop_asked_at"] is not None or row["lingers_since"] is not None,
        kind=row["kind"],
        org=row["org_id"],
        workspace=row["workspace_id"],
        workload=row["workload_id"],
        name=row["name"],
        image=row["image"],
        gpus=tuple(gpus),
        resources=Resources(row["gpus"], row["vcpu"], row["ram_mib"], row["storage_mib"]),
        authorized_keys=tuple(keys),
        seconds_left=_seconds_left(row["must_end_by"], now),
        drives=tuple(row["ask"].get("drives", ())),
    )


def _seconds_left(must_end_by: datetime | None, now: datetime) -> int | None:
    """Rounded up: a machine never ends work before its time."""
    return None if must_end_by is None else max(0, math.ceil((must_end_by - now).total_seconds()))
