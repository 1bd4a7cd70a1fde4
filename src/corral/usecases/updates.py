"""One machine's update (spec 10, "Update agents"): asked by name, told on its session, judged by its reports.

Level-triggered: a machine that is asked is told on each session until it has answered, so an ask outlives every
restart, and one that is Down is told when it comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from corral.domain import updates as rules
from corral.domain.allocations import legible
from corral.domain.events import Entry
from corral.domain.machines import MachineRef
from corral.domain.sessions import Opened
from corral.domain.updates import Ask, Said, State
from corral.store import fleet
from corral.store import machines as machine_rows
from corral.store import updates as rows
from corral.store.transaction import SITE, Actor, Row, Scope, Tx, Wake
from corral.usecases import machines
from corral.usecases.context import Context
from corral.usecases.machines import Machine, Running

_DONE = {"update_release": None, "update_state": "", "update_message": "", "update_since": None}


@dataclass(frozen=True)
class Asked:
    machine: Machine
    already: bool
    """Its agent is of the release already: nothing was asked."""


@dataclass(frozen=True)
class Preview:
    """What an update of one machine would do. `before` and `after` are releases; `running` goes on."""

    name: str
    before: str
    after: str
    running: Sequence[Running]


def preview(ctx: Context, cluster: str, name: str, served: str) -> Preview:
    """Say what `ask` would do; changes nothing. Errors: `NOT_FOUND`, `NODE_NOT_FOUND`."""
    row = machines.find(ctx, cluster, name)
    return Preview(row["name"], row["release"], served, machines.running(ctx, machine_rows.ref_of(row)))


def ask(ctx: Context, cluster: str, name: str, served: str) -> Asked:
    """Ask a machine to be of the release that the site serves, also one that could not before.

    Asked already: it stays as it is. Errors: `NOT_FOUND`, `NODE_NOT_FOUND`.
    """
    fleet.lock(ctx.tx, ctx.scope, machines.find(ctx, cluster, name)["cluster_id"])
    row = machines.find(ctx, cluster, name)
    under_way = row["update_state"] in (State.ASKED.value, State.RUNNING.value)
    already = not rules.is_behind(row["release"], served) and not under_way
    if not already and not (under_way and row["update_release"] == served):
        tell(ctx.tx, row, served, ctx.actor)
    return Asked(machines.again(ctx, row), already)


def tell(tx: Tx, row: Row, release: str, by: Actor) -> None:
    """Ask the machine of this row, whose tenancy is locked, to be of a release."""
    machine = machine_rows.ref_of(row)
    values = {
        "update_ask": row["update_ask"] + 1,
        "update_release": release,
        "update_before": row["release"],
        "update_state": State.ASKED.value,
        "update_message": "",
        "update_since": tx.now,
    }
    machine_rows.save(tx, machine, values)
    _record(tx, machine, "asked", (row["release"], release), "", by)
    tx.wake(Wake.DESIRED, machine.id)


def told(tx: Tx, session: Opened, served: str) -> Ask | None:
    """Return what a session's machine is asked for (None: nothing, or what the site does not serve)."""
    row = rows.asked_of(tx, Scope(session.org_id), session.machine_id)
    if row is None or row["update_state"] not in (State.ASKED.value, State.RUNNING.value):
        return None
    return Ask(row["update_ask"], served) if row["update_release"] == served else None


def judge(tx: Tx, machine: MachineRef, row: Row, release: str, said: Said | None) -> None:
    """Take in what a report says of the machine's update. `row`: its row, locked; `release`: its agent's now."""
    wanted, known = row["update_release"], row["update_state"]
    mine = said is not None and said.ask == row["update_ask"]
    if wanted is None:
        return
    message = legible(said.message, 300) if said is not None else ""
    if release == wanted and not (said is not None and mine and said.state is State.RUNNING):
        machine_rows.save(tx, machine, _DONE)
        _record(tx, machine, "done", (row["update_before"], release), "", _itself(machine))
    elif said is not None and mine and said.state is State.FAILED:
        fail(tx, machine, row, message, _itself(machine))
    elif said is not None and mine and known in (State.ASKED.value, State.RUNNING.value):
        if (known, row["update_message"]) != (said.state.value, message):
            machine_rows.save(tx, machine, {"update_state": said.state.value, "update_message": message})
    elif known == State.FAILED.value and release not in (row["update_before"], wanted):
        machine_rows.save(tx, machine, _DONE)  # somebody put another release on


def fail(tx: Tx, machine: MachineRef, row: Row, why: str, by: Actor = SITE) -> None:
    """Record that a machine's update failed; that it still has is no news. Its tenancy is locked."""
    why = why[:300]
    if row["update_state"] != State.FAILED.value:
        _record(tx, machine, "failed", (row["update_before"], row["update_release"]), why, by)
    elif row["update_message"] == why:
        return
    machine_rows.save(tx, machine, {"update_state": State.FAILED.value, "update_message": why})


def settle(tx: Tx, found: Row, why: str) -> None:
    """Record a failure that the machine itself does not tell, if its update stands as it was found."""
    machine = machine_rows.ref_of(found)
    fleet.lock(tx, Scope(machine.org_id), machine.cluster_id)
    row = machine_rows.get(tx, Scope(machine.org_id), machine.id)
    keys = ("update_ask", "update_state", "state", "state_since", "removed_at")
    if row is not None and all(row[key] == found[key] for key in keys):
        fail(tx, machine, row, why)


def _record(tx: Tx, machine: MachineRef, state: str, releases: tuple[str, str], reason: str, by: Actor) -> None:
    before, after = releases
    data = {"name": machine.name, "state": state, "before": before, "after": after, "reason": reason}
    tx.record(Entry("cluster.node.upgrade", machine.subject, data), by)


def _itself(machine: MachineRef) -> Actor:
    return Actor("machine", machine.id, machine.name)
