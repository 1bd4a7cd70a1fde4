"""What the placement worker remembers of each tenancy between transactions (design decisions 5 and 6).

The tenancy's row is locked first; its version says whether anything that placement judges by has
changed since. Then only the machines that changed are read again. After a transaction that did not
commit, what is remembered of its tenancies is thrown away.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from corral.domain.access import EVERY_POOL
from corral.domain.fleet import Fleet, PlacementAsk
from corral.domain.resources import Ask
from corral.store import access, allocations, fleet, workloads
from corral.store.transaction import Row, Scope, Tx

MOST_REMEMBERED = 256
"""Tenancies; the least used one is forgotten and read again when it is needed."""


@dataclass(frozen=True)
class Grant:
    """What a workspace may use of the cluster. `pools` None: every machine of the organisation there."""

    pools: frozenset[str] | None
    quota: int | None


@dataclass
class Waiting:
    """One workload that waits for capacity."""

    id: str
    workspace_id: str
    name: str
    want: PlacementAsk
    """Its selectors; the pools granted are set when it is tried."""
    time_limit_s: int | None
    reason: str


@dataclass
class Tenancy:
    """One organisation's part of one cluster, as of `version`."""

    cluster_id: str
    scope: Scope
    version: int = -1
    fleet: Fleet = field(default_factory=Fleet)
    live_gpus: dict[str, int] = field(default_factory=dict)
    """By workspace: what its quota counts."""
    grants: dict[str, Grant | None] = field(default_factory=dict)
    queue: list[Waiting] = field(default_factory=list)
    """First come first."""
    last_queue_no: int = 0

    def grant(self, tx: Tx, workspace_id: str) -> Grant | None:
        """Return what the workspace may use here (None: nothing)."""
        if workspace_id not in self.grants:
            row = access.get(tx, self.scope, workspace_id, self.cluster_id)
            pools = access.pools(tx, self.scope, workspace_id).get(self.cluster_id, ())
            every = EVERY_POOL in pools
            self.grants[workspace_id] = Grant(None if every else frozenset(pools), row["gpu_quota"]) if row else None
        return self.grants[workspace_id]

    def waiting_gpus(self, workspace_id: str) -> int:
        """Return how many GPUs the workspace's own waiting workloads ask for."""
        return sum(one.want.ask.gpus for one in self.queue if one.workspace_id == workspace_id)


class Fleets:
    """The tenancies remembered. Used by one thread."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], Tenancy] = OrderedDict()

    def locked(self, tx: Tx, scope: Scope, cluster_id: str) -> Tenancy:
        """Lock the tenancy, and return it as it is now."""
        version = fleet.lock(tx, scope, cluster_id)
        known = self._known.setdefault((cluster_id, scope.org), Tenancy(cluster_id, scope))
        self._known.move_to_end((cluster_id, scope.org))
        if len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)
        if known.version != version:
            refresh(tx, known, version)
        return known

    def forget(self) -> None:
        """Nothing that is remembered may be trusted."""
        self._known.clear()


def refresh(tx: Tx, tenancy: Tenancy, version: int) -> None:
    """Bring a tenancy up to `version`, reading only the machines that changed."""
    scope, cluster_id = tenancy.scope, tenancy.cluster_id
    changed, removed = fleet.changed_since(tx, scope, cluster_id, tenancy.version)
    for id in (*removed, *(facts.id for facts in changed)):
        tenancy.fleet.remove(id)  # all of them before any is put in: names may have moved
    for facts in changed:
        tenancy.fleet.replace(facts)
    tenancy.live_gpus = allocations.live_gpus_by_workspace(tx, scope, cluster_id)
    tenancy.grants.clear()
    tenancy.queue = [_waiting(row) for row in workloads.queue(tx, scope, cluster_id)]
    tenancy.last_queue_no = workloads.last_queue_no(tx, scope, cluster_id)
    tenancy.version = version


def _waiting(row: Row) -> Waiting:
    ask = row["ask"]
    amounts = Ask(ask["gpus"], ask["vcpu"], ask["ram_mib"], ask["storage_mib"])
    want = PlacementAsk(amounts, None, ask["machine"], ask["pool"], ask["gpu_model"])
    return Waiting(row["id"], row["workspace_id"], row["name"], want, row["time_limit_s"], row["reason"])
