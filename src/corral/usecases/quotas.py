"""What quotas count in one tenancy, as placement remembers it; and whether an ask stays within its workspace's.

Read and judged under the tenancy's lock, in the transaction that allocates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from corral.domain import quotas as rules
from corral.domain.asks import Plan
from corral.domain.gpu_hours import Ledger
from corral.domain.quotas import Amounts, Reached, amounts
from corral.store import quotas as rows
from corral.store.transaction import Scope, Tx
from corral.usecases.context import Context


@dataclass
class Counted:
    """What live allocations count, by workspace."""

    live: dict[str, Amounts] = field(default_factory=dict)
    _on: dict[str, Mapping[str, Amounts]] = field(default_factory=dict)
    """The part of each machine, by its id."""
    _hours: dict[str, Ledger] = field(default_factory=dict)
    """By workspace; as of one transaction."""

    def of(self, workspace_id: str) -> Amounts:
        return self.live.get(workspace_id) or Counter()

    def replace(self, machine_id: str, now: Mapping[str, Amounts]) -> None:
        """Count what is on a machine now instead of what was."""
        for workspace_id, was in self._on.pop(machine_id, {}).items():
            self.live[workspace_id].subtract(was)
        for workspace_id, its in now.items():
            self.live.setdefault(workspace_id, Counter()).update(its)
        if now:
            self._on[machine_id] = now

    def take(self, workspace_id: str, plan: Plan, placed_at: datetime, sure_end: datetime | None) -> None:
        """Count a placement."""
        its = amounts(len(plan.gpus), plan.gpu_model, plan.resources)
        here = dict(self._on.get(plan.machine_id, {}))
        here[workspace_id] = here.get(workspace_id, Counter()) + its
        self.replace(plan.machine_id, here)
        if workspace_id in self._hours and plan.gpus:
            self._hours[workspace_id].add(len(plan.gpus), placed_at, sure_end)

    def hours(self, tx: Tx, scope: Scope, cluster_id: str, workspace_id: str) -> Ledger:
        """Return the workspace's GPU time, read once in a transaction."""
        known = self._hours.get(workspace_id)
        if known is None or known.now != tx.now:
            known = self._hours[workspace_id] = rows.ledger(tx, scope, workspace_id, cluster_id)
        return known

    def forget_hours(self) -> None:
        """What was read is not so any more."""
        self._hours.clear()


def reached(ctx: Context) -> dict[str, Reached]:
    """Return what the workspace's quotas leave nothing of, by cluster id."""
    live = rows.live(ctx.tx, ctx.scope, ctx.workspace.id)
    return {
        cluster: rules.reached(
            quota,
            live.get(cluster, Counter()),
            Ledger(ctx.now)
            if quota.gpu_hours_month is None
            else rows.ledger(ctx.tx, ctx.scope, ctx.workspace.id, cluster),
        )
        for cluster, quota in rows.of_workspace(ctx.tx, ctx.scope, ctx.workspace.id).items()
    }
