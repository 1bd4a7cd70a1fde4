"""A machine's data location on a real disk, and a drive in a real container (spec 10, "Data location")."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from corral.client.errors import CorralError
from corral.client.machine_models import DataLocation
from tests import disks
from tests.e2e.stack import WITHIN_S, Stack
from tests.live_server import eventually

pytestmark = pytest.mark.podman


def test_a_drive_is_read_only_and_a_disk_that_is_gone_is_noticed(new_stack: Callable[..., Stack]) -> None:
    with disks.disk(name="e2e") as disk:
        stack = new_stack()
        machine, cluster = stack.add_machine(), stack.owner.org("acme").cluster(stack.cluster)

        def located(state: str) -> DataLocation | None:
            found = cluster.machine(machine.name).data_location
            return found if found is not None and found.state == state else None

        offered = {one.mount: one for one in cluster.machine(machine.name).disks}
        assert offered[str(disk.mount)].recommended
        with pytest.raises(CorralError, match="no data location"):
            stack.create("box", drives=["weights"])

        path = disk.mount / "corral"
        cluster.choose_data_location(machine.name, str(path))
        eventually(lambda: located("ready"), WITHIN_S)
        stack.create("box", drives=["weights"], ssh_keys=["key"])
        (kept,) = path.glob("*/*/weights")
        (kept / "model").write_text("42", "ascii")
        assert stack.said("box", "cat /drives/weights/model") == "42"
        assert "Read-only file system" in stack.ssh("box", "touch /drives/weights/mine").stderr
        with pytest.raises(CorralError) as refused:
            cluster.forget_data_location(machine.name)
        assert refused.value.code == "DATA_LOCATION_IN_USE"

        machine.kill()
        machine.start()
        stack.terminate("box")
        assert (kept / "model").read_text("ascii") == "42"
        _pulled_out(disk, lambda state: eventually(lambda: located(state), WITHIN_S))

        (kept / "model").unlink()
        eventually(lambda: (there := located("ready")) is not None and there.copies == 0, WITHIN_S)
        cluster.forget_data_location(machine.name)
        assert Path(path).is_dir()
        machine.stop()


def _pulled_out(disk: disks.Disk, becomes: Callable[[str], DataLocation | None]) -> None:
    disk.pull_out()
    failed = becomes("failed")
    assert failed is not None
    assert "no disk is mounted" in failed.message
    assert list(disk.mount.iterdir()) == []
    disk.put_in()
    assert becomes("ready") is not None
