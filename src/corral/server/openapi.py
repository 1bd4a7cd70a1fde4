"""What the OpenAPI document says beside what FastAPI sees: the one shape of errors, who may, short names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from corral.domain.errors import CODES
from corral.domain.permissions import ROUTES, Rule, Who

URL = "/api/v1/openapi.json"
_ERROR = {
    "type": "object",
    "description": "Every error. `message` says what to do next; `request_id` finds it in the site's log.",
    "required": ["code", "message", "details", "request_id"],
    "properties": {
        "code": {"type": "string", "enum": sorted(CODES)},
        "message": {"type": "string"},
        "details": {"type": "object", "additionalProperties": True},
        "request_id": {"type": "string"},
    },
}
_ANSWER = {
    "description": "Refused; the code says why.",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}
_BEARER = {"type": "http", "scheme": "bearer", "description": "An API token: `corral login` or `corral token create`."}
_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "The same key again gets the same answer and makes nothing twice; secrets are null then.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}


def install(app: FastAPI) -> None:
    """Make `app.openapi()` give the whole document, and serve it."""

    def whole() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = whole  # type: ignore[method-assign]  # FastAPI documents this way to replace it
    made: bytes | None = None

    async def served(_request: Request) -> Response:
        nonlocal made
        if made is None:
            # Once: it is large, and everybody may ask for it while the loop is to hear machines.
            made = await run_in_threadpool(lambda: encoded(whole()))
        return Response(made, media_type="application/json")

    app.router.routes.append(Route(URL, served, methods=["GET"]))


def encoded(document: dict[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _document(app: FastAPI) -> dict[str, Any]:
    made = get_openapi(title=app.title, version=app.version, routes=app.routes)
    components = made.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas["Error"] = _ERROR
    components["securitySchemes"] = {"token": _BEARER}
    for route, method in _routes(app):
        operation = made["paths"].get(route.path, {}).get(method.lower())
        if operation is not None:
            _complete(operation, route, method)
    return made


def _routes(app: FastAPI) -> Iterator[tuple[APIRoute, str]]:
    for route in app.routes:
        if isinstance(route, APIRoute):
            for method in route.methods or ():
                yield route, method


def _complete(operation: dict[str, Any], route: APIRoute, method: str) -> None:
    rule = ROUTES[(method, route.path)]
    noun = route.endpoint.__module__.rpartition(".")[2]
    operation["operationId"] = f"{noun}_{route.endpoint.__name__}"
    operation["tags"] = [noun]
    operation["responses"].pop("422", None)
    operation["responses"]["default"] = _ANSWER
    operation["security"] = [] if Who.PUBLIC in rule.who else [{"token": []}]
    operation["description"] = f"{operation.get('description', '').strip()}\n\n{_who(rule)}"
    if method == "POST" and Who.PUBLIC not in rule.who:
        operation.setdefault("parameters", []).append(_KEY)


def _who(rule: Rule) -> str:
    if Who.PUBLIC in rule.who:
        return "No login is needed."
    names = {
        Who.SELF: "anybody logged in",
        Who.OPERATOR: "the operator",
        Who.OWNER: "owners",
        Who.ADMIN: "admins",
        Who.MEMBER: "members",
        Who.WORKSPACE: "members of the workspace",
    }
    who = ", ".join(name for bit, name in names.items() if bit in rule.who)
    return f"For {who}. Token scope: `{rule.scope}`."
