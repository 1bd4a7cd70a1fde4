"""Opening sessions, epochs, clones, another incarnation (spec 40, "Joining"; design decisions 2 and 3)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from corral.domain.allocations import Report as AllocationSeen
from corral.domain.allocations import Seen
from corral.domain.errors import Refusal
from corral.domain.inventory import Condition
from corral.domain.machines import MachineState
from corral.domain.sessions import REMEMBERED, Hello, Opened, Report
from corral.store import fleet, journal
from corral.store import machines as machine_rows
from corral.store import sessions as session_rows
from corral.store.engine import Database
from corral.store.transaction import Row, Scope
from corral.usecases import reports, sessions
from tests import scripted_agent as scripted
from tests.conftest import Clock
from tests.live_server import agent_key, ensure_site
from tests.scripted_agent import Enrolled

HELLO = Hello(1, "1.0", "A", "boot", 1)
QUIET = Report("1.0", "", None, (), ())
STRAY = AllocationSeen("01900000-0000-7000-8000-000000000001", 1, Seen.RUNNING)


@pytest.fixture
def machine(db: Database) -> Enrolled:
    ensure_site(db)
    return scripted.enrol(db, scripted.tenancy(db), "m1")[0]


def hello(db: Database, machine: Enrolled, instance: str = "A", **changes: Any) -> Opened:
    with db.write() as tx:
        return sessions.open(tx, machine.key, replace(HELLO, instance=instance, **changes), "10.0.0.7")


def report(db: Database, session: Opened, said: Report = QUIET) -> reports.Processed:
    with db.write() as tx:
        return reports.receive(tx, session, said)


def row_of(db: Database, machine: Enrolled) -> Row:
    with db.read() as tx:
        row = machine_rows.get(tx, Scope(machine.ref.org_id), machine.ref.id)
    assert row is not None
    return row


def told(db: Database, machine: Enrolled, kind: str, view: str = "event") -> list[dict[str, Any]]:
    """The machine's journal entries of a type, oldest first."""
    with db.read() as tx:
        want = journal.Filter(view=view, types=[kind], machine=machine.ref.id)
        rows = journal.newest_first(tx, Scope(machine.ref.org_id), want, before=None, limit=100)
    return [row["data"] for row in reversed(rows)]


def test_an_unknown_key_opens_nothing(db: Database, machine: Enrolled) -> None:
    with pytest.raises(Refusal) as refused, db.read() as tx:
        sessions.authenticate(tx, agent_key())
    assert refused.value.code == "UNAUTHENTICATED"


def test_a_removed_machines_key_is_told_so_for_ever(db: Database, machine: Enrolled) -> None:
    session = hello(db, machine)
    with db.write() as tx:
        machine_rows.save(tx, machine.ref, {"removed_at": tx.now})
    for attempt in (lambda: hello(db, machine), lambda: report(db, session)):
        with pytest.raises(Refusal) as refused:
            attempt()
        assert refused.value.code == "MACHINE_REMOVED"


def test_an_agent_of_a_protocol_that_is_too_old_is_told_to_update(db: Database, machine: Enrolled) -> None:
    with pytest.raises(Refusal, match="Update the agent") as refused:
        hello(db, machine, protocol=0)
    assert refused.value.code == "PROTOCOL_TOO_OLD"
    assert row_of(db, machine)["session_epoch"] == 0


def test_only_the_newest_epochs_words_count(db: Database, machine: Enrolled) -> None:
    old, new = hello(db, machine), hello(db, machine)
    assert (old.epoch, new.epoch) == (1, 2)
    with pytest.raises(Refusal) as refused:
        report(db, old)
    assert refused.value.code == "CONFLICT"
    assert row_of(db, machine)["state"] == MachineState.IDLE.value
    report(db, new)
    assert row_of(db, machine)["state"] == MachineState.UP.value


def test_hello_and_report_keep_release_and_address(db: Database, machine: Enrolled) -> None:
    session = hello(db, machine)
    assert (row_of(db, machine)["release"], row_of(db, machine)["address"]) == ("1.0", "10.0.0.7")
    report(db, session, replace(QUIET, release="1.1"))
    assert row_of(db, machine)["release"] == "1.1"


# ---- clones


def test_a_b_a_is_a_clone_and_gets_no_new_work_until_an_admin_decides(db: Database, machine: Enrolled) -> None:
    hello(db, machine, "A")
    hello(db, machine, "B")
    assert row_of(db, machine)["quarantine"] is None
    with db.read() as tx:
        version = machine_rows.get(tx, Scope(machine.ref.org_id), machine.ref.id)["fleet_version"]  # type: ignore[index]
    hello(db, machine, "A")
    row = row_of(db, machine)
    assert row["quarantine"] == "clone"
    assert row["fleet_version"] > version  # placement looks again
    hello(db, machine, "B")
    report(db, hello(db, machine, "A"))
    assert row_of(db, machine)["quarantine"] == "clone"  # a quiet report decides nothing
    assert len(told(db, machine, "cluster.node.cloned")) == 1
    assert len(told(db, machine, "cluster.node.cloned", "audit")) == 1


