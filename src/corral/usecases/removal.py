"""Removing a machine, and what becomes of its work (spec 10, "Remove a machine"; design decision 11).

Its row stays as a tombstone: its key is told `MACHINE_REMOVED` for ever, whenever it is heard of again, and then
it stops what still runs. So nothing runs twice for longer than its machine is out of reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from corral.domain.errors import Refusal
from corral.domain.machines import MachineRef, MachineState
from corral.domain.workloads import RestartPolicy, Signal, when_its_machine_is_lost
from corral.store import allocations
from corral.store import machines as rows
from corral.store.transaction import Row, Wake
from corral.usecases import machines, workload_life
from corral.usecases.context import Context
from corral.usecases.data_location import FORGOTTEN
from corral.usecases.machines import Affected, Running
from corral.usecases.workload_life import LOST, of_allocation


@dataclass(frozen=True)
class Removal:
    """What removing a machine does, or would do by force. Workloads as `workspace/name`."""

    machine: MachineRef
    state: MachineState
    affected: Affected
    placed_again: Sequence[str]
    lost: Sequence[str]

    @property
    def stopped(self) -> list[str]:
        """Everything that runs there; of a machine that is Down it may run until that is heard of again."""
        return [_named(work) for work in self.affected.running]


def preview(ctx: Context, cluster: str, name: str) -> Removal:
    """Return what removing a machine by force would do. Errors: `NOT_FOUND`, `NODE_NOT_FOUND`."""
    return _removal(ctx, machines.find(ctx, cluster, name))


def remove(ctx: Context, cluster: str, name: str, *, force: bool) -> Removal:
    """Remove a machine: its credential is dead for ever, its work is placed again elsewhere or ends as lost.

    Its drive copies are forgotten, not deleted. Errors: `NOT_FOUND`, `NODE_NOT_FOUND`, `NODE_IN_USE`.
    """
    row = machines.locked(ctx, cluster, name)
    told = _removal(ctx, row)
    if told.affected.running and not force:
        raise _in_use(told)
    for held in allocations.live_on(ctx.tx, ctx.scope, row["id"]):
        _lose(ctx, told.machine, held)
    generation = {"data_generation": row["data_generation"] + 1}
    rows.save(ctx.tx, told.machine, {"removed_at": ctx.now, **FORGOTTEN, **generation})
    outcome = {"stopped": told.stopped, "placed_again": list(told.placed_again), "lost": list(told.lost)}
    ctx.record("cluster.node.removed", told.machine.subject, name=name, forced=force, **outcome)
    ctx.wake(Wake.MACHINE_REMOVED, told.machine.id)
    return told


def _lose(ctx: Context, machine: MachineRef, held: Row) -> None:
    life = of_allocation(held)
    if _signal(ctx, held) is Signal.PLACE_AGAIN:
        workload_life.place_again(ctx.tx, life, held, ctx.actor, machine.name)
    else:
        workload_life.change(ctx.tx, life, Signal.LOST, ctx.actor, f"{LOST}: machine {machine.name} was removed")


def _signal(ctx: Context, held: Row) -> Signal:
    stop = held["stop_asked_at"] is not None
    policy = RestartPolicy(held["restart_policy"])
    return when_its_machine_is_lost(policy, stop_asked=stop, must_end_by=held["must_end_by"], now=ctx.now)


def _removal(ctx: Context, row: Row) -> Removal:
    ref = rows.ref_of(row)
    affected = machines.affected_by(ctx, row)
    names = {work.workload_id: _named(work) for work in affected.running}
    held = allocations.live_on(ctx.tx, ctx.scope, ref.id)
    again = {one["workload_id"] for one in held if _signal(ctx, one) is Signal.PLACE_AGAIN}
    lost = {one["workload_id"] for one in held} - again
    return Removal(ref, MachineState(row["state"]), affected, _of(names, again), _of(names, lost))


def _of(names: dict[str, str], ids: set[str]) -> list[str]:
    return sorted(names[id] for id in ids)


def _named(work: Running) -> str:
    return f"{work.workspace}/{work.name}"


def _in_use(told: Removal) -> Refusal:
    stopped, running = told.stopped, told.affected.running
    more = f" and {len(stopped) - 10} more" if len(stopped) > 10 else ""
    return Refusal(
        "NODE_IN_USE",
        f"Work runs on '{told.machine.name}': {', '.join(stopped[:10])}{more}. Wait for it or end it first; or remove "
        "the machine with force: then that work stops, and is placed again elsewhere or ends as lost, as its restart "
        "policy says.",
        running=[{"workspace": work.workspace, "name": work.name, "kind": work.kind} for work in running],
    )
