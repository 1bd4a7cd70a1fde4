"""Signals reach processes of the container only: a number that was used again is never one of them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corral.agent.drivers.cgroups import Cgroups
from corral.agent.drivers.sessions import Process, end
from tests import podman
from tests.podman import Box


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the host that has a number which was a container's once."""
    # Whoever runs the tests may ignore SIGHUP (nohup), and children take that over.
    process = subprocess.Popen(["env", "--default-signal=HUP", "sleep", "600"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.podman
def test_stopping_never_signals_a_process_of_the_host(
    new_box: Callable[..., Box], stranger: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, want = new_box().driver(), podman.desired()
    podman.start(driver, want)
    reused = _WithNumber(stranger.pid)
    monkeypatch.setattr(driver._containers, "_cgroups", reused)
    driver.stop(want.id, 0)
    assert reused.asked
    assert stranger.poll() is None


class _WithNumber(Cgroups):
    """Tells one more number than there are: as where a process ended after its number was read."""

    def __init__(self, number: int) -> None:
        super().__init__()
        object.__setattr__(self, "number", number)
        object.__setattr__(self, "asked", [])

    number: int
    asked: list[int]

    def processes(self, pid: int) -> list[int]:
        self.asked.append(pid)
        return [*super().processes(pid), self.number]


def test_a_process_of_no_container_gets_no_signal(stranger: subprocess.Popen[bytes]) -> None:
    Cgroups().send(stranger.pid, "0123456789abcdef", 15)
    assert stranger.poll() is None


def test_a_process_that_is_gone_is_no_error() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    Cgroups().send(gone.pid, "0123456789abcdef", 15)
    Cgroups().send(0, "0123456789abcdef", 15)


def test_a_process_of_the_container_gets_its_signal(stranger: subprocess.Popen[bytes]) -> None:
    group = Path(f"/proc/{stranger.pid}/cgroup").read_text().splitlines()[0].rpartition(":")[2]
    Cgroups().send(stranger.pid, group, 15)
    assert stranger.wait(10) == -15


def test_what_a_connection_left_is_signalled_only_as_a_member(stranger: subprocess.Popen[bytes]) -> None:
    seen = Process(stranger.pid, 1, "tag", on_connection=True, ignores_hangup=False)
    end([seen], members=list)
    assert stranger.poll() is None
    end([seen], members=lambda: [stranger.pid])
    assert stranger.wait(10) == -1
