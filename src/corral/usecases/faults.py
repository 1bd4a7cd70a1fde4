"""What people do with GPUs' faults: see them, clear them (spec 10, "GPU faults").

Clearing has three steps, so that no transaction is open while a machine is waited for: `to_clear` says what is
asked of which machine, the edge delivers that on the machine's session, `clear` stores the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from corral.domain.errors import Refusal, not_found
from corral.domain.faults import Acknowledged, Baseline, Health, cleared
from corral.domain.inventory import Gpu
from corral.domain.machines import MachineRef
from corral.store import faults as rows
from corral.store import fleet
from corral.store import inventory as gpu_rows
from corral.store import machines as machine_rows
from corral.store.faults import Wanted
from corral.store.transaction import Row, Scope, Tx
from corral.usecases import clusters, gpu_evidence, machines
from corral.usecases.context import Context


@dataclass(frozen=True)
class ToClear:
    """A GPU of a machine and its live latches; none: there is nothing to clear.

    `judged`: up to which line of its kernel (boot, number) had been judged; -1 = none.
    """

    machine: MachineRef
    gpu: Gpu
    latches: Sequence[Row]
    judged: tuple[str, int] = ("", -1)


@dataclass(frozen=True)
class Cleared:
    """What was cleared, and the latches that the machine's answer made anew."""

    what: ToClear
    still: Sequence[Row]


@dataclass(frozen=True)
class Answered:
    """What a machine acknowledged, in its session of this epoch, and what it had been asked."""

    asked: ToClear
    said: Acknowledged
    epoch: int

    @property
    def upto(self) -> int:
        """Up to this line of the answer's boot the machine had read when it answered.

        That is what it says, or what had been judged before it was asked: an agent that has just restarted has not read
        so far again, and one whose log cannot be read says -1.
        """
        boot, judged = self.asked.judged
        return max(self.said.seq, judged) if boot == self.said.boot else self.said.seq


def listed(ctx: Context, cluster: str, want: Wanted, after: str | None, limit: int) -> Sequence[Row]:
    """Return faults in a cluster, newest first. Errors: `NOT_FOUND`."""
    cluster_id = clusters.find(ctx, cluster)["cluster_id"]
    return rows.listed(ctx.tx, ctx.scope, cluster_id, want, after, limit)


def to_clear(ctx: Context, cluster: str, node: str, uuid: str) -> ToClear:
    """Return what is latched of a GPU. Errors: `NOT_FOUND` (the GPU too), `NODE_NOT_FOUND`."""
    row = machines.find(ctx, cluster, node)
    return replace(_at(ctx.tx, machine_rows.ref_of(row), uuid), judged=(row["kernel_boot"], int(row["kernel_seq"])))


def clear(ctx: Context, cluster: str, node: str, uuid: str, answered: Answered) -> Cleared:
    """Clear what is latched of a GPU, as its machine acknowledged. What it still has by that answer is latched anew.

    Somebody else who cleared it meanwhile is no error. Errors: as of `to_clear`; `CONFLICT` when the machine's
    session is not the one that answered any more.
    """
    ref = machine_rows.ref_of(machines.find(ctx, cluster, node))
    _touch(ctx, _at(ctx.tx, ref, uuid).gpu)
    row = machines.find(ctx, cluster, node)  # again, as it stands under the lock
    if row["session_epoch"] != answered.epoch:
        raise Refusal(
            "CONFLICT", "The machine has begun a new session since it answered. Nothing was changed: try again."
        )
    found = _at(ctx.tx, ref, uuid)
    if not found.latches:
        return Cleared(found, ())
    was = [one for one in found.latches if not _came_after(one, answered)]
    if was:
        parts = gpu_evidence.Gpus.read(ctx.tx, ref).parts(found.gpu)
        _save_baselines(ctx, row, parts, answered)
        _clear(ctx, ref, parts, answered)
        _judge_again(ctx.tx, row, parts, answered.said)
    return Cleared(replace(found, latches=was), _at(ctx.tx, ref, uuid).latches)


