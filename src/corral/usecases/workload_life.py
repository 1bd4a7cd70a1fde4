"""A workload's life goes on: every change of state in one place, with its event (spec 20; design decision 4).

All of these need the tenancy's row locked (`store.fleet.lock` or `touch`) before. What releases
an allocation touches the fleet itself: capacity is free from then on.

`tick` is the clock's part: time limits, and what differs for too long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from corral.domain.events import Entry, Subject
from corral.domain.workloads import ENDED, OUT_OF_SYNC_AFTER, Signal, State, Step, on, time_left_s
from corral.store import allocations, fleet, workloads
from corral.store.transaction import SITE, Actor, Row, Scope, Tx, Wake

TIME_LIMIT = "time limit over"
LOST = "lost"

_EVENT = {
    State.PROVISIONING: "workload.step",
    State.ACTIVE: "workload.active",
    State.OUT_OF_SYNC: "workload.out_of_sync",
    State.TERMINATED: "workload.terminated",
    State.FAILED: "workload.failed",
}


@dataclass(frozen=True)
class Life:
    """Which workload, where it stands, and its live allocation (None while it waits)."""

    workload_id: str
    org_id: str
    cluster_id: str
    workspace_id: str
    name: str
    state: State
    allocation_id: str | None = None
    machine_id: str | None = None

    @property
    def scope(self) -> Scope:
        return Scope(self.org_id)

    @property
    def subject(self) -> Subject:
        return Subject(self.org_id, self.cluster_id, self.workspace_id, self.machine_id, self.workload_id)


def of_allocation(row: Row) -> Life:
    """Make it from a row of `store.allocations.live_on` or the like."""
    return Life(
        row["workload_id"],
        row["org_id"],
        row["cluster_id"],
        row["workspace_id"],
        row["name"],
        State(row["state"]),
        row.get("allocation_id", row.get("id")),
        row["machine_id"],
    )


def change(tx: Tx, life: Life, signal: Signal, by: Actor = SITE, reason: str = "") -> None:
    """Move a workload on by `signal`, and record that; an end frees what it holds."""
    after = on(life.state, signal)
    values: dict[str, object] = {"state": after.value, "state_since": tx.now, "reason": reason}
    if after is not State.PROVISIONING:
        values |= {"step": ""}
    if after is not State.OUT_OF_SYNC:
        values |= {"wanted": "", "seen": ""}
    if after in ENDED:
        found = workloads.end(tx, life.scope, life.cluster_id, life.workload_id, **values)
    else:
        found = workloads.save(tx, life.scope, life.workload_id, **values)
    if found == 0:
        return  # it ended meanwhile
    if after in ENDED:
        _give_back(tx, life, signal)
    data = {"name": life.name, "before": life.state.value, "after": after.value}
    tx.record(Entry(_EVENT[after], life.subject, {**data, "reason": reason} if reason else data), by)


def _give_back(tx: Tx, life: Life, signal: Signal) -> None:
    fleet.touch(tx, life.scope, life.cluster_id, [life.machine_id] if life.machine_id else [])
    if life.allocation_id is not None:
        how = {Signal.LOST: "lost", Signal.PLACE_AGAIN: "lost", Signal.COULD_NOT_START: "failed"}.get(
            signal, "confirmed"
        )
        allocations.release(tx, life.scope, [life.allocation_id], how)
    tx.wake(Wake.STREAMS, life.workload_id)


def place_again(tx: Tx, life: Life, row: Row, by: Actor, lost: str) -> None:
    """Its machine, called `lost`, was removed: let it wait for another one. `row`: its live allocation's.

    It keeps its place by age and what is left of its time limit, and asks no more for a machine that is gone.
    What its container had stored does not move.
    """
    after = on(life.state, Signal.PLACE_AGAIN)
    reason = f"machine {lost} was removed; it waits to be placed again"
    waits = {"state": after.value, "state_since": tx.now, "step": Step.WAITING.value, "step_since": tx.now}
    ask = {**row["ask"], "machine": None} if row["ask"]["machine"] == lost else row["ask"]
    left = time_left_s(row["must_end_by"], tx.now)
    values = {**waits, "reason": reason, "wanted": "", "seen": "", "ask": ask, "must_end_by": None, "time_left_s": left}
    if workloads.requeue(tx, life.scope, life.cluster_id, life.workload_id, **values):
        _give_back(tx, life, Signal.PLACE_AGAIN)
        data = {"name": life.name, "before": life.state.value, "after": after.value, "machine": lost, "reason": reason}
        tx.record(Entry("workload.placed_again", life.subject, data), by)


def ask_stop(tx: Tx, life: Life, by: Actor, reason: str) -> None:
    """Tell it to stop. What only waits ends at once; else its machine has to say that it is gone."""
    kept = {"stop_asked_at": tx.now, "stop_reason": reason}
    workloads.save(tx, life.scope, life.workload_id, **kept)
    tx.record(Entry("workload.stop_asked", life.subject, {"name": life.name, "reason": reason}), by)
    if life.allocation_id is None or life.machine_id is None:
        change(tx, life, Signal.CANCELLED, by, reason)
        return
    allocations.next_generation(tx, life.scope, [life.allocation_id], stop_asked_at=tx.now)
    tx.wake(Wake.DESIRED, life.machine_id)
    tx.wake(Wake.STREAMS, life.workload_id)


@dataclass(frozen=True)
class Due:
    """What time alone made due, of all tenants."""

    overdue: Sequence[Row]
    differing: Sequence[Row]
    matching: Sequence[Row]

    def __bool__(self) -> bool:
        return bool(self.overdue or self.differing or self.matching)

    @property
    def tenancies(self) -> set[tuple[str, str]]:
        return {(row["cluster_id"], row["org_id"]) for row in (*self.overdue, *self.differing, *self.matching)}


def due(tx: Tx) -> Due:
    since = tx.now - OUT_OF_SYNC_AFTER
    return Due(workloads.overdue(tx), workloads.differing_since(tx, since), workloads.matching_again(tx))


def tick(tx: Tx) -> None:
    """Tell what is past its limit to stop, and say what is, or no longer is, Out of Sync."""
    tenancies = due(tx).tenancies
    for cluster_id, org_id in sorted(tenancies, key=lambda one: fleet.lock_order(one[1], one[0])):
        fleet.lock(tx, Scope(org_id), cluster_id)
    again = due(tx)  # under the locks
    for row in _of(again.overdue, tenancies):
        ask_stop(tx, of_allocation(row), SITE, TIME_LIMIT)
    for row in _of(again.differing, tenancies):
        _out_of_sync(tx, row)
    for row in _of(again.matching, tenancies):
        change(tx, of_allocation(row), Signal.MATCHES)


def _of(rows: Sequence[Row], tenancies: set[tuple[str, str]]) -> list[Row]:
    return [row for row in rows if (row["cluster_id"], row["org_id"]) in tenancies]


def _out_of_sync(tx: Tx, row: Row) -> None:
    """Say what is wanted and what is seen; of a machine that is Down nothing is seen."""
    machine = row["machine_name"]
    if row["machine_state"] == "down":
        wanted = "stopped and removed" if row["stop_asked_at"] else f"running on {machine}"
        seen = f"{machine} is down since {row['machine_state_since']:%Y-%m-%d %H:%M:%S} UTC"
    elif row["stop_asked_at"] is not None:
        wanted, seen = "stopped and removed", row["seen"] or f"should be gone from {machine} and is not yet"
    else:
        wanted, seen = row["wanted"], row["seen"]
    workloads.save(tx, Scope(row["org_id"]), row["workload_id"], wanted=wanted, seen=seen)
    change(tx, of_allocation(row), Signal.MISMATCH, reason=f"{wanted} was asked, {seen}")
