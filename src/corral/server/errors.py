"""How refusals leave the house: the one table code -> HTTP status, and the one shape of an error."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket, WebSocketDisconnect
from structlog import get_logger

from corral.domain.errors import CODES, Refusal
from corral.store.database_errors import DatabaseError, is_full

log = get_logger()

STATUS: Mapping[str, int] = {
    "UNAUTHENTICATED": 401,
    "FORBIDDEN": 403,
    "LIMIT_REACHED": 403,
    "NOT_FOUND": 404,
    "NODE_NOT_FOUND": 404,
    "WORKSPACE_NOT_FOUND": 404,
    "TOKEN_UNKNOWN": 404,
    "METHOD_NOT_ALLOWED": 405,
    "CONFLICT": 409,
    "NAME_TAKEN": 409,
    "LAST_OWNER": 409,
    "LINK_USED": 409,
    "TOKEN_USED": 409,
    "NODE_IN_USE": 409,
    "NODE_NOT_CONNECTED": 409,
    "CLUSTER_IN_USE": 409,
    "RESERVATION_CONFLICT": 409,
    "DATA_LOCATION_IN_USE": 409,
    "NO_CAPACITY": 409,
    "QUOTA_EXCEEDED": 409,
    "QUEUE_FULL": 409,
    "NO_ACCESS": 409,
    "NO_SSH_KEY": 409,
    "NOT_ACTIVE": 409,
    "MACHINE_UNREACHABLE": 409,
    "LINK_EXPIRED": 410,
    "TOKEN_EXPIRED": 410,
    "MACHINE_REMOVED": 410,
    "TOO_LARGE": 413,
    "IDEMPOTENCY_KEY_REUSED": 422,
    "PROTOCOL_TOO_OLD": 426,
    "RATE_LIMITED": 429,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
}
"""What is missing here is 400."""
BODY_NOT_PARSED = "There was an error parsing the body"
"""What the framework says where the parser gave up on a body without telling at which character."""

DISK_FULL = (
    "The disk of this site's database is full; nothing was changed. Its operator has to make room: try again then."
)
NO_OFFSET = "a time needs its offset from UTC: write 2026-11-30T15:33:00Z, or 2026-11-30T16:33:00+01:00."


def status_of(code: str) -> int:
    return STATUS.get(code, 400)


def body_of(refusal: Refusal, request_id: str) -> dict[str, Any]:
    return {
        "code": refusal.code,
        "message": refusal.message,
        "details": refusal.details,
        "request_id": request_id,
    }


def request_id_of(request: HTTPConnection) -> str:
    return str(request.scope.get("state", {}).get("request_id", ""))


def answer(request: HTTPConnection, refusal: Refusal) -> JSONResponse:
    headers = {}
    if refusal.code == "UNAUTHENTICATED":
        headers["WWW-Authenticate"] = "Bearer"
    if "retry_after_s" in refusal.details:
        headers["Retry-After"] = str(refusal.details["retry_after_s"])
    return JSONResponse(body_of(refusal, request_id_of(request)), status_of(refusal.code), headers)


def install(app: FastAPI) -> None:
    """Make every error of `app` leave in the one shape."""

    async def refused(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, Refusal)
        return answer(request, error)

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return answer(request, _invalid_request(error))

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return answer(request, _from_http(error))

    async def database(request: Request, error: Exception) -> JSONResponse:
        if not is_full(error):
            raise error  # a fault like any other
        log.error("disk_full", request_id=request_id_of(request))
        return answer(request, Refusal("UNAVAILABLE", DISK_FULL, retry_after_s=30))

    async def fault(request: Request, error: Exception) -> JSONResponse:
        request_id = request_id_of(request)
        log.error("unhandled", request_id=request_id, path=request.url.path, exc_info=error)
        return answer(
            request,
            Refusal("INTERNAL", f"Something went wrong in Corral. Give its operator the request id {request_id}."),
        )

    app.add_exception_handler(Refusal, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(DatabaseError, database)
    app.add_exception_handler(Exception, fault)


def _invalid_request(error: RequestValidationError) -> Refusal:
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return _no_json(f"{first['ctx']['error']}, at character {first['loc'][-1]}")
    path = [str(part) for part in first["loc"] if part not in ("body", "query", "path", "header")]
    field = ".".join(path) or "body"
    what = NO_OFFSET if first["type"] == "timezone_aware" else f"{first['msg']}. Correct it and send the request again."
    return Refusal("INVALID_REQUEST", f"{field}: {what}", field=field)


def _no_json(why: str) -> Refusal:
    return Refusal(
        "INVALID_REQUEST", f"The body is not JSON in UTF-8: {why}. Correct it and send it again.", field="body"
    )


def _from_http(error: HTTPException) -> Refusal:
    if error.detail == BODY_NOT_PARSED:
        return _no_json("it has other bytes, is nested too deeply, or has too long a number")
    code = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED", 413: "TOO_LARGE", 401: "UNAUTHENTICATED"}.get(
        error.status_code, "INVALID_REQUEST"
    )
    return Refusal(code, CODES[code] if code != "INVALID_REQUEST" else str(error.detail))


async def deny(ws: WebSocket, refusal: Refusal) -> None:
    """Answer a WebSocket's handshake with an ordinary HTTP error in the one shape."""
    with contextlib.suppress(RuntimeError, WebSocketDisconnect, OSError):
        await ws.send_denial_response(answer(ws, refusal))
