"""Spec 40, "GPUs and their health": a GPU's own counters. Real probe processes, a fake driver."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from corral.agent.inventory.gpus import GpuProbe
from corral.protocol.gpu_faults import GpuHealth
from tests.fake_nvml import FakeGpu, FakeNvml, fake_gpu

Make = Callable[[], GpuProbe]
UUID = str(fake_gpu(0)["uuid"])
ALL: FakeGpu = {"ecc_vol": 1, "ecc_agg": 5, "rows_failure": 0, "nvlinks": 18, "nvlink_down": 0b101, "recovery": 4}
TOLD = GpuHealth(UUID, "nvidia", 1, 5, False, 18, 16, 4)


def test_the_counters_of_a_gpu_are_told(fake: FakeNvml, make_probe: Make) -> None:
    fake.write([fake_gpu(0, **ALL), fake_gpu(1, rows_failure=1)])
    first, second = make_probe().read().health
    assert first == TOLD
    assert second.remap_failed


def test_what_a_gpu_does_not_tell_is_no_fault(fake: FakeNvml, make_probe: Make) -> None:
    fake.write([fake_gpu(0)])
    assert make_probe().read().health == (GpuHealth(UUID),)


def test_totals_stand_in_where_there_are_no_counters_of_each_memory(fake: FakeNvml, make_probe: Make) -> None:
    fake.write([fake_gpu(0, **ALL, only_totals=1)])
    assert make_probe().read().health == (TOLD,)


@pytest.mark.parametrize(
    ("call", "left"),
    [
        ("DeviceGetRemappedRows", TOLD),
        ("DeviceGetNvLinkState", GpuHealth(UUID, "nvidia", 1, 5, False, 0, 0, 4)),
        ("DeviceGetFieldValues", GpuHealth(UUID, "nvidia", 1, 5, False, 18, 16, -1)),
        ("DeviceGetMemoryErrorCounter", TOLD),
    ],
)
def test_each_counter_is_asked_in_its_own_try(fake: FakeNvml, make_probe: Make, call: str, left: GpuHealth) -> None:
    fake.write([fake_gpu(0, **ALL, **{f"error_{call}": 999})])
    reading = make_probe().read()
    assert reading.health == (left,)
    assert [gpu.state.value for gpu in reading.gpus] == ["ok"]


def test_a_gpu_that_does_not_answer_has_no_counters(fake: FakeNvml, make_probe: Make) -> None:
    fake.write([fake_gpu(0, **ALL), fake_gpu(1, **ALL)])
    probe = make_probe()
    probe.read()
    fake.write([fake_gpu(0, **ALL, lost=1), fake_gpu(1, **ALL)])
    assert [one.uuid for one in probe.read().health] == [fake_gpu(1)["uuid"]]
