"""What a restored database cannot know: what waits in it may have been given a machine since (design decision 2)."""

from __future__ import annotations

from sqlalchemy import exists, select

from corral.store.tables.machines import machines
from corral.store.tables.site import sites
from corral.store.tables.workloads import workloads
from corral.store.transaction import Scope, Tx

_W, _M = workloads.c, machines.c


def doubtful(tx: Tx, scope: Scope, cluster_id: str) -> frozenset[str]:
    """Return what waited when a back-up was restored, while a machine of the tenancy may run it without our knowing.

    Each machine is `behind` from the restore until it has reported and all it runs is known; an admin
    may release or remove it before.
    """
    restored_at = select(sites.c.restored_at).scalar_subquery()
    unheard = exists().where(
        _M.cluster_id == cluster_id, _M.org_id == scope.org, _M.removed_at.is_(None), _M.behind.is_(True)
    )
    rows = tx.all(
        select(_W.id).where(
            _W.cluster_id == cluster_id,
            _W.org_id == scope.org,
            _W.queued,
            _W.ended_at.is_(None),
            _W.created_at <= restored_at,
            unheard,
        )
    )
    return frozenset(row["id"] for row in rows)


def counted_up(tx: Tx, scope: Scope, cluster_id: str) -> list[tuple[str, str]]:
    """Return id and name of the machines that count as Up, whether this process has heard them or not; by name."""
    here = [_M.cluster_id == cluster_id, _M.org_id == scope.org, _M.removed_at.is_(None), _M.state == "up"]
    return [(row["id"], row["name"]) for row in tx.all(select(_M.id, _M.name).where(*here).order_by(_M.name))]
