"""Machines as admins see and act on them, and as a workspace's members see them (spec 10; spec 20, "The page")."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict

from corral.domain.machines import MachineState
from corral.server.bodies import DryRun
from corral.server.door import AtDoor, Page, keys_token, page_token
from corral.server.machine_views import (
    Affected,
    AllocatedMachines,
    GpuView,
    MachineDetails,
    Machines,
    MachineView,
    RunningView,
    SessionView,
    WindowView,
    affected,
    allocated,
    fields_of,
    hub_of,
    served,
    view,
)
from corral.server.routes.data_location import disk_views, location_view
from corral.store.machines import Wanted
from corral.usecases import machines as use

router = APIRouter()


class CordonBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    reason: str | None = None


@router.get("/api/v1/orgs/{org}/clusters/{cluster}/nodes", response_model=Machines)
def list_machines(
    org: str,
    cluster: str,
    door: AtDoor,
    page: Page,
    request: Request,
    state: MachineState | None = None,
    pool: Annotated[list[str] | None, Query()] = None,
) -> Response:
    """The organisation's machines in a cluster, by name; `pool` may be given several times."""
    with door.read() as ctx:
        found = use.listed(ctx, cluster, Wanted(state, pool), page.after, page.size + 1)
    hub, release = hub_of(request), served(request)
    items = [fields_of(machine, hub, release) for machine in found[: page.size]]
    more = page_token(items[-1]["name"]) if len(found) > page.size else None
    return Response(msgspec.json.encode({"items": items, "next_page_token": more}), media_type="application/json")


@router.get("/api/v1/orgs/{org}/clusters/{cluster}/nodes/{node}")
def show_machine(org: str, cluster: str, node: str, door: AtDoor, request: Request) -> MachineDetails:
    """All about one machine: its hardware, GPUs and who holds them, what runs there, its latest sessions."""
    with door.read() as ctx:
        found = use.one(ctx, cluster, node)
    return MachineDetails(
        machine=view(found.machine, request),
        inventory=found.machine.row["inventory"],
        gpus=[GpuView.of(row, found.faults.get((row["vendor"], row["uuid"]), ())) for row in found.gpus],
        running=[RunningView(**vars(work)) for work in found.running],
        sessions=[SessionView(**{key: row[key] for key in SessionView.model_fields}) for row in found.sessions],
        reservations=[WindowView.of(window) for window in found.windows],
        disks=disk_views(found.machine.row, request),
        data_location=location_view(found.machine.row),
    )


@router.post("/api/v1/orgs/{org}/clusters/{cluster}/nodes/{node}/cordon")
def cordon_machine(
    org: str,
    cluster: str,
    node: str,
    door: AtDoor,
    request: Request,
    body: CordonBody | None = None,
    dry_run: DryRun = False,
) -> MachineView | Affected:
    """Stop new work landing on a machine; what runs there keeps running."""
    if dry_run:
        return _would_affect(door, cluster, node)
    with door.write() as ctx:
        return view(use.cordon(ctx, cluster, node, body.reason if body else None), request)


@router.post("/api/v1/orgs/{org}/clusters/{cluster}/nodes/{node}/uncordon")
def uncordon_machine(
    org: str, cluster: str, node: str, door: AtDoor, request: Request, dry_run: DryRun = False
) -> MachineView | Affected:
    """Let new work land on a machine again."""
    if dry_run:
        return _would_affect(door, cluster, node)
    with door.write() as ctx:
        return view(use.uncordon(ctx, cluster, node), request)


@router.post("/api/v1/orgs/{org}/clusters/{cluster}/nodes/{node}/release-quarantine")
def release_quarantine(
    org: str, cluster: str, node: str, door: AtDoor, request: Request, dry_run: DryRun = False
) -> MachineView | Affected:
    """Decide that a suspected clone, or a machine with unknown work, takes new work again."""
    if dry_run:
        return _would_affect(door, cluster, node)
    with door.write() as ctx:
        return view(use.release_quarantine(ctx, cluster, node), request)


@router.get("/api/v1/orgs/{org}/workspaces/{ws}/machines")
def list_workspace_machines(org: str, ws: str, door: AtDoor, page: Page) -> AllocatedMachines:
    """The machines of the workspace's pools: look here before creating something."""
    with door.read() as ctx:
        after = page.keys((str, str))
        found = use.of_workspace(ctx, (str(after[0]), str(after[1])) if after else None, page.size + 1)
        contact = use.contact(ctx)
    shown = found[: page.size]
    token = keys_token([shown[-1].row["name"], shown[-1].row["id"]]) if len(found) > page.size else None
    return AllocatedMachines(items=[allocated(one) for one in shown], next_page_token=token, contact=contact)


def _would_affect(door: AtDoor, cluster: str, node: str) -> Affected:
    with door.read() as ctx:
        return affected(use.affected(ctx, cluster, node), dry_run=True)
