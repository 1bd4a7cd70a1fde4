"""Alert rules: who is told of which kinds, by a webhook, mail or chat (spec 10, "Events, audit, alerts")."""

from __future__ import annotations

from datetime import datetime

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from corral.domain import alert_targets
from corral.domain.alert_targets import Target
from corral.domain.errors import Refusal
from corral.domain.targets import Url
from corral.server.bodies import Body
from corral.server.door import AtDoor, Door, Page, page_token
from corral.server.outbound import Outbound
from corral.server.routes.join_tokens import public_url
from corral.server.routes.webhooks import SentTest, asker_at
from corral.store.transaction import Row
from corral.usecases import alert_rules as use
from corral.usecases.alert_rules import Asked, Told
from corral.usecases.sealing import CANNOT_BE_OPENED, Seal

router = APIRouter()


class RuleBody(Body):
    """`kinds` empty: every kind; `cluster` null: every one. Told by `webhook` (an id) or `target` (an address)."""

    name: str
    kinds: list[str] = Field(default_factory=list)
    cluster: str | None = None
    webhook: str | None = None
    target: str | None = None


class RuleChange(Body):
    """A field left out is kept; `cluster` null: every cluster. `webhook` or `target` replaces who is told."""

    name: str | None = None
    kinds: list[str] | None = None
    cluster: str | None = None
    webhook: str | None = None
    target: str | None = None
    enabled: bool | None = None


class RuleView(BaseModel):
    """`webhook`: an id; else `target`, without its secrets. `last_at`, `last_error`: how telling `target` went last."""

    id: str
    name: str
    kinds: list[str]
    cluster: str | None
    webhook: str | None
    target: str
    enabled: bool
    problem: str
    last_at: datetime | None
    last_error: str
    created_at: datetime


class RuleList(BaseModel):
    items: list[RuleView]
    next_page_token: str | None


@router.get("/api/v1/orgs/{org}/alert-rules")
def list_rules(org: str, page: Page, door: AtDoor, request: Request) -> RuleList:
    """List the organisation's alert rules, the oldest first; of targets only what is no secret."""
    with door.read() as ctx:
        rows = use.listed(ctx, page.after, page.size + 1)
    items = [_view(row, request.app.state.seal) for row in rows[: page.size]]
    return RuleList(items=items, next_page_token=page_token(items[-1].id) if len(rows) > page.size else None)


@router.post("/api/v1/orgs/{org}/alert-rules", status_code=201, response_model=RuleView)
def create_rule(org: str, body: RuleBody, door: AtDoor, request: Request) -> JSONResponse:
    """Make an alert rule. A target is checked: a known service, and hosts of its own at public addresses."""
    seal: Seal = request.app.state.seal
    asked = Asked(body.name, body.kinds, body.cluster, told=_told(body.webhook, body.target, door, request))
    return door.create(body, lambda ctx: _view(use.create(ctx, seal, asked), seal))


@router.patch("/api/v1/orgs/{org}/alert-rules/{id}")
def change_rule(org: str, id: str, body: RuleChange, door: AtDoor, request: Request) -> RuleView:
    """Change an alert rule."""
    seal: Seal = request.app.state.seal
    asked = Asked(
        body.name,
        body.kinds,
        body.cluster,
        every_cluster="cluster" in body.model_fields_set and body.cluster is None,
        told=_told(body.webhook, body.target, door, request),
        enabled=body.enabled,
    )
    with door.write() as ctx:
        return _view(use.change(ctx, seal, id, asked), seal)


@router.delete("/api/v1/orgs/{org}/alert-rules/{id}", status_code=204)
def remove_rule(org: str, id: str, door: AtDoor) -> Response:
    """Remove an alert rule."""
    with door.write() as ctx:
        use.remove(ctx, id)
    return Response(status_code=204)


@router.post("/api/v1/orgs/{org}/alert-rules/{id}/test", status_code=202, response_model=SentTest)
def test_rule(org: str, id: str, door: AtDoor, request: Request) -> JSONResponse:
    """Send a test to whom the rule tells; how that goes stands beside the rule, or in the webhook's deliveries."""
    url = public_url(request.app.state)
    return door.create(None, lambda ctx: SentTest(delivery=use.test(ctx, id, url)), status=202)


def _told(webhook: str | None, target: str | None, door: Door, request: Request) -> Told:
    if webhook is not None and target is not None:
        raise Refusal("INVALID_REQUEST", "target: give either 'target' or 'webhook', not both.", field="target")
    return Told(webhook, _looked_up(target, door, request) if target is not None else None)


def _looked_up(text: str, door: Door, request: Request) -> Target:
    """Check an address. Errors: those of the door, then `INVALID_URL`, `RATE_LIMITED`."""
    asker = asker_at(door)
    target = alert_targets.target(text)
    outbound: Outbound = request.app.state.outbound
    for host in target.hosts:
        outbound.check(asker, Url("https", host, 443, "/"))
    readable = outbound.messages.can_be_read(asker.org_id, text)
    if not readable:
        what = alert_targets.SERVICES[target.service]
        raise Refusal("INVALID_URL", f"The target is no address of {what} as apprise writes it.", field="target")
    return target


def _view(row: Row, seal: Seal) -> RuleView:
    names = ("id", "name", "kinds", "enabled", "last_at", "last_error", "created_at", "cluster")
    sealed = row["target"]
    problem = "" if sealed is None or seal.open(sealed, row["id"]) is not None else CANNOT_BE_OPENED
    same = {name: row[name] for name in names}
    return RuleView(**same, webhook=row["webhook_id"], target=row["target_shown"], problem=problem)
