"""A driver whose containers are files, and which fails as a test says: what runs outlives the agent that started it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from corral.agent.drivers.base import DriverError, Progress, Running, RuntimeInfo, RuntimeUnavailable, Started
from corral.protocol.messages import DesiredAllocation, Step


class ScriptedDriver:
    """`Driver` on a folder. Every call is noted in `calls` as "start a1"."""

    def __init__(self, folder: Path, machine: str = "m1") -> None:
        self.folder, self.machine = folder, machine
        self.calls: list[str] = []
        self.fail: dict[str, list[DriverError]] = {}
        """Per method: what its next calls raise."""
        self.down = False
        self.hold_start = threading.Event()
        self.hold_start.set()
        self.inside: Callable[[], socket.socket] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def _called(self, method: str, allocation: str = "") -> None:
        self.calls.append(f"{method} {allocation}".strip())
        if self.down:
            raise RuntimeUnavailable("podman does not answer; run: systemctl restart podman")
        if self.fail.get(method):
            raise self.fail[method].pop(0)

    def count(self, call: str) -> int:
        return self.calls.count(call)

    def _file(self, allocation: str) -> Path:
        return self.folder / f"{allocation}.json"

    def put(self, allocation: str, **facts: Any) -> None:
        """Have a container, as if somebody had started it."""
        row = {"machine": self.machine, "running": True, "exit_code": None, "oom_kills": 0, "gpus": [], **facts}
        self._file(allocation).write_text(json.dumps(row))

    def vanish(self, allocation: str) -> None:
        self._file(allocation).unlink()

    def containers(self) -> list[str]:
        return sorted(path.stem for path in self.folder.glob("*.json"))

    def info(self) -> RuntimeInfo:
        self._called("info")
        return RuntimeInfo("scripted 1.0", "none", 1000, 900)

    def list_running(self) -> Sequence[Running]:
        self._called("list_running")
        found = []
        for path in sorted(self.folder.glob("*.json")):
            row = json.loads(path.read_text())
            row["gpus"] = tuple(row["gpus"])
            found.append(Running(allocation=path.stem, container=f"c-{path.stem}", **row))
        return found

    def start(self, want: DesiredAllocation, progress: Progress) -> Started:
        self._called("start", want.id)
        progress(Step.PULLING_IMAGE, f"pulling {want.image}")
        self.hold_start.wait(30)
        progress(Step.STARTING, "starting")
        self.put(want.id, gpus=list(want.gpus))
        return Started(f"c-{want.id}", want.gpus, f"ssh-ed25519 {want.id}")

    def update(self, want: DesiredAllocation) -> None:
        self._called("update", want.id)

    def stop(self, allocation: str, grace_s: int) -> None:
        self._called("stop", allocation)

    def remove(self, allocation: str) -> None:
        self._called("remove", allocation)
        self._file(allocation).unlink(missing_ok=True)

    def log_tail(self, allocation: str, max_bytes: int) -> bytes:
        self._called("log_tail", allocation)
        return b"last words\n"

    def open_ssh(self, allocation: str) -> socket.socket:
        return self._open("open_ssh", allocation)

    def open_port(self, allocation: str, port: int) -> socket.socket:
        return self._open("open_port", allocation)

    def open_logs(self, allocation: str, tail_lines: int) -> socket.socket:
        return self._open("open_logs", allocation)

    def _open(self, method: str, allocation: str) -> socket.socket:
        self._called(method, allocation)
        if self.inside is None:
            raise DriverError("nothing listens on that port")
        return self.inside()

    def close(self) -> None:
        return


def want(allocation: str = "a1", generation: int = 1, **changes: Any) -> DesiredAllocation:
    """Return what a site may want of an allocation."""
    plain = DesiredAllocation(
        id=allocation, generation=generation, stop=False, kind="compute_cluster", org="o1", workspace="w1",
        workload="c1", name="box", image="busybox", gpus=(), vcpu=1, ram_mib=64, storage_mib=64,
    )  # fmt: skip
    return replace(plain, **changes)
