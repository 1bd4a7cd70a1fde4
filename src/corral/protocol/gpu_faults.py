"""What a machine tells of its GPUs' health (spec 40, "GPUs and their health"): evidence, which the server judges."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GpuHealth:
    """What a GPU's own counters say: evidence, which the server judges. -1 = it does not tell."""

    uuid: str
    vendor: str = "nvidia"
    ecc_volatile: int = -1
    """Uncorrectable memory errors since the driver was loaded ..."""
    ecc_aggregate: int = -1
    """... and in the GPU's life."""
    remap_failed: bool = False
    """A memory row could not be replaced."""
    nvlinks: int = 0
    nvlinks_up: int = 0
    recovery_action: int = -1
    """NVML's code of what the driver asks for; 0 = nothing."""
    unreadable_s: int = 0
    """It is there, the driver works, and it has not answered for so long, in steps of 30 s; 0 = it answers."""
    lost: bool = False
    """It does not answer, and the driver calls it lost."""


@dataclass(frozen=True)
class KernelLine:
    """A line of the kernel's own about a GPU, as it stands in its log."""

    seq: int
    """The kernel's; counts through one boot."""
    text: str


@dataclass(frozen=True)
class ClearFault:
    """An admin clears a GPU's faults: read its counters anew and answer `FaultCleared`, at once. Nothing is stored."""

    ask: str
    """Random; the answer names it."""
    vendor: str
    uuid: str


@dataclass(frozen=True)
class FaultCleared:
    """The answer: faults count from here."""

    ask: str
    boot_id: str
    kernel_seq: int
    """The newest line of the kernel's log, -1 = the log cannot be read."""
    health: GpuHealth | None = None
    """None: the GPU does not answer now."""
