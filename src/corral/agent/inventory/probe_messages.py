"""What the GPU probe process and the agent say to each other: one JSON line each way.

The agent writes `REQUEST`, the probe answers with one `Answer`. Sizes are MiB; a sensor
that cannot be read is 0, and no fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from corral.protocol.gpu_faults import GpuHealth

REQUEST = b'{"read":"gpus"}\n'


class ProbeStatus(str, Enum):
    OK = "ok"
    NONE = "none"  # no NVIDIA driver library on this machine
    MISMATCH = "mismatch"  # the library's version is not that of the loaded kernel module
    FAILED = "failed"  # NVML as a whole, or the probe, does not work
    REOPEN = "reopen"  # the library on disk was replaced: only a new process can load the new one
    STARTING = "starting"  # said by the agent's side: NVML is still initialising its GPUs
    STUCK = "stuck"  # said by the agent's side: no answer within the deadline


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU for computing."""

    pid: int
    memory_mib: int = 0
    """0 = the driver does not say how much."""


@dataclass(frozen=True)
class Device:
    """One GPU as NVML sees it now."""

    index: int
    """NVML's, good within one answer only; never a minor number."""
    uuid: str = ""
    """"" = the GPU does not tell it any more, and it was not known from before."""
    slot: str = ""
    model: str = ""
    memory_mib: int = 0
    serial: str = ""
    minor: int = -1
    error: str = ""
    """Why it cannot be used ("" = it answers)."""
    lost: bool = False
    """Because the driver has lost it."""
    mig: bool = False
    processes: tuple[GpuProcess, ...] = ()
    processes_error: str = ""
    """Why its processes cannot be listed."""
    held_mib: int = 0
    """Memory in use, the driver's own reserve not counted; 0 where the driver cannot tell them apart."""
    util_percent: int = 0
    memory_used_mib: int = 0
    temperature_c: int = 0
    power_mw: int = 0
    health: GpuHealth | None = None
    """Its counters; None: it does not answer."""


@dataclass(frozen=True)
class Answer:
    status: ProbeStatus
    detail: str = ""
    """Why the status is not ok, for people. It stays the same while the trouble stays the same."""
    driver_version: str = ""
    cuda_version: str = ""
    devices: tuple[Device, ...] = ()
