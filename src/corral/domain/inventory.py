"""What a machine is, as the site keeps it (spec 10, 40): the edge translates the agent's words into these.

`judge_gpus` decides which GPUs a machine has, given those kept and those reported (spec 40,
"GPUs and their health"): a missing one stays, as a fault; a replaced one goes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from corral.domain.allocations import bounded, legible
from corral.domain.faults import Health


class GpuState(str, Enum):
    OK = "ok"
    UNREADABLE = "unreadable"
    MISSING = "missing"
    CONFLICT = "conflict"


def assignable(state: GpuState, busy: str, fenced: bool) -> bool:
    """No health data, a conflict, a latched fault, or memory held by somebody else: a GPU is not assignable."""
    return state is GpuState.OK and not busy and not fenced


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
    health: Sequence[Health] = ()
    """Of the GPUs that answer."""


@dataclass(frozen=True)
class Condition:
    """Something wrong with the machine as a whole. A blocking one keeps new work away."""

    kind: str
    message: str
    blocking: bool


def pressure(conditions: Sequence[Condition]) -> str:
    """Return why the machine takes no new work ("" = it does)."""
    return next((f"{c.kind}: {c.message}" for c in conditions if c.blocking), "")


MAX_GPUS = 256
"""Of one machine, with those it once had and misses; a report with more is cut."""
STAND_IN = "unidentified-"
"""Begins the UUID of a GPU that never told its own: it is no identity, so it is never missed."""
_NOT_REPORTED = "the machine does not report it any more"


@dataclass(frozen=True)
class Kept:
    """A GPU as the site keeps it. `gone`: replaced, kept for history only."""

    gpu: Gpu
    gone: bool = False


@dataclass(frozen=True)
class GpuChange:
    """What became of one GPU. `was` None: it is new."""

    was: Kept | None
    now: Kept


@dataclass(frozen=True)
class GpuCounts:
    """A machine's GPUs by number. `total` = not replaced, `healthy` = state ok and not fenced, `held` = healthy and
    allocated, `free` = may be given now."""

    total: int = 0
    healthy: int = 0
    held: int = 0
    free: int = 0


HELD_BY_UNKNOWN = "held by work that this site does not know"


def with_unknown(gpus: Sequence[Gpu], held: Collection[str]) -> Sequence[Gpu]:
    """Return reported GPUs, those busy whose UUIDs unknown work claims."""
    return [replace(gpu, busy=HELD_BY_UNKNOWN) if gpu.uuid in held and not gpu.busy else gpu for gpu in gpus]


def fitted(inventory: Inventory) -> Inventory:
    """Return what a machine's root claims as values that every database keeps."""
    return Inventory(
        legible(inventory.digest, 64),
        legible(inventory.hostname, 255),
        bounded(inventory.vcpu),
        bounded(inventory.ram_mib),
        bounded(inventory.storage_mib),
        [_fitted_gpu(gpu) for gpu in inventory.gpus[:MAX_GPUS]],
        inventory.facts,
        [Health(legible(one.vendor, 20), legible(one.uuid, 96), one.counters) for one in inventory.health[:MAX_GPUS]],
    )


def _fitted_gpu(gpu: Gpu) -> Gpu:
    return Gpu(
        legible(gpu.vendor, 20),
        legible(gpu.uuid, 96),
        legible(gpu.slot, 32),
        legible(gpu.model, 100),
        bounded(gpu.memory_mib),
        legible(gpu.serial, 64),
        gpu.state,
        legible(gpu.detail, 300),
        legible(gpu.busy, 300),
    )


def judge_gpus(kept: Sequence[Kept], reported: Sequence[Gpu]) -> Sequence[GpuChange]:
    """Return what changed, in the order kept, then new ones as reported; the same report twice changes nothing.

    Replaced = another readable UUID in its slot, and its own nowhere on the machine.
    """
    seen = _by_identity(reported)
    readable_slots = {gpu.slot for gpu in seen.values() if gpu.state is GpuState.OK and gpu.slot}
    changes = [GpuChange(old, _after(old, seen, readable_slots)) for old in kept]
    known = {_identity(old.gpu) for old in kept}
    room = MAX_GPUS - len(known)
    fresh = [gpu for identity, gpu in seen.items() if identity not in known][: max(0, room)]
    changes += [GpuChange(None, _after(Kept(gpu), seen, readable_slots)) for gpu in fresh]
    return [change for change in changes if change.was != change.now]


def _after(old: Kept, seen: Mapping[tuple[str, str], Gpu], readable_slots: set[str]) -> Kept:
    """Return a kept GPU after the report."""
    now = seen.get(_identity(old.gpu))
    if now is not None and now.state is not GpuState.MISSING:
        return Kept(now)
    if old.gone:
        return old
    slot = now.slot if now is not None else old.gpu.slot
    if slot in readable_slots or (now is None and old.gpu.uuid.startswith(STAND_IN)):
        return Kept(replace(old.gpu, state=GpuState.MISSING, busy="", detail="replaced"), gone=True)
    if now is not None:
        return Kept(now)
    return Kept(replace(old.gpu, state=GpuState.MISSING, busy="", detail=_NOT_REPORTED))


def _by_identity(reported: Iterable[Gpu]) -> dict[tuple[str, str], Gpu]:
    """Return the reported GPUs by vendor and UUID; one that two devices claim is a conflict."""
    seen: dict[tuple[str, str], Gpu] = {}
    for gpu in reported:
        if not gpu.uuid:
            continue
        twice = _identity(gpu) in seen
        seen[_identity(gpu)] = _conflict(seen[_identity(gpu)], gpu) if twice else gpu
    return seen


def _conflict(one: Gpu, other: Gpu) -> Gpu:
    detail = f"the GPUs at {one.slot or 'an unknown slot'} and {other.slot or 'an unknown slot'} claim the same UUID"
    return replace(one, state=GpuState.CONFLICT, busy="", detail=detail)


def _identity(gpu: Gpu) -> tuple[str, str]:
    return (gpu.vendor, gpu.uuid)
