"""What machines say of their GPUs' health, judged (spec 10, "GPU faults"): a fault is latched, people are told.

What runs on the GPU goes on. All of it happens in the transaction of a report, under the tenancy's lock.
What people do with a fault: `faults.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from corral.domain import inventory as inventory_rules
from corral.domain import kernel_lines
from corral.domain.allocations import legible
from corral.domain.events import Entry
from corral.domain.faults import (
    MAX_EVIDENCE,
    MISSING,
    TOLD_MOST,
    TOLD_WITHIN,
    Baseline,
    Counters,
    Fault,
    Health,
    by_counters,
    judged,
    meaning,
    same_cause,
)
from corral.domain.inventory import STAND_IN, Gpu, GpuState
from corral.domain.kernel_lines import Place, Said, Verdict, place
from corral.domain.machines import MachineRef
from corral.domain.sessions import Report
from corral.store import faults as rows
from corral.store import fleet
from corral.store import inventory as gpu_rows
from corral.store import machines as machine_rows
from corral.store.faults import Identity
from corral.store.quieted import caused
from corral.store.transaction import Actor, Row, Scope, Tx
from corral.usecases.context import new_id


@dataclass
class Gpus:
    """A machine's GPUs, with their live latches: code -> id."""

    tx: Tx
    machine: MachineRef
    here: Sequence[Gpu]
    latches: dict[Identity, dict[str, str]] = field(default_factory=dict)
    touched: bool = False

    @classmethod
    def read(cls, tx: Tx, machine: MachineRef) -> Gpus:
        here = [row.kept.gpu for row in gpu_rows.of_machine(tx, machine) if not row.kept.gone]
        return cls(tx, machine, here, _codes(rows.live_on(tx, machine)))

    def at(self, where: Place | None) -> list[Gpu]:
        """Return the GPU in a slot, and the parts of it that are listed on their own: its fault fences all."""
        return [gpu for gpu in self.here if where is not None and place(gpu.slot) == where]

    def parts(self, gpu: Gpu) -> list[Gpu]:
        """Return a GPU, first, and the parts of it that are listed on their own."""
        return [gpu, *(one for one in self.at(place(gpu.slot)) if one != gpu)]

    def fault(self, gpu: Gpu, fault: Fault) -> None:
        """Latch a fault of a GPU, or count it to the latch that has the same cause."""
        if gpu.uuid.startswith(STAND_IN):
            return  # it has no identity that a latch could be kept by, and is never assigned
        latched = self.latches.setdefault(_identity(gpu), {})
        known = same_cause(fault.code, latched)
        if known is not None:
            if fault.times:
                rows.repeat(self.tx, self._scope, latched[known], fault)
            return
        self._touch(gpu)
        latched[fault.code] = id = new_id(self.tx.now)
        rows.latch(self.tx, id, self.machine, _identity(gpu), fault)
        tell(self.tx, self.machine, gpu, [{"code": fault.code, "evidence": fault.evidence}])
        self._tell_holders(gpu, fault)

    def _tell_holders(self, gpu: Gpu, fault: Fault) -> None:
        """Tell those whose work runs on it, in their workspace: it goes on, and they decide."""
        for work in rows.held_by(self.tx, self.machine, _identity(gpu)):
            subject = replace(self.machine.subject, workspace=work["workspace_id"], workload=work["id"])
            told = told_of(self.machine, gpu, [fault.code])
            data = {**told, "name": work["name"], "machine": self.machine.name}
            self.tx.record(Entry("workload.gpu_fault", subject, data), itself(self.machine))

    @property
    def _scope(self) -> Scope:
        return Scope(self.machine.org_id)

    def _touch(self, gpu: Gpu) -> None:
        """Other machines of the cluster may list it too: it was moved, or two claim one identity.

        Another cluster's tenancy cannot be locked now, out of order: placement asks the database again about the
        GPUs that it gives (`placement_rows.check_not_fenced`).
        """
        listing = rows.machines_with(self.tx, self._scope, _identity(gpu))
        beside = [row["id"] for row in listing if row["cluster_id"] == self.machine.cluster_id]
        if not self.touched or beside != [self.machine.id]:
            fleet.touch(self.tx, self._scope, self.machine.cluster_id, {self.machine.id, *beside})
            self.touched = True


def tell(tx: Tx, machine: MachineRef, gpu: Gpu, latches: Iterable[Mapping[str, Any] | Row]) -> None:
    """Tell people that a GPU is fenced, and for what."""
    for latch in latches:
        data = {**told_of(machine, gpu, [latch["code"]]), "evidence": latch["evidence"]}
        tx.record(Entry("cluster.node.gpu_fault", machine.subject, data), itself(machine))


