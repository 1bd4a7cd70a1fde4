"""An allocation's storage: what it began as it stays, and its removal ends, whatever lies in it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from corral.agent.drivers.base import DriverError
from corral.agent.drivers.host import unmount
from corral.agent.drivers.podman import PodmanDriver
from corral.agent.drivers.storage import Storage
from corral.protocol.messages import DesiredAllocation
from tests import podman
from tests.podman import Box

pytestmark = pytest.mark.podman


def reboot(box: Box, driver: PodmanDriver, want: DesiredAllocation) -> PodmanDriver:
    """End the container and its mounts, as a reboot does; return the next agent's driver."""
    driver.stop(want.id, 0)
    for name in ("rootfs", "disk"):
        unmount(box.folder(want.id) / name)
    return box.driver()


def without_loops(driver: PodmanDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver._storage, "_loop_works", lambda: False)


def needs_loops() -> None:
    if subprocess.run(["losetup", "-f"], capture_output=True, check=False).returncode != 0:
        pytest.skip("there are no loop devices here")


def test_a_disk_is_mounted_again_though_the_probe_fails_now(
    new_box: Callable[..., Box], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_loops()
    box, want = new_box(), podman.desired()
    driver = box.driver()
    podman.start(driver, want)
    (box.folder(want.id) / "rootfs/root/file").write_text("mine")
    driver = reboot(box, driver, want)
    without_loops(driver, monkeypatch)
    podman.start(driver, want)
    assert (box.folder(want.id) / "rootfs/root/file").read_text() == "mine"


def test_a_plain_folder_stays_one_though_loops_work_now(
    new_box: Callable[..., Box], monkeypatch: pytest.MonkeyPatch
) -> None:
    box, want = new_box(), podman.desired()
    driver = box.driver()
    without_loops(driver, monkeypatch)
    podman.start(driver, want)
    (box.folder(want.id) / "rootfs/root/file").write_text("mine")
    driver.stop(want.id, 0)
    unmount(box.folder(want.id) / "rootfs")
    podman.start(box.driver(), want)
    assert (box.folder(want.id) / "rootfs/root/file").read_text() == "mine"


def test_a_disk_that_cannot_be_mounted_is_tried_again_and_never_replaced(new_box: Callable[..., Box]) -> None:
    needs_loops()
    box, want = new_box(), podman.desired()
    driver = box.driver()
    podman.start(driver, want)
    driver = reboot(box, driver, want)
    image = box.folder(want.id) / "disk.img"
    whole = image.read_bytes()
    image.write_bytes(b"\0" * len(whole))
    with pytest.raises(DriverError, match="disk could not be mounted") as refused:
        podman.start(driver, want)
    assert refused.value.retry
    image.write_bytes(whole)
    podman.start(driver, want)


def test_a_host_that_could_not_mount_disks_is_asked_again_for_new_storage(tmp_path: Path) -> None:
    storage, answers = Storage(tmp_path, 0), [True, False]
    storage._loop_works = answers.pop  # type: ignore[method-assign]
    assert storage.quota() == "none"
    assert storage.enforced("a")
    assert storage.quota() == "loop"


def test_a_tree_of_any_depth_is_removed(tmp_path: Path) -> None:
    storage = Storage(tmp_path, 0)
    home = Path.cwd()
    storage.folder("deep").mkdir()
    os.chdir(storage.folder("deep"))
    try:
        for _ in range(3000):
            Path("d").mkdir()
            os.chdir("d")
    finally:
        os.chdir(home)
    try:
        storage.release("deep")
        assert not storage.folder("deep").exists()
    finally:
        # pytest's own removal of old folders could not go so deep either.
        subprocess.run(["rm", "-rf", storage.folder("deep")], check=True)
