"""Workspaces, the people in them, and their access to clusters (spec 05)."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from corral.domain import quotas
from corral.domain.permissions import Part
from corral.server.bodies import Body
from corral.server.door import AtDoor, Page, page_token
from corral.usecases import access, workspaces

router = APIRouter()

_WS = "/api/v1/orgs/{org}/workspaces"


class WorkspaceView(BaseModel):
    """A workspace and the caller's part in it (null: an admin who is not in it)."""

    id: str
    slug: str
    name: str
    part: str | None
    created_at: datetime

    @staticmethod
    def of(workspace: workspaces.Workspace) -> WorkspaceView:
        return WorkspaceView(**vars(workspace))


class WorkspaceList(BaseModel):
    items: list[WorkspaceView]
    next_page_token: str | None


class NewWorkspace(Body):
    """Without `name` it is shown by its short name."""

    slug: str
    name: str | None = None


class WorkspaceName(Body):
    name: str


class WorkspaceMemberView(BaseModel):
    user_id: str
    login: str
    name: str
    part: str
    since: datetime

    @staticmethod
    def of(member: workspaces.Member) -> WorkspaceMemberView:
        return WorkspaceMemberView(**vars(member))


class WorkspaceMemberList(BaseModel):
    items: list[WorkspaceMemberView]
    next_page_token: str | None


class PartChange(Body):
    part: Literal["lead", "member"]


Limit = Annotated[int, Field(ge=0, le=quotas.QUOTA_MAX)]


class QuotaBody(Body):
    """The most that the workspace's live work may hold there at once, and how many GPU-hours it may use in a UTC
    month. null: no limit. `gpu_models`: GPUs by model, as machines report it."""

    gpus: Limit | None = None
    gpu_models: dict[str, Limit] = Field(default_factory=dict)
    vcpu: Limit | None = None
    ram_gib: Limit | None = None
    storage_gib: Limit | None = None
    gpu_hours_month: Limit | None = None


class UsedView(BaseModel):
    """What counts against the quota. GPU-hours are of this UTC month: used so far, and kept: with what live work may
    still use of the month, which is what new work is judged by."""

    gpus: int
    gpu_models: dict[str, int]
    vcpu: int
    ram_gib: int
    storage_gib: int
    gpu_hours_month: float
    gpu_hours_kept: float


class AccessView(BaseModel):
    """What the workspace may use of a cluster, and what is used of its quota. Pool `*`: every machine."""

    cluster: str
    cluster_id: str
    hosted: bool
    pools: list[str]
    quota: QuotaBody
    used: UsedView
    changed_at: datetime

    @staticmethod
    def of(one: access.Access) -> AccessView:
        return AccessView(
            cluster=one.cluster,
            cluster_id=one.cluster_id,
            hosted=one.hosted,
            pools=list(one.pools),
            quota=QuotaBody(**asdict(one.quota)),
            used=UsedView(**asdict(one.used)),
            changed_at=one.changed_at,
        )


class AccessList(BaseModel):
    items: list[AccessView]
    next_page_token: str | None


class AccessChange(Body):
    pools: list[str]
    quota: QuotaBody = QuotaBody()


@router.get(_WS)
def list_workspaces(org: str, page: Page, door: AtDoor) -> WorkspaceList:
    """List workspaces by short name: admins see all, members those they belong to."""
    with door.read() as ctx:
        found = workspaces.listed(ctx, page.after, page.size + 1)
    items = [WorkspaceView.of(workspace) for workspace in found[: page.size]]
    return WorkspaceList(items=items, next_page_token=page_token(items[-1].slug) if len(found) > page.size else None)


@router.post(_WS, status_code=201, response_model=WorkspaceView)
def create_workspace(org: str, body: NewWorkspace, door: AtDoor) -> JSONResponse:
    """Make a workspace."""
    name = body.slug if body.name is None else body.name
    return door.create(body, lambda ctx: WorkspaceView.of(workspaces.create(ctx, body.slug, name)))


@router.get(_WS + "/{ws}")
def show_workspace(org: str, ws: str, door: AtDoor) -> WorkspaceView:
    """Show a workspace."""
    with door.read() as ctx:
        return WorkspaceView.of(workspaces.show(ctx))


@router.patch(_WS + "/{ws}")
def rename_workspace(org: str, ws: str, body: WorkspaceName, door: AtDoor) -> WorkspaceView:
    """Change a workspace's shown name; the short name never changes."""
    with door.write() as ctx:
        return WorkspaceView.of(workspaces.rename(ctx, body.name))


@router.delete(_WS + "/{ws}", status_code=204)
def remove_workspace(org: str, ws: str, door: AtDoor) -> None:
    """Remove a workspace that has no live workloads."""
    with door.write() as ctx:
        workspaces.remove(ctx)


@router.get(_WS + "/{ws}/members")
def list_workspace_members(org: str, ws: str, page: Page, door: AtDoor) -> WorkspaceMemberList:
    """List the people in a workspace by login."""
    with door.read() as ctx:
        found = workspaces.members(ctx, page.after, page.size + 1)
    items = [WorkspaceMemberView.of(member) for member in found[: page.size]]
    more = len(found) > page.size
    return WorkspaceMemberList(items=items, next_page_token=page_token(items[-1].login) if more else None)


@router.put(_WS + "/{ws}/members/{user}")
def set_workspace_member(org: str, ws: str, user: str, body: PartChange, door: AtDoor) -> WorkspaceMemberView:
    """Put a member of the organisation (login or id) into a workspace, or change their part in it."""
    with door.write() as ctx:
        return WorkspaceMemberView.of(workspaces.set_member(ctx, user, Part(body.part)))


@router.delete(_WS + "/{ws}/members/{user}", status_code=204)
def remove_workspace_member(org: str, ws: str, user: str, door: AtDoor) -> None:
    """Take somebody out of a workspace; their open streams into it close."""
    with door.write() as ctx:
        workspaces.remove_member(ctx, user)


@router.get(_WS + "/{ws}/access")
def list_access(org: str, ws: str, page: Page, door: AtDoor) -> AccessList:
    """List what the workspace may use, by the cluster's short name."""
    with door.read() as ctx:
        found = access.listed(ctx, page.after, page.size + 1)
    items = [AccessView.of(one) for one in found[: page.size]]
    return AccessList(items=items, next_page_token=page_token(items[-1].cluster) if len(found) > page.size else None)


@router.put(_WS + "/{ws}/access/{cluster}")
def set_access(org: str, ws: str, cluster: str, body: AccessChange, door: AtDoor) -> AccessView:
    """Set which pools of a cluster the workspace may use, and its quota there; it replaces what was set before.

    What runs keeps running, also over a lowered quota.
    """
    with door.write() as ctx:
        return AccessView.of(access.put(ctx, cluster, body.pools, quotas.Quota(**body.quota.model_dump())))


@router.delete(_WS + "/{ws}/access/{cluster}", status_code=204)
def remove_access(org: str, ws: str, cluster: str, door: AtDoor) -> None:
    """Take the workspace's access to a cluster away; refused while it has live workloads there."""
    with door.write() as ctx:
        access.remove(ctx, cluster)
