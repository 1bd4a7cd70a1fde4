"""What happens to every request before its route: a request id, and a limit on its body."""

from __future__ import annotations

import json
import os
import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY = 1024 * 1024
_GIVEN_ID = re.compile(rb"[A-Za-z0-9_.-]{8,40}")


class RequestIds:
    """Give each request an id (the client's own when it is a plain token) and answer with it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        request_id = given.decode() if _GIVEN_ID.fullmatch(given) else os.urandom(10).hex()
        scope.setdefault("state", {})["request_id"] = request_id
        if scope["type"] == "websocket":  # nothing to answer with it: every frame is spared a hop
            await self.app(scope, receive, send)
            return

        async def tagged(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        await self.app(scope, receive, tagged)


class BodyLimit:
    """Refuse a body over `MAX_BODY` without reading it whole (413 `TOO_LARGE`), and one in UTF-16 or UTF-32.

    JSON between systems is UTF-8 (RFC 8259); the parser would guess the others, so one text could be read in two ways.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if not length.isdigit() or int(length) > MAX_BODY:
            await _refuse(scope, send, _TOO_LARGE)
            return
        seen, started = 0, False
        why: _Why | None = None

        async def counted() -> Message:
            nonlocal seen, why
            message = await receive()
            body = message.get("body", b"")
            if not seen and _is_wide(body):
                why = _NOT_UTF8
            seen += len(body)
            if seen > MAX_BODY:  # a chunked body without a length
                why = _TOO_LARGE
            # Ended here, the route does not act; the answer below replaces its own.
            return message if why is None else {"type": "http.disconnect"}

        async def watched(message: Message) -> None:
            nonlocal started
            if why is not None and not started:
                return
            started = True
            await send(message)

        try:
            await self.app(scope, counted, watched)
        finally:
            if why is not None and not started:
                await _refuse(scope, send, why)


_Why = tuple[int, str, str]
_TOO_LARGE: _Why = (413, "TOO_LARGE", f"The body is larger than {MAX_BODY} bytes. Send less.")
_NOT_UTF8: _Why = (
    400,
    "INVALID_REQUEST",
    "The body is not JSON in UTF-8: it is in UTF-16 or UTF-32. Correct it and send it again.",
)


def _is_wide(start: bytes) -> bool:
    """Return whether a body begins as JSON in UTF-16 or UTF-32 does: with a NUL among its first bytes, or a mark."""
    return b"\0" in start[:4] or start.startswith((b"\xff\xfe", b"\xfe\xff"))


async def _refuse(scope: Scope, send: Send, why: _Why) -> None:
    status, code, message = why
    request_id = scope.get("state", {}).get("request_id", "")
    details = {"limit": MAX_BODY} if code == "TOO_LARGE" else {}
    answer = {"code": code, "message": message, "details": details, "request_id": request_id}
    body = json.dumps(answer).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
