"""Dedicated clusters of the whole site, and requests for them: the operator's door (spec 10, "Kinds of cluster")."""

from __future__ import annotations

from datetime import datetime

from fastapi import APIRouter
from pydantic import BaseModel

from corral.server.door import AtDoor, Page, page_token
from corral.usecases import dedicated_clusters as use

router = APIRouter()


class DedicatedView(BaseModel):
    """A dedicated cluster: whose it is, what it has, and since when its organisation has left it."""

    id: str
    org: str
    slug: str
    name: str
    machines: int
    up: int
    down: int
    cordoned: int
    gpus: int
    created_at: datetime
    left_at: datetime | None


class DedicatedList(BaseModel):
    items: list[DedicatedView]
    next_page_token: str | None


@router.get("/api/v1/site/clusters")
def list_dedicated_clusters(page: Page, door: AtDoor) -> DedicatedList:
    """List the site's dedicated clusters, oldest first: those that were left too, until they are deleted."""
    with door.read() as ctx:
        found = use.listed(ctx, page.after, page.size + 1)
    items = [_view(one) for one in found[: page.size]]
    return DedicatedList(items=items, next_page_token=page_token(items[-1].id) if len(found) > page.size else None)


@router.delete("/api/v1/site/clusters/{id}", status_code=204)
def delete_dedicated_cluster(id: str, door: AtDoor) -> None:
    """Delete a dedicated cluster that its organisation has left and that has no machine (else `CLUSTER_IN_USE`)."""
    with door.write() as ctx:
        use.remove(ctx, id)


def _view(one: use.Dedicated) -> DedicatedView:
    same = {name: value for name, value in vars(one).items() if name != "counts"}
    return DedicatedView(**same, **vars(one.counts))
