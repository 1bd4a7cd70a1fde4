"""Spec 40: processes that hold a GPU's memory after their container ended: not assignable until gone, and said."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from corral.agent.inventory.busy import Holds, amount, held_by, mark_busy, nobody, process_name
from corral.agent.inventory.gpus import GpuProbe
from corral.agent.inventory.probe_messages import Device, GpuProcess
from tests.fake_nvml import MIB, FakeGpu, FakeNvml, fake_gpu

Make = Callable[[], GpuProbe]


def named(_pid: int) -> str:
    return "python3"


def holding(*processes: GpuProcess) -> Device:
    return Device(0, uuid="GPU-a", processes=processes)


def test_a_foreign_process_is_named_with_what_it_holds() -> None:
    assert held_by(holding(GpuProcess(1234, 3104)), nobody, named) == "process 1234 (python3) holds 3,100 MiB"


def test_a_process_in_a_container_is_told_with_its_allocation() -> None:
    said = held_by(holding(GpuProcess(7, 200)), lambda pid: "0190-a" if pid == 7 else None, named)
    assert said == "process 7 (python3) of allocation 0190-a holds 200 MiB"


def test_of_many_processes_the_biggest_are_named() -> None:
    said = held_by(holding(*(GpuProcess(pid, pid * 100) for pid in range(1, 6))), nobody, named)
    assert said == (
        "process 5 (python3) holds 500 MiB, process 4 (python3) holds 400 MiB, "
        "process 3 (python3) holds 300 MiB and 2 more"
    )


def test_memory_that_no_process_explains_is_held_too() -> None:
    device = Device(0, uuid="GPU-a", held_mib=3104)
    assert held_by(device, nobody, named) == "3,100 MiB are held though the driver lists no process"
    assert held_by(Device(0, uuid="GPU-a", held_mib=500), nobody, named) == ""


def test_a_gpu_whose_processes_cannot_be_listed_is_not_given_away() -> None:
    device = Device(0, uuid="GPU-a", processes_error="Unknown Error")
    assert held_by(device, nobody, named) == "its processes cannot be listed: Unknown Error"


@pytest.mark.parametrize(
    ("mib", "said"),
    [(0, "an unknown amount of memory"), (3, "less than 100 MiB"), (1049, "1,000 MiB"), (81559, "81,600 MiB")],
)
def test_amounts_are_said_in_steps(mib: int, said: str) -> None:
    assert amount(mib) == said


def test_the_name_of_a_process_is_printable_and_one_that_is_gone_is_said_to_have_ended(tmp_path: Path) -> None:
    (tmp_path / "proc/12").mkdir(parents=True)
    (tmp_path / "proc/12/comm").write_bytes(b"evil\x1b[2J\n")
    assert process_name(tmp_path, 12) == "evil\\x1b[2J"
    assert process_name(tmp_path, 13) == "ended"


def test_only_gpus_that_are_not_allocated_are_busy(fake: FakeNvml, make_probe: Make) -> None:
    mine = f"{os.getpid()} {700 * MIB}"
    used: FakeGpu = {"proc": [mine], "mem_used": 700 * MIB}
    fake.write([fake_gpu(0, **used), fake_gpu(1, **used), fake_gpu(2), fake_gpu(3, mem_used=2000 * MIB)])
    reading = make_probe().read()
    allocated = reading.gpus[0].uuid
    busy = [gpu.busy for gpu in mark_busy(reading, Holds(frozenset({allocated})))]
    name = process_name(Path("/"), os.getpid())
    assert busy == [
        "",
        f"process {os.getpid()} ({name}) holds 700 MiB",
        "",
        "2,000 MiB are held though the driver lists no process",
    ]


@pytest.mark.parametrize(("error", "busy"), [(3, ""), (999, "its processes cannot be listed: Unknown Error")])
def test_a_driver_that_has_no_process_list_is_told_from_one_that_fails(
    error: int, busy: str, fake: FakeNvml, make_probe: Make
) -> None:
    fake.write([{**fake_gpu(0), "error.DeviceGetComputeRunningProcesses": error}])
    assert [gpu.busy for gpu in mark_busy(make_probe().read(), Holds())] == [busy]
