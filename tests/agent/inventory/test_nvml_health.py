"""Spec 40, "GPUs and their health": a GPU's own counters. Real probe processes, a fake driver."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from corral.agent.inventory.gpus import GpuProbe
from corral.protocol.gpu_faults import GpuHealth
from tests.agent.inventory.conftest import Clock
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


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize(("silent", "links", "up"), [(0b1, 17, 0), (0b111, 15, 0), (1 << 17, 17, 0), (2**18 - 1, 0, 0)])
def test_a_link_that_cannot_be_read_hides_no_other(
    fake: FakeNvml, make_probe: Make, count: int, silent: int, links: int, up: int
) -> None:
    fake.write([fake_gpu(0, nvlinks=18, nvlink_down=2**18 - 1, nvlink_silent=silent, nvlink_count=count)])
    (health,) = make_probe().read().health
    assert (health.nvlinks, health.nvlinks_up) == (links, up)


def test_a_gpu_without_links_has_none(fake: FakeNvml, make_probe: Make) -> None:
    fake.write([fake_gpu(0, nvlink_count=1), fake_gpu(1, nvlinks=4, nvlink_count=1)])
    assert [(one.nvlinks, one.nvlinks_up) for one in make_probe().read().health] == [(0, 0), (4, 4)]


def test_for_how_long_a_gpu_does_not_answer_is_told_in_steps(fake: FakeNvml, make_probe: Make, clock: Clock) -> None:
    probe = make_probe()
    fake.write([fake_gpu(0), fake_gpu(1)])
    probe.read()
    fake.write([fake_gpu(0, error_DeviceGetMemoryInfo=999), fake_gpu(1)])
    told = []
    for _ in range(16):
        told.append(next((one.unreadable_s for one in probe.read().health if one.uuid == UUID), 0))
        clock.advance(10)
    assert told == [0] * 3 + [30] * 3 + [60] * 3 + [90] * 3 + [120] * 4
    fake.write([fake_gpu(0), fake_gpu(1)])
    assert GpuHealth(UUID) in probe.read().health
    fake.write([fake_gpu(0, error_DeviceGetMemoryInfo=999), fake_gpu(1)])
    assert [one.uuid for one in probe.read().health] == [fake_gpu(1)["uuid"]], "it counts anew"


def test_while_the_driver_does_not_answer_no_gpu_is_silent(fake: FakeNvml, make_probe: Make, clock: Clock) -> None:
    probe = make_probe()
    fake.write([fake_gpu(0, error_DeviceGetMemoryInfo=999)])
    probe.read()
    clock.advance(100)
    fake.write([fake_gpu(0)], system={"error.DeviceGetCount": 18})
    assert probe.read().health == ()
    clock.advance(100)
    fake.write([fake_gpu(0, error_DeviceGetMemoryInfo=999)])
    reading = probe.read()
    assert reading.status == "ok"
    assert reading.health == ()


def test_a_gpu_that_the_driver_calls_lost_is_told_at_once(fake: FakeNvml, make_probe: Make) -> None:
    probe = make_probe()
    fake.write([fake_gpu(0), fake_gpu(1)])
    probe.read()
    fake.write([fake_gpu(0, lost=1), fake_gpu(1)])
    assert GpuHealth(UUID, lost=True) in probe.read().health


def test_a_gpu_that_does_not_answer_has_no_counters(fake: FakeNvml, make_probe: Make) -> None:
    fake.write([fake_gpu(0, **ALL), fake_gpu(1, **ALL)])
    probe = make_probe()
    probe.read()
    fake.write([fake_gpu(0, **ALL, lost=1), fake_gpu(1, **ALL)])
    other, silent = probe.read().health
    assert (other.uuid, silent) == (fake_gpu(1)["uuid"], GpuHealth(UUID, lost=True))
