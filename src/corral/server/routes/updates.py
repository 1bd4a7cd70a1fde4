"""Updating agents: one machine's, or all of a cluster that are behind, in stages (spec 10, "Update agents")."""

from __future__ import annotations

from datetime import datetime

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from corral.domain.updates import STAGE_NAMES, STAGES, Outcome, Step
from corral.server.bodies import DryRun
from corral.server.door import AtDoor, Page, Paging, keys_token
from corral.server.machine_views import MachineView, RunningView, served, view
from corral.usecases import staged_updates as stages
from corral.usecases import updates as use

router = APIRouter()

_CLUSTER = "/api/v1/orgs/{org}/clusters/{cluster}"


class UpdatePreview(BaseModel):
    """What an update of one machine would do: its agent goes from one release to the other. `running` goes on: an
    update stops no work."""

    name: str
    dry_run: bool
    before: str
    after: str
    running: list[RunningView]
    stops: list[RunningView]


class StageView(BaseModel):
    """How many of a stage's machines are where."""

    name: str
    waiting: int
    asked: int
    done: int
    failed: int
    left_out: int


class UpdatedMachine(BaseModel):
    """A machine of an update of many. `release`: its agent's now; `message`: what it works on, why it failed or was
    left out."""

    name: str
    stage: int
    state: Step
    message: str
    release: str


class ClusterUpdate(BaseModel):
    """An update of a cluster's agents to `release`. `stage`: 0 one machine, 1 a tenth, 2 the rest. `machines` by stage
    and name, in pages. `id` null: nothing was started (a preview, or no machine to ask). It stops no work."""

    id: str | None
    dry_run: bool
    release: str
    state: Outcome
    stage: int
    message: str
    stages: list[StageView]
    by: str
    created_at: datetime | None
    ended_at: datetime | None
    machines: list[UpdatedMachine]
    next_page_token: str | None


@router.post(
    _CLUSTER + "/nodes/{node}/update",
    responses={202: {"model": MachineView, "description": "Asked: it is told now, or when it connects."}},
)
def update_machine(
    org: str, cluster: str, node: str, door: AtDoor, request: Request, response: Response, dry_run: DryRun = False
) -> MachineView | UpdatePreview:
    """Update a machine's agent to the release that the site serves; 200 where it is of that release already.

    A release that failed on the machine is tried again. A machine that is not connected updates when it comes back.
    """
    release = served(request)
    if dry_run:
        with door.read() as ctx:
            told = use.preview(ctx, cluster, node, release)
        running = [RunningView(**vars(work)) for work in told.running]
        return UpdatePreview(
            name=told.name, dry_run=True, before=told.before, after=told.after, running=running, stops=[]
        )
    with door.write() as ctx:
        asked = use.ask(ctx, cluster, node, release)
    response.status_code = 200 if asked.already else 202
    return view(asked.machine, request)


@router.post(
    _CLUSTER + "/update-agents",
    response_model=ClusterUpdate,
    responses={202: {"model": ClusterUpdate, "description": "Started; or no machine is to be asked, and it says so."}},
)
def update_agents(
    org: str, cluster: str, door: AtDoor, request: Request, page: Page, dry_run: DryRun = False
) -> ClusterUpdate | JSONResponse:
    """Update every agent that is behind on a machine that is Up: one first, then a tenth, then the rest.

    It ends at the first machine that does not come back; the others keep their release. With `dry_run`, which
    machines would be asked in which stage.
    """
    release = served(request)
    if dry_run:
        with door.read() as ctx:
            planned = stages.preview(ctx, cluster, release, _after(page), page.size + 1)
        return _view(planned, page.size, dry_run=True)
    return door.create(None, lambda ctx: _view(stages.start(ctx, cluster, release), page.size), 202)


@router.get(_CLUSTER + "/update-agents")
def show_update(org: str, cluster: str, door: AtDoor, page: Page) -> ClusterUpdate:
    """The newest update of the cluster's agents: where it stands, and each machine."""
    with door.read() as ctx:
        found = stages.progress(ctx, cluster, _after(page), page.size + 1)
    return _view(found, page.size)


@router.delete(_CLUSTER + "/update-agents")
def stop_update(org: str, cluster: str, door: AtDoor, page: Page, dry_run: DryRun = False) -> ClusterUpdate:
    """Ask no more machines to update; those that were asked go on."""
    if dry_run:
        with door.read() as ctx:
            found = stages.progress(ctx, cluster, _after(page), page.size + 1)
        return _view(found, page.size, dry_run=True)
    with door.write() as ctx:
        return _view(stages.stop(ctx, cluster), page.size)


def _after(page: Paging) -> tuple[int, str] | None:
    keys = page.keys((int, str))
    return None if keys is None else (int(keys[0]), str(keys[1]))


def _view(told: stages.Progress, size: int, *, dry_run: bool = False) -> ClusterUpdate:
    shown = told.members[:size]
    more = len(told.members) > size
    return ClusterUpdate(
        id=told.id,
        dry_run=dry_run,
        release=told.release,
        state=told.outcome,
        stage=min(told.stage, STAGES - 1),
        message=told.message,
        stages=[
            StageView(name=name, **{step.value: counts.get(step.value, 0) for step in Step})
            for name, counts in zip(STAGE_NAMES, told.counts, strict=True)
        ],
        by=told.by,
        created_at=told.created_at,
        ended_at=told.ended_at,
        machines=[
            UpdatedMachine(name=one.name, stage=one.stage, state=one.step, message=one.message, release=one.release)
            for one in shown
        ],
        next_page_token=keys_token([shown[-1].stage, shown[-1].name]) if more else None,
    )
