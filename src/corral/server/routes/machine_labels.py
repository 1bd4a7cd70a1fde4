"""Where a machine is, and its pool: changed in place, with who can use it before and after (spec 10)."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict

from corral.server.bodies import DryRun
from corral.server.door import AtDoor
from corral.server.machine_views import RunningView, WindowView
from corral.usecases import machine_labels as use

router = APIRouter()


class PlacementBody(BaseModel):
    """A field that is left out is kept, an empty one is removed."""

    model_config = ConfigDict(extra="forbid", strict=True)

    pool: str = ""
    site: str = ""
    rack: str = ""
    fabric: str = ""


class PlacementLabels(BaseModel):
    pool: str
    site: str
    rack: str
    fabric: str


class Placement(BaseModel):
    """`stays`: work there of workspaces that can no longer use the machine; it goes on. `reservations`: those that
    cover the machine with these labels. Of the workspaces that can use it the first are named, `…_left_out` counts the
    rest."""

    name: str
    dry_run: bool
    before: PlacementLabels
    after: PlacementLabels
    workspaces_before: list[str]
    workspaces_before_left_out: int
    workspaces_after: list[str]
    workspaces_after_left_out: int
    stays: list[RunningView]
    reservations: list[WindowView]


@router.put("/api/v1/orgs/{org}/clusters/{cluster}/nodes/{node}/placement")
def place_machine(
    org: str,
    cluster: str,
    node: str,
    body: PlacementBody,
    door: AtDoor,
    dry_run: DryRun = False,
) -> Placement:
    """Say where a machine is and which pool it is of. Running work stays; new work follows."""
    given = body.model_dump(include=body.model_fields_set)
    if dry_run:
        with door.read() as ctx:
            return _view(use.preview(ctx, cluster, node, given), dry_run=True)
    with door.write() as ctx:
        return _view(use.place(ctx, cluster, node, given), dry_run=False)


def _view(move: use.Move, *, dry_run: bool) -> Placement:
    return Placement(
        name=move.name,
        dry_run=dry_run,
        before=PlacementLabels(**move.before),
        after=PlacementLabels(**move.after),
        workspaces_before=list(move.workspaces_before.named),
        workspaces_before_left_out=move.workspaces_before.left_out,
        workspaces_after=list(move.workspaces_after.named),
        workspaces_after_left_out=move.workspaces_after.left_out,
        stays=[RunningView(**vars(work)) for work in move.stays],
        reservations=[WindowView.of(window) for window in move.windows],
    )