def told_of(machine: MachineRef, gpu: Gpu, codes: Sequence[str]) -> dict[str, Any]:
    """Return what an event about a GPU's faults says."""
    code, reason = ", ".join(codes), ", ".join(meaning(code) for code in codes)
    return {"name": machine.name, "gpu": gpu.uuid, "model": gpu.model, "code": code, "reason": reason}


def itself(machine: MachineRef) -> Actor:
    return Actor("machine", machine.id, machine.name)


def _identity(gpu: Gpu) -> Identity:
    return gpu.vendor, gpu.uuid


def _codes(latches: Mapping[Identity, Sequence[Row]]) -> dict[Identity, dict[str, str]]:
    return {identity: {row["code"]: row["id"] for row in of_it} for identity, of_it in latches.items()}


@dataclass(frozen=True)
class Judged:
    """Up to which of the kernel's lines of the boot was judged before, and is now; -1 = none."""

    before: int = -1
    seen: int = -1


def judge(tx: Tx, machine: MachineRef, row: Row, report: Report) -> Judged:
    """Judge what a report says of its machine's GPUs. `row`: the machine as it was before the report.

    A line tells more than the counter that goes with it, and is judged first. But which GPU it is about is told
    by its slot: where the site lacks the inventory lines wait, and come again.
    """
    inventory = report.inventory
    if inventory is None or inventory.digest == row["inventory_digest"]:
        lacking = inventory is None and row["inventory_digest"] != report.digest
        return _judge_lines(tx, machine, row, report.boot_id, () if lacking else report.kernel_lines)
    inventory = inventory_rules.fitted(inventory)
    _follow(tx, machine)
    judged_lines = _judge_lines(tx, machine, row, report.boot_id, report.kernel_lines)
    gpus = Gpus.read(tx, machine)
    if inventory.facts.get("gpu_probe") == "ok":
        # Only a driver that works can miss a GPU: without one nothing is known of any of them.
        judge_missing(gpus)
        judge_health(gpus, inventory.health)
    else:
        judge_health(gpus, [one for one in inventory.health if not one.counters.silent])
    return judged_lines


# --- the inventory


def judge_missing(gpus: Gpus) -> None:
    """Latch the GPUs that their machine misses; one that another machine of the organisation has was moved."""
    missing = [gpu for gpu in gpus.here if gpu.state is GpuState.MISSING]
    moved = rows.elsewhere(gpus.tx, gpus.machine, [gpu.uuid for gpu in missing]) if missing else set()
    for gpu in missing:
        if _identity(gpu) not in moved:
            gpus.fault(gpu, Fault(MISSING, legible(gpu.detail, 300), times=0))


def judge_health(gpus: Gpus, health: Iterable[Health]) -> None:
    """Judge counters, and keep them as what the next are measured against."""
    told = {(one.vendor, one.uuid): one.counters for one in health}
    here = {_identity(gpu): gpu for gpu in gpus.here if not gpu.uuid.startswith(STAND_IN)}
    known = [identity for identity in told if identity in here]
    before = rows.baselines(gpus.tx, Scope(gpus.machine.org_id), [uuid for _, uuid in known])
    after: dict[Identity, Baseline] = {}
    for identity in known:
        was = before.get(identity)
        counters = was.counters if was is not None else None
        for fault in by_counters(told[identity], counters):
            for one in gpus.parts(here[identity]):
                gpus.fault(one, fault)
        after[identity] = replace(was or Baseline(Counters()), counters=judged(told[identity], counters))
    changed = {identity: baseline for identity, baseline in after.items() if baseline != before.get(identity)}
    rows.save_baselines(gpus.tx, Scope(gpus.machine.org_id), before, changed)


def _follow(tx: Tx, machine: MachineRef) -> None:
    """A latch goes where its GPU goes. People are told of a faulty GPU that another has replaced, and of one that is
    listed again or on another machine: then it is fenced there.

    Of one machine only so often. Where its leaving is not told it is not kept either: it is as if it were there.
    """
    kept = {_identity(row.kept.gpu): row.kept for row in gpu_rows.of_machine(tx, machine)}
    moves = _Moves(tx, machine)
    for identity, latches in rows.live_on(tx, machine).items():
        gpu, gone = kept[identity].gpu, kept[identity].gone
        if gone:
            moves.left(gpu, [row for row in latches if row["machine_id"] == machine.id and row["replaced_at"] is None])
        elif gpu.state is not GpuState.MISSING:
            moves.came(gpu, [row for row in latches if row["machine_id"] != machine.id or row["replaced_at"]])


