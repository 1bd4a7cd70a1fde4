"""What a workload asks of a machine: GPUs, vCPU, RAM, storage; fair share (spec 20, "Create")."""

from __future__ import annotations

from dataclasses import dataclass

MIB_PER_GIB = 1024
CPU_ONLY_VCPU, CPU_ONLY_RAM_MIB, CPU_ONLY_STORAGE_MIB = 1, 2 * MIB_PER_GIB, 10 * MIB_PER_GIB
"""What an ask without GPUs gets by default."""


@dataclass(frozen=True)
class Resources:
    """Amounts: whole vCPUs, MiB of RAM and storage, GPUs by number."""

    gpus: int = 0
    vcpu: int = 0
    ram_mib: int = 0
    storage_mib: int = 0

    def __add__(self, other: Resources) -> Resources:
        return Resources(
            self.gpus + other.gpus,
            self.vcpu + other.vcpu,
            self.ram_mib + other.ram_mib,
            self.storage_mib + other.storage_mib,
        )

    def __sub__(self, other: Resources) -> Resources:
        return Resources(
            self.gpus - other.gpus,
            self.vcpu - other.vcpu,
            self.ram_mib - other.ram_mib,
            self.storage_mib - other.storage_mib,
        )


@dataclass(frozen=True)
class Ask:
    """What was asked for; None = the machine's fair share for that many GPUs."""

    gpus: int = 0
    vcpu: int | None = None
    ram_mib: int | None = None
    storage_mib: int | None = None

    @property
    def shared(self) -> bool:
        """Whether a fair share is a part of it, which depends on the machine."""
        return self.gpus > 0 and None in (self.vcpu, self.ram_mib, self.storage_mib)


def on_machine(ask: Ask, total: Resources) -> Resources:
    """Return what `ask` means on a machine of capacity `total`.

    Defaults are the fair share for that many GPUs, rounded down (RAM and storage to whole GiB);
    without GPUs 1 vCPU, 2 GiB, 10 GiB.
    """
    if ask.gpus == 0 or total.gpus == 0:
        vcpu, ram, storage = CPU_ONLY_VCPU, CPU_ONLY_RAM_MIB, CPU_ONLY_STORAGE_MIB
    else:
        vcpu = total.vcpu * ask.gpus // total.gpus
        ram = _whole_gib(total.ram_mib * ask.gpus // total.gpus)
        storage = _whole_gib(total.storage_mib * ask.gpus // total.gpus)
    return Resources(
        ask.gpus,
        vcpu if ask.vcpu is None else ask.vcpu,
        ram if ask.ram_mib is None else ask.ram_mib,
        storage if ask.storage_mib is None else ask.storage_mib,
    )


def _whole_gib(mib: int) -> int:
    return mib // MIB_PER_GIB * MIB_PER_GIB
