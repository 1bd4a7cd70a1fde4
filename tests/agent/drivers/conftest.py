"""One Podman machine for a whole session of driver tests, and fresh ones for tests that break theirs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corral.agent.drivers.podman import PodmanDriver
from tests import podman
from tests.podman import Box, Key


@pytest.fixture(scope="session")
def podman_folder() -> Iterator[Path]:
    """A folder for machines' state; skips where Podman or root is missing."""
    with podman.machines_folder("corral-podman-") as folder:
        yield folder


@pytest.fixture(scope="session")
def box(podman_folder: Path) -> Iterator[Box]:
    """The session's machine, with a busybox image in its store."""
    program = podman.busybox()
    if program is None:
        pytest.skip("no static busybox on this host; run: apt-get install busybox-static")
    shared = Box(podman_folder / "box")
    try:
        podman.import_busybox(shared.driver(), podman_folder, program)
        yield shared
    finally:
        shared.clean()
        assert podman.remains(shared) == []


@pytest.fixture(scope="session")
def driver(box: Box) -> PodmanDriver:
    return box.drivers[0]


@pytest.fixture(scope="session")
def key(podman_folder: Path) -> Key:
    return podman.make_key(podman_folder)


@pytest.fixture
def new_box(box: Box, podman_folder: Path) -> Iterator[Callable[..., Box]]:
    """Makes further machines on this host; they read the session machine's images."""
    made: list[Box] = []

    def make(**settings: object) -> Box:
        folder = Path(tempfile.mkdtemp(prefix="m-", dir=podman_folder))
        made.append(Box(folder, image_stores=(box.state_dir / "store",), **settings))  # type: ignore[arg-type]  # Box checks them
        return made[-1]

    yield make
    for each in made:
        each.clean()
        assert podman.remains(each) == []
