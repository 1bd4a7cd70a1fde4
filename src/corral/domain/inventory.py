"""What a machine is, as the site keeps it (spec 10, 40): the edge translates the agent's words into these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any


class GpuState(str, Enum):
    OK = "ok"
    UNREADABLE = "unreadable"
    MISSING = "missing"
    CONFLICT = "conflict"


@dataclass(frozen=True)
class Gpu:
    """Identity is (vendor, uuid); `slot` is the PCI bus id."""

    vendor: str
    uuid: str
    slot: str
    model: str
    memory_mib: int
    serial: str
    state: GpuState
    detail: str
    busy: str

    @property
    def assignable(self) -> bool:
        """No health data, a conflict, or memory held by somebody else: not assignable."""
        return self.state is GpuState.OK and not self.busy


@dataclass(frozen=True)
class Inventory:
    """`facts` is the whole report for people (operating system, disks, addresses …); the rest is judged by."""

    digest: str
    hostname: str
    vcpu: int
    ram_mib: int
    storage_mib: int
    gpus: Sequence[Gpu]
    facts: dict[str, Any]


@dataclass(frozen=True)
class Condition:
    """Something wrong with the machine as a whole. A blocking one keeps new work away."""

    kind: str
    message: str
    blocking: bool


def pressure(conditions: Sequence[Condition]) -> str:
    """Return why the machine takes no new work ("" = it does)."""
    return next((f"{c.kind}: {c.message}" for c in conditions if c.blocking), "")
