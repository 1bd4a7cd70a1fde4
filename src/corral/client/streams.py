"""A byte stream into a compute cluster over one WebSocket (spec 20, "Connect"): standard library only.

ssh starts this for every connection, so it must start quickly and move bytes quickly. It
speaks just enough of RFC 6455: one binary message a chunk, the text frame "eof" for a
half-close, ping and close.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import select
import socket
import ssl
import stat
import struct
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from corral.client.config import Site

CHUNK = 256 * 1024
EOF_FRAME = b"eof"
_BINARY, _TEXT, _CLOSE, _PING, _PONG = 2, 1, 8, 9, 10
_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class StreamError(Exception):
    """The stream could not be opened or broke. `code` is the site's refusal code, or "" for the network's faults."""

    def __init__(self, message: str, code: str = "", details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.details = details or {}


@dataclass
class Frames:
    """Cuts received bytes into frames. Server frames are never masked."""

    _buffer: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Return the complete (opcode, payload) frames; continuation frames come as binary."""
        self._buffer += data
        frames = []
        while (size := self._frame_size()) is not None:
            start, end = size
            frames.append((self._buffer[0] & 0x0F or _BINARY, bytes(memoryview(self._buffer)[start:end])))
            del self._buffer[:end]
        return frames

    def _frame_size(self) -> tuple[int, int] | None:
        have = len(self._buffer)
        if have < 2:
            return None
        length, start = self._buffer[1] & 0x7F, 2
        if length >= 126:
            kind, start = ("!H", 4) if length == 126 else ("!Q", 10)
            if have < start:
                return None
            length = struct.unpack_from(kind, self._buffer, 2)[0]
        return (start, start + length) if have >= start + length else None


