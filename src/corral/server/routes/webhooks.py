"""Webhooks: where an organisation's events and alerts are posted, signed (spec 10, "Events, audit, alerts")."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from corral.domain import targets
from corral.server.bodies import Body
from corral.server.door import AtDoor, Door, Page, page_token
from corral.server.outbound import Asker, Outbound
from corral.server.routes.join_tokens import public_url
from corral.store.transaction import Row
from corral.usecases import webhooks as use
from corral.usecases.sealing import CANNOT_BE_OPENED, Seal

router = APIRouter()


class WebhookBody(Body):
    """`types`: types of events, or the beginning of some with `.*`; none: it is told of alerts only, by rules."""

    name: str
    url: str
    types: list[str] = Field(default_factory=list)


class WebhookChange(Body):
    """A field left out is kept. `new_secret` makes another secret, shown in this answer; the old one ends at once."""

    name: str | None = None
    url: str | None = None
    types: list[str] | None = None
    enabled: bool | None = None
    new_secret: bool = False


class WebhookView(BaseModel):
    """`problem` says why it is told nothing; `failing_since`: it has taken nothing since then."""

    id: str
    name: str
    url: str
    types: list[str]
    enabled: bool
    problem: str
    failing_since: datetime | None
    last_at: datetime | None
    last_status: int | None
    created_at: datetime


class WebhookWithSecret(WebhookView):
    """`secret` is what deliveries are signed with: shown when it is made, never again."""

    SECRETS: ClassVar[tuple[str, ...]] = ("secret",)

    secret: str | None


class WebhookList(BaseModel):
    items: list[WebhookView]
    next_page_token: str | None


class DeliveryView(BaseModel):
    """`webhook_id`: the header of that name. `state`: waiting, delivered or given_up; `status`: of the last answer."""

    id: str
    webhook_id: str
    type: str
    state: str
    attempts: int
    status: int | None
    error: str
    created_at: datetime
    next_at: datetime | None
    delivered_at: datetime | None


class DeliveryList(BaseModel):
    items: list[DeliveryView]
    next_page_token: str | None


class SentTest(BaseModel):
    """The delivery that was put out: how it goes stands with the webhook's deliveries, or beside the rule."""

    delivery: str


@router.get("/api/v1/orgs/{org}/webhooks")
def list_webhooks(org: str, page: Page, door: AtDoor, request: Request) -> WebhookList:
    """List the organisation's webhooks, the oldest first; never their secrets."""
    with door.read() as ctx:
        rows = use.listed(ctx, page.after, page.size + 1)
    items = [_view(row, request.app.state.seal) for row in rows[: page.size]]
    return WebhookList(items=items, next_page_token=page_token(items[-1].id) if len(rows) > page.size else None)


@router.post("/api/v1/orgs/{org}/webhooks", status_code=201, response_model=WebhookWithSecret)
def create_webhook(org: str, body: WebhookBody, door: AtDoor, request: Request) -> JSONResponse:
    """Make a webhook. Its URL is looked up: https, and a public address. The secret is shown this once."""
    seal: Seal = request.app.state.seal
    look_up(door, request, body.url)
    asked = use.Asked(body.name, body.url, body.types)
    return door.create(body, lambda ctx: _made(use.create(ctx, seal, asked), seal))


@router.patch("/api/v1/orgs/{org}/webhooks/{id}")
def change_webhook(org: str, id: str, body: WebhookChange, door: AtDoor, request: Request) -> WebhookWithSecret:
    """Change a webhook. Disabling drops what waits for it; enabling begins with what comes next."""
    seal: Seal = request.app.state.seal
    if body.url is not None:
        look_up(door, request, body.url)
    with door.write() as ctx:
        return _made(use.change(ctx, seal, id, use.Change(**vars(body))), seal)


@router.delete("/api/v1/orgs/{org}/webhooks/{id}", status_code=204)
def remove_webhook(org: str, id: str, door: AtDoor) -> Response:
    """Remove a webhook by which no alert rule tells; what waits for it is dropped."""
    with door.write() as ctx:
        use.remove(ctx, id)
    return Response(status_code=204)


@router.post("/api/v1/orgs/{org}/webhooks/{id}/test", status_code=202, response_model=SentTest)
def test_webhook(org: str, id: str, door: AtDoor, request: Request) -> JSONResponse:
    """Send it a test event; how that goes stands in its deliveries."""
    url = public_url(request.app.state)
    return door.create(None, lambda ctx: SentTest(delivery=use.test(ctx, id, url)), status=202)


@router.get("/api/v1/orgs/{org}/webhooks/{id}/deliveries")
def list_deliveries(org: str, id: str, page: Page, door: AtDoor) -> DeliveryList:
    """List what was, or is to be, delivered to it, the newest first; kept for 30 days."""
    with door.read() as ctx:
        rows = use.delivered(ctx, id, page.after, page.size + 1)
    items = [_delivery(row) for row in rows[: page.size]]
    return DeliveryList(items=items, next_page_token=page_token(items[-1].id) if len(rows) > page.size else None)


def look_up(door: Door, request: Request, url: str) -> None:
    """Check a URL and where it leads. Errors: those of the door, then `INVALID_URL`, `RATE_LIMITED`."""
    asker = asker_at(door)
    outbound: Outbound = request.app.state.outbound
    outbound.check(asker, targets.url(url))


def asker_at(door: Door) -> Asker:
    """Return who may ask; first of all: whoever may not learns nothing of the body, and nothing is looked up for them.

    What follows is in no transaction: a name server may take its time.
    """
    with door.read() as ctx:
        return Asker(ctx.org.id, ctx.user.id, use.opened(ctx))


def _made(made: use.Made, seal: Seal) -> WebhookWithSecret:
    return WebhookWithSecret(**vars(_view(made.row, seal)), secret=made.secret)


def _view(row: Row, seal: Seal) -> WebhookView:
    names = ("id", "name", "url", "types", "enabled", "failing_since", "last_at", "last_status", "created_at")
    problem = row["disabled_because"] or ("" if seal.open(row["secret"], row["id"]) else CANNOT_BE_OPENED)
    return WebhookView(**{name: row[name] for name in names}, problem=problem)


def _delivery(row: Row) -> DeliveryView:
    state = "waiting" if row["next_at"] is not None else "delivered" if row["delivered_at"] is not None else "given_up"
    names = ("id", "type", "attempts", "status", "error", "created_at", "next_at", "delivered_at")
    return DeliveryView(**{name: row[name] for name in names}, webhook_id=f"msg_{row['id']}", state=state)
