"""Break-glass: the operator's look into an organisation, which its owners and admins see (spec 05)."""

from __future__ import annotations

from datetime import datetime

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from corral.domain import break_glass as rules
from corral.server.bodies import Body
from corral.server.door import AtDoor, Page, page_token
from corral.usecases import break_glass as use

router = APIRouter()


class LookBody(Body):
    """`reason` is for the organisation to read; `ttl_seconds`: 60 to 28800."""

    reason: str
    ttl_seconds: int = rules.DEFAULT_TTL_S


class LookView(BaseModel):
    """`live`: it opens the organisation's data to this operator now, for reading."""

    id: str
    operator: str
    reason: str
    created_at: datetime
    expires_at: datetime
    ended_at: datetime | None
    live: bool

    @staticmethod
    def of(look: use.Look) -> LookView:
        return LookView(**vars(look))


class LookList(BaseModel):
    items: list[LookView]
    next_page_token: str | None


@router.post("/api/v1/orgs/{org}/break-glass", status_code=201, response_model=LookView)
def begin_break_glass(org: str, body: LookBody, door: AtDoor) -> JSONResponse:
    """Open the organisation's data to yourself, the operator, for reading, with a reason that it sees.

    What an admin may read, but nothing that leads into a workload; no change. Each use stands in its audit.
    """
    return door.create(body, lambda ctx: LookView.of(use.begin(ctx, body.reason, body.ttl_seconds)))


@router.get("/api/v1/orgs/{org}/break-glass")
def list_break_glass(org: str, page: Page, door: AtDoor) -> LookList:
    """List when and why the operator could look into the organisation, newest first."""
    with door.read() as ctx:
        found = use.listed(ctx, page.after, page.size + 1)
    items = [LookView.of(one) for one in found[: page.size]]
    return LookList(items=items, next_page_token=page_token(items[-1].id) if len(found) > page.size else None)


@router.delete("/api/v1/orgs/{org}/break-glass/{id}", status_code=204)
def end_break_glass(org: str, id: str, door: AtDoor) -> None:
    """End a look at once, open event streams included. One that is over already stays so."""
    with door.write() as ctx:
        use.end(ctx, id)
