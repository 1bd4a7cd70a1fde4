"""A site is upgraded and its machine's agent after it: real containers go on through both (spec 40, "Update")."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import corral
from tests import releases
from tests.e2e import ground
from tests.e2e.stack import WITHIN_S, Machine, Stack
from tests.e2e.test_faults_outages import TICKER
from tests.live_server import eventually

pytestmark = pytest.mark.podman

DIES = {"agent/loop.py": ("await self.work.adopt()", "await self.work.adopt()\n        raise RuntimeError('broken')")}


@pytest.fixture
def stack(e2e_folder: Path, images: Path, request: pytest.FixtureRequest) -> Iterator[Stack]:
    folder = e2e_folder / f"update-{request.node.name[:8]}"
    folder.mkdir()
    with Stack(folder, [images]) as whole:
        yield whole


def install(stack: Stack) -> Machine:
    """Have a machine whose agent is the one file that the site serves."""
    machine = stack.add_machine()
    machine.stop()
    program = stack.folder / "opt" / "corral-agent.pyz"
    program.parent.mkdir()
    shutil.copy(releases.base(stack.folder / "base"), program)
    machine.program = (str(program),)
    machine.start()
    return machine


def upgrade(stack: Stack, version: str, changes: releases.Changes | None = None) -> None:
    """Have the site run from sources of another release."""
    source = stack.folder / version
    shutil.copytree(Path(corral.__file__).parent, source / "corral", ignore=shutil.ignore_patterns("__pycache__"))
    edits = {"__init__.py": (f'"{corral.__version__}"', f'"{version}"'), **(changes or {})}
    for name, (was, now) in edits.items():
        file = source / "corral" / name
        text = file.read_text()
        assert was in text
        file.write_text(text.replace(was, now, 1))
    stack.site_env = {"PYTHONPATH": str(source)}
    stack.stop_site()
    stack.start_site()


def test_an_update_stops_no_container_and_neither_does_one_that_fails(stack: Stack) -> None:
    machine = install(stack)
    stack.create("box", ssh_keys=["key"])
    before = ground.first_process(stack, machine, "box")
    pid = stack.said("box", TICKER)
    assert machine.process is not None
    agent = machine.process.pid

    upgrade(stack, "9.9.9", DIES)
    ran = stack.corral("machine", "update", machine.name, "--wait")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "could not update to 9.9.9: the new release ended on its trial" in ran.stdout
    goes_on(stack, machine, pid)

    upgrade(stack, "9.9.10")
    ran = stack.corral("machine", "update", machine.name, "--wait")
    assert ran.returncode == 0, ran.stdout + ran.stderr + machine.log[-3000:]
    assert f"{machine.name} has release 9.9.10." in ran.stdout
    goes_on(stack, machine, pid)

    assert ground.first_process(stack, machine, "box") == before
    assert (stack.show("box").state, stack.show("box").restarts) == ("active", 0)
    assert machine.process.pid == agent and machine.process.poll() is None
    told = [entry.data["state"] for entry in stack.owner.org("acme").events() if entry.type == "cluster.node.upgrade"]
    assert sorted(told) == ["asked", "asked", "done", "failed"]


def goes_on(stack: Stack, machine: Machine, pid: str) -> None:
    """What was started in the container before still runs and does its work."""
    eventually(lambda: stack.ssh("box", "true").returncode == 0, WITHIN_S)
    ticks = int(stack.said("box", "wc -l < /root/ticks"))
    eventually(lambda: int(stack.said("box", "wc -l < /root/ticks")) > ticks, WITHIN_S)
    assert stack.said("box", f"cat /proc/{pid}/comm") == "sh"
    shown = stack.owner.org("acme").cluster(stack.cluster).machine(machine.name).machine
    assert (shown.state, shown.quarantine) == ("up", None)
