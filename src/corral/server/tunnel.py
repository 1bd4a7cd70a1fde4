"""Streams into compute clusters: person -> control plane -> agent, two WebSockets joined (spec 40, "Tunnels").

The control plane asks on the agent's session and the agent dials back once, within 10 s.
Both legs have backpressure: nothing is read from one side before the other took what came
before. An open stream is authorised again whenever something about its person or workload
changed, so a key detached, a member removed or a cluster terminated closes it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState
from structlog import get_logger

from corral.domain.errors import Refusal
from corral.protocol.messages import OpenStream, StreamTarget
from corral.server.agents import Hub
from corral.server.door import Door, bearer
from corral.server.errors import deny
from corral.server.places import Places
from corral.server.threads import Threads
from corral.store.engine import Database
from corral.store.transaction import Signal, Wake
from corral.usecases import connections, sessions

log = get_logger()

DIAL_WITHIN_S = 10.0
RECHECK_EVERY_S = 30.0
"""A token's expiry wakes nobody: every stream is authorised again this often."""
CHECK_TRIES, CHECK_AGAIN_S = 5, 2.0
"""A stream that cannot be judged for so long, as the database is away, ends: who may not stay must not."""
CLOSE_WITHIN_S = 5.0
"""A side that does not read cannot be told why."""
THREADS, OF_AN_ASKER = 8, 2
"""For asks; one asker has at most so many of them."""
JUDGES = 4
"""Threads for judging open streams again: new asks do not stand before that."""
CLOSE_NOT_ALLOWED = 4403
CLOSE_ENDED = 1000
MAX_STREAMS_OF_A_USER = 200
LOG_SILENCE_S = 0.5
"""A log that is followed has no end: what comes after such a silence was not said yet when it was asked for."""
LOG_MOST = 1024 * 1024
"""Bytes: a container that never stops talking must not fill the control plane's memory."""
EOF_TEXT = "eof"
PERSON_PATH = "/api/v1/orgs/{org}/workspaces/{ws}/compute-clusters/{name}/stream"
AGENT_PATH = "/api/v1/agent/streams/{stream}"


async def _said(agent: WebSocket) -> bytes:
    """Return what comes until it is silent, or has said `LOG_MOST`."""
    said = bytearray()
    with contextlib.suppress(WebSocketDisconnect, TimeoutError):
        async with asyncio.timeout(DIAL_WITHIN_S):
            while len(said) < LOG_MOST:
                message = await asyncio.wait_for(agent.receive(), LOG_SILENCE_S)
                if message.get("bytes") is None:
                    break
                said += message["bytes"]
    return bytes(said)


@dataclass(eq=False)
class Open:
    """One stream, from the ask to its end."""

    id: str
    door: Door
    target: connections.Target
    agent: asyncio.Future[WebSocket]
    over: asyncio.Event = field(default_factory=asyncio.Event)
    reason: str = ""
    judging: bool = False
    judge_again: bool = False
    """Something changed while it was judged."""

    def concerns(self, ids: set[str]) -> bool:
        """Whether a change of these (users, workloads, machines, tokens) may end it."""
        target = self.target
        return not ids.isdisjoint((target.user_id, target.workload_id, target.machine_id, target.token_id))

    def end(self, reason: str) -> None:
        """End it for a reason that its person is told."""
        self.reason = self.reason or reason
        self.over.set()
        if not self.agent.done():
            self.agent.set_exception(Refusal("NOT_ACTIVE", reason))
            self.agent.exception()  # nobody may be waiting any more; that is not an error


