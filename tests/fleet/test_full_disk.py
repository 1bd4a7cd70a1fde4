"""A full disk at the agent's writes: said as a condition, no file damaged, and work goes on when there is space."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.client.errors import CorralError
from tests.e2e.stack import WITHIN_S, Machine, Stack
from tests.live_server import eventually


@pytest.fixture
def machine() -> Iterator[Machine]:
    """A simulated machine whose state folder is a file system of 1 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    if shutil.which("ssh-keygen") is None:
        pytest.skip("not installed: openssh-client")
    folder = Path(tempfile.mkdtemp(prefix="corral-disk-"))
    small = folder / "agent-0"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", str(small)], check=True)
    try:
        with Stack(folder) as stack:
            yield stack.add_machine(arguments=("--driver", "sim"))
    finally:
        subprocess.run(["umount", str(small)], check=True)
        shutil.rmtree(folder)


def fill(folder: Path, spare: int) -> Path:
    """Leave `spare` bytes of the file system free, rounded down to its pages."""
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(b"\0" * 4096):
            pass
    os.truncate(filler, max(0, filler.stat().st_size - spare))
    return filler


def damaged(folder: Path) -> list[str]:
    """Return the state files that do not read back."""
    found = []
    for path in folder.rglob("*.json"):
        try:
            json.loads(path.read_text())
        except ValueError:
            found.append(str(path))
    return found


@pytest.mark.parametrize("spare", [0, 4096])
def test_a_full_disk_is_a_condition_damages_nothing_and_is_got_over(machine: Machine, spare: int) -> None:
    stack = machine.stack
    cluster = stack.owner.org("acme").cluster(stack.cluster)
    stack.create("before", ram_gib=1)
    filler = fill(machine.folder, spare)
    with contextlib.suppress(CorralError):  # refused, where the condition was told sooner
        stack.create("meanwhile", active=False)

    def told() -> str:
        return "; ".join(f"{c.kind}: {c.message}" for c in cluster.machine(machine.name).machine.conditions)

    if spare == 0:
        eventually(lambda: "state_unwritable" in told(), WITHIN_S)
        assert "full; free space on it" in told()
        with pytest.raises(CorralError, match="state_unwritable") as refused:
            stack.create("refused")
        assert refused.value.code == "NO_CAPACITY"
        assert stack.show("meanwhile").state == "provisioning"
        assert stack.show("before").state == "active"
    # A crash now must not cost what was kept before.
    machine.kill()
    assert damaged(machine.folder) == []
    machine.start()
    filler.unlink()
    stack.until("before", "active")
    stack.until("meanwhile", "active")
    eventually(lambda: told() == "", WITHIN_S)
    assert damaged(machine.folder) == []
    assert cluster.machine(machine.name).machine.closed == ""
    for name in ("before", "meanwhile"):
        stack.terminate(name)
