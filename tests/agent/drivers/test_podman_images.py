"""Images on a machine: their share of its disk, kept by removing those that nothing uses."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from corral.agent.drivers import podman_images
from corral.agent.drivers.base import DriverError
from corral.agent.drivers.podman import PodmanDriver
from corral.agent.drivers.storage import Storage, image_share_mib
from tests import podman
from tests.podman import Box

pytestmark = pytest.mark.podman

MIB = 1 << 20


@pytest.fixture
def driver(new_box: Callable[..., Box], monkeypatch: pytest.MonkeyPatch) -> PodmanDriver:
    """A machine of its own, whose pulls import an image of 3 MiB of that name."""
    driver = new_box().driver()
    images = driver._images
    monkeypatch.setattr(images, "_pull", lambda reference, _say: import_image(driver, reference, 3))
    return driver


def import_image(driver: PodmanDriver, reference: str, mib: int) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        program = podman.busybox()
        assert program is not None
        tar.add(program, arcname="bin/sh")
        content = tarfile.TarInfo("content")
        content.size = mib * MIB
        # Layers are told apart by what is in them.
        tar.addfile(content, io.BytesIO(reference.encode().ljust(mib * MIB, b"\0")))
    path = driver._config.state_dir / "image.tar"
    path.write_bytes(archive.getvalue())
    with path.open("rb") as source:
        answer = driver._service.upload("/images/import", {"reference": reference}, source, 60)
    driver._service.expect("importing", answer)
    path.unlink()


def named(driver: PodmanDriver) -> set[str]:
    rows = driver._service.call("GET", "/images/json").json()
    return {name.rpartition("/")[2] for row in rows if not row.get("ReadOnly") for name in row.get("Names") or ()}


def fetch(driver: PodmanDriver, name: str) -> None:
    driver._images.fetch(f"localhost/{name}:1", lambda _line: None)


def test_images_that_nothing_uses_make_room_the_longest_unused_first(driver: PodmanDriver) -> None:
    driver._images.share_mib = 12
    for name in ("a", "b", "a", "c"):
        fetch(driver, name)
    assert named(driver) == {"a:1", "c:1"}


def test_images_within_their_share_stay(driver: PodmanDriver) -> None:
    for name in ("a", "b", "c"):
        fetch(driver, name)
    assert named(driver) == {"a:1", "b:1", "c:1"}


def test_an_image_that_an_allocation_began_from_stays_also_when_it_is_stopped(driver: PodmanDriver) -> None:
    driver._images.share_mib = 7
    want = podman.desired(image="localhost/used:1")
    podman.start(driver, want)
    driver.stop(want.id, 0)
    fetch(driver, "other")
    fetch(driver, "third")
    assert named(driver) == {"used:1", "third:1"}
    podman.start(driver, want)
    driver.remove(want.id)


def test_an_image_that_is_being_started_from_stays(driver: PodmanDriver) -> None:
    driver._images.share_mib = 7
    with driver._images.using("localhost/used:1", lambda name: driver._images.fetch(name, lambda _line: None)):
        fetch(driver, "other")
        fetch(driver, "third")
        assert "used:1" in named(driver)
    fetch(driver, "fourth")
    assert named(driver) == {"fourth:1"}


def test_no_image_is_pulled_while_those_in_use_fill_their_share(driver: PodmanDriver) -> None:
    driver._images.share_mib = 2
    want = podman.desired(image="localhost/used:1")
    podman.start(driver, want)
    with pytest.raises(DriverError, match="images in use on this machine fill their share") as refused:
        fetch(driver, "other")
    assert refused.value.retry
    podman.start(driver, podman.desired(id=want.id, image=want.image))
    driver.remove(want.id)
    fetch(driver, "other")
    assert named(driver) == {"other:1"}


def test_images_share_is_no_storage(tmp_path: Path) -> None:
    storage = Storage(tmp_path, 100)
    size, _ = Storage(tmp_path, 0).capacity_mib()
    assert storage.capacity_mib()[0] == size - 100
    whole = size + storage.image_share_mib()
    assert storage.image_share_mib() == image_share_mib(whole)


@pytest.mark.parametrize(("disk_gib", "share_gib"), [(40, 10), (100, 20), (200, 20), (2000, 200)])
def test_images_get_a_tenth_of_the_disk_on_small_ones_more(disk_gib: int, share_gib: int) -> None:
    assert image_share_mib(disk_gib << 10) == share_gib << 10


def test_layers_that_images_share_count_once(driver: PodmanDriver) -> None:
    import_image(driver, "localhost/a:1", 3)
    before = podman_images.size_mib(driver._service.store)
    path = "/images/localhost%2Fa:1/tag"
    assert driver._service.call("POST", path, {"repo": "localhost/b", "tag": "1"}).ok
    assert podman_images.size_mib(driver._service.store) == before >= 3
