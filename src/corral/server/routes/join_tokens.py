"""Join tokens: shown once, listed without their secret, revoked (spec 10, "Join tokens")."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, ClassVar

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from corral.domain import join_tokens as rules
from corral.server.door import AtDoor, Page, page_token
from corral.server.install_line import install_line
from corral.usecases import join_tokens as use

router = APIRouter()

_TTL = {"type": "integer", "minimum": rules.MIN_TTL_S, "maximum": rules.MAX_TTL_S}
_LABELS = {"type": "object", "additionalProperties": {"type": "string", "maxLength": 63}}


class TokenBody(BaseModel):
    """Labels are given to the machine: `pool`, `site`, `rack`, `fabric` and the organisation's own keys."""

    model_config = ConfigDict(extra="forbid", strict=True)

    # Values of any type: what is wrong with them is told by codes of their own.
    labels: Annotated[dict[str, Any], Field(json_schema_extra=_LABELS)] = {}
    ttl_seconds: Annotated[Any, Field(json_schema_extra=_TTL)] = rules.DEFAULT_TTL_S


class WorkspaceTokenBody(TokenBody):
    """`cluster` may be left out when the organisation uses one, or none yet."""

    cluster: str | None = None


class NewToken(BaseModel):
    """`token` and `install` are secrets until the token has been used; a replayed answer has null there."""

    SECRETS: ClassVar[tuple[str, ...]] = ("token", "install")

    id: str
    token: str | None
    labels: dict[str, str]
    expires_at: datetime
    install: str | None


class TokenView(BaseModel):
    id: str
    public_id: str
    labels: dict[str, str]
    created_by: str | None
    created_at: datetime
    expires_at: datetime


class Tokens(BaseModel):
    items: list[TokenView]
    next_page_token: str | None


@router.post("/api/v1/orgs/{org}/clusters/{cluster}/enrollment-tokens", status_code=201, response_model=NewToken)
def create_token(org: str, cluster: str, body: TokenBody, door: AtDoor, request: Request) -> JSONResponse:
    """Make a join token: one machine joins with it. `install` is the line to run on the machine as root."""
    asked = rules.asked(body.labels, body.ttl_seconds)
    return door.create(_checked(asked), lambda ctx: _view(use.create(ctx, cluster, asked), request))


@router.post("/api/v1/orgs/{org}/workspaces/{ws}/enrollment-tokens", status_code=201, response_model=NewToken)
def create_workspace_token(org: str, ws: str, body: WorkspaceTokenBody, door: AtDoor, request: Request) -> JSONResponse:
    """Add a machine from a workspace: it is granted the label's pool. The hosted cluster is used if there is none."""
    asked = rules.asked(body.labels, body.ttl_seconds)
    checked = WorkspaceTokenBody(**vars(_checked(asked)), cluster=body.cluster)
    return door.create(checked, lambda ctx: _view(use.create_for_workspace(ctx, body.cluster, asked), request))


@router.get("/api/v1/orgs/{org}/clusters/{cluster}/enrollment-tokens")
def list_tokens(org: str, cluster: str, door: AtDoor, page: Page) -> Tokens:
    """The tokens that may still be used, oldest first; never their secret."""
    with door.read() as ctx:
        found = use.listed(ctx, cluster, page.after, page.size + 1)
    items = [TokenView(**vars(token)) for token in found[: page.size]]
    return Tokens(items=items, next_page_token=page_token(items[-1].id) if len(found) > page.size else None)


@router.delete("/api/v1/orgs/{org}/clusters/{cluster}/enrollment-tokens/{id}", status_code=204)
def revoke_token(org: str, cluster: str, id: str, door: AtDoor) -> Response:
    """Revoke an unused token."""
    with door.write() as ctx:
        use.revoke(ctx, cluster, id)
    return Response(status_code=204)


def _checked(asked: rules.Asked) -> TokenBody:
    """Return the body as it is compared when its `Idempotency-Key` comes again."""
    return TokenBody(labels=dict(asked.labels), ttl_seconds=int(asked.ttl.total_seconds()))


def _view(made: use.NewJoinToken, request: Request) -> NewToken:
    state = request.app.state
    line = install_line(public_url(state), made.token, getattr(state, "ca_pem", None))
    return NewToken(id=made.id, token=made.token, labels=dict(made.labels), expires_at=made.expires_at, install=line)


def public_url(state: Any) -> str:
    """Return how machines reach this site: as it is configured, never as a request's Host header says."""
    given = getattr(state, "public_url", None) or state.config.public_url
    return str(given or f"http://{state.config.host}:{state.config.port}").rstrip("/")
