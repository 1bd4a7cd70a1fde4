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

        async def tagged(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        await self.app(scope, receive, tagged)


class BodyLimit:
    """Refuse a body over `MAX_BODY` without reading it whole: 413 `TOO_LARGE`."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if not length.isdigit() or int(length) > MAX_BODY:
            await _too_large(scope, send)
            return
        seen, started, over = 0, False, False

        async def counted() -> Message:
            nonlocal seen, over
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > MAX_BODY:
                # A chunked body without a length: end it here; the answer below replaces the route's.
                over = True
                return {"type": "http.disconnect"}
            return message

        async def watched(message: Message) -> None:
            nonlocal started
            if over and not started:
                return
            started = True
            await send(message)

        try:
            await self.app(scope, counted, watched)
        finally:
            if over and not started:
                await _too_large(scope, send)


async def _too_large(scope: Scope, send: Send) -> None:
    answer = {
        "code": "TOO_LARGE",
        "message": f"The body is larger than {MAX_BODY} bytes. Send less.",
        "details": {"limit": MAX_BODY},
        "request_id": scope.get("state", {}).get("request_id", ""),
    }
    body = json.dumps(answer).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": body})
