"""The one outbound session to the site (spec 40, "Reporting"; design decisions 1 and 3).

Losing it changes nothing that runs, for as long as it takes. It comes back with full jitter and
obeys `Retry-After`. Only the distinct `MACHINE_REMOVED` ends it for good; any other refusal is
tried again, slowly.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from corral.agent.backoff import Doubling, Jitter
from corral.agent.site import Site
from corral.agent.waiting import bounded, cancelled, set_or_after
from corral.protocol import codec
from corral.protocol.gpu_faults import ClearFault, FaultCleared
from corral.protocol.messages import (
    CLOSE_REMOVED,
    CLOSE_SUPERSEDED,
    CLOSE_TOO_OLD,
    CLOSE_UNAUTHORIZED,
    SERVER_MESSAGES,
    Ack,
    Described,
    Desired,
    Hello,
    OpenStream,
    Removed,
    Report,
    StreamRefused,
    Welcome,
)
from corral.protocol.updates import Update

log = logging.getLogger(__name__)

SESSION_PATH = "/api/v1/agent/session"
MAX_FRAME = 16 << 20
QUIET = logging.getLogger("corral.websockets")
"""The library's own log says little that a reader can use; what matters is said here."""
QUIET.setLevel(logging.CRITICAL)


@dataclass(frozen=True)
class Pace:
    """Seconds."""

    base_s: float = 4.0
    """Bound of the first wait: a thousand agents whose site restarts must not come back in one second."""
    cap_s: float = 30.0
    refused_s: float = 30.0
    """Least wait after a credential was refused; as much again is jitter."""
    superseded_s: float = 10.0
    """Least wait after another session took this machine's place; longer each time."""
    spread_s: float = 10.0
    """Over so long those spread who were all told to come back after the same time."""
    open_timeout_s: float = 60.0
    """Long: a site whose whole fleet comes back at once answers late, and who gives up only adds to that."""
    welcome_timeout_s: float = 20.0
    silence_s: float = 35.0
    """Reports without any answer for so long: the connection is dead."""
    gap_s: float = 0.1
    """Least time between two reports; while changes go on without a pause it grows to `longest_gap_s`."""
    longest_gap_s: float = 0.5


class Peer(Protocol):
    """The machine behind the link. All is called in the loop."""

    def hello(self) -> Hello: ...

    def report(self, seq: int, whole: bool) -> Report:
        """Return the report of this moment; `whole`: with the inventory, whether it changed or not."""
        ...

    def welcomed(self, welcome: Welcome) -> None: ...

    def acked(self, ack: Ack, latency_s: float) -> Described | None:
        """Take an answer to a report; return what the site asked to have described."""
        ...

    def desired(self, desired: Desired) -> None: ...

    def open_stream(self, ask: OpenStream) -> None: ...

    def update(self, ask: Update) -> None: ...

    def clear_fault(self, ask: ClearFault) -> None: ...


class MachineRemoved(Exception):
    """The site removed this machine, for ever. The message is for people."""


class Refused(Exception):
    """The site does not take the session now."""

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s
        """Do not come back before."""


