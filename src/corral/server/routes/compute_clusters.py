"""The doors of compute clusters (spec 20). The stream into one and how to connect are in `connections` and `tunnel`."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from starlette.concurrency import run_in_threadpool

from corral.controllers.placement import PlacementWorker
from corral.domain.compute_clusters import Creation, ssh_status
from corral.domain.errors import Refusal
from corral.domain.ids import SLUG
from corral.domain.workloads import State
from corral.server.bodies import DryRun
from corral.server.door import AtDoor, Door, Page, page_token
from corral.server.places import Places
from corral.store.transaction import Row
from corral.usecases import compute_clusters, queue
from corral.usecases.compute_clusters import Change, ComputeCluster, Wanted
from corral.usecases.context import Context
from corral.usecases.fleets import Fleets
from corral.usecases.placement import CreateAsk

router = APIRouter(prefix="/api/v1/orgs/{org}/workspaces/{ws}")


class CreateBody(BaseModel):
    """What to carve. Give at most what matters: the rest is the machine's fair share for that many GPUs.

    `drives`: names of drives kept on each machine, mounted read-only at /drives/NAME. `restart_policy`: never |
    on_machine_loss (placed again elsewhere when its machine is removed by force; its storage does not move).
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    cluster: str | None = None
    machine: str | None = None
    pool: str | None = None
    gpu_model: str | None = None
    wait: bool = False
    gpus: int = 0
    vcpu: int | None = None
    ram_gib: int | None = None
    storage_gib: int | None = None
    image: str | None = None
    ssh_keys: list[str] | None = None
    time_limit_seconds: int | None = None
    drives: list[str] = []
    restart_policy: str = "never"

    def creation(self) -> Creation:
        return Creation(**self.model_dump())


class ExplainBody(CreateBody):
    """A hypothetical ask; it needs no name."""

    name: str = "hypothetical"


class KeysBody(BaseModel):
    """Names, ids or fingerprints of SSH keys."""

    model_config = ConfigDict(extra="forbid", strict=True)

    keys: list[str]


class ComputeClusterView(BaseModel):
    """A compute cluster. `state`: provisioning | active | out_of_sync | terminated | failed.

    `step`, while provisioning: waiting | placed | pulling_image | storage | starting | verifying. `reason` says why
    it waits, failed or is out of sync; `wanted` and `seen` what differs. `ssh`: ready | no key | not active |
    machine unreachable. `storage_quota` says how the storage limit is enforced on its machine: loop | none.
    While it waits, amounts that were not asked for are null.
    """

    id: str
    name: str
    state: str
    state_since: datetime
    step: str
    step_since: datetime | None
    reason: str
    wanted: str
    seen: str
    cluster: str
    machine: str | None
    gpu_model: str | None
    gpus: int
    gpu_uuids: list[str]
    vcpu: int | None
    ram_gib: float | None
    storage_gib: float | None
    storage_quota: str | None
    network_mbps: int | None
    ssh: str
    image: str
    created_by: str
    created_at: datetime
    placed_at: datetime | None
    time_limit_seconds: int | None
    must_end_by: datetime | None
    drives: list[str]
    restart_policy: str
    stop_asked_at: datetime | None
    stop_reason: str | None
    ended_at: datetime | None
    queued: bool
    oom_kills: int
    restarts: int
    exit_code: int | None

    @classmethod
    def of(cls, found: ComputeCluster, connected: bool) -> ComputeClusterView:
        return cls(**_fields(found, connected))


class ChangeView(BaseModel):
    at: datetime
    type: str
    state: str | None
    step: str | None
    reason: str | None
    by: str


class ComputeClusterDetails(ComputeClusterView):
    """A compute cluster with the history of its states, oldest first."""

    history: list[ChangeView]


class ComputeClusterList(BaseModel):
    items: list[ComputeClusterView]
    next_page_token: str | None


class TerminationView(BaseModel):
    """The compute cluster, and what stops (or, with `dry_run`, would stop)."""

    compute_cluster: ComputeClusterView
    stops: list[str]
    dry_run: bool


