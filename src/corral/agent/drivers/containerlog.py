"""A container's own output: its end, and what follows. Read from the file that the runtime's monitor writes.

Each line of that file is `TIME STREAM FLAG TEXT`; flag P says that the text goes on in the
next line. The file stands in the allocation's folder and outlives the container.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from dataclasses import dataclass
from pathlib import Path

from corral.agent.drivers.host import disk_error

NAME = "output.log"
MAX_BYTES = 8 << 20
"""The monitor starts the file anew beyond this size."""

_POLL_S = 0.2
_READ_BACK = 1 << 20


def text_of(raw: bytes) -> bytes:
    """Return the plain output of whole log lines; what is not a log line is left out."""
    out = []
    for line in raw.split(b"\n"):
        fields = line.split(b" ", 3)
        if len(fields) == 4 and fields[1] in (b"stdout", b"stderr"):
            out.append(fields[3] if fields[2] == b"P" else fields[3] + b"\n")
    return b"".join(out)


def tail(path: Path, max_bytes: int) -> bytes:
    """Return the last `max_bytes` of the output, b"" when there is none."""
    return text_of(_end_of(path, max_bytes * 4 + 4096).data)[-max_bytes:] if max_bytes > 0 else b""


@dataclass(frozen=True)
class _End:
    data: bytes = b""
    position: int = 0
    inode: int = 0


def _end_of(path: Path, size: int) -> _End:
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - size))
            data = file.read()
            return _End(data, max(0, end - size) + len(data), os.fstat(file.fileno()).st_ino)
    except FileNotFoundError:
        return _End()
    except OSError as error:
        raise disk_error(f"reading {path}", error) from error


class Follower:
    """Sends a log's last lines and then what follows into a socket, until the reader or the agent closes."""

    def __init__(self, path: Path, lines: int, stop: threading.Event) -> None:
        self._path = path
        self._lines = lines
        self._stop = stop

    def start(self) -> tuple[socket.socket, threading.Thread]:
        """Return the reader's end and the thread that feeds it."""
        ours, theirs = socket.socketpair()
        thread = threading.Thread(target=self._run, args=(theirs,), name="container-log", daemon=True)
        thread.start()
        return ours, thread

    def _run(self, out: socket.socket) -> None:
        out.settimeout(_POLL_S)
        with out:
            try:
                self._follow(out)
            except (BrokenPipeError, ConnectionError):
                return

    def _follow(self, out: socket.socket) -> None:
        past = _end_of(self._path, _READ_BACK)
        whole = past.data[: past.data.rfind(b"\n") + 1]
        if self._lines > 0:
            self._send(out, b"".join(text_of(whole).splitlines(keepends=True)[-self._lines :]))
        position, inode, rest = past.position, past.inode, past.data[len(whole) :]
        while not self._stop.is_set() and not _closed(out):
            chunk, position, inode = self._more(position, inode)
            data = rest + chunk
            cut = data.rfind(b"\n") + 1
            self._send(out, text_of(data[:cut]))
            rest = data[cut:]

    def _more(self, position: int, inode: int) -> tuple[bytes, int, int]:
        """Return what was written since; from the start where the file is a new one."""
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != inode or status.st_size < position:
                    position = 0
                file.seek(position)
                chunk = file.read(_READ_BACK)
                return chunk, position + len(chunk), status.st_ino
        except FileNotFoundError:
            return b"", 0, 0

    def _send(self, out: socket.socket, data: bytes) -> None:
        view = memoryview(data)
        while view and not self._stop.is_set():
            try:
                view = view[out.send(view[:65536]) :]
            except TimeoutError:  # the reader is slow: wait for it, but not beyond the agent's end
                continue


def _closed(out: socket.socket) -> bool:
    """Wait for the reader a moment; tell whether it closed."""
    poll = select.poll()
    poll.register(out, select.POLLIN)
    return bool(poll.poll(_POLL_S * 1000)) and not out.recv(4096)
