"""Made-up GPU faults of a simulated machine: what a real driver and kernel would say (spec 10, "GPU faults")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum

from corral.protocol.gpu_faults import GpuHealth, KernelLine
from corral.protocol.messages import Gpu

NVLINKS = 18


class FaultKind(str, Enum):
    OFF_THE_BUS = "off_the_bus"
    MEMORY = "memory"
    LINKS = "links"
    APPLICATION = "application"  # an error of what runs there, which is no fault of the GPU


LINES: Mapping[FaultKind, Sequence[str]] = {
    FaultKind.OFF_THE_BUS: (
        "Xid ({place}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "Xid ({place}): 119, pid=430, name=nv_queue, Timeout waiting for RPC from GSP!",
    ),
    FaultKind.MEMORY: ("Xid ({place}): 94, pid='<unknown>', name=<unknown>, Contained: SM (0x1). RST: No, D-RST: No",),
    FaultKind.LINKS: ("Xid ({place}): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 1",),
    FaultKind.APPLICATION: ("Xid ({place}): 31, pid=2512125, name=python3, Ch 00000008, MMU Fault",),
}


class SimGpus:
    """The evidence of one machine's GPUs, and how it changes when one breaks."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self._gpus = gpus
        self.health = tuple(
            GpuHealth(gpu.uuid, ecc_volatile=0, ecc_aggregate=0, nvlinks=NVLINKS, nvlinks_up=NVLINKS, recovery_action=0)
            for gpu in gpus
        )
        self.lines: tuple[KernelLine, ...] = ()
        """Those that the site has not confirmed."""
        self.newest = -1

    def break_gpu(self, number: int, kind: FaultKind) -> None:
        """Have the kernel and the counters of a GPU say that it is faulty."""
        gpu = self._gpus[number]
        domain, bus, rest = gpu.slot.split(":")
        place = f"PCI:{domain[-4:]}:{bus.lower()}:{rest.partition('.')[0]}"
        for line in LINES[kind]:
            self.newest += 1
            self.lines = (*self.lines, KernelLine(self.newest, f"NVRM: {line.format(place=place)}"))
        was = self.health[number]
        if kind is FaultKind.MEMORY:
            errors = was.ecc_aggregate + 1
            self._set(number, replace(was, ecc_volatile=errors, ecc_aggregate=errors))
        elif kind is FaultKind.LINKS:
            self._set(number, replace(was, nvlinks_up=0))

    def mend(self, number: int) -> None:
        """Have its links up again, as after a repair; the counters stay."""
        self._set(number, replace(self.health[number], nvlinks_up=NVLINKS))

    def confirmed(self, seq: int) -> None:
        self.lines = tuple(line for line in self.lines if line.seq > seq)

    def of(self, uuid: str) -> GpuHealth | None:
        return next((one for one in self.health if one.uuid == uuid), None)

    def _set(self, number: int, health: GpuHealth) -> None:
        self.health = (*self.health[:number], health, *self.health[number + 1 :])