class KeyView(BaseModel):
    id: str
    name: str
    fingerprint: str
    user: str


class KeyList(BaseModel):
    items: list[KeyView]

    @classmethod
    def of(cls, rows: list[Row]) -> KeyList:
        fields = ("id", "name", "fingerprint")
        return cls(items=[KeyView(**{name: row[name] for name in fields}, user=row["login"]) for row in rows])


class LogView(BaseModel):
    """Lines, oldest first. Of a running container they are the last ones it said."""

    kind: str
    lines: list[str]


class MachineAnswerView(BaseModel):
    """`reason` is why the machine would not take it; null where it would."""

    machine: str
    takes: bool
    reason: str | None


class ExplanationView(BaseModel):
    """`machine`: where it would go now (null: nowhere). `quota`: why the quota holds it back, if it does."""

    machine: str | None
    quota: str | None
    machines: list[MachineAnswerView]


def _fields(found: ComputeCluster, connected: bool) -> dict[str, Any]:
    same = set(ComputeClusterView.model_fields) & set(ComputeCluster.__dataclass_fields__)
    machine = found.machine
    return {
        **{name: getattr(found, name) for name in same},
        "state": found.state.value,
        "machine": machine.name if machine else None,
        "network_mbps": machine.network_mbps if machine else None,
        "storage_quota": machine.storage_quota if machine else None,
        "gpu_uuids": list(found.gpu_uuids),
        "drives": list(found.drives),
        "ram_gib": _gib(found.ram_mib),
        "storage_gib": _gib(found.storage_mib),
        "time_limit_seconds": found.time_limit_s,
        "ssh": ssh_status(found.state, found.stop_asked_at is not None, found.has_key, connected),
    }


def _gib(mib: int | None) -> float | None:
    return None if mib is None else mib / 1024


def _view(request: Request, found: ComputeCluster) -> ComputeClusterView:
    return ComputeClusterView.of(found, _connected(request, found))


def _connected(request: Request, found: ComputeCluster) -> bool:
    hub = getattr(request.app.state, "hub", None)  # there while the application runs
    return hub is not None and found.machine is not None and bool(hub.connected(found.machine.id))


@router.post("/compute-clusters", status_code=201, response_model=ComputeClusterView)
async def create_compute_cluster(request: Request, org: str, ws: str, body: CreateBody, door: AtDoor) -> JSONResponse:
    """Carve a compute cluster from a machine.

    Without capacity 409 `NO_CAPACITY` with the reason for each machine, unless `wait` is true: then it queues.
    """

    def render(ctx: Context, made: ComputeCluster) -> dict[str, Any]:
        request.app.state.last_used.note(ctx.token_id, ctx.now)
        return _view(request, made).model_dump(mode="json")

    door.check_request()
    placer: PlacementWorker = request.app.state.placer
    ask = CreateAsk(door.caller, door.rule, door.place, body.creation(), render, door.key(body))
    try:
        # Async: the placement worker's thread does the work, and no other one is needed to wait for it.
        stored = await asyncio.wrap_future(placer.submit(ask))
    except Refusal as refusal:
        await run_in_threadpool(door.refused, refusal)
        raise
    return JSONResponse(stored.answer, stored.status)


@router.get("/compute-clusters")
def list_compute_clusters(
    request: Request,
    org: str,
    ws: str,
    door: AtDoor,
    page: Page,
    state: Annotated[State | None, Query()] = None,
    name: Annotated[str | None, Query(max_length=63, pattern=f"^{SLUG.pattern}$")] = None,
    include_ended: bool = False,
) -> ComputeClusterList:
    """List the workspace's compute clusters, newest first; ended ones with `include_ended` or by their state."""
    with door.read() as ctx:
        found = compute_clusters.listed(ctx, Wanted(state, name, include_ended), page.after, page.size + 1)
    more = found[page.size - 1].id if len(found) > page.size else None
    items = [_view(request, one) for one in found[: page.size]]
    return ComputeClusterList(items=items, next_page_token=page_token(more) if more else None)


