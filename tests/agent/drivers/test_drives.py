"""Drives inside real containers: mounted from the data location, read-only, whatever a tenant has made of its root."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corral.agent.calls import InlineCalls
from corral.agent.data_folder import DataFolder, Owner, Place
from corral.agent.data_location import DataKeeper
from corral.agent.drivers.base import DriverError
from corral.agent.state import StateFolder
from corral.protocol.data_location import DataLocation
from corral.protocol.messages import DesiredAllocation
from tests import disks, podman
from tests.disks import Disk
from tests.podman import Box, Key

pytestmark = pytest.mark.podman


@pytest.fixture
def nvme() -> Iterator[Disk]:
    with disks.disk(name="drives") as made:
        yield made


@pytest.fixture
def place(nvme: Disk) -> Place:
    return Place(str(nvme.mount / "corral"), str(nvme.mount))


@pytest.fixture
def keeper(place: Place, tmp_path: Path) -> DataKeeper:
    """The data location of a machine, made."""
    state = StateFolder(tmp_path / "agent")
    state.make()
    folder = DataFolder(Owner("machine-1", "org-1", "https://corral.test"), state.path)
    folder.make(place)
    made = DataKeeper(state, folder, InlineCalls())
    made.take(DataLocation(1, *place))
    return made


def asked(key: Key) -> DesiredAllocation:
    return podman.desired(key, drives=("weights", "empty"))


def test_drives_are_there_read_only_and_outlive_the_container(
    keeper: DataKeeper, place: Place, new_box: Callable[..., Box], key: Key, podman_folder: Path
) -> None:
    box = new_box(drives=keeper)
    driver, want = box.driver(), asked(key)
    podman.start(driver, want)
    kept = Path(place.path, want.org, want.workspace, "weights")
    (kept / "model").write_text("42", "ascii")
    with podman.ssh(driver, want.id, key, podman_folder) as inside:
        assert inside.text("ls /drives; cat /drives/weights/model").split() == ["empty", "weights", "42"]
        assert b"Read-only file system" in inside.run("touch /drives/weights/mine").stderr
        assert b"Read-only file system" in inside.run("rm /drives/weights/model").stderr
        options = inside.text("grep ' /drives/weights ' /proc/self/mountinfo").split()[5].split(",")
        assert {"ro", "nosuid", "nodev"} <= set(options)
    driver.remove(want.id)
    assert (kept / "model").read_text("ascii") == "42"


def test_a_link_that_a_tenant_made_leads_no_drive_elsewhere(
    keeper: DataKeeper, new_box: Callable[..., Box], key: Key, podman_folder: Path
) -> None:
    driver, want = new_box(drives=keeper).driver(), asked(key)
    podman.start(driver, want)
    with podman.ssh(driver, want.id, key, podman_folder) as inside:
        inside.text("mv /drives /old && ln -s /etc /drives && mkdir /etc/weights")
    driver.stop(want.id, 1)
    podman.start(driver, want)
    with podman.ssh(driver, want.id, key, podman_folder) as inside:
        assert inside.text("ls -d /drives/weights; ls /drives; grep -c ' /etc/weights ' /proc/self/mountinfo; true")
        assert inside.text("readlink /drives || echo a folder") == "a folder"


def test_without_its_disk_nothing_is_started_and_it_is_tried_again(
    keeper: DataKeeper, nvme: Disk, new_box: Callable[..., Box], key: Key
) -> None:
    driver, want = new_box(drives=keeper).driver(), asked(key)
    nvme.pull_out()
    with pytest.raises(DriverError, match="no disk is mounted") as refused:
        podman.start(driver, want)
    assert refused.value.retry
    assert driver.list_running() == []
    assert list(nvme.mount.iterdir()) == []
    nvme.put_in()
    podman.start(driver, want)


def test_started_again_it_keeps_the_data_location_it_began_with(
    keeper: DataKeeper, nvme: Disk, new_box: Callable[..., Box], key: Key, podman_folder: Path
) -> None:
    box = new_box(drives=keeper)
    driver, want = box.driver(), asked(key)
    podman.start(driver, want)
    (nvme.mount / "corral" / want.org / want.workspace / "weights" / "model").write_text("42", "ascii")
    keeper.take(DataLocation(2, str(nvme.mount / "other"), str(nvme.mount)))
    driver.stop(want.id, 1)
    podman.start(box.driver(), want)
    with podman.ssh(box.drivers[-1], want.id, key, podman_folder) as inside:
        assert inside.text("cat /drives/weights/model") == "42"
    kept = json.loads((box.folder(want.id) / "allocation.json").read_text("utf-8"))
    assert json.loads(kept["data_location"]) == [str(nvme.mount / "corral"), str(nvme.mount)]


def test_a_machine_that_keeps_no_drives_says_so(new_box: Callable[..., Box], key: Key) -> None:
    with pytest.raises(DriverError, match="keeps no drives"):
        podman.start(new_box().driver(), asked(key))
