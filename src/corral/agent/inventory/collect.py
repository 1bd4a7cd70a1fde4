"""Puts the probes together into one inventory (spec 40, "Reporting").

A probe that fails gives its neutral value; none of them can stop the report.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from corral.agent.drivers.base import RuntimeInfo
from corral.agent.inventory import cpu, disks, host, memory, network
from corral.agent.inventory.busy import Holds, mark_busy
from corral.agent.inventory.gpus import GpuReading
from corral.protocol.messages import Inventory

T = TypeVar("T")
log = logging.getLogger(__name__)


def collect(
    reading: GpuReading,
    runtime: RuntimeInfo | None = None,
    holds: Holds = Holds(),
    root: Path = Path("/"),
) -> Inventory:
    """Return what this machine is. Never raises.

    `runtime` None: the container runtime does not answer. `root`: where /proc, /sys and /etc are read.
    """
    return Inventory(
        hostname=_guarded(lambda: host.hostname(root), ""),
        arch=_guarded(host.arch, ""),
        os=_guarded(lambda: host.os_name(root), ""),
        kernel=_guarded(lambda: host.kernel(root), ""),
        cpu_model=_guarded(lambda: cpu.model(root), ""),
        vcpus=_guarded(lambda: cpu.vcpus(root), 0),
        memory_mib=_guarded(lambda: memory.memory(root).total_mib, 0),
        storage_mib=runtime.storage_mib if runtime else 0,
        network_mbps=_guarded(lambda: network.fastest_mbps(root), 0),
        addresses=_guarded(lambda: network.addresses(root), ()),
        runtime=runtime.name if runtime else "",
        storage_quota=runtime.storage_quota if runtime else "none",
        driver_version=reading.driver_version,
        cuda_version=reading.cuda_version,
        gpu_probe=reading.status,
        gpus=_guarded(lambda: mark_busy(reading, holds, root), reading.gpus),
        gpu_health=reading.health,
        disks=_guarded(lambda: disks.disks(root), ()),
    )


def _guarded(probe: Callable[[], T], neutral: T) -> T:
    try:
        return probe()
    except Exception:
        # The border of the spec's rule: whatever a strange machine makes of a probe, the report goes out.
        log.exception("a probe of this machine failed; its value is reported as not known")
        return neutral
