"""A scripted control plane: real WebSockets on a loopback port, saying just what a test wants it to."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar

from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from corral.protocol import codec
from corral.protocol.messages import AGENT_MESSAGES, Ack, Hello, Report, Welcome

T = TypeVar("T")
DEADLINE_S = 15.0


def run(test: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run an async test with a deadline."""

    async def bounded() -> T:
        return await asyncio.wait_for(test(), 60)

    return asyncio.run(bounded())


async def until(check: Callable[[], T | None], what: str = "", deadline_s: float = DEADLINE_S) -> T:
    """Return the first true answer of `check`."""
    end = time.monotonic() + deadline_s
    while not (answer := check()):
        assert time.monotonic() < end, f"not within {deadline_s} s: {what or check}"
        await asyncio.sleep(0.005)
    return answer


@dataclass
class Session:
    """One agent session that was opened here."""

    socket: ServerConnection
    hello: Hello
    messages: list[object] = field(default_factory=list)
    raw: list[str] = field(default_factory=list)

    @property
    def reports(self) -> list[Report]:
        return [m for m in self.messages if isinstance(m, Report)]

    @property
    def last(self) -> Report:
        return self.reports[-1]

    def of(self, kind: type[T]) -> list[T]:
        return [m for m in self.messages if isinstance(m, kind)]

    async def send(self, kind: str, body: object) -> None:
        await self.socket.send(codec.encode(kind, body))


@dataclass
class FakeSite:
    url: str = ""
    sessions: list[Session] = field(default_factory=list)
    streams: dict[str, ServerConnection] = field(default_factory=dict)
    refusals: list[Response] = field(default_factory=list)
    """What the next upgrades get instead of a session."""
    attempts: list[tuple[float, str, str]] = field(default_factory=list)
    """(when, path, Authorization) of every upgrade that was asked for."""
    ack: bool = True
    answer: Callable[[Report], Ack] = lambda report: Ack(report.seq)
    welcome: Welcome = field(default_factory=lambda: Welcome("m1", "box", 1, "inc1", report_every_s=0.2))

    def refuse(self, status: HTTPStatus, body: object = None, **headers: str) -> None:
        raw = json.dumps(body).encode() if body is not None else b""
        given = Headers({name.replace("_", "-"): value for name, value in headers.items()})
        given["Content-Length"] = str(len(raw))
        self.refusals.append(Response(status.value, status.phrase, given, raw))

    async def session(self, number: int = 0) -> Session:
        return await until(lambda: self.sessions[number] if len(self.sessions) > number else None, f"session {number}")

    async def stream(self, name: str) -> ServerConnection:
        return await until(lambda: self.streams.get(name), f"stream {name}")

    def _process(self, connection: ServerConnection, request: Request) -> Response | None:
        self.attempts.append((time.monotonic(), request.path, request.headers.get("Authorization", "")))
        return self.refusals.pop(0) if self.refusals else None

    async def _serve(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        path = socket.request.path
        if "/streams/" in path:
            self.streams[path.rpartition("/")[2]] = socket
            await socket.wait_closed()
            return
        try:
            await self._session(socket)
        except ConnectionClosed:
            return

    async def _session(self, socket: ServerConnection) -> None:
        hello = codec.decode(await socket.recv(), AGENT_MESSAGES)
        assert isinstance(hello, Hello)
        session = Session(socket, hello)
        await session.send("welcome", self.welcome)
        self.sessions.append(session)
        async for frame in socket:
            assert isinstance(frame, str)
            message = codec.decode(frame, AGENT_MESSAGES)
            session.raw.append(frame)
            session.messages.append(message)
            if isinstance(message, Report) and self.ack:
                await session.send("ack", self.answer(message))


@asynccontextmanager
async def fake_site(site: FakeSite | None = None) -> AsyncIterator[FakeSite]:
    site = site or FakeSite()
    async with serve(
        site._serve, "127.0.0.1", 0, process_request=site._process, compression=None, max_size=None, ping_interval=None
    ) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        site.url = f"http://127.0.0.1:{port}"
        yield site
