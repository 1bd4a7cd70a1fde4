"""Which GPUs this machine has, given those known before and those seen now (spec 40, "GPUs and their health").

Identity is vendor + UUID; slot and serial are attributes. A GPU that is not seen any more
stays, as missing. It is replaced, and so dropped, only when another readable UUID is in its
slot and its own is nowhere on the machine. Two devices with one UUID are a conflict. Where
nothing could be seen at all, nothing is missing: the GPUs known are unreadable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from corral.agent.inventory import pci
from corral.agent.inventory.files import printable
from corral.agent.inventory.probe_messages import Device
from corral.protocol.messages import Gpu, GpuState

NVIDIA = "nvidia"
MIG_MODE = "MIG mode: its parts are assignable in a later release"


def fold(known: Iterable[Gpu], devices: Sequence[Device]) -> tuple[Gpu, ...]:
    """Return the machine's GPUs in PCI order after NVML listed `devices`."""
    before = {gpu.uuid: gpu for gpu in known}
    by_uuid: dict[str, list[Device]] = {}
    for device in devices:
        by_uuid.setdefault(device.uuid, []).append(device)
    nameless = by_uuid.pop("", [])
    seen = [_seen(before.get(uuid), group) for uuid, group in by_uuid.items()]
    readable_slots = {device.slot for device in devices if device.uuid and not device.error and device.slot}
    absent = [gpu for uuid, gpu in before.items() if uuid not in by_uuid and gpu.slot not in readable_slots]
    return ordered([*seen, *_silent(absent, nameless)])


def unreadable(known: Iterable[Gpu], why: str) -> tuple[Gpu, ...]:
    """Return the GPUs known when nothing could be seen: without health data none is assignable."""
    return ordered(_without_data(gpu, GpuState.UNREADABLE, why) for gpu in known)


def lasting(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """Return what is to be known after a restart: who they are, not how they are."""
    stripped = (replace(gpu, state=GpuState.OK, detail="", busy="") for gpu in gpus)
    return tuple(gpu for gpu in stripped if not gpu.uuid.startswith(_STAND_IN))


def ordered(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs in PCI order; those whose slot is not known come last."""
    return tuple(sorted(gpus, key=lambda gpu: (pci.order(gpu.slot), gpu.uuid)))


_STAND_IN = "unidentified-"
"""A GPU that never told its UUID is listed under its slot or index instead, and not remembered."""


def _seen(before: Gpu | None, group: list[Device]) -> Gpu:
    """Return the one GPU that stands for all devices which claim its UUID."""
    group = sorted(group, key=lambda device: pci.order(device.slot))
    gpu = _gpu(before, group[0])
    if len(group) == 1:
        return gpu
    places = " and ".join(device.slot or f"index {device.index}" for device in group)
    return _without_data(gpu, GpuState.CONFLICT, f"the GPUs at {places} claim the same UUID")


def _gpu(before: Gpu | None, device: Device) -> Gpu:
    old = before or Gpu(NVIDIA, device.uuid)
    gpu = replace(
        old,
        slot=device.slot or old.slot,
        model=printable(device.model) or old.model,
        memory_mib=device.memory_mib or old.memory_mib,
        serial=printable(device.serial) or old.serial,
        minor=device.minor if device.minor >= 0 else old.minor,
        state=GpuState.OK,
        detail=MIG_MODE if device.mig else "",
        # Healthy but not to be given away as a whole: that is what busy says, and it leaves no fault.
        busy=MIG_MODE if device.mig else "",
    )
    return _without_data(gpu, GpuState.UNREADABLE, device.error) if device.error else gpu


def _without_data(gpu: Gpu, state: GpuState, why: str) -> Gpu:
    return replace(gpu, state=state, detail=printable(why), busy="")


def _silent(absent: list[Gpu], nameless: list[Device]) -> list[Gpu]:
    """Tell known GPUs that are gone from those that are there but cannot say who they are.

    By slot where the driver tells it, else in PCI order: NVML lists its devices so. Either
    way both kinds stay listed and neither is assignable.
    """
    left = {gpu.uuid: gpu for gpu in ordered(absent)}
    found: list[Gpu] = []
    for device in sorted(nameless, key=lambda d: (not d.slot, d.index)):
        same_slot = [gpu for gpu in left.values() if gpu.slot == device.slot]
        candidates = same_slot if device.slot else list(left.values())
        if candidates:
            gpu = left.pop(candidates[0].uuid)
        else:
            gpu = _gpu(None, replace(device, uuid=_STAND_IN + (device.slot or f"index-{device.index}")))
        found.append(_without_data(gpu, GpuState.UNREADABLE, device.error))
    return found + [_without_data(gpu, GpuState.MISSING, _missing(gpu)) for gpu in left.values()]


def _missing(gpu: Gpu) -> str:
    place = f"; it was in slot {gpu.slot}" if gpu.slot else ""
    return f"the driver does not list it any more{place}"
