"""A workspace's GPUs as a map, and its machines as a tree of where they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from corral.domain import topology as rules
from corral.domain.inventory import GpuState
from corral.store import topology as rows
from corral.store.topology import GpuPlace, MachinePlace
from corral.store.transaction import Row
from corral.usecases import machines
from corral.usecases.context import Context

__all__ = ["GpuPlace", "Located", "MachinePlace", "gpus", "place_of", "tree"]


@dataclass(frozen=True)
class Located:
    """A GPU, and where it is."""

    place: GpuPlace
    gpu: rules.Gpu
    cluster: str
    pool: str
    site: str
    rack: str
    fabric: str


def gpus(ctx: Context, after: GpuPlace | None, limit: int) -> Sequence[Located]:
    """Return the GPUs of the workspace's machines, by machine and slot."""
    found = rows.gpus_of_workspace(ctx.tx, ctx.scope, ctx.workspace.id, after, limit)
    return [
        Located(
            GpuPlace(row["machine"], row["machine_id"], row["slot"], row["uuid"]),
            _gpu(ctx, row),
            *(row[name] for name in ("cluster", "pool", "site", "rack", "fabric")),
        )
        for row in found
    ]


def tree(ctx: Context, after: MachinePlace | None, limit: int) -> tuple[Sequence[rules.Site], MachinePlace | None]:
    """Return up to `limit` of the workspace's machines as a tree, and after which of them more would come."""
    found = rows.machines_of_workspace(ctx.tx, ctx.scope, ctx.workspace.id, after, limit + 1)
    here = found[:limit]
    on: dict[str, list[rules.Gpu]] = {}
    for row in rows.gpus_on(ctx.tx, ctx.scope, [row["id"] for row in here]):
        on.setdefault(row["machine_id"], []).append(_gpu(ctx, row))
    offered = machines.offered(ctx, here)
    placed = [
        rules.Machine(
            name=row["name"],
            cluster=row["cluster"],
            pool=row["pool"],
            site=row["site"],
            rack=row["rack"],
            fabric=row["fabric"],
            status=one.status,
            gpus=on.get(row["id"], []),
        )
        for row, one in zip(here, offered, strict=True)
    ]
    return rules.tree(placed), place_of(here[-1]) if len(found) > limit else None


def place_of(row: Row) -> MachinePlace:
    return MachinePlace(*(row[name] for name in MachinePlace._fields))


def _gpu(ctx: Context, row: Row) -> rules.Gpu:
    held, mine = row["workspace_id"] is not None, row["workspace_id"] == ctx.workspace.id
    use = rules.gpu_use(GpuState(row["state"]), row["busy"], held=held, fenced=bool(row["fenced"]))
    return rules.Gpu(
        row["uuid"], row["slot"], row["model"], row["memory_mib"], use, row["workload"] if held and mine else ""
    )
