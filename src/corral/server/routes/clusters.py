"""The clusters an organisation uses (spec 10, "Kinds of cluster")."""

from __future__ import annotations

from datetime import datetime

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict

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
    items: list[ClusterView]
    next_page_token: str | None


class NewCluster(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    slug: str
    name: str


class ClusterName(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: str


@router.post("/api/v1/orgs/{org}/hosted-cluster", response_model=HostedView)
def use_hosted_cluster(org: str, door: AtDoor) -> JSONResponse:
    """Use the hosted cluster. Asked again, the answer is the same."""

    def use_it(ctx: Context) -> HostedView:
        cluster = use.use_hosted(ctx)
        return HostedView(id=cluster.id, slug=cluster.slug, hosted=True)

    return door.create(None, use_it, status=200)


@router.post("/api/v1/orgs/{org}/dedicated-clusters", status_code=201, response_model=ClusterView)
def create_dedicated_cluster(org: str, body: NewCluster, door: AtDoor) -> JSONResponse:
    """Make a cluster for one organisation: the site's operator does. Its short name never changes."""
    return door.create(body, lambda ctx: ClusterView.of(use.create_dedicated(ctx, body.slug, body.name)))


@router.get("/api/v1/orgs/{org}/clusters")
def list_clusters(org: str, door: AtDoor, page: Page) -> Clusters:
    """The clusters that the organisation uses, by short name."""
    with door.read() as ctx:
        found = use.listed(ctx, page.after, page.size + 1)
    items = [ClusterView.of(cluster) for cluster in found[: page.size]]
    return Clusters(items=items, next_page_token=page_token(items[-1].slug) if len(found) > page.size else None)


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
