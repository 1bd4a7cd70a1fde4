"""Rows of quotas, and what is counted against them: live allocations, and GPU time of this month and later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    RowMapping,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal,
    select,
    type_coerce,
)

from corral.domain.gpu_hours import Ledger, begins, month_of
from corral.domain.quotas import Amounts, Quota, amounts
from corral.domain.resources import Resources
from corral.domain.workloads import sure_end
from corral.store.tables.access import access, access_models
from corral.store.tables.workloads import allocations
from corral.store.transaction import Scope, Tx
from corral.store.types import EPOCH

_A = allocations.c
LIMITS = ("gpus", "vcpu", "ram_gib", "storage_gib", "gpu_hours_month")

# What every placement of a workspace begins with: built once, not at each call.
_MINE = and_(access.c.org_id == bindparam("org"), access.c.workspace_id == bindparam("workspace"))
_LIMITS = select(access.c.cluster_id, *(access.c[name] for name in LIMITS)).where(_MINE)
_MODELS = (
    select(access_models)
    .join(
        access,
        and_(access.c.workspace_id == access_models.c.workspace_id, access.c.cluster_id == access_models.c.cluster_id),
    )
    .where(_MINE)
)


def of_workspace(tx: Tx, scope: Scope, workspace_id: str) -> dict[str, Quota]:
    """Return the workspace's quotas, by the id of the cluster it has access to."""
    mine = {"org": scope.org, "workspace": workspace_id}
    rows = tx.all(_LIMITS, mine)
    models: dict[str, dict[str, int]] = {row["cluster_id"]: {} for row in rows}
    for row in tx.all(_MODELS, mine):
        models[row["cluster_id"]][row["model"]] = row["gpus"]
    return {
        row["cluster_id"]: Quota(gpu_models=models[row["cluster_id"]], **{name: row[name] for name in LIMITS})
        for row in rows
    }


def put_models(tx: Tx, workspace_id: str, cluster_id: str, models: Mapping[str, int]) -> None:
    """Replace the quotas by GPU model of an access that there is; the caller has made sure whose it is."""
    place = {"workspace_id": workspace_id, "cluster_id": cluster_id}
    tx.run(delete(access_models).filter_by(**place))
    if models:
        tx.run(insert(access_models), [{**place, "model": model, "gpus": gpus} for model, gpus in models.items()])


def counted(row: RowMapping | Mapping[str, int]) -> Amounts:
    """Return what a row with `gpus`, `gpu_model`, `vcpu`, `ram_mib` and `storage_mib` counts."""
    other = Resources(0, *(int(row[name]) for name in ("vcpu", "ram_mib", "storage_mib")))
    return amounts(int(row["gpus"]), str(row["gpu_model"]), other)


def live(tx: Tx, scope: Scope, workspace_id: str) -> dict[str, Amounts]:
    """Return what the workspace's live allocations count, by cluster id."""
    rows = tx.all(
        select(_A.cluster_id, _A.gpu_model)
        .add_columns(*(func.sum(_A[name]).label(name) for name in ("gpus", "vcpu", "ram_mib", "storage_mib")))
        .where(_A.org_id == scope.org, _A.workspace_id == workspace_id, _A.released_at.is_(None))
        .group_by(_A.cluster_id, _A.gpu_model)
    )
    found: dict[str, Amounts] = {}
    for row in rows:
        found.setdefault(row["cluster_id"], Counter()).update(counted(row))
    return found


def used_before(tx: Tx, scope: Scope, workspace_id: str, cluster_id: str) -> int:
    """Return the GPU time of this UTC month of what has ended, in GPU-microseconds."""
    month = begins(month_of(tx.now))
    began, ended = type_coerce(_A.placed_at, BigInteger), type_coerce(_A.released_at, BigInteger)
    start = literal((month - EPOCH) // timedelta(microseconds=1), BigInteger)
    length = ended - case((_A.placed_at > month, began), else_=start)
    return int(
        tx.scalar(
            select(func.coalesce(func.sum(_A.gpus * length), 0)).where(
                *_held_gpus(scope, workspace_id, cluster_id), _A.released_at > month
            )
        )
    )


def holding_gpus(tx: Tx, scope: Scope, workspace_id: str, cluster_id: str) -> Sequence[RowMapping]:
    """Return `gpus`, `placed_at` and `must_end_by` of live allocations that hold GPUs."""
    return tx.all(
        select(_A.gpus, _A.placed_at, _A.must_end_by).where(
            *_held_gpus(scope, workspace_id, cluster_id), _A.released_at.is_(None)
        )
    )


def ledger(tx: Tx, scope: Scope, workspace_id: str, cluster_id: str) -> Ledger:
    """Return the GPU time that the workspace has used this month, and that its live work may still use.

    What has not stopped at its sure end (its machine is out of reach) counts until now.
    """
    book = Ledger(tx.now)
    book.add_time(used_before(tx, scope, workspace_id, cluster_id))
    for row in holding_gpus(tx, scope, workspace_id, cluster_id):
        end = sure_end(row["must_end_by"])
        book.add(row["gpus"], row["placed_at"], end if end is None else max(end, tx.now))
    return book


def _held_gpus(scope: Scope, workspace_id: str, cluster_id: str) -> tuple[ColumnElement[bool], ...]:
    return (
        _A.org_id == scope.org,
        _A.workspace_id == workspace_id,
        _A.cluster_id == cluster_id,
        _A.gpus > 0,
    )
