"""What the driver's own files say of GPUs that NVML cannot identify."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corral.agent.inventory.driver_files import ListedGpu, identify, listed
from corral.agent.inventory.gpus import GpuProbe
from corral.agent.inventory.probe_messages import Device
from corral.agent.inventory.probe_process import default_argv
from corral.protocol.messages import GpuState
from tests.fake_nvml import FakeNvml, fake_gpu

INFORMATION = (
    "Model: \t\t NVIDIA H100\nIRQ:   \t\t 77\nGPU UUID: \t {uuid}\nBus Location: \t {slot}\nDevice Minor: \t 3\n"
)


def gpu_file(root: Path, slot: str, uuid: str) -> None:
    folder = root / "proc/driver/nvidia/gpus" / slot
    folder.mkdir(parents=True)
    (folder / "information").write_text(INFORMATION.format(uuid=uuid, slot=slot), "utf-8")


def test_the_driver_lists_its_gpus_in_pci_order(tmp_path: Path) -> None:
    gpu_file(tmp_path, "0000:9a:00.0", "GPU-????????-????-????-????-????????????")
    gpu_file(tmp_path, "0000:0a:00.0", "GPU-0a1b")
    assert listed(tmp_path) == (
        ListedGpu("0000:0a:00.0", "GPU-0a1b", "NVIDIA H100"),
        ListedGpu("0000:9a:00.0", "", "NVIDIA H100"),
    )


def test_a_machine_without_the_driver_lists_none(tmp_path: Path) -> None:
    assert listed(tmp_path) == ()


def test_the_one_free_slot_is_that_of_the_one_silent_gpu() -> None:
    known = [ListedGpu("0000:0a:00.0", "GPU-a"), ListedGpu("0000:0b:00.0", "GPU-b")]
    silent = Device(0, error="GPU is lost")
    (first, second) = identify([silent, Device(1, "GPU-b", "0000:0b:00.0")], known)
    assert (first.uuid, first.slot, first.error) == ("GPU-a", "0000:0a:00.0", "GPU is lost")
    assert second == Device(1, "GPU-b", "0000:0b:00.0")


def test_nothing_is_guessed_where_the_numbers_do_not_fit() -> None:
    known = [ListedGpu("0000:0a:00.0", "GPU-a"), ListedGpu("0000:0b:00.0", "GPU-b")]
    silent = Device(0, error="GPU is lost")
    assert identify([silent], known) == (silent,)


@pytest.fixture
def probe_of_tree(tmp_path: Path, fake: FakeNvml) -> Iterator[Callable[[], GpuProbe]]:
    probes: list[GpuProbe] = []

    def make() -> GpuProbe:
        probes.append(GpuProbe(tmp_path, argv=[*default_argv(), str(tmp_path)], env=fake.env()))
        return probes[-1]

    yield make
    for probe in probes:
        probe.close()


def test_a_lost_gpu_never_seen_before_gets_its_identity_from_the_driver(
    tmp_path: Path, fake: FakeNvml, probe_of_tree: Callable[[], GpuProbe]
) -> None:
    for number in range(3):
        gpu_file(tmp_path, f"0000:{0x10 + number:02x}:00.0", str(fake_gpu(number)["uuid"]))
    fake.write([fake_gpu(0), fake_gpu(1, lost=1), fake_gpu(2)])
    reading = probe_of_tree().read()
    assert [(gpu.uuid, gpu.slot) for gpu in reading.gpus] == [
        (fake_gpu(number)["uuid"], f"0000:{0x10 + number:02x}:00.0") for number in range(3)
    ]
    assert [gpu.state for gpu in reading.gpus] == [GpuState.OK, GpuState.UNREADABLE, GpuState.OK]
