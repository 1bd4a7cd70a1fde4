"""GPUs' faults: what is latched, and clearing it (spec 10, "GPU faults")."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import Enum
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from corral.domain.faults import meaning
from corral.server.agents import Hub
from corral.server.bodies import DryRun
from corral.server.door import AtDoor, Page, page_token
from corral.server.places import Places
from corral.store.faults import Shown, Wanted
from corral.store.transaction import Row
from corral.usecases import faults

router = APIRouter()


class FaultView(BaseModel):
    """A latched fault of a GPU. `evidence`: the kernel's line or the counter; `count`: how often it was said."""

    code: str
    meaning: str
    evidence: str
    since: datetime
    last_at: datetime
    count: int

    @staticmethod
    def of(row: Row) -> FaultView:
        return FaultView(**{key: row[key] for key in _OF_ROW}, meaning=meaning(row["code"]))


_OF_ROW = ("code", "evidence", "since", "last_at", "count")


class FaultState(str, Enum):
    OPEN = "open"
    GONE = "gone"
    CLEARED = "cleared"


class GpuFaultView(FaultView):
    """`state` gone: its GPU is on no machine now, and comes back with the fault. `machine` is where it was last."""

    id: str
    machine: str
    gpu: str
    vendor: str
    model: str
    slot: str
    state: FaultState
    cleared_at: datetime | None
    cleared_by: str | None


class GpuFaults(BaseModel):
    items: list[GpuFaultView]
    next_page_token: str | None


class FaultsCleared(BaseModel):
    """`cleared`: what was latched; `still`: what the GPU has by its machine's answer, so that it stays fenced."""

    machine: str
    gpu: str
    dry_run: bool
    cleared: list[FaultView]
    still: list[FaultView]


@router.get("/api/v1/orgs/{org}/clusters/{cluster}/gpu-faults")
def list_gpu_faults(
    org: str,
    cluster: str,
    door: AtDoor,
    page: Page,
    state: Annotated[Shown, Query(description="Which; gone: on GPUs that are on no machine now.")] = Shown.OPEN,
    node: Annotated[str | None, Query(description="Only of this machine.")] = None,
) -> GpuFaults:
    """Faults of GPUs in a cluster, the newest first."""
    with door.read() as ctx:
        found = faults.listed(ctx, cluster, Wanted(state, node), page.after, page.size + 1)
    shown = found[: page.size]
    more = page_token(shown[-1]["id"]) if len(found) > page.size else None
    return GpuFaults(items=[_view(row) for row in shown], next_page_token=more)


@router.post("/api/v1/orgs/{org}/clusters/{cluster}/nodes/{node}/gpus/{gpu}/clear-fault")
async def clear_gpu_fault(
    org: str,
    cluster: str,
    node: str,
    gpu: str,
    door: AtDoor,
    request: Request,
    dry_run: DryRun = False,
) -> FaultsCleared:
    """Clear the faults of a GPU (its UUID): it may be assigned again. A fault that is still there fences it anew.

    Delivered to the machine, which has to be connected, and acknowledged there. A GPU without a fault stays as it is.
    """

    def ask() -> faults.ToClear:
        with door.read() as ctx:
            return faults.to_clear(ctx, cluster, node, gpu)

    def clear() -> faults.Cleared:
        with door.write() as ctx:
            return faults.clear(ctx, cluster, node, gpu, answered)

    asked = await run_in_threadpool(ask)
    if dry_run or not asked.latches:
        return _cleared(asked, (), dry_run=dry_run)
    hub: Hub = request.app.state.hub
    clearing: Places = request.app.state.clearing
    with clearing.held(door.asker):
        # Nothing is held open meanwhile: no thread, no transaction.
        answered = await hub.clear_fault(asked)
    done = await run_in_threadpool(clear)
    return _cleared(done.what, done.still, dry_run=False)


def _cleared(what: faults.ToClear, still: Iterable[Row], *, dry_run: bool) -> FaultsCleared:
    return FaultsCleared(
        machine=what.machine.name,
        gpu=what.gpu.uuid,
        dry_run=dry_run,
        cleared=[FaultView.of(row) for row in what.latches],
        still=[FaultView.of(row) for row in still],
    )


def _view(row: Row) -> GpuFaultView:
    open_or_gone = FaultState.OPEN if row["here"] else FaultState.GONE
    return GpuFaultView(
        **dict(FaultView.of(row)),
        id=row["id"],
        machine=row["machine"],
        gpu=row["uuid"],
        vendor=row["vendor"],
        model=row["model"] or "",
        slot=row["slot"] or "",
        state=open_or_gone if row["cleared_at"] is None else FaultState.CLEARED,
        cleared_at=row["cleared_at"],
        cleared_by=row["cleared_by"],
    )
