"""What waits for capacity goes on, first come first served; and what would happen to a hypothetical ask (spec 30).

A waiting workload holds back those after it only on machines that it could use itself, and its
workspace's quota only for its own workspace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from corral.domain import compute_clusters as rules
from corral.domain import placement as choose
from corral.domain import quotas
from corral.domain.asks import Ahead, Plan
from corral.domain.compute_clusters import Creation
from corral.domain.events import Subject
from corral.domain.placement import Answer
from corral.domain.workloads import Step, must_end_by
from corral.store import allocations, fleet, workloads
from corral.store.transaction import SITE, Scope, Tx, Wake
from corral.usecases.context import Context
from corral.usecases.fleets import Fleets, Line, Tenancy, Waiting
from corral.usecases.placement import cluster_of, no_access, record_placed, selected
from corral.usecases.placement_rows import allocation_row, check_not_fenced, hold_rows


@dataclass(frozen=True)
class Queue:
    """Where something waits, at the tenancy's `version`."""

    org_id: str
    cluster_id: str
    version: int


def waiting_in(tx: Tx) -> list[Queue]:
    """Return where something waits."""
    return [Queue(row["org_id"], row["cluster_id"], row["version"]) for row in workloads.tenancies_with_queue(tx)]


def all_that_waits(tx: Tx) -> frozenset[str]:
    """Return the ids of all workloads of the site that wait."""
    return workloads.all_queued(tx)


def advance(tx: Tx, fleets: Fleets, org_id: str, cluster_id: str) -> None:
    """Place what can be placed now.

    Raises when the transaction must not commit; `fleets` is then to be forgotten.
    """
    tenancy = fleets.locked(tx, Scope(org_id), cluster_id)
    line, ahead, placed = Line(tenancy, tx), Ahead(), []
    for waiting in tuple(tenancy.queue):
        want, _ = line.turn(waiting)
        plan = choose.try_place(tenancy.fleet, want, ahead) if want is not None else None
        if want is not None and plan is not None:
            tenancy.go_on(waiting, want, plan)
            placed.append((waiting, plan))
            continue
        line.stays(waiting)
        if want is not None:
            ahead.add(want)
    if placed:
        _save(tx, tenancy, placed)


def reasons(tx: Tx, fleets: Fleets, org_id: str, cluster_id: str) -> tuple[int, list[tuple[Waiting, str]]]:
    """Return the version judged by, and of what waits whose reason changed, why it waits now. Nothing is locked.

    The version is -1 when some of it is held for what no version counts: it is to be tried again.
    """
    tenancy = fleets.seen(tx, Scope(org_id), cluster_id)
    line, ahead, changed = Line(tenancy, tx), Ahead(), []
    for waiting in tenancy.queue:
        want, why = line.turn(waiting)
        if want is not None and choose.try_place(tenancy.fleet, want, ahead) is None:
            why = choose.why_it_waits(tenancy.fleet, want, ahead)
        if why and why != waiting.reason:  # one that could go on now does so soon
            changed.append((waiting, why))
        line.stays(waiting)
        if want is not None:
            ahead.add(want)
    return -1 if line.spent or tenancy.beginning.holds(tx, tenancy) else tenancy.version, changed


def say(tx: Tx, org_id: str, changed: Sequence[tuple[Waiting, str]]) -> None:
    """Write down why things wait."""
    for waiting, reason in changed:
        workloads.save(tx, Scope(org_id), waiting.id, reason=reason)
        waiting.reason = reason


def _save(tx: Tx, tenancy: Tenancy, placed: Sequence[tuple[Waiting, Plan]]) -> None:
    machines = sorted({plan.machine_id for _, plan in placed})
    check_not_fenced(tx, [plan for _, plan in placed])
    held, holds, now = [], [], {}
    for waiting, plan in placed:
        limit = must_end_by(tx.now, waiting.time_limit_s)
        now[waiting.id] = {"reason": "", "must_end_by": limit, "step": Step.PLACED.value, "step_since": tx.now}
        place = {"org_id": tenancy.scope.org, "cluster_id": tenancy.cluster_id, "workspace_id": waiting.workspace_id}
        row = allocation_row(tx, {**place, "id": waiting.id, "must_end_by": limit}, plan)
        held.append(row)
        holds += hold_rows(row, plan)
        subject = Subject(tenancy.scope.org, tenancy.cluster_id, waiting.workspace_id, None, waiting.id)
        record_placed(tx, subject, waiting.name, plan, SITE)
    workloads.unqueue(tx, tenancy.scope, tenancy.cluster_id, now)
    allocations.insert_many(tx, held, holds)
    tenancy.version = fleet.touch(tx, tenancy.scope, tenancy.cluster_id, machines)
    for id in machines:
        tx.wake(Wake.DESIRED, id)


@dataclass(frozen=True)
class Explanation:
    """`machine`: where it would go now (None: nowhere). `quota`: why the quota holds it back ("" = it does not)."""

    machine: str | None
    quota: str
    answers: Sequence[Answer]


def explain(ctx: Context, fleets: Fleets, creation: Creation) -> Explanation:
    """Say which machines would take the ask now, and why each other one would not. Nothing is changed.

    Errors: as of creating.
    """
    rules.check(creation)
    tenancy = fleets.seen(ctx.tx, ctx.scope, cluster_of(ctx, creation.cluster)["cluster_id"])
    grant = tenancy.grant(ctx.tx, ctx.workspace.id)
    if grant is None:
        raise no_access(ctx)
    want, ahead = selected(ctx, tenancy, creation, grant), tenancy.ahead(ctx.tx)
    within, over = tenancy.judged(ctx.tx, want)
    plan = choose.try_place(tenancy.fleet, within, ahead) if over is None else None
    answers = choose.explain(tenancy.fleet, within if over is None else want, ahead)
    if plan is None and over is None and within != want:
        over = tenancy.kept_out(ctx.tx, want, ahead)
    return Explanation(plan.machine if plan else None, quotas.explain(over) if over else "", answers)
