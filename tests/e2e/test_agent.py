"""The agent on a machine with real containers: killed at any moment, removed, robbed of a container."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.stack import WITHIN_S, Machine, Stack
from tests.live_server import eventually

pytestmark = pytest.mark.podman


def monitors(machine: Machine) -> list[int]:
    """Return the processes that watch over this machine's containers: one for each that runs."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"conmon") and any(str(machine.folder).encode() in word for word in words):
            found.append(int(folder.name))
    return found


def stored(machine: Machine) -> list[str]:
    """Return the allocations that have storage on this machine."""
    return sorted(path.name for path in (machine.folder / "podman" / "allocations").iterdir())


def test_killed_at_any_moment_of_create_and_terminate_nothing_is_lost_or_doubled(
    new_stack: Callable[..., Stack],
) -> None:
    stack = new_stack()
    machine = stack.add_machine()
    stack.create("kept", ssh_keys=["key"])
    stack.said("kept", "echo precious > /root/kept")
    for number, moment in enumerate((0.0, 0.15, 0.4, 0.8)):
        name = f"c{number}"
        id = stack.create(name, active=False).id
        kill_after(machine, moment)
        assert stack.until(name, "active").restarts == 0
        assert len(monitors(machine)) == len(stored(machine)) == 2
        stack.workspace.compute_cluster(name).terminate()
        kill_after(machine, moment)
        stack.until(id, "terminated")
        assert len(monitors(machine)) == len(stored(machine)) == 1
    # The last kill may have come after the end was confirmed: its agent says hello in a moment.
    eventually(lambda: stack.workspace.compute_cluster("kept").connection().ssh == "ready")
    assert stack.said("kept", "cat /root/kept") == "precious"
    seen = stack.show("kept")
    assert (seen.state, seen.restarts) == ("active", 0)


def kill_after(machine: Machine, moment: float) -> None:
    """Kill the agent after some seconds (where the kill hits is what varies) and start it again."""
    time.sleep(moment)
    machine.kill()
    machine.start()


def test_a_container_killed_behind_corrals_back_starts_again_on_the_same_storage(
    new_stack: Callable[..., Stack],
) -> None:
    stack = new_stack()
    machine = stack.add_machine()
    stack.create("box", ssh_keys=["key"])
    stack.said("box", "echo precious > /root/kept")
    before = monitors(machine)
    for pid in before:
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
    eventually(lambda: stack.show("box").restarts == 1, WITHIN_S)
    stack.until("box", "active")
    eventually(lambda: monitors(machine) and monitors(machine) != before, WITHIN_S)
    eventually(lambda: stack.ssh("box", "true").returncode == 0, WITHIN_S)
    assert stack.said("box", "cat /root/kept") == "precious"


def test_a_machine_removed_by_force_ends_its_containers_and_its_agent(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack()
    machine = stack.add_machine()
    stack.create("box")
    assert len(monitors(machine)) == 1
    stack.owner.org("acme").cluster(stack.cluster).remove(machine.name, force=True)
    assert machine.process is not None
    assert machine.process.wait(WITHIN_S) == 0
    assert monitors(machine) == []
    assert stored(machine) == []
    machine.start()
    assert machine.process.wait(WITHIN_S) == 0
    assert "removed from its site" in machine.log
