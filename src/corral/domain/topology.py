"""Where a workspace's GPUs are: site -> rack -> fabric -> machine -> GPU (spec 10, "The cluster's page"; spec 20).

A workspace sees the machines of its pools only, and of other workspaces' work only that a GPU is given away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby

from corral.domain.inventory import GpuState


class GpuUse(str, Enum):
    """What a developer may know of one GPU."""

    FREE = "free"
    ALLOCATED = "allocated"
    BUSY = "busy"  # held by processes outside Corral, or by work that this site does not know
    FAULTY = "faulty"  # fenced, or its machine cannot tell that it is well
    MISSING = "missing"


@dataclass(frozen=True)
class Gpu:
    """One GPU of a machine. `workload` is named only to the workspace whose it is ("" else)."""

    uuid: str
    slot: str
    model: str
    memory_mib: int
    use: GpuUse
    workload: str = ""


@dataclass(frozen=True)
class Machine:
    """A machine with the labels that say where it is ("" = not said)."""

    name: str
    cluster: str
    pool: str
    site: str
    rack: str
    fabric: str
    status: str
    """The one thing a developer reads beside it ("available" = something can be created)."""
    gpus: Sequence[Gpu]


@dataclass(frozen=True)
class Fabric:
    name: str
    machines: Sequence[Machine]


@dataclass(frozen=True)
class Rack:
    name: str
    fabrics: Sequence[Fabric]


@dataclass(frozen=True)
class Site:
    name: str
    racks: Sequence[Rack]


def gpu_use(state: GpuState, busy: str, *, held: bool, fenced: bool) -> GpuUse:
    """Return what a GPU is used for. A fault is told first, also of one that work still runs on."""
    if state is GpuState.MISSING:
        return GpuUse.MISSING
    if fenced or state is not GpuState.OK:
        return GpuUse.FAULTY
    if held:
        return GpuUse.ALLOCATED
    return GpuUse.BUSY if busy else GpuUse.FREE


def tree(machines: Sequence[Machine]) -> Sequence[Site]:
    """Return the machines, sorted by site, rack and fabric, as a tree of these."""
    return [
        Site(site, [Rack(rack, _fabrics(list(in_rack))) for rack, in_rack in groupby(list(in_site), lambda m: m.rack)])
        for site, in_site in groupby(machines, lambda m: m.site)
    ]


def _fabrics(machines: Sequence[Machine]) -> Sequence[Fabric]:
    return [Fabric(name, list(inside)) for name, inside in groupby(machines, lambda m: m.fabric)]
