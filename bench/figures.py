"""What a figure is made of: a process's CPU time and memory as the kernel counts them, and percentiles."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import corral

TICKS = os.sysconf("SC_CLK_TCK")
Result = dict[str, Any]


def say(text: str) -> None:
    """Tell how far the bench is; figures go to standard output, this does not."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def machine() -> Result:
    """Return the facts of this box that figures depend on."""
    models = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory = next(line.split()[1] for line in _lines("/proc/meminfo") if line.startswith("MemTotal"))
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "corral": corral.__version__,
        "cores": os.cpu_count(),
        "cpu": models[0] if models else platform.machine(),
        "memory_mib": int(memory) // 1024,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_1m": round(os.getloadavg()[0], 2),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def cpu_s(pid: int) -> float:
    """Return the CPU seconds a process has used, all its threads together (its children not)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_mib(pid: int, field: str = "VmRSS") -> int:
    """Return the resident memory of a process; `VmHWM` is the most it ever had."""
    line = next(line for line in _lines(f"/proc/{pid}/status") if line.startswith(field))
    return int(line.split()[1]) // 1024


@dataclass
class Spent:
    """What a block cost: seconds on the wall, and CPU seconds of the processes it was asked about."""

    wall_s: float = 0.0
    cpu_s: float = 0.0

    @property
    def percent(self) -> float:
        """CPU as a share of one core."""
        return round(100 * self.cpu_s / self.wall_s, 1) if self.wall_s else 0.0


@contextmanager
def spending(*pids: int) -> Iterator[Spent]:
    """Measure a block."""
    spent = Spent()
    before, began = sum(map(cpu_s, pids)), time.perf_counter()
    yield spent
    spent.wall_s = time.perf_counter() - began
    spent.cpu_s = sum(map(cpu_s, pids)) - before


def timed_ms(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return (time.perf_counter() - began) * 1000


def at(ordered: Sequence[float], share: float) -> float:
    """Return the value below which `share` of sorted values lie; 0 of none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def spread(values_ms: Sequence[float]) -> Result:
    """Return the median, and least and most, of a few values."""
    return {
        "median": round(median(values_ms), 1),
        "least": round(min(values_ms), 1),
        "most": round(max(values_ms), 1),
        "times": len(values_ms),
    }
