"""The clusters an organisation uses (spec 10, "Kinds of cluster")."""

from __future__ import annotations

from datetime import datetime

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from corral.server.bodies import Body, DryRun
from corral.server.door import AtDoor, Page, page_token
from corral.usecases import clusters as use
from corral.usecases.context import Context

router = APIRouter()


class ClusterView(BaseModel):
    """A cluster as this organisation uses it, with how many machines and GPUs it has there."""

    id: str
    slug: str
    name: str
    hosted: bool
    machine_limit: int | None
    machines: int
    up: int
    down: int
    cordoned: int
    gpus: int
    joined_at: datetime

    @staticmethod
    def of(cluster: use.Cluster) -> ClusterView:
        return ClusterView(**vars(cluster))


class HostedView(BaseModel):
    id: str
    slug: str
    hosted: bool


class Clusters(BaseModel):
    """`hosted_offered`: the organisation does not use the hosted cluster, and could."""

    items: list[ClusterView]
    next_page_token: str | None
    hosted_offered: bool


class NewCluster(Body):
    """`id`: a dedicated cluster that the organisation has left, to be given back with its machines."""

    slug: str
    name: str
    id: str | None = None


class ClusterName(Body):
    name: str


class LimitBody(Body):
    """null: the site's limit holds for this organisation."""

    machines: int | None


class LimitView(BaseModel):
    """`machines`: the organisation's own limit; `in_force`: what holds; what of it is taken."""

    machines: int | None
    in_force: int
    enrolled: int
    tokens: int


class StillRunning(BaseModel):
    workspace: str
    name: str
    kind: str
    state: str


class LeavingView(BaseModel):
    """What leaving the cluster comes to (with `dry_run`: would come to).

    Machines stay enrolled, closed to new work; unused join tokens are revoked. `machine_names`, `running` and
    `workspaces` name the first few. While `workspaces` have access, the cluster cannot be left.
    """

    slug: str
    hosted: bool
    dry_run: bool
    machines: int
    machine_names: list[str]
    tokens: int
    running: list[StillRunning]
    workspaces: list[str]


@router.post("/api/v1/orgs/{org}/hosted-cluster", response_model=HostedView)
def use_hosted_cluster(org: str, door: AtDoor) -> JSONResponse:
    """Use the hosted cluster. Asked again, the answer is the same; one that was left comes back with its machines."""

    def use_it(ctx: Context) -> HostedView:
        cluster = use.use_hosted(ctx)
        return HostedView(id=cluster.id, slug=cluster.slug, hosted=True)

    return door.create(None, use_it, status=200)


@router.post("/api/v1/orgs/{org}/dedicated-clusters", status_code=201, response_model=ClusterView)
def create_dedicated_cluster(org: str, body: NewCluster, door: AtDoor) -> JSONResponse:
    """Make a cluster for one organisation, or give one back that it left: the site's operator does.

    Its short name never changes.
    """

    def make(ctx: Context) -> ClusterView:
        if body.id is not None:
            return ClusterView.of(use.give_back(ctx, body.id, body.slug, body.name))
        return ClusterView.of(use.create_dedicated(ctx, body.slug, body.name))

    return door.create(body, make)


@router.put("/api/v1/orgs/{org}/machine-limit")
def set_machine_limit(org: str, body: LimitBody, door: AtDoor) -> LimitView:
    """Set how many machines the organisation may have on the hosted cluster; null: the site's limit."""
    with door.write() as ctx:
        return LimitView(**vars(use.set_machine_limit(ctx, body.machines)))


@router.get("/api/v1/orgs/{org}/clusters")
def list_clusters(org: str, door: AtDoor, page: Page) -> Clusters:
    """The clusters that the organisation uses, by short name."""
    with door.read() as ctx:
        found = use.listed(ctx, page.after, page.size + 1)
        offered = use.hosted_offered(ctx)
    items = [ClusterView.of(cluster) for cluster in found[: page.size]]
    more = page_token(items[-1].slug) if len(found) > page.size else None
    return Clusters(items=items, next_page_token=more, hosted_offered=offered)


@router.get("/api/v1/orgs/{org}/clusters/{cluster}")
def show_cluster(org: str, cluster: str, door: AtDoor) -> ClusterView:
    """One cluster."""
    with door.read() as ctx:
        return ClusterView.of(use.one(ctx, cluster))


@router.patch("/api/v1/orgs/{org}/clusters/{cluster}")
def rename_cluster(org: str, cluster: str, body: ClusterName, door: AtDoor) -> ClusterView:
    """Change how the cluster is shown."""
    with door.write() as ctx:
        return ClusterView.of(use.rename(ctx, cluster, body.name))


@router.delete("/api/v1/orgs/{org}/clusters/{cluster}")
def leave_cluster(org: str, cluster: str, door: AtDoor, dry_run: DryRun = False) -> LeavingView:
    """Take the cluster out of the organisation; 409 `CLUSTER_IN_USE` while a workspace has access to it.

    Its machines stay enrolled and the organisation's. The hosted cluster comes back with them when it is used
    again; a dedicated one only from the operator, who deletes it once it has no machine.
    """
    if dry_run:
        with door.read() as ctx:
            return _leaving(use.would_leave(ctx, cluster), dry_run=True)
    with door.write() as ctx:
        return _leaving(use.leave(ctx, cluster), dry_run=False)


def _leaving(told: use.Leaving, *, dry_run: bool) -> LeavingView:
    running = [StillRunning(**row) for row in told.running]
    return LeavingView(**{**vars(told), "running": running}, dry_run=dry_run)