@dataclass
class _Moves:
    """What is told of one machine's faulty GPUs that leave and come."""

    tx: Tx
    machine: MachineRef
    _told: dict[str, int] = field(default_factory=dict)
    """How many entries of a type there are of the last minutes."""

    def left(self, gpu: Gpu, latches: Sequence[Row]) -> None:
        kind = "cluster.node.gpu_fault_cleared"
        if latches and self._may(kind):
            self._tell(kind, gpu, latches, {"replaced": True})
            rows.replaced(self.tx, Scope(self.machine.org_id), [row["id"] for row in latches])

    def came(self, gpu: Gpu, latches: Sequence[Row]) -> None:
        kind = "cluster.node.gpu_fault"
        # What was over, people must hear of. What moves between machines that are there they know: so not endlessly.
        over = any(row["left"] or row["replaced_at"] for row in latches)
        if latches and (over or self._may(kind)):
            self._tell(kind, gpu, latches, {"evidence": latches[0]["evidence"], "returned": True})
        if latches:
            rows.came(self.tx, self.machine, [row["id"] for row in latches])

    def _may(self, kind: str) -> bool:
        if kind not in self._told:
            self._told[kind] = caused(self.tx, self.machine, kind, TOLD_WITHIN)
        return self._told[kind] < TOLD_MOST

    def _tell(self, kind: str, gpu: Gpu, latches: Sequence[Row], more: Mapping[str, Any]) -> None:
        self._told[kind] = self._told.get(kind, 0) + 1
        data = {**told_of(self.machine, gpu, [row["code"] for row in latches]), **more}
        self.tx.record(Entry(kind, self.machine.subject, data), itself(self.machine))


# --- the kernel's log


def _judge_lines(tx: Tx, machine: MachineRef, row: Row, boot: str, lines: Sequence[tuple[int, str]]) -> Judged:
    """Judge those of a boot's lines that were not judged yet; their numbers grow.

    Up to where is kept on the machine's row, so a line counts once, whoever restarts.
    """
    seen = int(row["kernel_seq"]) if row["kernel_boot"] == boot else -1
    fresh = [(seq, text) for seq, text in lines if seq > seen]
    if not fresh:
        return Judged(seen, seen)
    gpus = Gpus.read(tx, machine)
    cleared = rows.baselines(tx, Scope(machine.org_id), [gpu.uuid for gpu in gpus.here])
    read = [(seq, found, text) for seq, text in fresh if (found := kernel_lines.read(text)) is not None]
    _judge_faults(gpus, [one for one in read if one[1].verdict is Verdict.FENCE], boot, cleared)
    _tell_events(gpus, [found for _, found, _ in read])
    last = fresh[-1][0]
    machine_rows.save(tx, machine, {"kernel_boot": boot, "kernel_seq": last})
    return Judged(seen, last)


def _judge_faults(
    gpus: Gpus, read: Sequence[tuple[int, Said, str]], boot: str, cleared: Mapping[Identity, Baseline]
) -> None:
    """Latch what the lines say; lines that repeat one another are one write."""
    found: dict[tuple[Identity, str], tuple[Gpu, Fault]] = {}
    for seq, said, text in read:
        for gpu in gpus.at(place(said.slot)):
            baseline = cleared.get(_identity(gpu))
            if baseline is not None and baseline.covers(boot, seq):
                continue
            key = (_identity(gpu), said.code)
            _, before = found.get(key, (gpu, Fault(said.code, legible(text, MAX_EVIDENCE), 0, boot)))
            found[key] = (gpu, replace(before, times=before.times + 1, seq=seq))
    for gpu, fault in found.values():
        gpus.fault(gpu, fault)


def _tell_events(gpus: Gpus, read: Sequence[Said]) -> None:
    """Tell of what fences nothing, the same once; the journal limits what a machine can cause.

    Also of a fault in a slot whose GPU this machine never named: there is nothing to fence.
    """
    for said, times in Counter(read).items():
        at = [] if said.of_switch else gpus.at(place(said.slot))
        if said.verdict is Verdict.NOTHING or (said.verdict is Verdict.FENCE and at):
            continue
        data = {
            "name": gpus.machine.name,
            "gpu": at[0].uuid if at else "",
            "model": at[0].model if at else "",
            "code": said.code,
            "reason": said.meaning,
            "slot": said.slot,
            "process": legible(said.process, 60),
            "look": said.verdict is not Verdict.EVENT,
            "times": times,
        }
        gpus.tx.record(Entry("cluster.node.gpu_event", gpus.machine.subject, data), itself(gpus.machine))
