"""Opening a machine's session (spec 40, "Joining"; design decisions 2 and 3).

The machine's secret only opens sessions; each hello raises the machine's epoch. A copied
state folder, and a machine that worked for another incarnation of the site, get no new work.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from corral.domain import sessions as rules
from corral.domain.allocations import Desired
from corral.domain.errors import Refusal
from corral.domain.events import Entry
from corral.domain.machines import MachineRef, Quarantine
from corral.domain.secrets import hashed
from corral.domain.sessions import Hello, Opened
from corral.store import fleet
from corral.store import machines as machine_rows
from corral.store import sessions as rows
from corral.store.transaction import Actor, Row, Scope, Tx, Wake
from corral.usecases import desired as desired_work

OLDEST_PROTOCOL = 1
_KEY = re.compile(r"[0-9a-f]{64}")

SUPERSEDED = "Another session of this machine said hello later; this one's words no longer count."


def authenticate(tx: Tx, key: str) -> Opened:
    """Return whose key this is, with the epoch of its newest session. Errors: `UNAUTHENTICATED`, `MACHINE_REMOVED`."""
    if not _KEY.fullmatch(key):
        raise _unknown()
    row = rows.by_key(tx, hashed(key))
    if row is None:
        raise _unknown()
    if row["removed_at"] is not None:
        raise removed()
    return _opened(
        MachineRef(row["id"], row["org_id"], row["cluster_id"], row["name"]), row["session_epoch"], row["incarnation"]
    )


def open(tx: Tx, key: str, hello: Hello, address: str) -> Opened:
    """Begin a session: every older one of the machine is over from here.

    Errors: `UNAUTHENTICATED`, `MACHINE_REMOVED`, `PROTOCOL_TOO_OLD`.
    """
    known = authenticate(tx, key)
    if hello.protocol < OLDEST_PROTOCOL:
        raise Refusal(
            "PROTOCOL_TOO_OLD",
            f"The agent speaks protocol {hello.protocol}; this control plane needs {OLDEST_PROTOCOL} or newer. "
            "Update the agent.",
        )
    machine = known.machine
    fleet.lock(tx, Scope(machine.org_id), machine.cluster_id)
    before = rows.instances(tx, machine)
    epoch = rows.raise_epoch(tx, machine, hello.release, address)
    if epoch is None:
        raise removed()
    rows.remember(tx, machine, epoch, hello)
    if len(before) >= rules.REMEMBERED:
        rows.forget_older(tx, machine, epoch - rules.REMEMBERED)
    if rules.is_clone(before, hello.instance):
        quarantine(tx, machine, Quarantine.CLONE, "Two copies of this machine's state report in turn.", address)
    elif hello.incarnation not in ("", known.incarnation):
        reason = "It last worked for another state of this site: a back-up was restored since."
        quarantine(tx, machine, Quarantine.UNKNOWN_WORK, reason, address)
        machine_rows.save(tx, machine, {"behind": True})
    return _opened(machine, epoch, known.incarnation)


def current(tx: Tx, session: Opened) -> Row:
    """Lock the session's machine, after its tenancy, and return its row: all that an agent writes begins here.

    Errors: `MACHINE_REMOVED`; `CONFLICT` when a newer session said hello.
    """
    machine = session.machine
    fleet.lock(tx, Scope(machine.org_id), machine.cluster_id)
    row = rows.locked(tx, machine)
    if row is None:
        raise _unknown()
    if row["removed_at"] is not None:
        raise removed()
    if row["session_epoch"] != session.epoch:
        raise Refusal("CONFLICT", SUPERSEDED)
    return row


def told(tx: Tx, session: Opened, running_here: Collection[str]) -> Sequence[Desired]:
    """Return what this session is told to converge to. `running_here`: allocations that it reports as running.

    Only once its first report was taken in: what this site knows may be older than what runs there.
    """
    row = rows.standing(tx, session.machine)
    if row is None or row["removed_at"] is not None:
        return ()
    wanted = desired_work.for_machine(tx, session.machine)
    return [want for want in wanted if rules.may_be_told(want, row["quarantine"] is not None, running_here)]


def quarantine(tx: Tx, machine: MachineRef, why: Quarantine, reason: str, address: str = "") -> None:
    """Keep new work off a machine until it is decided. A clone outweighs unknown work; the same again says nothing."""
    row = rows.locked(tx, machine)
    if row is None or row["quarantine"] in (why.value, Quarantine.CLONE.value):
        return
    fleet.touch(tx, Scope(machine.org_id), machine.cluster_id, [machine.id])
    machine_rows.save(tx, machine, {"quarantine": why.value, "quarantine_reason": reason[:300]})
    kind = "cluster.node.cloned" if why is Quarantine.CLONE else "cluster.node.unknown_work"
    tx.record(Entry(kind, machine.subject, {"name": machine.name, "reason": reason[:300]}), actor(machine, address))


def lift_unknown_work(tx: Tx, machine: MachineRef) -> None:
    """Let new work onto a machine again, all of whose work this site knows now."""
    fleet.touch(tx, Scope(machine.org_id), machine.cluster_id, [machine.id])
    machine_rows.save(tx, machine, {"quarantine": None, "quarantine_reason": None})
    data = {"name": machine.name, "reason": "All that runs there is known again.", "cleared": True}
    tx.record(Entry("cluster.node.unknown_work", machine.subject, data), actor(machine))
    tx.wake(Wake.DESIRED, machine.id)


def actor(machine: MachineRef, address: str = "") -> Actor:
    """The machine as the doer of what its words cause."""
    return Actor("machine", machine.id, machine.name, address)


def removed() -> Refusal:
    return Refusal(
        "MACHINE_REMOVED", "This machine was removed. Stop its work; a new install command makes it a new machine."
    )


def _unknown() -> Refusal:
    return Refusal("UNAUTHENTICATED", "No machine has this key. What runs goes on; the agent tries again later.")


def _opened(machine: MachineRef, epoch: int, incarnation: str) -> Opened:
    return Opened(machine.id, machine.org_id, machine.cluster_id, machine.name, epoch, incarnation)
