"""Work that a machine runs and this site does not know: it gets no new work until that is decided (design decision 2).

It becomes known (`adoption`), it ends, or an admin accepts it: then it goes on, and its GPUs stay
unassignable for as long as it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from corral.domain.allocations import Outcome, Report, legible
from corral.domain.inventory import MAX_GPUS
from corral.domain.machines import MachineRef, Quarantine
from corral.store import fleet
from corral.store import inventory as gpu_rows
from corral.store import machines as machine_rows
from corral.store.transaction import Row, Scope, Tx
from corral.usecases import sessions


def accepted(row: Row) -> frozenset[str]:
    """Return the allocations that an admin lets run on the machine of this row."""
    return frozenset(id for id, is_accepted in _ids(row).items() if is_accepted)


def note(tx: Tx, machine: MachineRef, row: Row, seen: Sequence[Report], outcome: Outcome) -> None:
    """Keep what a report says of unknown work; close the machine, or open it again by itself.

    `row` is the machine's as `sessions.current` gave it.
    """
    strange = sorted({*outcome.unknown, *outcome.ahead})
    before = accepted(row)
    claimed = {legible(uuid, 96) for report in seen if report.id in outcome.unknown for uuid in report.gpus}
    now = {id: id in before for id in strange}
    if strange or row["unknown_work"]:
        _keep(tx, machine, row, {"ids": now, "gpus": sorted(claimed)[:MAX_GPUS]} if strange else {})
    if not all(now.values()):
        sessions.quarantine(tx, machine, Quarantine.UNKNOWN_WORK, _why(outcome, before))
        if outcome.newer:
            machine_rows.save(tx, machine, {"behind": True})
    elif row["quarantine"] == Quarantine.UNKNOWN_WORK.value:
        sessions.lift_unknown_work(tx, machine)
    if row["behind"] and all(now.values()):
        fleet.touch(tx, Scope(machine.org_id), machine.cluster_id, [machine.id])
        machine_rows.save(tx, machine, {"behind": False})


def accept(tx: Tx, machine: MachineRef, row: Row) -> int:
    """Let run what is unknown now; return how much that is. Other unknown work closes the machine anew."""
    ids = _ids(row)
    if ids:
        machine_rows.save(tx, machine, {"unknown_work": {**row["unknown_work"], "ids": dict.fromkeys(ids, True)}})
    return len(ids)


def held_gpus(row: Row) -> frozenset[str]:
    """Return the UUIDs that unknown work on the machine of this row claims."""
    return frozenset(row["unknown_work"].get("gpus", ()))


def _ids(row: Row) -> Mapping[str, bool]:
    ids: Mapping[str, bool] = row["unknown_work"].get("ids", {})
    return ids


def _keep(tx: Tx, machine: MachineRef, row: Row, now: Mapping[str, Any]) -> None:
    if now == row["unknown_work"]:
        return
    gpus = frozenset(now.get("gpus", ()))
    if gpus != held_gpus(row):
        fleet.touch(tx, Scope(machine.org_id), machine.cluster_id, [machine.id])
        gpu_rows.hold_for_unknown(tx, machine, gpus)
    machine_rows.save(tx, machine, {"unknown_work": now})


def _why(outcome: Outcome, accepted: frozenset[str]) -> str:
    unknown = len(set(outcome.unknown) - accepted)
    if not unknown:
        return "It claims to have been told what this site cannot have said. An admin has to look at the machine."
    return (
        f"It runs {unknown} allocation{'s' if unknown > 1 else ''} that this site does not know. "
        "They go on; what cannot be adopted has to be ended on the machine, or be accepted by releasing the quarantine."
    )
