"""Who holds a GPU's memory though it is not allocated (spec 40: not assignable until gone, and said).

Checked in two ways, because a container's workers may outlive it and a process that is gone
may leave its memory held: by the processes that the driver lists, and by the memory in use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from corral.agent.inventory.files import printable, read_text
from corral.agent.inventory.gpus import GpuReading
from corral.agent.inventory.probe_messages import Device, GpuProcess
from corral.protocol.messages import Gpu

UNEXPLAINED_MIB = 1024
"""More memory than a driver uses for itself: held, though no process is listed."""
STEP_MIB = 100
"""Amounts are said in such steps, so that the text (and the inventory's digest) stays put while a process lives."""
NAMED = 3
"""Processes named one by one."""


def nobody(_pid: int) -> str | None:
    return None


@dataclass(frozen=True)
class Holds:
    """What of the GPUs is Corral's own."""

    allocated: frozenset[str] = frozenset()
    """UUIDs of GPUs in allocations that are not gone yet: never busy."""
    owner_of: Callable[[int], str | None] = nobody
    """The allocation in whose container a process runs."""


def mark_busy(reading: GpuReading, holds: Holds, root: Path = Path("/")) -> tuple[Gpu, ...]:
    """Return the reading's GPUs, `busy` filled in for those that are held by others than their allocation."""
    return tuple(_marked(gpu, reading.devices.get(gpu.uuid), holds, root) for gpu in reading.gpus)


def _marked(gpu: Gpu, device: Device | None, holds: Holds, root: Path) -> Gpu:
    if device is None or gpu.busy or gpu.uuid in holds.allocated:
        return gpu
    return replace(gpu, busy=held_by(device, holds.owner_of, lambda pid: process_name(root, pid)))


def held_by(device: Device, owner_of: Callable[[int], str | None], name_of: Callable[[int], str]) -> str:
    """Return who holds the device's memory, e.g. "process 1234 (python3) holds 3,100 MiB"; "" = nobody."""
    if device.processes:
        biggest_first = sorted(device.processes, key=lambda process: (-process.memory_mib, process.pid))
        said = [_holder(process, owner_of, name_of) for process in biggest_first[:NAMED]]
        more = len(biggest_first) - NAMED
        return _listed([*said, f"{more} more"] if more > 0 else said)
    if device.processes_error:
        return f"its processes cannot be listed: {printable(device.processes_error)}"
    if device.held_mib > UNEXPLAINED_MIB:
        return f"{amount(device.held_mib)} are held though the driver lists no process"
    return ""


def process_name(root: Path, pid: int) -> str:
    """Return the command name of a process, printable; "ended" when there is no such process."""
    return printable(read_text(root, f"proc/{pid}/comm")) or "ended"


def amount(mib: int) -> str:
    """Return MiB for people, in steps of 100."""
    if mib <= 0:
        return "an unknown amount of memory"
    steps = round(mib / STEP_MIB) * STEP_MIB
    return f"{steps:,} MiB" if steps else f"less than {STEP_MIB} MiB"


def _holder(process: GpuProcess, owner_of: Callable[[int], str | None], name_of: Callable[[int], str]) -> str:
    owner = owner_of(process.pid)
    whose = f" of allocation {printable(owner)}" if owner else ""
    return f"process {process.pid} ({name_of(process.pid)}){whose} holds {amount(process.memory_mib)}"


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