def _clear(ctx: Context, ref: MachineRef, parts: Sequence[Gpu], answered: Answered) -> None:
    """Clear what had not come after the answer, and tell of each part: of the one that was asked for as the act,
    of the others beside it. What stays is told again, for what was told is over."""
    latched = rows.live(ctx.tx, ctx.scope, [gpu.uuid for gpu in parts])
    for gpu in parts:
        of_it = latched.get((gpu.vendor, gpu.uuid), ())
        was = [one for one in of_it if not _came_after(one, answered)]
        if not was:
            continue
        rows.clear(ctx.tx, ctx.scope, [one["id"] for one in was], ctx.actor.name)
        kind = "cluster.node.gpu_fault_cleared" if gpu == parts[0] else "cluster.node.gpu_part_cleared"
        told = gpu_evidence.told_of(ref, gpu, [one["code"] for one in was])
        ctx.record(kind, ref.subject, **told, before=[_as_it_was(one) for one in was])
        gpu_evidence.tell(ctx.tx, ref, gpu, [one for one in of_it if one not in was])


def _at(tx: Tx, ref: MachineRef, uuid: str) -> ToClear:
    """Return the GPU of this UUID that the machine lists. Errors: `NOT_FOUND`."""
    kept = [row.kept.gpu for row in gpu_rows.of_machine(tx, ref) if row.kept.gpu.uuid == uuid and not row.kept.gone]
    if not kept:
        raise not_found()
    gpu = kept[0]
    return ToClear(ref, gpu, rows.live(tx, Scope(ref.org_id), [uuid]).get((gpu.vendor, uuid), ()))


def _touch(ctx: Context, gpu: Gpu) -> None:
    """Every machine that lists the GPU changes for placement; they may be of several clusters."""
    fleet.lock_org(ctx.tx, ctx.scope)
    listing = rows.machines_with(ctx.tx, ctx.scope, (gpu.vendor, gpu.uuid))
    for cluster_id in sorted({row["cluster_id"] for row in listing}):
        fleet.touch(ctx.tx, ctx.scope, cluster_id, [row["id"] for row in listing if row["cluster_id"] == cluster_id])


def _save_baselines(ctx: Context, row: Row, parts: Sequence[Gpu], answered: Answered) -> None:
    """Counters count from the answer. Of the kernel's lines only those that were judged are cleared: one that
    nobody has seen yet fences."""
    said = answered.said
    seq = min(int(row["kernel_seq"]), answered.upto) if row["kernel_boot"] == said.boot else -1
    known = rows.baselines(ctx.tx, ctx.scope, [gpu.uuid for gpu in parts])
    after = {}
    for gpu in parts:
        was = known.get((gpu.vendor, gpu.uuid))
        told = said.counters if gpu == parts[0] else None  # of its parts the machine says nothing
        counters = cleared(told, was.counters if was is not None else None)
        after[(gpu.vendor, gpu.uuid)] = Baseline(counters, said.boot, seq)
    rows.save_baselines(ctx.tx, ctx.scope, known, after)


def _judge_again(tx: Tx, row: Row, parts: Sequence[Gpu], said: Acknowledged) -> None:
    """Fence at once for what is still so: a reset that is due, links that are down, a GPU that is not there."""
    gpus = replace(gpu_evidence.Gpus.read(tx, machine_rows.ref_of(row)), here=parts)
    if row["inventory"].get("gpu_probe") == "ok":
        gpu_evidence.judge_missing(gpus)
    if said.counters is not None:
        gpu_evidence.judge_health(gpus, [Health(parts[0].vendor, parts[0].uuid, said.counters)])


def _came_after(latch: Row, answered: Answered) -> bool:
    """Whether the kernel said it again after the machine had answered: that is another fault."""
    return bool(latch["kernel_boot"] == answered.said.boot and latch["kernel_seq"] > answered.upto)


def _as_it_was(latch: Row) -> dict[str, object]:
    return {
        "code": latch["code"],
        "evidence": latch["evidence"],
        "since": latch["since"].isoformat(),
        "count": latch["count"],
    }
