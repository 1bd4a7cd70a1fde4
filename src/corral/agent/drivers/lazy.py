"""A driver that comes to be when it is first asked: what it lacks on this host is a condition, not the agent's end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence

from corral.agent.drivers.base import Driver, DriverError, Progress, Running, RuntimeInfo, RuntimeUnavailable, Started
from corral.protocol.messages import DesiredAllocation


class LazyDriver:
    """Makes its driver with `make`; while that fails, every call is `RuntimeUnavailable` and tries again."""

    def __init__(self, make: Callable[[], Driver]) -> None:
        self._make = make
        self._driver: Driver | None = None
        self._lock = threading.Lock()

    def _ready(self) -> Driver:
        with self._lock:
            if self._driver is None:
                try:
                    self._driver = self._make()
                except DriverError as error:
                    raise RuntimeUnavailable(error.message) from error
            return self._driver

    def info(self) -> RuntimeInfo:
        return self._ready().info()

    def list_running(self) -> Sequence[Running]:
        return self._ready().list_running()

    def start(self, want: DesiredAllocation, progress: Progress) -> Started:
        return self._ready().start(want, progress)

    def update(self, want: DesiredAllocation) -> None:
        self._ready().update(want)

    def stop(self, allocation: str, grace_s: int) -> None:
        self._ready().stop(allocation, grace_s)

    def remove(self, allocation: str) -> None:
        self._ready().remove(allocation)

    def log_tail(self, allocation: str, max_bytes: int) -> bytes:
        return self._ready().log_tail(allocation, max_bytes)

    def open_ssh(self, allocation: str) -> socket.socket:
        return self._ready().open_ssh(allocation)

    def open_port(self, allocation: str, port: int) -> socket.socket:
        return self._ready().open_port(allocation, port)

    def open_logs(self, allocation: str, tail_lines: int) -> socket.socket:
        return self._ready().open_logs(allocation, tail_lines)

    def close(self) -> None:
        with self._lock:
            if self._driver is not None:
                self._driver.close()
