"""What this machine is and how it fares, read in a thread at its own pace (spec 40, "Reporting").

A probe that takes long holds up no report: reports carry what was read last.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Protocol

from corral.agent.converge import HELD_BY_ANOTHER
from corral.agent.drivers.base import Driver, DriverError, RuntimeInfo
from corral.agent.inventory import cpu, memory, pressure
from corral.agent.inventory.busy import Holds
from corral.agent.inventory.collect import collect
from corral.agent.inventory.digest import digest
from corral.agent.inventory.gpus import DEADLINE_S, GpuProbe
from corral.protocol.messages import Condition, Gpu, GpuTelemetry, Inventory

log = logging.getLogger(__name__)
FIRST_DEADLINE_S = 3.0
"""The first report does not wait longer for GPUs that are still being initialised."""


@dataclass(frozen=True)
class Observation:
    """One look at the machine."""

    inventory: Inventory | None = None
    digest: str = ""
    conditions: tuple[Condition, ...] = ()
    telemetry: tuple[GpuTelemetry, ...] = ()
    cpu_percent: float = 0.0
    memory_used_mib: int = 0


@dataclass(frozen=True)
class Ours:
    """What of the GPUs is held by containers of Corral's."""

    allocated: frozenset[str] = frozenset()
    foreign: frozenset[str] = frozenset()
    """By containers with another machine's label: never touched, and their GPUs never given away."""


class Observer(Protocol):
    def read(self, ours: Ours) -> Observation:
        """Return what is seen now. May take long; never raises."""
        ...

    def close(self) -> None: ...


class MachineObserver:
    """Reads the real machine. Not thread-safe: one read at a time."""

    def __init__(self, gpus: GpuProbe, driver: Driver) -> None:
        self._gpus, self._driver = gpus, driver
        self._pressure = pressure.Pressure()
        self._times = cpu.times()
        self._deadline_s = FIRST_DEADLINE_S

    def read(self, ours: Ours) -> Observation:
        reading = self._gpus.read(self._deadline_s)
        self._deadline_s = DEADLINE_S
        runtime, trouble = self._runtime()
        used = memory.memory()
        before, self._times = self._times, cpu.times()
        disk = pressure.Level(runtime.storage_mib, runtime.storage_free_mib) if runtime else pressure.Level()
        level = pressure.Level(used.total_mib, used.available_mib)
        self._pressure = pressure.after(self._pressure, disk, level)
        inventory = collect(reading, runtime, Holds(allocated=ours.allocated))
        inventory = replace(inventory, gpus=with_foreign(inventory.gpus, ours.foreign))
        return Observation(
            inventory=inventory,
            digest=digest(inventory),
            conditions=(*reading.conditions, *trouble, *pressure.conditions(self._pressure)),
            telemetry=reading.telemetry,
            cpu_percent=cpu.percent(before, self._times),
            memory_used_mib=used.used_mib,
        )

    def close(self) -> None:
        self._gpus.close()

    def _runtime(self) -> tuple[RuntimeInfo | None, tuple[Condition, ...]]:
        try:
            return self._driver.info(), ()
        except DriverError as error:
            return None, (Condition("runtime_unavailable", error.message),)
        except Exception:
            # A driver's bug must not end the reports: it is said, and the log has it.
            log.exception("asking the container runtime about itself failed unexpectedly")
            return None, (Condition("runtime_unavailable", "it cannot be asked; see the agent's log"),)


def with_foreign(gpus: tuple[Gpu, ...], foreign: frozenset[str]) -> tuple[Gpu, ...]:
    """Return the GPUs, those in containers of another machine's marked busy."""
    return tuple(replace(gpu, busy=HELD_BY_ANOTHER) if gpu.uuid in foreign else gpu for gpu in gpus)


def one_of_each(conditions: tuple[Condition, ...]) -> tuple[Condition, ...]:
    """Return the conditions, of each kind the first."""
    found: dict[str, Condition] = {}
    for condition in conditions:
        found.setdefault(condition.kind, condition)
    return tuple(found.values())
