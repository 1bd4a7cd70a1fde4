"""What waits for capacity goes on, first come first served; and what would happen to a hypothetical ask (spec 30).

A waiting workload holds back those after it only on machines that it could use itself, and its
workspace's quota only for its own workspace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from corral.domain import compute_clusters as rules
from corral.domain import placement as choose
from corral.domain import quotas
from corral.domain.compute_clusters import Creation
from corral.domain.events import Subject
from corral.domain.fleet import Ahead, Plan
from corral.domain.placement import Answer
from corral.domain.workloads import Step, must_end_by
from corral.store import allocations, fleet, workloads
from corral.store.transaction import SITE, Scope, Tx, Wake
from corral.usecases.context import Context
from corral.usecases.fleets import Fleets, Tenancy, Waiting, refresh
from corral.usecases.placement import (
    ahead_of,
    allocation_row,
    cluster_of,
    held_by_quota,
    hold_rows,
    no_access,
    reason_text,
    record_placed,
    selected,
    take,
)

NO_ACCESS = "the workspace has no access to the cluster any more"


def waiting_in(tx: Tx) -> list[tuple[str, str]]:
    """Return the (cluster, organisation) pairs in which something waits."""
    return workloads.tenancies_with_queue(tx)


def advance(tx: Tx, fleets: Fleets, org_id: str, cluster_id: str, *, say_why: bool) -> None:
    """Place what can be placed now; with `say_why` write down why the rest waits, where that has changed.

    Raises when the transaction must not commit; `fleets` is then to be forgotten.
    """
    tenancy = fleets.locked(tx, Scope(org_id), cluster_id)
    ahead, before, placed = Ahead(), dict[str, int](), list[tuple[Waiting, Plan]]()
    for waiting in tenancy.queue:
        asked = before.get(waiting.workspace_id, 0)
        plan = _try(tx, tenancy, waiting, ahead, asked, say_why)
        if plan is None:
            before[waiting.workspace_id] = asked + waiting.want.ask.gpus
        else:
            take(tenancy, waiting.workspace_id, plan)
            placed.append((waiting, plan))
    if placed:
        _save(tx, tenancy, placed)


def _try(tx: Tx, tenancy: Tenancy, waiting: Waiting, ahead: Ahead, before: int, say_why: bool) -> Plan | None:
    """Return where it goes now, or None; then it stands before those that come after."""
    grant = tenancy.grant(tx, waiting.workspace_id)
    if grant is None:
        _say(tx, tenancy, waiting, NO_ACCESS)
        return None
    over = held_by_quota(tx, tenancy, waiting.workspace_id, waiting.want.ask.gpus, before)
    if over is not None:
        _say(tx, tenancy, waiting, quotas.explain(over))
        return None
    want = replace(waiting.want, pools=grant.pools)
    plan = choose.try_place(tenancy.fleet, want, ahead)
    if plan is None:
        if say_why:
            _say(tx, tenancy, waiting, reason_text(list(choose.refusals(tenancy.fleet, want, ahead))))
        ahead.add(want)
    return plan


def _say(tx: Tx, tenancy: Tenancy, waiting: Waiting, reason: str) -> None:
    if reason != waiting.reason:
        workloads.save(tx, tenancy.scope, waiting.id, reason=reason)
        waiting.reason = reason


def _save(tx: Tx, tenancy: Tenancy, placed: Sequence[tuple[Waiting, Plan]]) -> None:
    machines = sorted({plan.machine_id for _, plan in placed})
    held, holds = [], []
    for waiting, plan in placed:
        tenancy.queue.remove(waiting)
        limit = must_end_by(tx.now, waiting.time_limit_s)
        kept = {"queued": False, "queue_no": None, "reason": "", "must_end_by": limit}
        workloads.save(tx, tenancy.scope, waiting.id, step=Step.PLACED.value, step_since=tx.now, **kept)
        place = {"org_id": tenancy.scope.org, "cluster_id": tenancy.cluster_id, "workspace_id": waiting.workspace_id}
        row = allocation_row(tx, {**place, "id": waiting.id, "must_end_by": limit}, plan)
        held.append(row)
        holds += hold_rows(row, plan)
        subject = Subject(tenancy.scope.org, tenancy.cluster_id, waiting.workspace_id, None, waiting.id)
        record_placed(tx, subject, waiting.name, plan, SITE)
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


def explain(ctx: Context, creation: Creation) -> Explanation:
    """Say which machines would take the ask now, and why each other one would not. Nothing is changed.

    Errors: as of creating.
    """
    rules.check(creation)
    cluster_id = cluster_of(ctx, creation.cluster)["cluster_id"]
    tenancy = Tenancy(cluster_id, ctx.scope)
    refresh(ctx.tx, tenancy, tenancy.version)
    grant = tenancy.grant(ctx.tx, ctx.workspace.id)
    if grant is None:
        raise no_access(ctx)
    want, ahead = selected(tenancy, creation, grant), ahead_of(ctx.tx, tenancy)
    over = held_by_quota(ctx.tx, tenancy, ctx.workspace.id, creation.gpus)
    plan = choose.try_place(tenancy.fleet, want, ahead) if over is None else None
    answers = choose.explain(tenancy.fleet, want, ahead)
    return Explanation(plan.machine if plan else None, quotas.explain(over) if over else "", answers)
