"""Containers as Podman lists them and as the kernel sees them: found by label, and ended for certain.

Podman's own word is not enough: its monitor may have died, or its service halfway through an order.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corral.agent.drivers import podman_spec
from corral.agent.drivers.base import DriverError
from corral.agent.drivers.cgroups import Cgroups
from corral.agent.drivers.host import run, wait_for
from corral.agent.drivers.podman_service import Answer, PodmanService

RUNC_STATE = Path("/run/runc")


@dataclass(frozen=True)
class Container:
    """One container as Podman lists it, its life checked with the kernel."""

    id: str
    labels: Mapping[str, str]
    pid: int
    state: str
    """As Podman remembers it."""
    running: bool
    exit_code: int | None

    @property
    def machine(self) -> str:
        return self.labels.get(podman_spec.LABEL_MACHINE, "")

    @property
    def allocation(self) -> str:
        return self.labels.get(podman_spec.LABEL_ALLOCATION, "")

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(uuid for uuid in self.labels.get(podman_spec.LABEL_GPUS, "").split(",") if uuid)


class Containers:
    """The containers of one Podman; `machine`: the label of those that may be touched."""

    def __init__(self, service: PodmanService, cgroups: Cgroups, machine: str) -> None:
        self._service, self._cgroups, self._machine = service, cgroups, machine

    def labelled(self, label: str) -> list[Container]:
        """Return those with a label: a name, or name=value."""
        query = {"all": "true", "filters": json.dumps({"label": [label]})}
        answer = self._service.call("GET", "/containers/json", query)
        return [self._seen(row) for row in self._service.expect("listing containers", answer).json()]

    def _seen(self, row: Mapping[str, Any]) -> Container:
        pid = int(row.get("Pid") or 0)
        running = self._cgroups.alive(pid, row["Id"])
        state = str(row.get("State", ""))
        ended = not running and state in ("exited", "stopped")
        exit_code = row.get("ExitCode") if ended else None
        return Container(row["Id"], row.get("Labels") or {}, pid, state, running, exit_code)

    def of(self, allocation: str) -> Container | None:
        """Return an allocation's container. Errors: `DriverError` when it is another machine's."""
        for container in self.labelled(f"{podman_spec.LABEL_ALLOCATION}={allocation}"):
            if container.machine != self._machine:
                raise DriverError(
                    f"the container of allocation {allocation} belongs to machine {container.machine}, "
                    "not to this one; it is not touched"
                )
            return container
        return None

    def processes(self, container: Container) -> list[int]:
        """Return the container's processes, none once it is over: its first one's number may be another's then."""
        alive = self._cgroups.alive(container.pid, container.id)
        return self._cgroups.processes(container.pid) if alive else []

    def stop(self, container: Container, grace_s: float) -> None:
        """End one that runs: asked first, then killed."""
        self._ask_to_end(container, grace_s)
        answer = self._service.call("POST", f"/containers/{container.id}/stop", {"timeout": "1"})
        self._service.expect("stopping the container", answer, 304, 404)
        if not self._is_over(container):
            self._cgroups.send(container.pid, container.id, signal.SIGKILL)

    def _ask_to_end(self, container: Container, grace_s: float) -> None:
        """Send TERM to all that runs beside the first process, and give it time; what stays is killed with it."""

        def others() -> list[int]:
            return [pid for pid in self.processes(container) if pid != container.pid]

        for pid in others():
            self._cgroups.send(pid, container.id, signal.SIGTERM)
        wait_for(lambda: not others(), grace_s)

    def remove(self, container: Container) -> None:
        """Have nothing of it left, whatever died before. Errors: `DriverError`."""
        if not container.running and container.state != "running" and (RUNC_STATE / container.id).exists():
            # Podman's service died between starting it and writing that down.
            run(["runc", "delete", "--force", container.id])
        answer = self.delete(container.id)
        if not answer.ok and not self._cgroups.alive(container.pid, container.id):
            # Its first process died unseen: with its first refusal Podman noted that, so it lets go of it now.
            answer = self.delete(container.id)
        self._service.expect("removing the container", answer, 404)
        if not self._is_over(container):
            # Its monitor died, so Podman only forgot it: end it by its first process.
            self._cgroups.send(container.pid, container.id, signal.SIGKILL)
            if not self._is_over(container):
                raise DriverError("the container's first process cannot be ended", retry=True)

    def delete(self, container: str) -> Answer:
        """Have Podman forget a container, by id or name, and what it knows of its processes."""
        return self._service.call("DELETE", f"/containers/{container}", {"force": "true", "timeout": "0"})

    def _is_over(self, container: Container) -> bool:
        """Wait until its first process has ended; return whether it has."""
        return wait_for(lambda: not self._cgroups.alive(container.pid, container.id), 10)
