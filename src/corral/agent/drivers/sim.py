"""The driver without containers (spec 40): for tests, demos and fleets. It says "sim" wherever it is shown.

It keeps its "containers" in memory, so they end with it; storage and limits are not enforced.
"""

from __future__ import annotations

import base64
import hashlib
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from corral.agent.drivers.base import DriverError, Drives, Progress, Running, RuntimeInfo, Started
from corral.protocol.messages import DesiredAllocation, Step

NO_INSIDE = "this machine is simulated: there is no container to connect to"


@dataclass(frozen=True)
class SimConfig:
    machine: str
    storage_mib: int = 1 << 20
    latency_s: float = 0.0
    """How long a start and a stop take, in the calling thread."""


class SimDriver:
    """`Driver` that only remembers. Thread-safe."""

    def __init__(self, config: SimConfig, drives: Drives | None = None) -> None:
        self._config, self._drives = config, drives
        self._running: dict[str, Running] = {}
        self._lock = threading.Lock()

    def info(self) -> RuntimeInfo:
        return RuntimeInfo("sim", "none", self._config.storage_mib, self._config.storage_mib)

    def list_running(self) -> Sequence[Running]:
        with self._lock:
            return list(self._running.values())

    def start(self, want: DesiredAllocation, progress: Progress) -> Started:
        progress(Step.PULLING_IMAGE, f"sim: {want.image} is not pulled")
        if want.drives and self._drives is not None:
            self._drives.drives(want, "")
        if want.drives:
            progress(Step.STORAGE, f"sim: drives {', '.join(want.drives)} are not mounted")
        progress(Step.STARTING, "sim: no container is started")
        self._take_time()
        container = f"sim-{want.id}"
        with self._lock:
            self._running[want.id] = Running(want.id, self._config.machine, container, running=True, gpus=want.gpus)
        return Started(container, want.gpus, host_key(want.id))

    def update(self, want: DesiredAllocation) -> None:
        return

    def stop(self, allocation: str, grace_s: int) -> None:
        self._take_time()
        with self._lock:
            self._running.pop(allocation, None)

    def remove(self, allocation: str) -> None:
        with self._lock:
            self._running.pop(allocation, None)

    def log_tail(self, allocation: str, max_bytes: int) -> bytes:
        return b""

    def open_ssh(self, allocation: str) -> socket.socket:
        raise DriverError(NO_INSIDE)

    def open_port(self, allocation: str, port: int) -> socket.socket:
        raise DriverError(NO_INSIDE)

    def open_logs(self, allocation: str, tail_lines: int) -> socket.socket:
        raise DriverError(NO_INSIDE)

    def close(self) -> None:
        return

    def _take_time(self) -> None:
        if self._config.latency_s:
            time.sleep(self._config.latency_s)


def host_key(allocation: str) -> str:
    """Return a public key line of the right shape, one for each allocation. Nobody holds its private half."""
    blob = b"\0\0\0\x0bssh-ed25519\0\0\0 " + hashlib.sha256(allocation.encode()).digest()
    return f"ssh-ed25519 {base64.b64encode(blob).decode()}"
