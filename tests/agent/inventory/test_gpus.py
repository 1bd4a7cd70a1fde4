"""Spec 40, "GPUs and their health": what the probe says of each GPU. Real probe processes, a fake driver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from corral.agent.inventory.gpus import GpuProbe, GpuReading
from corral.protocol.messages import Gpu, GpuState, GpuTelemetry
from tests.agent.inventory.conftest import Clock
from tests.fake_nvml import MIB, FakeGpu, FakeNvml, fake_gpu

Make = Callable[[], GpuProbe]


def eight(**faults: FakeGpu) -> list[FakeGpu]:
    """Eight healthy GPUs but for those given as `gpu3=...`."""
    return [faults.get(f"gpu{number}", fake_gpu(number)) for number in range(8)]


def uuid(number: int) -> str:
    return str(fake_gpu(number)["uuid"])


def states(reading: GpuReading) -> list[GpuState]:
    return [gpu.state for gpu in reading.gpus]


ALL_OK = [GpuState.OK] * 8
THIRD_UNREADABLE = [GpuState.OK] * 3 + [GpuState.UNREADABLE] + [GpuState.OK] * 4


def test_a_gpu_is_told_with_identity_slot_minor_and_use(fake: FakeNvml, make_probe: Make) -> None:
    use: FakeGpu = {"mem_used": 500 * MIB, "util": 42, "temp": 61, "power_mw": 350_000}
    fake.write([fake_gpu(0, **use)], {"driver_version": "580.65.06", "cuda_version": 12090})
    reading = make_probe().read()
    assert reading.gpus == (
        Gpu("nvidia", uuid(0), "0000:10:00.0", "NVIDIA H100 80GB HBM3", 81559, serial="1650000000000", minor=100),
    )
    assert reading.telemetry == (GpuTelemetry(uuid(0), 42, 500, 61, 350_000),)
    assert (reading.driver_version, reading.cuda_version) == ("580.65.06", "12.9")
    assert (reading.status, reading.conditions) == ("ok", ())


def test_one_session_serves_all_readings(fake: FakeNvml, make_probe: Make) -> None:
    fake.write(eight())
    probe = make_probe()
    assert [states(probe.read()) for _ in range(3)] == [ALL_OK] * 3
    assert fake.sessions() == [probe.pid]


def test_order_is_by_pci_bus_whatever_nvml_says(fake: FakeNvml, make_probe: Make) -> None:
    buses = ["00000000:9A:00.0", "00010000:01:00.0", "00000000:0A:00.0"]
    fake.write([fake_gpu(number, pci=bus) for number, bus in enumerate(buses)])
    assert [gpu.uuid for gpu in make_probe().read().gpus] == [uuid(2), uuid(0), uuid(1)]


def test_the_minor_number_is_not_the_index(fake: FakeNvml, make_probe: Make) -> None:
    fake.write([fake_gpu(0, minor=1), fake_gpu(1, minor=0)])
    assert [(gpu.uuid, gpu.minor) for gpu in make_probe().read().gpus] == [(uuid(0), 1), (uuid(1), 0)]


def test_one_lost_gpu_leaves_the_seven_others(fake: FakeNvml, make_probe: Make) -> None:
    fake.write(eight())
    probe = make_probe()
    probe.read()
    fake.write(eight(gpu3=fake_gpu(3, lost=1)))
    reading = probe.read()
    assert states(reading) == THIRD_UNREADABLE
    assert (reading.gpus[3].uuid, reading.gpus[3].detail) == (uuid(3), "GPU is lost")
    assert len(reading.telemetry) == 7
    assert (reading.status, reading.conditions) == ("ok", ())


def test_a_gpu_lost_before_the_agent_started_is_known_from_earlier(fake: FakeNvml, make_probe: Make) -> None:
    fake.write(eight())
    earlier = make_probe()
    earlier.read()
    earlier.close()
    fake.write(eight(gpu3=fake_gpu(3, error_DeviceGetHandleByIndex=15)))
    reading = make_probe().read()
    assert states(reading) == THIRD_UNREADABLE
    assert reading.gpus[3].uuid == uuid(3)
    assert reading.gpus[3].memory_mib == 81559


def test_a_lost_gpu_never_seen_before_is_listed_by_its_place(fake: FakeNvml, make_probe: Make) -> None:
    fake.write(eight(gpu3=fake_gpu(3, lost=1)))
    probe = make_probe()
    reading = probe.read()
    assert states(reading) == [GpuState.OK] * 7 + [GpuState.UNREADABLE]
    assert reading.gpus[7].uuid == "unidentified-index-3"
    probe.close()
    fake.write(eight())
    assert states(make_probe().read()) == ALL_OK, "the stand-in does not come back as a missing GPU"


@pytest.mark.parametrize("call", ["DeviceGetUUID", "DeviceGetMemoryInfo", "DeviceGetPciInfo"])
def test_a_gpu_without_uuid_memory_or_slot_is_unreadable(call: str, fake: FakeNvml, make_probe: Make) -> None:
    fake.write(eight())
    probe = make_probe()
    probe.read()
    fake.write(eight(gpu3={**fake_gpu(3), f"error.{call}": 999}))
    reading = probe.read()
    assert states(reading) == THIRD_UNREADABLE
    assert reading.gpus[3].uuid == uuid(3)


@pytest.mark.parametrize(
    "call",
    [
        "DeviceGetUtilizationRates",
        "DeviceGetTemperature",
        "DeviceGetPowerUsage",
        "DeviceGetSerial",
        "DeviceGetMinorNumber",
        "DeviceGetName",
    ],
)
def test_one_unreadable_sensor_is_no_fault(call: str, fake: FakeNvml, make_probe: Make) -> None:
    fake.write([{**fake_gpu(0, util=50, temp=50, power_mw=50), f"error.{call}": 999}])
    reading = make_probe().read()
    assert states(reading) == [GpuState.OK]
    values = (reading.telemetry[0].util_percent, reading.telemetry[0].temperature_c, reading.telemetry[0].power_mw)
    sensors = ["DeviceGetUtilizationRates", "DeviceGetTemperature", "DeviceGetPowerUsage"]
    assert values == tuple(0 if call == sensor else 50 for sensor in sensors)


def test_a_missing_gpu_stays_through_a_restart_of_the_agent(fake: FakeNvml, make_probe: Make) -> None:
    fake.write(eight())
    earlier = make_probe()
    earlier.read()
    earlier.close()
    fake.write([fake_gpu(number) for number in range(8) if number != 3])
    for _ in range(2):
        probe = make_probe()
        reading = probe.read()
        probe.close()
        assert [gpu.state for gpu in reading.gpus if gpu.uuid == uuid(3)] == [GpuState.MISSING]
        assert len(reading.gpus) == 8


def test_a_replaced_gpu_is_dropped(fake: FakeNvml, make_probe: Make) -> None:
    fake.write([fake_gpu(0), fake_gpu(1)])
    probe = make_probe()
    probe.read()
    fake.write([fake_gpu(0), fake_gpu(5, pci=str(fake_gpu(1)["pci"]))])
    assert [(gpu.uuid, gpu.state) for gpu in probe.read().gpus] == [(uuid(0), GpuState.OK), (uuid(5), GpuState.OK)]
    fake.write([fake_gpu(0)])
    assert [gpu.uuid for gpu in probe.read().gpus] == [uuid(0), uuid(5)]


def test_two_gpus_with_one_uuid_are_a_conflict(fake: FakeNvml, make_probe: Make) -> None:
    fake.write([fake_gpu(0), fake_gpu(1, uuid=uuid(0)), fake_gpu(2)])
    reading = make_probe().read()
    assert [(gpu.uuid, gpu.state) for gpu in reading.gpus] == [(uuid(0), GpuState.CONFLICT), (uuid(2), GpuState.OK)]
    assert "0000:10:00.0 and 0000:11:00.0" in reading.gpus[0].detail
    assert [sample.uuid for sample in reading.telemetry] == [uuid(2)]


def test_mig_mode_is_said_and_the_gpu_not_given_away(fake: FakeNvml, make_probe: Make) -> None:
    fake.write([fake_gpu(0, mig=1), fake_gpu(1, mig=0)])
    in_parts, whole = make_probe().read().gpus
    assert in_parts.busy == in_parts.detail == "MIG mode: its parts are assignable in a later release"
    assert (whole.busy, whole.detail) == ("", "")


def test_a_library_that_differs_from_the_module_is_a_condition_of_the_machine(
    fake: FakeNvml, make_probe: Make, clock: Clock
) -> None:
    fake.write(eight())
    earlier = make_probe()
    earlier.read()
    earlier.close()
    fake.write(eight(), {"error.Init": 18})
    probe = make_probe()
    reading = probe.read()
    assert [condition.kind for condition in reading.conditions] == ["driver_mismatch"]
    assert reading.conditions[0].blocking
    assert reading.status.startswith("driver mismatch: ")
    assert states(reading) == [GpuState.UNREADABLE] * 8
    fake.write(eight())
    assert probe.read() == reading, "not asked again before its time"
    clock.advance(5.0)
    assert states(probe.read()) == ALL_OK


def test_an_upgrade_under_a_running_session_is_noticed(fake: FakeNvml, make_probe: Make) -> None:
    fake.write(eight())
    probe = make_probe()
    probe.read()
    fake.replace_library()
    fake.write(eight(), {"error.Init": 18})
    assert [condition.kind for condition in probe.read().conditions] == ["driver_mismatch"]


def test_an_upgrade_that_fits_the_module_goes_unnoticed(fake: FakeNvml, make_probe: Make) -> None:
    fake.write(eight())
    probe = make_probe()
    probe.read()
    fake.replace_library()
    reading = probe.read()
    assert (states(reading), reading.conditions) == (ALL_OK, ())
    assert len(fake.sessions()) == 2


def test_a_machine_without_a_driver_has_no_condition(fake: FakeNvml, make_probe: Make) -> None:
    fake.library.unlink()
    probe = make_probe()
    assert probe.read() == GpuReading()
    assert probe.pid is None, "no process is kept for nothing"


def test_a_library_that_is_away_during_an_upgrade_is_soon_looked_for_again(
    fake: FakeNvml, make_probe: Make, clock: Clock
) -> None:
    fake.write(eight())
    probe = make_probe()
    probe.read()
    away = fake.library.rename(fake.library.with_suffix(".away"))
    assert states(probe.read()) == [GpuState.UNREADABLE] * 8
    away.rename(fake.library)
    clock.advance(5.0)
    assert states(probe.read()) == ALL_OK


def test_a_driver_that_was_taken_off_leaves_its_gpus_unreadable(fake: FakeNvml, make_probe: Make) -> None:
    fake.write(eight())
    earlier = make_probe()
    earlier.read()
    earlier.close()
    fake.library.unlink()
    reading = make_probe().read()
    assert states(reading) == [GpuState.UNREADABLE] * 8
    assert [(c.kind, c.blocking) for c in reading.conditions] == [("gpu_probe_failed", False)]


def test_a_driver_that_is_not_loaded_is_no_condition_where_no_gpu_was_ever_seen(
    fake: FakeNvml, make_probe: Make
) -> None:
    fake.write([], {"error.Init": 9})
    reading = make_probe().read()
    assert (reading.status, reading.conditions) == ("failed: Driver Not Loaded", ())


def test_state_that_cannot_be_written_is_a_condition_and_the_gpus_are_still_told(
    tmp_path: Path, fake: FakeNvml, make_probe: Make
) -> None:
    (tmp_path / "known-gpus.json.new").mkdir()  # root writes anywhere, but no file over a folder
    fake.write(eight())
    probe = make_probe()
    reading = probe.read()
    assert states(reading) == ALL_OK
    assert [condition.kind for condition in reading.conditions] == ["state_unwritable"]
    (tmp_path / "known-gpus.json.new").rmdir()
    assert probe.read().conditions == ()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"gpus": 1}', '{"gpus": [{"vendor": 1}]}', "\x00\xff"])
def test_a_spoilt_list_of_known_gpus_is_written_anew(
    text: str, tmp_path: Path, fake: FakeNvml, make_probe: Make
) -> None:
    (tmp_path / "known-gpus.json").write_text(text, "utf-8")
    fake.write(eight())
    assert states(make_probe().read()) == ALL_OK
    assert uuid(7) in (tmp_path / "known-gpus.json").read_text("utf-8")
