"""kill -9 of the agent, of Podman's service, of a container's monitor: nothing is lost, doubled or left."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corral.agent.drivers.base import DriverError
from corral.agent.drivers.host import wait_for
from corral.agent.drivers.podman import PodmanDriver
from corral.protocol.messages import DesiredAllocation, Step
from tests import podman
from tests.podman import Box, Key

pytestmark = pytest.mark.podman


def _start_and_die(box: Box, want: DesiredAllocation, when: Step) -> None:
    """Be an agent that is killed as a start reaches a step."""

    def progress(step: Step, _line: str) -> None:
        if step is when:
            os.kill(os.getpid(), signal.SIGKILL)

    box.driver().start(want, progress)


@pytest.mark.parametrize("when", list(Step))
def test_an_agent_killed_at_any_step_finishes_when_it_is_back(new_box: Callable[..., Box], when: Step) -> None:
    box, want = new_box(), podman.desired()
    agent = multiprocessing.get_context("spawn").Process(target=_start_and_die, args=(box, want, when))
    agent.start()
    agent.join(60)
    assert agent.exitcode == -signal.SIGKILL
    driver = box.driver()
    started = podman.start(driver, want)
    assert [r.container for r in driver.list_running()] == [started.container]
    driver.remove(want.id)
    assert podman.remains(box) == []


def test_containers_go_on_and_are_found_when_the_agent_dies(new_box: Callable[..., Box], key: Key) -> None:
    box, want = new_box(), podman.desired(key)
    agent = multiprocessing.get_context("spawn").Process(target=_start_and_kill_self, args=(box, want))
    agent.start()
    agent.join(60)
    assert agent.exitcode == -signal.SIGKILL
    driver = box.driver()
    (found,) = driver.list_running()
    assert (found.allocation, found.machine, found.running) == (want.id, box.machine, True)
    assert podman.start(driver, want).container == found.container


def _start_and_kill_self(box: Box, want: DesiredAllocation) -> None:
    podman.start(box.driver(), want)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_service_is_started_anew_and_containers_go_on(new_box: Callable[..., Box]) -> None:
    box, want = new_box(), podman.desired()
    driver = box.driver()
    started = podman.start(driver, want)
    _kill_service(driver)
    (found,) = driver.list_running()
    assert (found.container, found.running) == (started.container, True)
    assert driver.info().name.startswith("podman ")


def test_closing_a_driver_leaves_its_containers_running(new_box: Callable[..., Box]) -> None:
    box, want = new_box(), podman.desired()
    first = box.driver()
    started = podman.start(first, want)
    pid = first._service.pid()
    first.close()
    assert pid is not None
    assert not Path(f"/proc/{pid}").exists()
    (found,) = box.driver().list_running()
    assert (found.container, found.running) == (started.container, True)


def _kill_service(driver: PodmanDriver) -> None:
    pid = driver._service.pid()
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def killing_the_service(driver: PodmanDriver, seed: int) -> Iterator[None]:
    """Kill Podman's service at random moments while the block runs."""
    over = threading.Event()
    chance = random.Random(seed)

    def kill() -> None:
        while not over.wait(chance.uniform(0.1, 1.0)):
            _kill_service(driver)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _until_it_works(act: Callable[[], object]) -> None:
    """Repeat as an agent does; only what may be repeated is."""
    deadline = time.monotonic() + 60
    while True:
        try:
            act()
        except DriverError as error:
            assert error.retry, error.message
            assert time.monotonic() < deadline, error.message
        else:
            return


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_service_killed_again_and_again_loses_and_doubles_nothing(new_box: Callable[..., Box], seed: int) -> None:
    box = new_box()
    driver = box.driver()
    wanted = [podman.desired() for _ in range(3)]
    with killing_the_service(driver, seed):
        for want in wanted:
            _until_it_works(lambda want=want: podman.start(driver, want))  # type: ignore[misc]
    running = driver.list_running()
    assert sorted(r.allocation for r in running if r.running) == sorted(w.id for w in wanted)
    with killing_the_service(driver, seed + 100):
        for want in wanted:
            _until_it_works(lambda want=want: driver.remove(want.id))  # type: ignore[misc]
    assert list(driver.list_running()) == []
    assert podman.remains(box) == []


def test_a_container_whose_monitor_died_is_seen_as_what_it_is(new_box: Callable[..., Box]) -> None:
    box, want = new_box(), podman.desired()
    driver = box.driver()
    started = podman.start(driver, want)
    for pid in _processes_with(started.container):
        os.kill(pid, signal.SIGKILL)
    (row,) = driver._containers.labelled("corral.machine")
    os.kill(row.pid, signal.SIGKILL)
    assert wait_for(lambda: not driver.list_running()[0].running, 10), "Podman itself goes on saying: running"
    again = podman.start(driver, want)
    assert (again.host_key, again.container != started.container) == (started.host_key, True)
    driver.remove(want.id)
    assert podman.remains(box) == []


def _processes_with(container: str) -> list[int]:
    """Return the conmon processes of a container."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            line = (folder / "cmdline").read_bytes().split(b"\0")
            if line[0].endswith(b"conmon") and container.encode() in line:
                found.append(int(folder.name))
    return found


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Put a file system of 24 MiB at `folder`."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_a_clear_error_and_leaves_no_half_file(new_box: Callable[..., Box]) -> None:
    box, want = new_box(), podman.desired()
    driver = box.driver()
    with small_disk(box.state_dir / "allocations") as disk:
        for spare in (0, 8 << 10, 64 << 10):
            filler = _fill(disk, spare)
            with pytest.raises(DriverError, match=r"full|disk|space") as refused:
                podman.start(driver, want)
            assert refused.value.retry
            assert [p for p in disk.rglob("*") if p.name.endswith(".part")] == []
            filler.unlink()
        podman.start(driver, want)
        driver.remove(want.id)


def _fill(disk: Path, spare: int) -> Path:
    """Leave `spare` bytes of the file system free."""
    filler = disk / ".filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(b"\0" * 4096):
            pass
    with filler.open("ab") as file:
        file.truncate(max(0, filler.stat().st_size - spare))
    return filler
