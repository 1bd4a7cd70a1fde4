"""One whole Corral for the end-to-end tests that do not break it, and fresh ones for those that do."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests import podman
from tests.e2e.stack import Machine, Stack
from tests.podman import Box


@pytest.fixture(scope="session")
def e2e_folder() -> Iterator[Path]:
    """A short folder (unix sockets); skips, saying why, where Podman or root is missing."""
    with podman.machines_folder("corral-e2e-") as folder:
        yield folder


@pytest.fixture(scope="session")
def images(e2e_folder: Path) -> Iterator[Path]:
    """An image store with busybox and the base image, which every machine of these tests reads."""
    program = podman.busybox()
    if program is None:
        pytest.skip("no static busybox on this host; run: apt-get install busybox-static")
    box = Box(e2e_folder / "images")
    try:
        podman.import_busybox(box.driver(), e2e_folder, program)
        podman.build_base(box.drivers[0])
        yield box.state_dir / "store"
    finally:
        box.clean()


@pytest.fixture(scope="session")
def stack(e2e_folder: Path, images: Path) -> Iterator[Stack]:
    """A Corral with one machine, for tests that leave it as they found it."""
    folder = e2e_folder / "shared"
    folder.mkdir()
    with Stack(folder, [images]) as shared:
        shared.add_machine()
        yield shared


@pytest.fixture
def machine(stack: Stack) -> Machine:
    return stack.machines[0]


@pytest.fixture
def new_stack(e2e_folder: Path, images: Path) -> Iterator[Callable[..., Stack]]:
    """Makes whole Corrals for tests that break them."""
    with ExitStack() as ending:

        def make(**settings: Any) -> Stack:
            folder = Path(tempfile.mkdtemp(prefix="s-", dir=e2e_folder))
            return ending.enter_context(Stack(folder, [images], **settings))

        yield make