class Streams:
    """The open streams of this process."""

    def __init__(self, db: Database, hub: Hub) -> None:
        self._db = db
        self._hub = hub
        self._open: dict[str, Open] = {}
        self._asking: list[set[str]] = []
        """For each ask at the door: what changed since, as its stream is not open yet."""
        self._threads = Threads(THREADS, OF_AN_ASKER)
        self._judges = Threads(JUDGES)
        self._places = Places(MAX_STREAMS_OF_A_USER, "open streams")
        self._jobs: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._unsubscribe = self._db.subscribe(self._on_commit)
        self._hub.on_stream_refused = self.refused
        self._job(self._recheck())

    async def stop(self) -> None:
        self._unsubscribe()
        for stream in list(self._open.values()):
            stream.end("The control plane is restarting. Connect again in a moment.")
        for job in self._jobs:
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)

    def __len__(self) -> int:
        return len(self._open)

    async def serve_person(self, ws: WebSocket, door: Door, name: str, target: StreamTarget, port: int) -> None:
        """Serve a person's WebSocket from its handshake to its end."""
        try:
            stream = await self._ask(door, name, target, port)
        except Refusal as refusal:
            await deny(ws, refusal)
            return
        try:
            agent = await self._dialled(stream)
            await ws.accept(headers=_answer_headers(stream.target))
            await _join(ws, agent, stream)
        except Refusal as refusal:
            await deny(ws, refusal)
        except (RuntimeError, WebSocketDisconnect, OSError):
            pass  # the person left before it was open
        finally:
            self._forget(stream)
            stream.end("The person has left.")

    async def serve_agent(self, ws: WebSocket, stream_id: str, machine_id: str) -> None:
        """Serve an agent's dial-back: hand it to the stream that asked, and keep it until the end."""
        stream = self._open.get(stream_id)
        if stream is None or stream.target.machine_id != machine_id or stream.agent.done():
            await deny(ws, Refusal("NOT_FOUND", "No stream of this machine waits under this id."))
            return
        with contextlib.suppress(RuntimeError, WebSocketDisconnect, OSError):
            await ws.accept()
            if not stream.agent.done():
                stream.agent.set_result(ws)
            await stream.over.wait()
        await _close(ws, CLOSE_ENDED, stream.reason)

    def refused(self, machine_id: str, stream_id: str, message: str) -> None:
        """Take an agent's word that it cannot dial."""
        stream = self._open.get(stream_id)
        if stream is not None and stream.target.machine_id == machine_id and not stream.agent.done():
            stream.agent.set_exception(Refusal("NOT_ACTIVE", f"The machine could not open the stream: {message[:500]}"))

    async def read_logs(self, door: Door, name: str) -> bytes:
        """Return what a container has said so far: the agent sends its last lines at once, then what follows."""
        stream = await self._ask(door, name, StreamTarget.LOGS, 0)
        try:
            return await _said(await self._dialled(stream))
        finally:
            self._forget(stream)
            stream.end("The log was read.")

    async def _ask(self, door: Door, name: str, target: StreamTarget, port: int) -> Open:
        stream = await self._authorised(door, name, target, port)
        where = stream.target
        ask = OpenStream(
            stream=stream.id,
            url=f"/api/v1/agent/streams/{stream.id}",
            allocation=where.allocation_id,
            generation=where.generation,
            target=target,
            port=port,
        )
        try:
            await self._hub.ask_stream(where.machine_id, ask)
        except BaseException:
            self._forget(stream)
            raise
        return stream

    def _forget(self, stream: Open) -> None:
        if self._open.pop(stream.id, None) is not None:
            self._places.give(stream.target.user_id)

    async def _authorised(self, door: Door, name: str, target: StreamTarget, port: int) -> Open:
        """Let it in and count it among the open ones. What was revoked meanwhile is judged at once, not forgotten."""

        taken: list[str] = []

        def authorise() -> connections.Target:
            with door.write() as ctx:
                self._places.take(ctx.user.id)  # before the entry says that one was opened
                taken.append(ctx.user.id)
                return connections.open_stream(ctx, name, target.value, port)

        changed: set[str] = set()
        self._asking.append(changed)
        try:
            where = await self._threads.run_for(door.asker, authorise)
        except BaseException:
            for user_id in taken:
                self._places.give(user_id)
            raise
        finally:
            self._asking = [other for other in self._asking if other is not changed]
        stream = Open(os.urandom(16).hex(), door, where, asyncio.get_running_loop().create_future())
        self._open[stream.id] = stream
        if stream.concerns(changed):
            self._judge_soon(stream)
        return stream

    async def _dialled(self, stream: Open) -> WebSocket:
        """Return the agent's WebSocket once it has dialled back."""
        try:
            async with asyncio.timeout(DIAL_WITHIN_S):
                return await asyncio.shield(stream.agent)
        except TimeoutError:
            raise Refusal(
                "MACHINE_UNREACHABLE",
                f"The machine did not open the stream within {DIAL_WITHIN_S:.0f} s. Try again; "
                "if it stays, an admin should look at the machine.",
            ) from None

    def _on_commit(self, signals: Sequence[Signal], _seq: int | None) -> None:
        ids = {s.id for s in signals if s.wake in (Wake.STREAMS, Wake.MACHINE_REMOVED)}
        if ids and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: everything ends
                self._loop.call_soon_threadsafe(self._check, ids)

    def _check(self, ids: set[str]) -> None:
        for changed in self._asking:
            changed |= ids
        for stream in list(self._open.values()):
            if stream.concerns(ids):
                self._judge_soon(stream)

    def _judge_soon(self, stream: Open) -> None:
        stream.judge_again = True
        if not stream.judging:
            stream.judging = True
            self._job(self._judge(stream))

    async def _judge(self, stream: Open) -> None:
        """Authorise a stream again until nothing changed meanwhile; end it where that is refused or cannot be done."""
        tries = 0
        try:
            while stream.judge_again and not stream.over.is_set():
                stream.judge_again = False
                if await self._may_stay(stream):
                    tries = 0
                    continue
                tries += 1
                if tries >= CHECK_TRIES:
                    stream.end("The control plane cannot tell whether you may still use this. Connect again soon.")
                stream.judge_again = True
                await _over_or_after(stream, CHECK_AGAIN_S)
        finally:
            stream.judging = False

    async def _may_stay(self, stream: Open) -> bool:
        """Return whether it could be judged; a refusal ends it."""

        def allowed() -> None:
            with stream.door.read() as ctx:
                connections.still_allowed(ctx, stream.target)

        try:
            await self._judges.run(allowed)
        except Refusal as refusal:
            stream.end(refusal.message)
        except Exception:
            log.exception("stream_not_judged", stream=stream.id, machine=stream.target.machine_id)
            return False
        return True

    async def _recheck(self) -> None:
        while True:
            await asyncio.sleep(RECHECK_EVERY_S)
            for stream in list(self._open.values()):
                self._judge_soon(stream)

    def _job(self, coroutine: Any) -> None:
        job = asyncio.ensure_future(coroutine)
        self._jobs.add(job)
        job.add_done_callback(self._ended)

    def _ended(self, job: asyncio.Task[None]) -> None:
        self._jobs.discard(job)
        if not job.cancelled() and job.exception() is not None:
            log.error("stream_job_failed", exc_info=job.exception())


