"""Spec 40, "Reporting": the whole inventory, and the digest that stands for it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from corral.agent.drivers.base import RuntimeInfo
from corral.agent.inventory import disks
from corral.agent.inventory.collect import collect
from corral.agent.inventory.digest import digest
from corral.agent.inventory.gpus import GpuProbe, GpuReading
from corral.protocol import codec
from corral.protocol.messages import Disk, Gpu, Inventory
from tests.fake_nvml import FakeNvml, fake_gpu


def test_this_machine_is_told_as_it_is(fake: FakeNvml, make_probe: Callable[[], GpuProbe]) -> None:
    fake.write([fake_gpu(number) for number in range(8)])
    reading = make_probe().read()
    told = collect(reading, RuntimeInfo("podman 4.3.1", "loop", storage_mib=1000, storage_free_mib=900))
    assert (told.hostname, told.arch) == (os.uname().nodename, os.uname().machine)
    assert 0 < told.vcpus <= (os.cpu_count() or 1)
    assert told.memory_mib > 0
    assert (told.runtime, told.storage_quota, told.storage_mib) == ("podman 4.3.1", "loop", 1000)
    assert (told.gpu_probe, told.driver_version, told.cuda_version) == ("ok", "580.00.fake", "13.0")
    assert told.gpus == reading.gpus
    assert codec.from_plain(Inventory, json.loads(json.dumps(codec.to_plain(told)))) == told


def test_a_machine_that_tells_nothing_still_has_an_inventory(tmp_path: Path) -> None:
    told = collect(GpuReading(), root=tmp_path)
    uname = os.uname()
    assert told == Inventory(
        hostname=uname.nodename, arch=uname.machine, kernel=uname.release, addresses=told.addresses
    )


def test_a_probe_that_fails_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_root: Path) -> None:
        raise RuntimeError("a strange machine")

    monkeypatch.setattr(disks, "disks", fail)
    with caplog.at_level(logging.ERROR):
        told = collect(GpuReading())
    assert told.disks == ()
    assert told.memory_mib > 0
    assert "a probe of this machine failed" in caplog.text


FULL = Inventory(
    hostname="m1", gpus=(Gpu("nvidia", "GPU-a"),), disks=(Disk("/", "/dev/sda1", "ext4", 1000, 500, os=True),)
)


def test_the_digest_names_the_inventory() -> None:
    assert digest(FULL) == digest(replace(FULL))
    assert len(digest(FULL)) == 32


@pytest.mark.parametrize(
    "other",
    [
        replace(FULL, hostname="m2"),
        replace(FULL, gpus=()),
        replace(FULL, gpus=(Gpu("nvidia", "GPU-a", busy="process 1 (a) holds 100 MiB"),)),
        replace(FULL, disks=()),
        replace(FULL, disks=(replace(FULL.disks[0], size_mib=2000),)),
    ],
)
def test_what_changes_the_machine_changes_the_digest(other: Inventory) -> None:
    assert digest(other) != digest(FULL)


def test_free_disk_space_does_not_change_the_digest() -> None:
    assert digest(replace(FULL, disks=(replace(FULL.disks[0], free_mib=1),))) == digest(FULL)
