"""The machine's CPUs: model, how many may be given away, how busy they are (spec 40, "Reporting")."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from corral.agent.inventory.files import printable, read_int, read_text, to_int

MODEL_KEYS = ("model name", "cpu model", "cpu")
"""x86 and some Arm kernels; MIPS; POWER."""


def model(root: Path = Path("/")) -> str:
    """Return the CPU's model, e.g. "AMD EPYC 9654"; the device tree's where /proc/cpuinfo has none; else ""."""
    facts: dict[str, str] = {}
    for line in read_text(root, "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        facts.setdefault(key.strip().lower(), value.strip())
    named = next((facts[key] for key in MODEL_KEYS if facts.get(key)), "")
    return printable(named or read_text(root, "proc/device-tree/model").rstrip("\0"))


def vcpus(root: Path = Path("/"), allowed: int | None = None) -> int:
    """Return how many CPUs containers may use here; 0 when that is not known.

    `allowed` is the number of CPUs that this process may run on (None: ask the kernel).
    The quota counts too, but only at the top of the cgroup tree that we see: there it
    binds the runtime as well (this machine is itself a container). A quota on the
    agent's own unit says nothing about the containers.
    """
    online = len(cpu_list(read_text(root, "sys/devices/system/cpu/online")))
    counted = online or len(re.findall(r"(?m)^processor\s*:", read_text(root, "proc/cpuinfo")))
    mine = len(os.sched_getaffinity(0)) if allowed is None else allowed
    limits = [n for n in (counted, mine, _quota(root)) if n]
    return min(limits) if counted else 0


def cpu_list(text: str) -> frozenset[int]:
    """Return the CPUs of a kernel list such as "0-3,8"."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        low, high = to_int(first), to_int(last or first)
        if low is not None and high is not None and 0 <= low <= high < 1 << 16:
            cpus.update(range(low, high + 1))
    return frozenset(cpus)


def _quota(root: Path) -> int | None:
    quota, _, period = read_text(root, "sys/fs/cgroup/cpu.max").partition(" ")
    limit, each = to_int(quota), to_int(period)
    if limit is None:
        limit = read_int(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us")
        each = read_int(root, "sys/fs/cgroup/cpu/cpu.cfs_period_us")
    if limit is None or limit <= 0 or not each or each < 0:
        return None
    return max(1, limit // each)


@dataclass(frozen=True)
class CpuTimes:
    """Clock ticks of all CPUs together since the machine started."""

    busy: int = 0
    total: int = 0


def times(root: Path = Path("/")) -> CpuTimes:
    """Return the ticks so far; zeros when the kernel does not tell."""
    first = read_text(root, "proc/stat").partition("\n")[0].split()
    ticks = [to_int(word) or 0 for word in first[1:9]] if first[:1] == ["cpu"] else []
    if len(ticks) < 5:
        return CpuTimes()
    return CpuTimes(busy=sum(ticks) - ticks[3] - ticks[4], total=sum(ticks))  # less idle and waiting for disks


def percent(before: CpuTimes, after: CpuTimes) -> float:
    """Return how busy the CPUs were between two readings: 0.0 to 100.0, of all CPUs together."""
    total = after.total - before.total
    if total <= 0:
        return 0.0
    return round(min(100.0, max(0.0, 100.0 * (after.busy - before.busy) / total)), 1)
