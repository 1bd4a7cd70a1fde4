"""What the kernel says of a container: its processes, and its out-of-memory kills (cgroup v1 and v2); signals to it.

Podman's own `OOMKilled` is not to be relied on, and after a crash of its monitor it goes on
saying "running": both are read from the kernel.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from corral.agent.drivers.host import read_text


@dataclass(frozen=True)
class Cgroups:
    """Where the kernel shows processes and control groups."""

    proc: Path = Path("/proc")
    root: Path = Path("/sys/fs/cgroup")

    def alive(self, pid: int, container: str) -> bool:
        """Tell whether `pid` is a living process of this container (a number may be used again by another)."""
        if pid <= 0 or container not in read_text(self.proc / str(pid) / "cgroup"):
            return False
        state = read_text(self.proc / str(pid) / "stat").rpartition(")")[2].split()
        return bool(state) and state[0] not in "ZX"

    def send(self, pid: int, container: str, number: int) -> None:
        """Send a signal to a process of this container; nothing is done where there is none of that number.

        The process is held first and looked at then: between reading a number and signalling it,
        it may have become a process of the host.
        """
        if pid <= 0:
            return
        try:
            held = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            if self.alive(pid, container):
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(held, number)
        finally:
            os.close(held)

    def memory_group(self, pid: int) -> Path | None:
        """Return the folder of the control group that counts this process's memory."""
        unified = None
        for line in read_text(self.proc / str(pid) / "cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(","):
                return self.root / "memory" / path.lstrip("/")
            if not controllers:
                unified = path.lstrip("/")
        return None if unified is None else self.root / unified

    def oom_kills(self, pid: int) -> int:
        """Return how many processes of this process's control group were killed for memory."""
        folder = self.memory_group(pid)
        if folder is None:
            return 0
        return sum(_counter(read_text(folder / name), "oom_kill") for name in ("memory.oom_control", "memory.events"))

    def processes(self, pid: int) -> list[int]:
        """Return every process in this process's control group and below."""
        folder = self.memory_group(pid)
        if folder is None or folder in (self.root, self.root / "memory"):
            return []
        return [int(n) for file in _process_files(folder) for n in read_text(file).split()]


def _process_files(folder: Path) -> Iterator[Path]:
    yield folder / "cgroup.procs"
    yield from folder.glob("**/*/cgroup.procs")


def _counter(text: str, name: str) -> int:
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