@router.get("/compute-clusters/{name}")
def show_compute_cluster(request: Request, org: str, ws: str, name: str, door: AtDoor) -> ComputeClusterDetails:
    """Show one compute cluster, by its live name or its id, with its history."""
    with door.read() as ctx:
        found = compute_clusters.show(ctx, name)
        history = compute_clusters.history(ctx, found.id)
    fields = _fields(found, _connected(request, found))
    return ComputeClusterDetails(**fields, history=[_change(change) for change in history])


def _change(change: Change) -> ChangeView:
    return ChangeView(**vars(change))


@router.delete("/compute-clusters/{name}")
def terminate_compute_cluster(
    request: Request, org: str, ws: str, name: str, door: AtDoor, dry_run: DryRun = False
) -> TerminationView:
    """Stop everything inside and free the resources; it cannot be undone. `dry_run` says what would stop.

    The capacity is free when the machine says that the container is gone.
    """
    with door.write() as ctx:
        found = compute_clusters.terminate(ctx, name, dry_run=dry_run)
    return TerminationView(compute_cluster=_view(request, found.cluster), stops=list(found.stops), dry_run=dry_run)


@router.get("/compute-clusters/{name}/logs")
async def read_compute_cluster_logs(
    request: Request,
    org: str,
    ws: str,
    name: str,
    door: AtDoor,
    kind: Literal["provisioning", "container"] = "provisioning",
) -> LogView:
    """Read the log of its provisioning, or the end of its container's own output."""
    lines, live = await run_in_threadpool(_stored_log, door, name, kind)
    if live:
        said: bytes = await request.app.state.streams.read_logs(door, name)
        lines = said.decode(errors="replace").splitlines()
    return LogView(kind=kind, lines=lines)


def _stored_log(door: Door, name: str, kind: str) -> tuple[list[str], bool]:
    """Return the lines that are stored, and whether its container has more to say."""
    read = compute_clusters.provisioning_log if kind == "provisioning" else compute_clusters.container_log
    with door.read() as ctx:
        found = read(ctx, name)
    return list(found.lines), found.live


@router.get("/compute-clusters/{name}/ssh-keys")
def list_attached_ssh_keys(org: str, ws: str, name: str, door: AtDoor) -> KeyList:
    """List the SSH keys attached to a compute cluster."""
    with door.read() as ctx:
        return KeyList.of(list(compute_clusters.keys(ctx, name)))


@router.put("/compute-clusters/{name}/ssh-keys")
def attach_ssh_keys(org: str, ws: str, name: str, body: KeysBody, door: AtDoor) -> KeyList:
    """Attach your own SSH keys; on a running cluster they work within seconds. Those attached already stay."""
    with door.write() as ctx:
        return KeyList.of(list(compute_clusters.attach(ctx, name, body.keys)))


@router.delete("/compute-clusters/{name}/ssh-keys")
def detach_ssh_keys(org: str, ws: str, name: str, body: KeysBody, door: AtDoor) -> KeyList:
    """Detach SSH keys, your own or, as a lead or admin, anybody's; their owners' open streams close at once."""
    with door.write() as ctx:
        return KeyList.of(list(compute_clusters.detach(ctx, name, body.keys)))


@router.post("/placements/explain")
async def explain_placement(request: Request, org: str, ws: str, body: ExplainBody, door: AtDoor) -> ExplanationView:
    """Say which machines would take an ask now, and why each other one would not. Nothing is created."""

    def explain(fleets: Fleets) -> queue.Explanation:
        with door.read() as ctx:
            return queue.explain(ctx, fleets, body.creation())

    placer: PlacementWorker = request.app.state.placer
    explaining: Places = request.app.state.explaining
    with explaining.held(await run_in_threadpool(door.user_id)):
        found = await asyncio.wrap_future(placer.ask(explain))
    machines = [
        MachineAnswerView(machine=a.machine, takes=not a.reason, reason=a.reason or None) for a in found.answers
    ]
    return ExplanationView(machine=found.machine, quota=found.quota or None, machines=machines)
