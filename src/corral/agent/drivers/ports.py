"""A TCP stream to a port on a container's own loopback.

A thread of its own enters the container's network namespace, connects, and ends: the socket
stays in that namespace, nothing of the agent does, and no tenant code runs.
"""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from pathlib import Path

from corral.agent.drivers.base import DriverError

CONNECT_TIMEOUT_S = 5.0
_CLONE_NEWNET = 0x40000000


def connect_inside(pid: int, port: int) -> socket.socket:
    """Connect to `port` on the loopback of the process's network namespace, IPv4 first.

    Raises DriverError when nothing listens there.
    """
    result: list[socket.socket | OSError] = []
    thread = threading.Thread(target=_enter_and_connect, args=(pid, port, result), name="port-connect", daemon=True)
    thread.start()
    thread.join()
    stream = result[0]
    if isinstance(stream, socket.socket):
        stream.settimeout(None)
        return stream
    if isinstance(stream, ConnectionRefusedError):
        raise DriverError(f"nothing listens on port {port} in the container") from stream
    raise DriverError(f"cannot connect to port {port} in the container: {stream}", retry=True) from stream


def _enter_and_connect(pid: int, port: int, result: list[socket.socket | OSError]) -> None:
    try:
        _enter_network_of(pid)
        try:
            result.append(socket.create_connection(("127.0.0.1", port), CONNECT_TIMEOUT_S))
        except ConnectionRefusedError:
            result.append(socket.create_connection(("::1", port), CONNECT_TIMEOUT_S))
    except (OSError, OverflowError) as error:
        result.append(error if isinstance(error, OSError) else OSError(str(error)))


def _enter_network_of(pid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(Path(f"/proc/{pid}/ns/net"), os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(fd, _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(fd)
