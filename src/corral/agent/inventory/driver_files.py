"""What the NVIDIA kernel driver's own files say of GPUs that NVML cannot identify any more.

Only the probe process reads them: with a sick driver such a read may never return.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from corral.agent.inventory import pci
from corral.agent.inventory.files import read_text
from corral.agent.inventory.probe_messages import Device

FOLDER = "proc/driver/nvidia/gpus"


@dataclass(frozen=True)
class ListedGpu:
    slot: str
    uuid: str = ""
    """"" = the driver shows question marks: it could not ask the GPU."""
    model: str = ""


def listed(root: Path) -> tuple[ListedGpu, ...]:
    """Return the GPUs that the driver is bound to, in PCI order."""
    try:
        folders = list((root / FOLDER).iterdir())
    except OSError:
        return ()
    found = (_listed_gpu(folder) for folder in folders if pci.normal(folder.name))
    return tuple(sorted(found, key=lambda gpu: pci.order(gpu.slot)))


def _listed_gpu(folder: Path) -> ListedGpu:
    lines = (line.partition(":") for line in read_text(folder, "information").splitlines())
    facts = {key.strip(): value.strip() for key, _, value in lines}
    uuid = facts.get("GPU UUID", "")
    known = re.fullmatch(r"GPU-[0-9a-fA-F-]+", uuid) is not None
    return ListedGpu(pci.normal(folder.name), uuid if known else "", facts.get("Model", ""))


def identify(devices: Sequence[Device], known: Sequence[ListedGpu]) -> tuple[Device, ...]:
    """Return the devices, those without a slot or UUID completed from the driver's list where that is certain."""
    taken = {device.slot for device in devices if device.slot}
    free = [gpu for gpu in known if gpu.slot not in taken]
    without_slot = [device.index for device in devices if not device.slot]
    # Both lists are in PCI order: as many free slots as devices without one tells which is which.
    places = dict(zip(without_slot, free, strict=True)) if len(free) == len(without_slot) else {}
    by_slot = {gpu.slot: gpu for gpu in known}
    return tuple(_completed(d, places.get(d.index) or by_slot.get(d.slot)) for d in devices)


def _completed(device: Device, gpu: ListedGpu | None) -> Device:
    if gpu is None:
        return device
    return replace(device, slot=gpu.slot, uuid=device.uuid or gpu.uuid, model=device.model or gpu.model)