def removed_by(status: int, body: bytes | None) -> str | None:
    """Return the message when an HTTP answer is the distinct 410 `MACHINE_REMOVED`, else None."""
    if status != 410:
        return None
    try:
        answer = json.loads(body or b"")
        return str(answer["message"]) if answer["code"] == "MACHINE_REMOVED" else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds of a `Retry-After` header, at most an hour; 0 = none that is a number."""
    text = headers.get("Retry-After", "")
    return min(3600.0, float(text)) if text.isascii() and text.isdigit() else 0.0


class Link:
    """Keeps one session up. `run` goes on until the machine is removed or the task is cancelled."""

    def __init__(self, site: Site, key: str, peer: Peer, pace: Pace = Pace()) -> None:
        self._site, self._key, self._peer, self._pace = site, key, peer, pace
        self._jitter = Jitter(pace.base_s, pace.cap_s)
        self._spread = Jitter(pace.spread_s, pace.spread_s)
        self._slowly = Jitter(pace.refused_s, pace.refused_s)
        self._replaced = Jitter(pace.superseded_s, 6 * pace.superseded_s)
        self._socket: ClientConnection | None = None
        self._due = asyncio.Event()
        self._whole = True
        self._sent: dict[int, float] = {}
        self._heard = 0.0
        self._background: set[asyncio.Task[None]] = set()

    @property
    def connected(self) -> bool:
        """The site has welcomed this session."""
        return self._socket is not None

    def report_soon(self) -> None:
        """Something changed: report now, not at the next round."""
        self._due.set()

    def drop(self) -> None:
        """Cut the connection, as a network does; the session comes back by itself."""
        if self._socket is not None:
            self._socket.transport.abort()
            self._socket = None

    def refuse_stream(self, stream: str, message: str) -> None:
        """Tell the site that a stream it asked for will not come."""
        if self._socket is not None:
            self._later(self._send("stream_refused", StreamRefused(stream, message)))

    def fault_cleared(self, answer: FaultCleared) -> None:
        """Answer that a GPU's fault is cleared."""
        if self._socket is not None:
            self._later(self._send("fault_cleared", answer))

    async def run(self) -> str:
        """Return the site's message when it has removed this machine."""
        while True:
            try:
                await self._session()
            except MachineRemoved as removed:
                return str(removed)
            except Refused as refused:
                await self._pause(str(refused), refused.wait_s)
            except (OSError, asyncio.TimeoutError, WebSocketException, EOFError) as error:
                await self._pause(_said(error), 0.0)

    async def _pause(self, why: str, at_least_s: float) -> None:
        delay = self._jitter.next(at_least_s)
        log.warning("no session with %s (%s); next try in %.1f s; what runs here goes on", self._site.url, why, delay)
        await asyncio.sleep(delay)

    async def _session(self) -> None:
        socket = await self._open()
        reporter: asyncio.Task[None] | None = None
        try:
            await socket.send(codec.encode("hello", self._peer.hello()))
            welcome = await bounded(self._welcome(socket), self._pace.welcome_timeout_s)
            self._peer.welcomed(welcome)
            self._socket, self._whole, self._heard = socket, True, time.monotonic()
            self._sent.clear()
            log.info("session %d with %s as %s", welcome.epoch, self._site.url, welcome.name)
            reporter = asyncio.get_running_loop().create_task(self._report_for_ever(socket, welcome))
            reporter.add_done_callback(lambda _: socket.transport.abort())
            async for frame in socket:
                self._take(frame)
            # The site closed without an error: it restarts.
            raise Refused(socket.close_reason or "the site closed the session")
        except ConnectionClosed as closed:
            raise self._after(closed) from closed
        finally:
            self._socket = None
            socket.transport.abort()
            if reporter is not None:
                await cancelled(reporter)
                _blame(reporter)

    async def _open(self) -> ClientConnection:
        try:
            return await connect(
                self._site.websocket(SESSION_PATH),
                additional_headers={"Authorization": f"Bearer {self._key}"},
                ssl=self._site.tls,
                compression=None,
                open_timeout=self._pace.open_timeout_s,
                ping_interval=None,  # the site answers every report: that is the sign of life
                close_timeout=5,
                max_size=MAX_FRAME,
                logger=QUIET,
            )
        except InvalidStatus as error:
            raise self._refused(error) from error

    def _refused(self, error: InvalidStatus) -> Exception:
        response = error.response
        removed = removed_by(response.status_code, bytes(response.body or b""))
        if removed is not None:
            return MachineRemoved(removed)
        if response.status_code in (401, 403):
            return self._refused_key()
        asked = retry_after(response.headers)
        return Refused(f"HTTP {response.status_code}", self._spread.next(asked) if asked else 0.0)

    def _after(self, closed: ConnectionClosed) -> Exception:
        code = closed.rcvd.code if closed.rcvd else 0
        reason = closed.rcvd.reason if closed.rcvd else ""
        if code == CLOSE_REMOVED:
            return MachineRemoved(reason or "this machine was removed")
        if code == CLOSE_UNAUTHORIZED:
            return self._refused_key()
        if code == CLOSE_TOO_OLD:
            return Refused(reason or "the site needs a newer agent", self._slowly.next(self._pace.refused_s))
        if code == CLOSE_SUPERSEDED:
            wait_s = self._replaced.next(self._pace.superseded_s)
            return Refused("another session of this machine took its place", wait_s)
        return Refused(reason or _said(closed))

    def _refused_key(self) -> Refused:
        wait_s = self._slowly.next(self._pace.refused_s)
        return Refused("the site does not know this machine's key", wait_s)

    async def _welcome(self, socket: ClientConnection) -> Welcome:
        while True:
            message = _decoded(await socket.recv())
            if isinstance(message, Removed):
                raise MachineRemoved(message.message)
            if isinstance(message, Welcome):
                return message

    def _take(self, frame: str | bytes) -> None:
        message = _decoded(frame)
        self._heard = time.monotonic()
        if isinstance(message, Ack):
            self._acked(message)
        elif isinstance(message, Desired):
            self._peer.desired(message)
        elif isinstance(message, OpenStream):
            self._peer.open_stream(message)
        elif isinstance(message, ClearFault):
            self._peer.clear_fault(message)
        elif isinstance(message, Update):
            self._peer.update(message)
        elif isinstance(message, Removed):
            raise MachineRemoved(message.message)

    def _acked(self, ack: Ack) -> None:
        self._jitter.reset()
        sent = self._sent.pop(ack.seq, self._heard)
        described = self._peer.acked(ack, self._heard - sent)
        if ack.need_inventory:
            self._whole = True
            self._due.set()
        if described is not None:
            self._later(self._send("described", described))

    async def _report_for_ever(self, socket: ClientConnection, welcome: Welcome) -> None:
        seq, wait, gap = 0, welcome.first_report_in_s, Doubling(self._pace.gap_s, self._pace.longest_gap_s)
        while True:
            if not self._due.is_set():
                gap.reset()
                await set_or_after(self._due, wait)
            self._due.clear()
            now = time.monotonic()
            if self._sent and now - self._heard > self._pace.silence_s:
                log.warning("the site has not answered for %.0f s; the connection is dropped", now - self._heard)
                return
            seq += 1
            whole, self._whole = self._whole, False
            if len(self._sent) > 100:
                self._sent.pop(next(iter(self._sent)))
            self._sent[seq] = now
            await socket.send(codec.encode("report", self._peer.report(seq, whole)))
            await asyncio.sleep(gap.next())
            wait = max(0.0, welcome.report_every_s - self._pace.gap_s)

    async def _send(self, kind: str, body: object) -> None:
        if self._socket is not None:
            with contextlib.suppress(ConnectionClosed):
                await self._socket.send(codec.encode(kind, body))

    def _later(self, sending: Any) -> None:
        task = asyncio.get_running_loop().create_task(sending)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _decoded(frame: str | bytes) -> object | None:
    try:
        return codec.decode(frame, SERVER_MESSAGES)
    except codec.WireError as error:
        log.error("the site sent a frame this agent cannot read: %s", error)
        return None


def _blame(reporter: asyncio.Task[None]) -> None:
    """Log why the reports of a session ended, unless the session had ended first."""
    error = None if reporter.cancelled() else reporter.exception()
    if error is not None and not isinstance(error, ConnectionClosed):
        log.error("reports ended unexpectedly", exc_info=error)


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__
