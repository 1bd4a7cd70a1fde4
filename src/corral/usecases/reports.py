"""A machine's report (spec 40, "Reporting"): saved and recorded in one transaction.

Runs only for a report that says something new: one that repeats the last costs no database
(design decision 8). The edge sees to that.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from corral.domain.allocations import Desired, Outcome
from corral.domain.machines import MachineState, Quarantine
from corral.domain.sessions import Opened, Report
from corral.store import machines as machine_rows
from corral.store.transaction import Tx
from corral.usecases import (
    adoption,
    allocation_reports,
    data_location,
    gpu_evidence,
    machines,
    sessions,
    unknown_work,
    updates,
)


@dataclass(frozen=True)
class Processed:
    """What a report came to."""

    outcome: Outcome
    need_inventory: bool
    """The site does not have the inventory that the report's digest stands for."""
    quarantined: bool = False
    """The machine was in quarantine when this report came."""
    kernel: gpu_evidence.Judged = field(default_factory=gpu_evidence.Judged)
    """Of the kernel's lines of the report's boot."""


def receive(tx: Tx, session: Opened, report: Report) -> Processed:
    """Take a machine's newest report in. Errors: `MACHINE_REMOVED`, `CONFLICT` (a newer session said hello)."""
    row = sessions.current(tx, session)
    machine = session.machine
    if row["state"] != MachineState.UP.value:
        machines.set_state(tx, machine, MachineState.UP)
    if report.conditions or row["conditions"] or row["pressure"]:
        machines.judge_conditions(tx, machine, report.conditions)
    if row["release"] != report.release:
        machine_rows.save(tx, machine, {"release": report.release})
    if report.inventory is not None and report.inventory.digest != row["inventory_digest"]:
        machines.judge_inventory(tx, machine, report.inventory)
    kernel = gpu_evidence.judge(tx, machine, row, report)
    if report.data_location is not None:
        data_location.judge(tx, machine, row, report.data_location)
    updates.judge(tx, machine, row, report.release, report.update)
    behind = row["quarantine"] == Quarantine.UNKNOWN_WORK.value
    beside = allocation_reports.Beside(behind, unknown_work.accepted(row), report.unreadable)
    outcome = allocation_reports.apply(tx, machine, report.allocations, beside)
    unknown_work.note(tx, machine, row, report.allocations, outcome)
    lacking = report.inventory is None and row["inventory_digest"] != report.digest
    return Processed(outcome, need_inventory=lacking, quarantined=row["quarantine"] is not None, kernel=kernel)


def described(tx: Tx, session: Opened, works: Sequence[Desired], asked: Collection[str]) -> None:
    """Take in what a machine was once told to run and this site does not know: a restored database.

    `asked`: what this session was asked to describe; nothing else is taken. What is unambiguous is adopted;
    the rest keeps the machine in quarantine: all that this site never knew, unless it is behind. Nothing is
    stopped. Errors: as of `receive`.
    """
    row = sessions.current(tx, session)
    if row["quarantine"] == Quarantine.UNKNOWN_WORK.value:
        described = [work for work in works if work.id in asked]
        adoption.adopt(tx, session.machine, described, behind=row["behind"])
