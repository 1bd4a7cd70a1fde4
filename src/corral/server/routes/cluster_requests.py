"""Requests for a dedicated cluster: an organisation's door and the operator's (spec 10, "Kinds of cluster")."""

from __future__ import annotations

from datetime import datetime

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from corral.domain.errors import Refusal
from corral.server.bodies import Body
from corral.server.door import AtDoor, Page, keys_token, page_token
from corral.usecases import cluster_requests as use
from corral.usecases.context import Context

router = APIRouter()


class RequestBody(Body):
    """`name`: how the cluster should be shown; `note`: what it is for, up to 2000 characters."""

    name: str
    note: str = ""


class RequestView(BaseModel):
    """`state`: open, made, declined or withdrawn; `answer`: why it was declined; `cluster`: what was made for it."""

    id: str
    org: str
    name: str
    note: str
    created_by: str
    created_at: datetime
    state: str
    answered_at: datetime | None
    answer: str
    cluster: str | None

    @staticmethod
    def of(request: use.Request) -> RequestView:
        return RequestView(**vars(request))


class RequestList(BaseModel):
    items: list[RequestView]
    next_page_token: str | None


class AnswerBody(Body):
    """Either `slug`, and perhaps another shown `name`: the cluster is made; or `decline`: why there is none."""

    slug: str | None = None
    name: str | None = None
    decline: str | None = None


@router.get("/api/v1/orgs/{org}/cluster-requests")
def list_cluster_requests(org: str, page: Page, door: AtDoor) -> RequestList:
    """List what the organisation asked for, newest first, with the answers."""
    with door.read() as ctx:
        found = use.listed(ctx, page.after, page.size + 1)
    items = [RequestView.of(one) for one in found[: page.size]]
    return RequestList(items=items, next_page_token=page_token(items[-1].id) if len(found) > page.size else None)


@router.post("/api/v1/orgs/{org}/cluster-requests", status_code=201, response_model=RequestView)
def request_cluster(org: str, body: RequestBody, door: AtDoor) -> JSONResponse:
    """Ask the site's operator for a cluster of the organisation's own."""
    return door.create(body, lambda ctx: RequestView.of(use.ask(ctx, body.name, body.note)))


@router.delete("/api/v1/orgs/{org}/cluster-requests/{id}", status_code=204)
def withdraw_cluster_request(org: str, id: str, door: AtDoor) -> None:
    """Take a request back that has no answer yet; one that is over: 409 `CONFLICT`."""
    with door.write() as ctx:
        use.withdraw(ctx, id)


@router.get("/api/v1/site/cluster-requests")
def list_site_cluster_requests(page: Page, door: AtDoor) -> RequestList:
    """List every organisation's requests: open ones first, the oldest first; then those that are over."""
    keys = page.keys((int, str))
    with door.read() as ctx:
        found = use.of_site(ctx, (int(keys[0]), str(keys[1])) if keys else None, page.size + 1)
    more = keys_token(use.place_of(found[page.size - 1])) if len(found) > page.size else None
    return RequestList(items=[RequestView.of(one) for one in found[: page.size]], next_page_token=more)


@router.post("/api/v1/site/cluster-requests/{id}/answer", response_model=RequestView)
def answer_cluster_request(id: str, body: AnswerBody, door: AtDoor) -> JSONResponse:
    """Make the cluster, choosing its short name, or decline and say why. Answered once: 409 `CONFLICT` after that."""

    def answer(ctx: Context) -> RequestView:
        if body.decline is not None and body.slug is None and body.name is None:
            return RequestView.of(use.decline(ctx, id, body.decline))
        if body.slug is None or body.decline is not None:
            raise Refusal("INVALID_REQUEST", "Send either 'slug' (and perhaps 'name'), or 'decline'.", field="slug")
        return RequestView.of(use.make(ctx, id, body.slug, body.name))

    return door.create(body, answer, status=200)
