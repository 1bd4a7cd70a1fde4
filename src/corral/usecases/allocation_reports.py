"""What a machine says of its allocations, compared with what was asked (spec 20 states; design decision 1).

Level-triggered: any report may be the first that is heard, or come twice. The session's epoch
was checked before. A report that changes nothing writes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from corral.domain.allocations import (
    LOG_LINES_KEPT,
    Held,
    Outcome,
    Report,
    Seen,
    Verdict,
    bounded,
    is_plausible,
    judge,
    legible,
)
from corral.domain.events import Entry
from corral.domain.machines import MachineRef
from corral.domain.workloads import Signal, State, Step
from corral.store import allocations, fleet, workloads
from corral.store.transaction import Actor, Row, Scope, Tx, Wake
from corral.usecases import workload_life
from corral.usecases.workload_life import TIME_LIMIT, Life, of_allocation

TEXT_LIMIT = 2_000
TAIL_LIMIT = 64 * 1024
KEY_LIMIT = 1_000

_STEPS = frozenset(step.value for step in Step)


@dataclass(frozen=True)
class Beside:
    """What is known of a machine beside its report."""

    behind: bool = False
    """This site's database is older than what the machine knows."""
    accepted: Collection[str] = ()
    """Allocations that an admin lets run there though this site does not know them."""
    unreadable: Collection[str] = ()
    """Allocations that the report speaks of, but not so that it can be read: nothing is concluded of them."""


def apply(tx: Tx, machine: MachineRef, seen: Sequence[Report], beside: Beside = Beside()) -> Outcome:
    """Take in what a machine reports of everything of Corral's on it; return what to tell it.

    The tenancy is locked already (`sessions.current`).
    """
    scope, reports = Scope(machine.org_id), {report.id: report for report in seen}
    live = {row["id"]: row for row in allocations.live_on(tx, scope, machine.id)}
    others = reports.keys() - live.keys()
    ended = {row["id"]: row for row in allocations.by_ids(tx, scope, machine.id, others)}
    unknown = others - ended.keys()
    site = _Site(tx.now, beside.behind or not unknown <= set(beside.accepted))
    gpus = allocations.held_gpus(tx, scope, live)
    for id, row in live.items():
        if id in beside.unreadable:
            continue
        if _news(row, reports.get(id), gpus[id], site):
            _take_in(tx, machine, row, reports.get(id), gpus[id], site)
    _lingering(tx, machine, ended, reports)
    known = reports.keys() & live.keys()
    now_released = {row["id"] for row in allocations.by_ids(tx, scope, machine.id, known) if row["released_at"]}
    return Outcome(
        log_seen=_store_log(tx, scope, [reports[id] for id in sorted(known)]),
        describe=sorted(unknown - set(beside.accepted)),
        forget=sorted(id for id in (*ended, *now_released) if reports[id].state in (Seen.GONE, Seen.FAILED)),
        unknown=sorted(unknown),
        ahead=sorted(id for id in known if not is_plausible(live[id]["generation"], reports[id].generation)),
        newer=sorted(id for id in known if _is_ahead(live[id], reports[id])),
    )


# ---- one allocation


@dataclass(frozen=True)
class _Site:
    """What the site knows beside the rows: the time, and whether they are behind what the machine knows."""

    now: datetime
    behind: bool


def _held(row: Row, gpus: Sequence[Row], site: _Site) -> Held:
    return Held(
        generation=row["generation"],
        stop_asked=row["stop_asked_at"] is not None,
        overdue=row["must_end_by"] is not None and row["must_end_by"] <= site.now,
        provisioning=row["ran_at"] is None,
        ever_seen=row["seen_state"] != "",
        behind=site.behind,
        gpus=[gpu["uuid"] for gpu in gpus],
    )


def _columns(report: Report) -> dict[str, Any]:
    """What is kept of a report, beside what is judged from it."""
    return {
        "seen_state": report.state.value,
        "seen_message": legible(report.message, TEXT_LIMIT),
        "seen_gpus": [legible(uuid, 96) for uuid in report.gpus[:64]],
        "oom_kills": bounded(report.oom_kills),
        "restarts": bounded(report.restarts),
        "exit_code": None if report.exit_code is None else bounded(report.exit_code),
        **({"host_key": legible(report.host_key, KEY_LIMIT)} if report.host_key else {}),
        **({"log_tail": legible(report.log_tail[-TAIL_LIMIT:], TAIL_LIMIT)} if report.log_tail else {}),
    }


def _news(row: Row, report: Report | None, gpus: Sequence[Row], site: _Site) -> bool:
    """Whether this report changes anything of this allocation."""
    verdict = judge(_held(row, gpus, site), report).verdict
    if verdict in (Verdict.ENDED, Verdict.FAILED):
        return True
    if (verdict is Verdict.DIFFERS) != (row["mismatch_since"] is not None):
        return True
    if verdict is Verdict.MATCHES and row["state"] != State.ACTIVE.value:
        return True
    if report is None:
        return False
    return (
        any(row[name] != value for name, value in _columns(report).items())
        or _step(row, report) not in ("", row["step"])
        or _prepares_again(row, verdict)
        or _is_ahead(row, report)
    )


def _is_ahead(row: Row, report: Report) -> bool:
    """Whether the machine knows of something newer: this database was restored."""
    return report.generation > row["generation"] and is_plausible(row["generation"], report.generation)


