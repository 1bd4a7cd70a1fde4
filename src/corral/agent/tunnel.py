"""Streams into allocations: the site asks, the agent dials one WebSocket back for each (design decision 12).

Bytes are binary frames, a half-close is the text frame "eof", the end is a close. Both ends have
backpressure: nothing is read from one side that the other has not taken. An end on one side ends
the other at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from corral.agent.calls import Calls
from corral.agent.converge import Converger
from corral.agent.drivers.base import DriverError
from corral.agent.link import QUIET
from corral.agent.site import BadUrl, Site
from corral.agent.waiting import bounded, cancelled
from corral.protocol.messages import OpenStream, StreamTarget

log = logging.getLogger(__name__)

EOF = "eof"
CHUNK = (256 if find_spec("websockets.speedups") else 32) * 1024
"""Bytes read at once. Without compiled help (the one-file agent) frames are masked in Python: small ones three times
as fast (measured: 334 MB/s at 16 KiB, 116 MB/s at 256 KiB)."""
WRITE_LIMIT = 1024 * 1024
MAX_STREAMS = 512
LOG_LINES = 200
DIAL_TIMEOUT_S = 10.0
GOODBYE_S = 2.0


class Refused(Exception):
    """This stream will not come; the message is for people."""


@dataclass(frozen=True)
class _Open:
    allocation: str
    task: asyncio.Task[None]


class Streams:
    """All open streams of one machine."""

    def __init__(self, site: Site, key: str, work: Converger, calls: Calls) -> None:
        self._site, self._key, self._work, self._calls = site, key, work, calls
        self._open: dict[str, _Open] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def open(self, ask: OpenStream, refuse: Callable[[str, str], None]) -> None:
        """Dial the stream back, or `refuse(stream, message)`."""
        if ask.stream in self._open:
            return
        task = asyncio.get_running_loop().create_task(self._serve(ask, refuse))
        self._open[ask.stream] = _Open(ask.allocation, task)
        task.add_done_callback(lambda _: self._open.pop(ask.stream, None))  # an id is good once

    def close_allocation(self, allocation: str) -> None:
        """End every stream into an allocation."""
        for name, stream in list(self._open.items()):
            if stream.allocation == allocation:
                self._end(name)

    def _end(self, name: str) -> None:
        """Have a stream clean up after itself. Once: a second cancel would break off the clean-up."""
        task = self._open.pop(name).task
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        task.cancel()

    async def close(self) -> None:
        """End all streams."""
        for name in list(self._open):
            self._end(name)
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def _serve(self, ask: OpenStream, refuse: Callable[[str, str], None]) -> None:
        try:
            inside = await self._inside(ask)
        except Refused as refused:
            refuse(ask.stream, str(refused))
            return
        try:
            outside = await self._dial(ask)
        except (OSError, asyncio.TimeoutError, WebSocketException, EOFError, BadUrl) as error:
            inside.close()
            log.warning("a stream could not be dialled back: %s", error)
            refuse(ask.stream, "the machine could not reach the site for this stream; try again")
            return
        except asyncio.CancelledError:
            inside.close()
            raise
        await pump(outside, inside)

    async def _inside(self, ask: OpenStream) -> socket.socket:
        if len(self._open) > MAX_STREAMS:
            raise Refused(f"{MAX_STREAMS} streams are open on this machine already; close some")
        if self._work.running(ask.allocation, ask.generation) is None:
            raise Refused("it does not run on this machine now; look at its state")
        connecting = asyncio.ensure_future(self._calls.run(self._connect, ask))
        try:
            sock = await asyncio.shield(connecting)
        except asyncio.CancelledError:
            connecting.add_done_callback(_close_late)
            raise
        except DriverError as error:
            self._work.look_soon()
            raise Refused(error.message) from error
        except Exception as error:
            log.exception("opening a stream failed unexpectedly")
            raise Refused("the agent could not open it; see the agent's log on the machine") from error
        sock.setblocking(False)
        return sock

    def _connect(self, ask: OpenStream) -> socket.socket:
        driver = self._work.driver
        if ask.target is StreamTarget.SSH:
            return driver.open_ssh(ask.allocation)
        if ask.target is StreamTarget.LOGS:
            return driver.open_logs(ask.allocation, LOG_LINES)
        if not 0 < ask.port < 65536:
            raise DriverError(f"{ask.port} is not a port; it is 1 to 65535")
        return driver.open_port(ask.allocation, ask.port)

    async def _dial(self, ask: OpenStream) -> ClientConnection:
        url = self._site.websocket(ask.url)
        connection = await connect(
            url,
            additional_headers={"Authorization": f"Bearer {self._key}"},
            ssl=self._site.tls if url.startswith("wss:") else None,
            compression=None,
            open_timeout=DIAL_TIMEOUT_S,
            ping_interval=None,
            close_timeout=2,
            max_size=8 << 20,
            max_queue=8,
            write_limit=(WRITE_LIMIT, WRITE_LIMIT // 4),
            logger=QUIET,
        )
        # No ping: its pong would wait behind data that a paused reader does not take. TCP finds a site that is gone.
        sock: socket.socket = connection.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4)):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        return connection


async def pump(outside: ClientConnection, inside: socket.socket) -> None:
    """Carry bytes both ways until one side ends. Closes both. `inside` is non-blocking."""
    loop = asyncio.get_running_loop()
    up = loop.create_task(_upward(loop, inside, outside))
    down = loop.create_task(_downward(loop, outside, inside))
    try:
        await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
        if up.done() and not up.result():
            await asyncio.wait((down,))  # the inside has said all it has to say, but still listens
        elif down.done() and not down.result():
            down = loop.create_task(_drained(outside))  # the inside listens no more, but still speaks
            await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancelled(up, down)
        inside.close()
        # A site that does not read any more cannot be said goodbye to.
        with contextlib.suppress(ConnectionClosed, OSError, asyncio.TimeoutError):
            await bounded(outside.close(), GOODBYE_S)
        outside.transport.abort()


async def _upward(loop: asyncio.AbstractEventLoop, inside: socket.socket, outside: ClientConnection) -> bool:
    """Send what the inside says; return whether the stream is over, not only the inside's sending half."""
    buffer = bytearray(CHUNK)
    view = memoryview(buffer)
    try:
        while count := await loop.sock_recv_into(inside, buffer):
            await outside.send(view[:count])
            # Reading and sending may both succeed at once, again and again: let others have a turn.
            await asyncio.sleep(0)
        await outside.send(EOF)
    except (ConnectionClosed, OSError):
        return True
    return _hung_up(inside)


async def _downward(loop: asyncio.AbstractEventLoop, outside: ClientConnection, inside: socket.socket) -> bool:
    """Give the inside what comes, a half-close too; return True when the outside closed, False when the inside did."""
    try:
        async for frame in outside:
            if isinstance(frame, bytes):
                await loop.sock_sendall(inside, frame)
            elif frame == EOF:
                inside.shutdown(socket.SHUT_WR)
    except OSError:
        return False
    except ConnectionClosed:
        return True
    return True


async def _drained(outside: ClientConnection) -> bool:
    with contextlib.suppress(ConnectionClosed):
        async for _ in outside:
            pass
    return True


def _close_late(connecting: asyncio.Future[socket.socket]) -> None:
    """Close a socket that nobody waits for any more."""
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()


def _hung_up(inside: socket.socket) -> bool:
    """Tell whether the other end of a stream is closed for both directions."""
    poll = select.poll()
    poll.register(inside, 0)
    return any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0))
