"""The rows of a workload that is created, and of what it is given (`usecases/placement.py`, `usecases/queue.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from corral.domain.asks import Plan
from corral.domain.compute_clusters import BASE_IMAGE, Creation
from corral.domain.workloads import Kind, State, Step, must_end_by
from corral.store import inventory
from corral.store.transaction import Tx
from corral.usecases.context import Context, new_id


def workload_row(
    ctx: Context, creation: Creation, cluster_id: str, queue_no: int | None, reason: str
) -> dict[str, Any]:
    """Return the row of a new workload. `queue_no`: its number in the queue, where it waits for that `reason`."""
    ask, waits = creation.ask, queue_no is not None
    return {
        "id": new_id(ctx.now),
        "org_id": ctx.org.id,
        "workspace_id": ctx.workspace.id,
        "cluster_id": cluster_id,
        "kind": Kind.COMPUTE_CLUSTER.value,
        "name": creation.name,
        "state": State.PROVISIONING.value,
        "state_since": ctx.now,
        "step": (Step.WAITING if waits else Step.PLACED).value,
        "step_since": ctx.now,
        "reason": reason,
        "wanted": "",
        "seen": "",
        "image": creation.image or BASE_IMAGE,
        "ask": {
            "gpus": ask.gpus,
            "vcpu": ask.vcpu,
            "ram_mib": ask.ram_mib,
            "storage_mib": ask.storage_mib,
            "machine": creation.machine,
            "pool": creation.pool,
            "gpu_model": creation.gpu_model,
            "drives": list(creation.drives),
        },
        "time_limit_s": creation.time_limit_seconds,
        "time_left_s": None,
        "restart_policy": creation.restart_policy,
        "queued": waits,
        "queue_no": queue_no,
        "must_end_by": None if waits else must_end_by(ctx.now, creation.time_limit_seconds),
        "created_by": ctx.user.id,
        "created_at": ctx.now,
        "stop_asked_at": None,
        "stop_reason": None,
        "ended_at": None,
    }


def allocation_row(tx: Tx, workload: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """Return the row of what a workload (`id`, `must_end_by` and where it is) is given."""
    return {
        "id": new_id(tx.now),
        "org_id": workload["org_id"],
        "cluster_id": workload["cluster_id"],
        "workspace_id": workload["workspace_id"],
        "machine_id": plan.machine_id,
        "workload_id": workload["id"],
        "generation": 1,
        "gpus": len(plan.gpus),
        "gpu_model": plan.gpu_model,
        "vcpu": plan.resources.vcpu,
        "ram_mib": plan.resources.ram_mib,
        "storage_mib": plan.resources.storage_mib,
        "placed_at": tx.now,
        "must_end_by": workload["must_end_by"],
        "seen_gpus": [],
    }


class Fenced(Exception):
    """A GPU that was chosen is fenced: by what another cluster's machine said of it, which no version here counts."""


def check_not_fenced(tx: Tx, plans: Iterable[Plan]) -> None:
    """Ask the database itself about the GPUs that are given. Errors: `Fenced`; the transaction must not commit."""
    if inventory.any_latched(tx, [gpu.id for plan in plans for gpu in plan.gpus]):
        raise Fenced("a GPU was fenced meanwhile")


def hold_rows(held: Mapping[str, Any], plan: Plan) -> list[dict[str, Any]]:
    """Return the rows of an allocation's holds on its GPUs."""
    return [
        {"allocation_id": held["id"], "gpu_id": gpu.id, "org_id": held["org_id"], "machine_id": plan.machine_id}
        for gpu in plan.gpus
    ]