def _prepares_again(row: Row, verdict: Verdict) -> bool:
    """Whether it became Out of Sync before it ever ran (its machine was Down), and goes on now."""
    goes_on = verdict is Verdict.CONVERGING and row["ran_at"] is None and row["stop_asked_at"] is None
    return goes_on and row["state"] == State.OUT_OF_SYNC.value


def _step(row: Row, report: Report) -> str:
    provisioning = row["ran_at"] is None and row["stop_asked_at"] is None
    return report.step if provisioning and report.state is Seen.PREPARING and report.step in _STEPS else ""


def _take_in(tx: Tx, machine: MachineRef, row: Row, report: Report | None, gpus: Sequence[Row], site: _Site) -> None:
    scope, life = Scope(machine.org_id), of_allocation(row)
    by = Actor("machine", machine.id, machine.name)
    judgement = judge(_held(row, gpus, site), report)
    values = _columns(report) if report is not None else {}
    if report is not None:
        _tell(tx, life, row, report, by)
        if _is_ahead(row, report):
            # What is asked now must be newer than what the machine knows.
            values["generation"] = report.generation + 1
            tx.wake(Wake.DESIRED, machine.id)
    if judgement.verdict is Verdict.DIFFERS:
        values["mismatch_since"] = row["mismatch_since"] or tx.now
        workloads.save(tx, scope, life.workload_id, wanted=judgement.wanted, seen=legible(judgement.seen, TEXT_LIMIT))
    else:
        values["mismatch_since"] = None
        if row["mismatch_since"] is not None and life.state is not State.OUT_OF_SYNC:
            # Over before it was Out of Sync: no change of state will clear what was said of it.
            workloads.save(tx, scope, life.workload_id, wanted="", seen="")
    if judgement.verdict is Verdict.MATCHES and row["ran_at"] is None:
        values["ran_at"] = tx.now
    allocations.save(tx, scope, row["id"], **values)
    change = _change(tx, life, row, report, judgement.verdict)
    if change is not None:
        workload_life.change(tx, life, change[0], by, change[1])


def _change(tx: Tx, life: Life, row: Row, report: Report | None, verdict: Verdict) -> tuple[Signal, str] | None:
    """Return what the verdict does to the workload, and why."""
    if verdict is Verdict.MATCHES and life.state is not State.ACTIVE:
        return Signal.RUNNING, ""
    if report is not None and _prepares_again(row, verdict):
        return Signal.PREPARING, ""
    if verdict is Verdict.ENDED:
        over = row["must_end_by"] is not None and row["must_end_by"] <= tx.now
        why = row["stop_reason"] or (TIME_LIMIT if over else "ended before this site's back-up was restored")
        return Signal.CONFIRMED_GONE, why
    if verdict is Verdict.FAILED and report is not None:
        return Signal.COULD_NOT_START, legible(report.message, TEXT_LIMIT) or "its machine could not start it"
    return None


def _tell(tx: Tx, life: Life, row: Row, report: Report, by: Actor) -> None:
    """Record what people want to know of: steps, out-of-memory kills, restarts."""
    step = _step(row, report)
    if step and step != row["step"]:
        workloads.save(tx, life.scope, life.workload_id, step=step, step_since=tx.now)
        tx.record(Entry("workload.step", life.subject, {"name": life.name, "step": step}), by)
    kills = bounded(report.oom_kills)
    if kills > row["oom_kills"]:
        reason = f"out of memory: {kills - row['oom_kills']} killed at its limit of {row['ram_mib']} MiB"
        tx.record(Entry("workload.oom", life.subject, {"name": life.name, "kills": kills, "reason": reason}), by)
    if bounded(report.restarts) > row["restarts"]:
        data = {"name": life.name, "restarts": bounded(report.restarts)}
        tx.record(Entry("workload.restarted", life.subject, data), by)


# ---- what ended here and does not end there; logs


def _lingering(tx: Tx, machine: MachineRef, ended: Mapping[str, Row], reports: Mapping[str, Report]) -> None:
    """An allocation that was released here but runs there is told to stop; its GPUs wait for that."""
    scope, touched = Scope(machine.org_id), False
    for id, row in ended.items():
        runs = reports[id].state not in (Seen.GONE, Seen.FAILED)
        if runs == (row["lingers_since"] is not None):
            continue
        if not touched:
            fleet.touch(tx, scope, machine.cluster_id, [machine.id])
            touched = True
        if runs:
            said = reports[id].generation if is_plausible(row["generation"], reports[id].generation) else 0
            allocations.save(tx, scope, id, lingers_since=tx.now, generation=max(row["generation"], said) + 1)
            tx.wake(Wake.DESIRED, machine.id)
        else:
            allocations.save(tx, scope, id, lingers_since=None)


def _store_log(tx: Tx, scope: Scope, reports: Sequence[Report]) -> dict[str, int]:
    """Keep each provisioning log line once; return per allocation the last that need not be sent again."""
    talking = [report for report in reports if report.log]
    ends = allocations.log_ends(tx, scope, [report.id for report in talking])
    confirmed: dict[str, int] = {}
    lines = []
    for report in talking:
        end = ends.get(report.id, 0)
        fresh = {n: text for n, text in report.log if end < n <= LOG_LINES_KEPT}
        lines += [
            {"allocation_id": report.id, "n": n, "text": legible(text, TEXT_LIMIT), "at": tx.now}
            for n, text in sorted(fresh.items())
        ]
        confirmed[report.id] = bounded(max(end, *(n for n, _ in report.log)))
    allocations.add_log(tx, lines)
    return confirmed
