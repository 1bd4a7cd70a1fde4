"""Images on a machine: their share of its disk, kept by removing those that nothing uses."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from corral.agent.drivers import podman_images, podman_layers
from corral.agent.drivers.base import DriverError
from corral.agent.drivers.host import wait_for
from corral.agent.drivers.podman import PodmanDriver
from corral.agent.drivers.storage import Storage, image_share_mib
from tests import podman, registry
from tests.podman import Box
from tests.registry import Registry

pytestmark = pytest.mark.podman

MIB = 1 << 20


@pytest.fixture
def driver(new_box: Callable[..., Box], monkeypatch: pytest.MonkeyPatch) -> PodmanDriver:
    """A machine of its own, whose pulls import an image of 3 MiB of that name."""
    driver = new_box().driver()
    images = driver._images
    monkeypatch.setattr(images, "_pull", lambda reference, _say: import_image(driver, reference, 3))
    return driver


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Registry]:
    """A registry that this test's machines can pull from."""
    with registry.serving() as each:
        settings = tmp_path / "registries.conf"
        settings.write_text(f'[[registry]]\nlocation = "{each.address}"\ninsecure = true\n')
        monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(settings))
        yield each


@pytest.fixture
def puller(new_box: Callable[..., Box], served: Registry) -> PodmanDriver:
    """A machine of its own, that pulls from the registry."""
    assert served.address
    return new_box().driver()


def pull(driver: PodmanDriver, reference: str) -> None:
    driver._images.fetch(reference, lambda _line: None)


def assert_nothing_is_left(driver: PodmanDriver, taken_mib: int) -> None:
    store = driver._service.store
    assert podman_layers.downloads(store) == []
    assert podman_layers.leftovers(store) == []
    assert podman_layers.taken_mib(store) == taken_mib


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
    before = podman_layers.size_mib(driver._service.store)
    path = "/images/localhost%2Fa:1/tag"
    assert driver._service.call("POST", path, {"repo": "localhost/b", "tag": "1"}).ok
    assert podman_layers.size_mib(driver._service.store) == before >= 3


def test_an_image_larger_than_the_share_is_broken_off_and_leaves_nothing(
    puller: PodmanDriver, served: Registry
) -> None:
    puller._images.share_mib = 40
    with pytest.raises(DriverError, match="larger than the share") as refused:
        pull(puller, served.add("large", registry.layer(3), endless=True))
    assert not refused.value.retry
    assert_nothing_is_left(puller, 0)


def test_a_layer_that_unpacks_to_more_than_the_share_is_broken_off_and_leaves_nothing(
    puller: PodmanDriver, served: Registry
) -> None:
    puller._images.share_mib = 40
    with pytest.raises(DriverError, match="larger than the share"):
        pull(puller, served.add("bomb", registry.layer(3), registry.bomb(1920)))
    assert_nothing_is_left(puller, 0)


def test_a_pull_is_broken_off_where_the_disk_is_nearly_full(puller: PodmanDriver, served: Registry) -> None:
    images = puller._images
    images.reserve_mib = podman_layers.free_mib(puller._service.store) - 50
    with pytest.raises(DriverError, match="disk is nearly full") as refused:
        pull(puller, served.add("large", endless=True))
    assert refused.value.retry
    assert_nothing_is_left(puller, 0)


def test_unused_images_make_room_while_a_larger_one_is_pulled(puller: PodmanDriver, served: Registry) -> None:
    puller._images.share_mib = 40
    pull(puller, served.add("old", registry.layer(30)))
    new = served.add("new", registry.layer(16), registry.layer(1), held=True)
    with ThreadPoolExecutor() as pool, served.holding():
        pulled = pool.submit(pull, puller, new)
        assert wait_for(lambda: named(puller) == set(), 20)
        served.goes_on.set()
        pulled.result(30)
    assert named(puller) == {"new:1"}
    assert_nothing_is_left(puller, 17)


def test_an_image_is_pulled_when_the_one_before_it_is_there(puller: PodmanDriver, served: Registry) -> None:
    first, second = served.add("first", registry.layer(1), held=True), served.add("second", registry.layer(2))
    said: list[str] = []
    with ThreadPoolExecutor() as pool, served.holding():
        pulls = [pool.submit(pull, puller, first)]
        assert wait_for(lambda: any("first/blobs" in path for path in served.asked), 20)
        pulls.append(pool.submit(puller._images.fetch, second, said.append))  # type: ignore[arg-type]
        assert wait_for(lambda: bool(said), 20)
        assert said == ["waiting for another image that is being pulled"]
        assert not any("second" in path for path in served.asked)
        served.goes_on.set()
        for each in pulls:
            each.result(30)
    assert named(puller) == {"first:1", "second:1"}


def test_a_pull_that_takes_too_long_lets_another_go_first(
    puller: PodmanDriver, served: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(podman_images, "TURN_S", 0)
    first, second = served.add("first", registry.layer(1), held=True), served.add("second", registry.layer(2))
    with ThreadPoolExecutor() as pool, served.holding():
        slow = pool.submit(pull, puller, first)
        assert wait_for(lambda: any("first/blobs" in path for path in served.asked), 20)
        pool.submit(pull, puller, second).result(30)
        with pytest.raises(DriverError, match="took too long to pull while others wait") as refused:
            slow.result(30)
    assert refused.value.retry
    assert named(puller) == {"second:1"}


def test_an_image_that_was_loaded_by_hand_stays(driver: PodmanDriver) -> None:
    driver._images.share_mib = 7
    import_image(driver, "localhost/loaded:1", 3)
    for name in ("a", "b", "c"):
        fetch(driver, name)
    assert named(driver) == {"loaded:1", "c:1"}


def test_which_images_were_pulled_and_last_used_outlives_the_agent(
    new_box: Callable[..., Box], served: Registry
) -> None:
    box = new_box()
    a, b = served.add("a", registry.layer(3)), served.add("b", registry.layer(3))
    for reference in (a, b, a):
        pull(box.driver(), reference)
    later = box.driver()
    later._images.share_mib = 6
    pull(later, served.add("c", registry.layer(1)))
    assert named(later) == {"a:1", "c:1"}


def test_an_image_that_was_there_as_the_agent_died_counts_as_pulled(
    new_box: Callable[..., Box], served: Registry
) -> None:
    box = new_box()
    driver = box.driver()
    driver._images._pulled.begin(f"{served.address}/a:1", set())
    driver._images._pull(served.add("a", registry.layer(3)), lambda _line: None)
    later = box.driver()
    later._images.share_mib = 4
    pull(later, served.add("b", registry.layer(2)))
    assert named(later) == {"b:1"}
