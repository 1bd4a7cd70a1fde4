"""What the agent needs of a container runtime (spec 40, "Running containers").

A driver is synchronous; the agent runs it in threads. It keeps nothing in memory that it
could not find again: containers carry labels, storage and host keys stand in its folder.
So an agent that died and came back adopts what runs with `list_running` alone.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from corral.protocol.messages import DesiredAllocation, Step

Progress = Callable[[Step, str], None]
"""Called as a start goes on: the step it is at and a line for the provisioning log."""


class DriverError(Exception):
    """The runtime said no. The message is for people and says what to do; `retry` when trying again may help."""

    def __init__(self, message: str, *, retry: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.retry = retry


class RuntimeUnavailable(DriverError):
    """The runtime does not answer at all: a condition of the machine, never a failure of one allocation."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retry=True)


@dataclass(frozen=True)
class Running:
    """One container of Corral's, as the runtime shows it (running or not)."""

    allocation: str
    machine: str
    """The machine id on its label; another one's containers are never touched."""
    container: str
    running: bool
    """Its first process is alive (checked by pid, not only by what the runtime remembers)."""
    exit_code: int | None = None
    oom_kills: int = 0
    gpus: tuple[str, ...] = ()
    """GPU UUIDs it was given."""


@dataclass(frozen=True)
class Started:
    container: str
    gpus: tuple[str, ...]
    """GPU UUIDs found inside after the start; equal to what was asked, else `start` fails."""
    host_key: str
    """Public half of its sshd host key, kept outside the image."""


@dataclass(frozen=True)
class RuntimeInfo:
    name: str
    """e.g. "podman 4.3.1"."""
    storage_quota: str
    """"loop" or "none", as probed on this host."""
    storage_mib: int
    """Capacity of the runtime's file system less the reserve."""
    storage_free_mib: int


class Drives(Protocol):
    """Where drives kept on this machine are. Called from drivers' threads."""

    def drives(self, want: DesiredAllocation, before: str) -> tuple[str, dict[str, Path]]:
        """Return the folders of an allocation's drives by name, and what to hand in as `before` the next time.

        Errors: `DriverError`.
        """
        ...


class Driver(Protocol):
    """Every call may raise `DriverError`; all of them may be repeated after a crash at any point."""

    def info(self) -> RuntimeInfo: ...

    def list_running(self) -> Sequence[Running]:
        """Return every container with Corral's labels, of any machine id."""
        ...

    def start(self, want: DesiredAllocation, progress: Progress) -> Started:
        """Bring `want` up: image, storage, network, container, GPUs verified, sshd reachable.

        Finds what an earlier try left and goes on from there. On the same allocation again
        (its container vanished, the machine rebooted) the same storage and host key are used.
        """
        ...

    def update(self, want: DesiredAllocation) -> None:
        """Apply what may change while it runs: authorized keys."""
        ...

    def stop(self, allocation: str, grace_s: int) -> None:
        """End the container (TERM, then KILL after `grace_s`); keep its storage. No error when there is none."""
        ...

    def remove(self, allocation: str) -> None:
        """Remove container, storage, network and host key. Returns when all are gone; no error when there is none."""
        ...

    def log_tail(self, allocation: str, max_bytes: int) -> bytes:
        """Return the end of the container's output ("" when there is none)."""
        ...

    def open_ssh(self, allocation: str) -> socket.socket:
        """Return a connected stream to a fresh sshd inside the container. Closing it ends that sshd."""
        ...

    def open_port(self, allocation: str, port: int) -> socket.socket:
        """Return a TCP stream to `port` on the container's loopback."""
        ...

    def open_logs(self, allocation: str, tail_lines: int) -> socket.socket:
        """Return a stream of the container's output: its last lines, then what follows."""
        ...

    def close(self) -> None:
        """End the threads and processes this driver started itself; containers go on."""
        ...