def frame(opcode: int, payload: bytes) -> bytes:
    """Return one masked frame."""
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", 0x80 | opcode, 0x80 | size)
    elif size < 65536:
        head = struct.pack("!BBH", 0x80 | opcode, 0xFE, size)
    else:
        head = struct.pack("!BBQ", 0x80 | opcode, 0xFF, size)
    mask = os.urandom(4)
    if not size:
        return head + mask
    # One big-integer XOR masks a chunk at the speed of memory; a loop over bytes would not.
    pad = int.from_bytes((mask * (size // 4 + 1))[:size], "little")
    return head + mask + (int.from_bytes(payload, "little") ^ pad).to_bytes(size, "little")


class Stream:
    """An open stream. `headers` are the answer's, lower case."""

    def __init__(self, sock: socket.socket, headers: dict[str, str], early: bytes) -> None:
        self.headers = headers
        self._sock = sock
        self._frames = Frames()
        self._received = self._frames.feed(early)
        self._out = bytearray()
        self.close_reason = ""
        sock.setblocking(False)

    def pump(self, source: int, sink: int) -> None:
        """Copy `source` to the stream and the stream to `sink` until the other side closes.

        The end of `source` half-closes; what the other side still says is passed on.
        """
        reading = True
        while True:
            if self._deliver(sink):
                return
            want_read: list[Any] = [self._sock] + ([source] if reading and len(self._out) < CHUNK else [])
            # TLS may hold bytes that select cannot see.
            pending = isinstance(self._sock, ssl.SSLSocket) and self._sock.pending() > 0
            ready, writable, _ = select.select(want_read, [self._sock] if self._out else [], [], 0 if pending else None)
            if source in ready:
                data = os.read(source, CHUNK)
                reading = bool(data)
                self._out += frame(_BINARY, data) if data else frame(_TEXT, EOF_FRAME)
                writable = [self._sock]
            if writable and self._out:
                self._flush()
            if (self._sock in ready or pending) and not self._receive():
                self._deliver(sink)
                return

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.setblocking(True)
            self._sock.settimeout(1)
            self._sock.sendall(frame(_CLOSE, struct.pack("!H", 1000)))
        self._sock.close()

    def _flush(self) -> None:
        try:
            sent = self._sock.send(memoryview(self._out)[:CHUNK])
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return
        del self._out[:sent]

    def _receive(self) -> bool:
        """Take in what has come; False when the connection has ended."""
        try:
            data = self._sock.recv(CHUNK)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return True
        except ssl.SSLEOFError:
            return False
        self._received += self._frames.feed(data)
        return bool(data)

    def _deliver(self, sink: int) -> bool:
        """Write what was received; True when the other side has ended the stream."""
        received, self._received = self._received, []
        for opcode, payload in received:
            if opcode == _BINARY:
                _write_all(sink, payload)
            elif opcode == _PING:
                self._out += frame(_PONG, payload)
            elif opcode == _TEXT and payload == EOF_FRAME:
                _half_close(sink)
            elif opcode == _CLOSE:
                self.close_reason = payload[2:].decode(errors="replace")
                return True
        return False


def open_stream(site: Site, path: str, **query: str | int) -> Stream:
    """Open a stream at `path` of the site. Errors: `StreamError` with the site's refusal, or what the network said."""
    target = f"{quote(path)}?{urlencode(query)}"
    try:
        sock = _connect(site)
        try:
            return _upgrade(sock, urlsplit(site.url).netloc, target, site.token or "")
        except BaseException:
            sock.close()
            raise
    except OSError as error:
        raise StreamError(
            f"Cannot reach {site.url}: {error}. Is the control plane up, and this the right address?"
        ) from error


def _connect(site: Site) -> socket.socket:
    parts = urlsplit(site.url)
    secure = parts.scheme == "https"
    sock = socket.create_connection((parts.hostname or "", parts.port or (443 if secure else 80)), timeout=15)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _find_the_dead(sock)
    if not secure:
        return sock
    context = ssl.create_default_context(cadata=site.ca)
    return context.wrap_socket(sock, server_hostname=parts.hostname)


def _find_the_dead(sock: socket.socket) -> None:
    """Have TCP ask a silent site whether it is there: a stream may be silent, or paused, for as long as it likes."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):  # not on every system
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _upgrade(sock: socket.socket, host: str, target: str, token: str) -> Stream:
    key = base64.b64encode(os.urandom(16))
    request = (
        f"GET {target} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key.decode()}\r\nSec-WebSocket-Version: 13\r\nAuthorization: Bearer {token}\r\n\r\n"
    )
    sock.settimeout(30)
    sock.sendall(request.encode())
    head, early = _read_head(sock)
    status, headers = _parse_head(head)
    if status != 101:
        raise _refusal(sock, status, headers, early)
    accept = base64.b64encode(hashlib.sha1(key + _MAGIC, usedforsecurity=False).digest()).decode()
    if headers.get("sec-websocket-accept") != accept:
        raise StreamError("What answered is not a WebSocket server. Is a proxy in between?")
    return Stream(sock, headers, early)


def _read_head(sock: socket.socket) -> tuple[bytes, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = sock.recv(65536)
        if not chunk or len(data) > 65536:
            raise StreamError("The control plane closed the connection before it answered. Try again.")
        data += chunk
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) < 2 or not words[1].isdigit():
        raise StreamError("What answered does not speak HTTP. Check the address.")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return int(words[1]), headers


def _refusal(sock: socket.socket, status: int, headers: dict[str, str], body: bytes) -> StreamError:
    """Read the rest of an ordinary HTTP answer and return what it says."""
    length = int(headers.get("content-length", "0") or 0) if headers.get("content-length", "0").isdigit() else 0
    while len(body) < min(length, 65536):
        chunk = sock.recv(65536)
        if not chunk:
            break
        body += chunk
    try:
        answer = json.loads(body)
        return StreamError(str(answer["message"]), str(answer["code"]), dict(answer.get("details") or {}))
    except (ValueError, KeyError, TypeError):
        return StreamError(f"The control plane answered {status}. Try again; if it stays, ask its operator.")


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            select.select([], [fd], [])


def _half_close(fd: int) -> None:
    """Pass an end on: a socket is shut for writing; a pipe to ssh stays open until the stream ends."""
    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
        return
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as sock:
        sock.shutdown(socket.SHUT_WR)
