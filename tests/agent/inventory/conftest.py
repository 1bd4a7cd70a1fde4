"""Parts for tests of the GPU probe: a fake driver, real probe processes, a clock in the test's hand."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from corral.agent.inventory.gpus import GpuProbe
from corral.agent.inventory.supervisor import Patience
from tests.fake_nvml import FakeNvml, build

DEADLINE_S = 30.0
IMPATIENT = Patience(start_s=0.0, close_after_s=10.0, term_after_s=20.0, stop_s=5.0)


class Clock:
    """Stands still until a test moves it. Waiting for a process is real all the same."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Wait for a condition; fail after a generous deadline."""
    until = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < until, f"waited {DEADLINE_S} s for: {what}"
        time.sleep(0.01)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def built_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed: the fake NVIDIA library cannot be built")
    library = tmp_path_factory.mktemp("fake-nvml") / "libnvidia-ml.so.1"
    build(library)
    return library


@pytest.fixture
def fake(tmp_path: Path, built_library: Path) -> FakeNvml:
    driver = FakeNvml(tmp_path / "driver", built_library)
    driver.write([])
    return driver


@pytest.fixture
def make_probe(tmp_path: Path, fake: FakeNvml, clock: Clock) -> Iterator[Callable[[], GpuProbe]]:
    """Return a maker of probes over one state folder; at the end nothing hangs and every process is gone."""
    with ExitStack() as stack:

        def make() -> GpuProbe:
            probe = GpuProbe(tmp_path, env=fake.env(), patience=IMPATIENT, clock=clock)
            stack.callback(_end, probe)
            return probe

        yield make
        fake.write([])


def _end(probe: GpuProbe) -> None:
    pid = probe.pid
    probe.close()
    assert pid is None or not Path(f"/proc/{pid}").exists(), f"probe process {pid} is still there"