def test_a_replaced_connection_and_a_restarted_agent_are_no_clones(db: Database, machine: Enrolled) -> None:
    for instance in ("A", "A", "B", "B", "C"):
        hello(db, machine, instance)
    assert row_of(db, machine)["quarantine"] is None


def test_after_an_admin_decided_the_copy_that_stays_is_not_suspected_again(db: Database, machine: Enrolled) -> None:
    for instance in ("A", "B", "A"):
        hello(db, machine, instance)
    with db.write() as tx:  # what releasing the quarantine does
        machine_rows.save(tx, machine.ref, {"quarantine": None, "quarantine_reason": None})
        session_rows.forget(tx, machine.ref)
    hello(db, machine, "B")
    assert row_of(db, machine)["quarantine"] is None
    hello(db, machine, "A")
    hello(db, machine, "B")
    assert row_of(db, machine)["quarantine"] == "clone"


def test_only_the_last_sessions_are_remembered(db: Database, machine: Enrolled) -> None:
    for n in range(REMEMBERED + 5):
        hello(db, machine, f"i{n}")
    with db.read() as tx:
        assert session_rows.instances(tx, machine.ref) == [f"i{n}" for n in range(5, REMEMBERED + 5)]


# ---- another incarnation, unknown work


def test_a_machine_of_another_incarnation_gets_no_new_work_until_its_work_is_known(
    db: Database, machine: Enrolled
) -> None:
    session = hello(db, machine, incarnation="of-before-the-restore")
    assert row_of(db, machine)["quarantine"] == "unknown_work"
    report(db, session)
    assert row_of(db, machine)["quarantine"] is None
    assert told(db, machine, "cluster.node.unknown_work")[-1]["cleared"]


def test_the_sites_own_incarnation_and_none_yet_are_fine(db: Database, machine: Enrolled) -> None:
    first = hello(db, machine, incarnation="")
    hello(db, machine, incarnation=first.incarnation)
    assert row_of(db, machine)["quarantine"] is None


def test_unknown_work_closes_the_machine_in_the_same_transaction(db: Database, machine: Enrolled) -> None:
    session = hello(db, machine)
    done = report(db, session, replace(QUIET, allocations=(STRAY,)))
    assert list(done.outcome.describe) == [STRAY.id]
    row = row_of(db, machine)
    assert (row["quarantine"], row["state"]) == ("unknown_work", "up")
    report(db, session, replace(QUIET, allocations=(STRAY,)))
    assert len(told(db, machine, "cluster.node.unknown_work")) == 1
    report(db, session)  # it is gone
    assert row_of(db, machine)["quarantine"] is None


def test_a_clone_with_unknown_work_stays_a_clone(db: Database, machine: Enrolled) -> None:
    for instance in ("A", "B", "A"):
        session = hello(db, machine, instance)
    report(db, session, replace(QUIET, allocations=(STRAY,)))
    assert row_of(db, machine)["quarantine"] == "clone"
    report(db, session)
    assert row_of(db, machine)["quarantine"] == "clone"


# ---- reports


def test_a_report_ends_idle_and_down_with_one_event_each(db: Database, machine: Enrolled) -> None:
    session = hello(db, machine)
    report(db, session)
    report(db, session)
    assert len(told(db, machine, "cluster.node.up")) == 1
    with db.write() as tx:
        fleet.touch(tx, Scope(machine.ref.org_id), machine.ref.cluster_id, [machine.ref.id])
        machine_rows.set_state(tx, machine.ref, [MachineState.UP], MachineState.DOWN)
    report(db, session)
    assert row_of(db, machine)["state"] == "up"
    assert len(told(db, machine, "cluster.node.up")) == 2


def test_a_blocking_condition_is_pressure_and_its_end_ends_it(db: Database, machine: Enrolled) -> None:
    session = hello(db, machine)
    full = Condition("disk_pressure", "the disk is full", True)
    report(db, session, replace(QUIET, conditions=(full,)))
    assert row_of(db, machine)["pressure"] == "disk_pressure: the disk is full"
    report(db, session)
    assert row_of(db, machine)["pressure"] == ""
    assert len(told(db, machine, "cluster.node.condition")) == 2


def test_fluttering_conditions_do_not_flood_the_journal(db: Database, machine: Enrolled, clock: Clock) -> None:
    session = hello(db, machine)
    full = Condition("disk_pressure", "the disk is full", True)
    for n in range(60):
        report(db, session, replace(QUIET, conditions=(full,) if n % 2 == 0 else ()))
    assert len(told(db, machine, "cluster.node.condition")) == 20
    assert row_of(db, machine)["pressure"] == ""
    clock.forward(61)
    report(db, session, replace(QUIET, conditions=(full,)))
    assert len(told(db, machine, "cluster.node.condition")) == 21


def test_what_a_site_placed_on_suspicion_ends_with_the_next_report(db: Database, machine: Enrolled) -> None:
    session = hello(db, machine)
    report(db, session)
    with db.write() as tx:
        machine_rows.save(tx, machine.ref, {"pressure": "silent"})
    report(db, session)
    assert row_of(db, machine)["pressure"] == ""
