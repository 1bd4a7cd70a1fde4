"""Marking silent machines Down (spec 10, "Machine states"; design decision 4).

Each change is a conditional update that reads last-seen again, under the tenancy's lock, so a
report that comes between wins. Only a report ends Down.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime

from corral.domain.events import Entry, Subject
from corral.domain.liveness import SUSPECT_PRESSURE
from corral.domain.machines import DOWN_AFTER, MachineRef, MachineState
from corral.store import fleet
from corral.store import machines as machine_rows
from corral.store import sessions as rows
from corral.store.transaction import SITE, Scope, Tx

StillSilent = Callable[[str], bool]
"""Asked inside the transaction: was the machine still not heard, by the process that hears it?"""


def flush(tx: Tx, seen: Mapping[str, datetime]) -> None:
    """Write down when machines were last heard."""
    rows.flush(tx, seen)


def roll_call(tx: Tx) -> Sequence[MachineRef]:
    """Return every machine that counts as Up."""
    return rows.up(tx)


def mark_down(tx: Tx, silent: Sequence[MachineRef], still_silent: StillSilent) -> Sequence[MachineRef]:
    """Mark machines of one tenancy Down that are still silent; return those that went Down."""
    first = silent[0]
    fleet.lock(tx, Scope(first.org_id), first.cluster_id)
    unseen_since = tx.now - DOWN_AFTER
    went = [
        machine
        for machine in silent
        if still_silent(machine.id)
        and machine_rows.set_state(tx, machine, [MachineState.UP], MachineState.DOWN, unseen_since=unseen_since)
    ]
    if went:
        fleet.touch(tx, Scope(first.org_id), first.cluster_id, [machine.id for machine in went])
    for machine in went:
        tx.record(Entry("cluster.node.down", machine.subject, {"name": machine.name}), SITE)
    return went


def close(tx: Tx, silent: Sequence[MachineRef], still_silent: StillSilent) -> None:
    """Place nothing on machines of one tenancy that are silent while the site suspects itself.

    The next report of each writes its pressure anew.
    """
    first = silent[0]
    fleet.lock(tx, Scope(first.org_id), first.cluster_id)
    held = [machine for machine in silent if still_silent(machine.id)]
    if not held:
        return
    fleet.touch(tx, Scope(first.org_id), first.cluster_id, [machine.id for machine in held])
    for machine in held:
        machine_rows.save(tx, machine, {"pressure": SUSPECT_PRESSURE})


def suspect(tx: Tx, silent: Collection[str], up: int) -> None:
    """Record that the site suspects itself."""
    tx.record(Entry("site.suspected", Subject(), {"silent": len(silent), "up": up}), SITE)