async def _over_or_after(stream: Open, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stream.over.wait()


async def _join(person: WebSocket, agent: WebSocket, stream: Open) -> None:
    """Copy both ways until one side ends or the stream is ended from outside."""
    copies = [
        asyncio.ensure_future(_copy(person, agent)),
        asyncio.ensure_future(_copy(agent, person)),
        asyncio.ensure_future(stream.over.wait()),
    ]
    try:
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for copy in copies:
            copy.cancel()
        await asyncio.gather(*copies, return_exceptions=True)
    await _close(person, CLOSE_NOT_ALLOWED if stream.reason else CLOSE_ENDED, stream.reason)


async def _copy(source: WebSocket, sink: WebSocket) -> None:
    """Pass messages on until `source` closes. `send` waits while the sink's buffer is full: backpressure."""
    while True:
        message = await source.receive()
        if message["type"] != "websocket.receive":
            return
        data = message.get("bytes")
        try:
            if data is not None:
                await sink.send({"type": "websocket.send", "bytes": data})
            elif message.get("text") == EOF_TEXT:
                await sink.send({"type": "websocket.send", "text": EOF_TEXT})
        except (RuntimeError, WebSocketDisconnect):
            return


async def _close(ws: WebSocket, code: int, reason: str) -> None:
    if ws.application_state is WebSocketState.CONNECTED and ws.client_state is WebSocketState.CONNECTED:
        with contextlib.suppress(RuntimeError, WebSocketDisconnect, OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_WITHIN_S):
                await ws.close(code, reason.encode()[:120].decode(errors="ignore"))


def _answer_headers(target: connections.Target) -> list[tuple[bytes, bytes]]:
    """The pin of the cluster's sshd, made on its machine, and the name it is pinned under."""
    return [
        (b"x-corral-host-key", target.host_key.encode("ascii", "ignore")),
        (b"x-corral-host-alias", f"corral-{target.workload_id}".encode()),
    ]


async def person_route(ws: WebSocket) -> None:
    """`WS …/compute-clusters/{name}/stream?target=ssh|port|logs&port=N`."""
    streams: Streams = ws.app.state.streams
    door = Door(ws, PERSON_PATH)
    try:
        target, port = _target(ws)
    except Refusal as refusal:
        await deny(ws, refusal)
        return
    await streams.serve_person(ws, door, ws.path_params["name"], target, port)


def _target(ws: WebSocket) -> tuple[StreamTarget, int]:
    try:
        target = StreamTarget(ws.query_params.get("target", "ssh"))
    except ValueError:
        raise Refusal("INVALID_REQUEST", "target: use ssh, port or logs.", field="target") from None
    text = ws.query_params.get("port", "0")
    port = int(text) if text.isascii() and text.isdigit() and len(text) <= 5 else -1
    if target is StreamTarget.PORT and not 1 <= port <= 65535:
        raise Refusal("INVALID_REQUEST", "port: use a number from 1 to 65535.", field="port")
    return target, port if target is StreamTarget.PORT else 0


async def agent_route(ws: WebSocket) -> None:
    """`WS /api/v1/agent/streams/{stream}`: an agent's dial-back, with its machine's credential."""
    hub: Hub = ws.app.state.hub
    key = bearer(ws) or ""
    try:
        machine_id = (await hub.ask(lambda tx: sessions.authenticate(tx, key))).machine_id
    except Refusal as refusal:
        await deny(ws, refusal)
        return
    streams: Streams = ws.app.state.streams
    await streams.serve_agent(ws, ws.path_params["stream"], machine_id)


def routes() -> list[BaseRoute]:
    return [WebSocketRoute(PERSON_PATH, person_route), WebSocketRoute(AGENT_PATH, agent_route)]
