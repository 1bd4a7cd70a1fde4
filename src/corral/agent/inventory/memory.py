"""The machine's memory, in MiB (spec 40, "Reporting")."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from corral.agent.inventory.files import MIB, read_int, read_text


@dataclass(frozen=True)
class Memory:
    """0 = not known."""

    total_mib: int = 0
    available_mib: int = 0

    @property
    def used_mib(self) -> int:
        return max(0, self.total_mib - self.available_mib)


def memory(root: Path = Path("/")) -> Memory:
    """Return the machine's memory, or less of it where the top of the cgroup tree that we see has a limit."""
    found = re.findall(r"(?m)^(\w+):\s+(\d+) kB", read_text(root, "proc/meminfo"))
    kib = {name: int(value) for name, value in found}
    total = kib.get("MemTotal", 0) // 1024
    # Kernels before 3.14 have no MemAvailable.
    available = kib.get("MemAvailable", kib.get("MemFree", 0) + kib.get("Cached", 0)) // 1024
    limit = _limit_mib(root)
    if limit is None or limit >= total:
        return Memory(total, min(available, total))
    return Memory(limit, max(0, min(available, limit - _used_mib(root))))


def _limit_mib(root: Path) -> int | None:
    limit = read_int(root, "sys/fs/cgroup/memory.max")  # "max" is not a number
    if limit is None:
        limit = read_int(root, "sys/fs/cgroup/memory/memory.limit_in_bytes")
    return None if limit is None or limit <= 0 else limit // MIB


def _used_mib(root: Path) -> int:
    used = read_int(root, "sys/fs/cgroup/memory.current")
    if used is None:
        used = read_int(root, "sys/fs/cgroup/memory/memory.usage_in_bytes")
    return (used or 0) // MIB
