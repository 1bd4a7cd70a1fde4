"""Compute clusters: show, logs, keys, terminate, and how they are reached."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from corral.client.compute_models import AttachedKey, ComputeDetails, Connection, Log, Termination
from corral.client.decode import decode
from corral.client.errors import CorralError
from corral.client.transport import Transport, quoted

POLL_S = 0.5
ACTIVE, OVER = "active", ("failed", "terminated")


class ComputeCluster:
    """One compute cluster of a workspace, by name or id. Asks nothing until a method is called."""

    def __init__(self, transport: Transport, workspace_path: str, name: str) -> None:
        self.name = name
        self._transport = transport
        self._path = f"{workspace_path}/compute-clusters/{quoted(name)}"

    def show(self) -> ComputeDetails:
        return decode(ComputeDetails, self._transport.call("GET", self._path))

    def connection(self) -> Connection:
        """Say how to connect by ssh, and whether it can work now."""
        return decode(Connection, self._transport.call("GET", f"{self._path}/connection"))

    def watch(self, until: Sequence[str] = (ACTIVE, *OVER), every_s: float = POLL_S) -> Iterator[ComputeDetails]:
        """Yield the cluster now, and each time its state, step or reason changed, until it is in a state of `until`."""
        before: tuple[str, ...] = ()
        while True:
            now = self.show()
            mark = (now.state, now.step, now.reason)
            if mark != before:
                yield now
                before = mark
            if now.state in until:
                return
            self._transport.pause(every_s)

    def wait_active(self) -> ComputeDetails:
        """Wait until it is Active. Errors: `CorralError` `NOT_ACTIVE` when it failed or was terminated."""
        now = list(self.watch())[-1]
        if now.state != ACTIVE:
            raise CorralError("NOT_ACTIVE", f"'{now.name}' is {now.state}: {now.reason or now.stop_reason or 'ended'}.")
        return now

    def wait_ended(self) -> ComputeDetails:
        """Wait until it is Failed or Terminated: then what it held is free."""
        return list(self.watch(OVER))[-1]

    def would_stop(self) -> Termination:
        """Say what terminating would stop; changes nothing."""
        return decode(Termination, self._transport.call("DELETE", self._path, params={"dry_run": "true"}))

    def terminate(self) -> Termination:
        """Stop everything inside and free the resources. It cannot be undone."""
        return decode(Termination, self._transport.call("DELETE", self._path))

    def logs(self, kind: str = "provisioning") -> Log:
        """Return the log of its provisioning, or (`container`) the end of its container's own output."""
        return decode(Log, self._transport.call("GET", f"{self._path}/logs", params={"kind": kind}))

    @property
    def stream_path(self) -> str:
        """The WebSocket of streams into it; `corral.client.streams` opens one."""
        return f"{self._path}/stream"

    def ssh_keys(self) -> list[AttachedKey]:
        return _keys(self._transport.call("GET", f"{self._path}/ssh-keys"))

    def attach_ssh_keys(self, keys: Sequence[str]) -> list[AttachedKey]:
        """Attach keys of yours (names, ids or fingerprints); they work within seconds."""
        return _keys(self._transport.call("PUT", f"{self._path}/ssh-keys", {"keys": list(keys)}))

    def detach_ssh_keys(self, keys: Sequence[str]) -> list[AttachedKey]:
        """Detach keys; what was opened with them closes."""
        return _keys(self._transport.call("DELETE", f"{self._path}/ssh-keys", {"keys": list(keys)}))


def _keys(answer: Any) -> list[AttachedKey]:
    return [decode(AttachedKey, item) for item in answer["items"]]


def creation(**asked: Any) -> dict[str, Any]:
    """Return the body of a creation: what was not asked is left out."""
    return {key: value for key, value in asked.items() if value is not None}
