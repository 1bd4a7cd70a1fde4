"""What is asked of a fleet, what a machine is to placement, and whom an ask must not overtake (spec 30, "Placement").

First come, first served: a later ask takes no machine that an earlier one which still waits could ever use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import NamedTuple, Protocol

from corral.domain.reservations import Window, refused_by
from corral.domain.resources import Ask, Resources, on_machine

EARLIEST = datetime.min.replace(tzinfo=timezone.utc)
"""A moment before every window."""


class Gpu(NamedTuple):
    """A GPU that may be given; sorts in PCI bus order."""

    slot: str
    uuid: str
    id: str
    model: str


@dataclass(frozen=True)
class MachineFacts:
    """A machine of the tenancy as placement sees it."""

    id: str
    name: str
    pool: str
    closed: str
    """Why it takes no new work ("" = it does): cordoned, down, under pressure …"""
    total: Resources
    free: Resources
    """Not held by live allocations; its `gpus` is not looked at."""
    models: Mapping[str, int]
    """How many GPUs of each model it has, given away and faulty ones too."""
    gpus: Sequence[Gpu] = ()
    """Free, assignable."""
    unusable: int = 0
    """GPUs that nobody holds and that may not be given: fenced, unreadable, missing, busy."""
    windows: tuple[Window, ...] = ()
    """Of reservations that are not over."""
    data: bool = False
    """It has a data location that is ready."""


@dataclass(frozen=True)
class PlacementAsk:
    """What is asked for. `pools` are those granted (None = every machine of the tenancy); selectors given intersect."""

    ask: Ask
    pools: frozenset[str] | None = None
    machine: str | None = None
    pool: str | None = None
    gpu_model: str | None = None
    drives: bool = False
    """It needs a data location."""
    workspace: str = ""
    """Id."""
    now: datetime = EARLIEST
    sure_end: datetime | None = None
    """When it is gone for sure if it is placed now, its stop grace included; None: it has no time limit."""
    spent_models: frozenset[str] = frozenset()
    """GPU models of which the workspace's quota leaves too few."""
    room: Resources | None = None
    """The vCPU, RAM and storage that the workspace's quota leaves; its `gpus` is not looked at. None: no limit."""

    def sees(self, pool: str) -> bool:
        return self.pools is None or pool in self.pools

    def selects(self, machine: str, pool: str) -> bool:
        """Whether a machine is among those asked for, by pool and name."""
        return self.sees(pool) and self.pool in (None, pool) and self.machine in (None, machine)

    def takes(self, model: str) -> bool:
        """Whether it may be given GPUs of this model."""
        return self.gpu_model in (None, model) and model not in self.spent_models


@dataclass(frozen=True)
class Plan:
    machine_id: str
    machine: str
    gpus: Sequence[Gpu]
    resources: Resources

    @property
    def gpu_model(self) -> str:
        """Of all of its GPUs; "": it has none."""
        return self.gpus[0].model if self.gpus else ""


class Kind(NamedTuple):
    """What machines have in common that decides what they could ever take."""

    pool: str
    total: Resources
    models: tuple[tuple[str, int], ...]
    data: bool = False
    windows: tuple[Window, ...] = ()

    @classmethod
    def of(cls, facts: MachineFacts) -> Kind:
        return cls(facts.pool, facts.total, tuple(sorted(facts.models.items())), facts.data, facts.windows)


class HasKind(Protocol):
    """A machine in the index."""

    kind: Kind


class Ahead:
    """The asks that wait before another one, each for machines that it could ever use.

    One that a reservation keeps out of a machine holds back nobody there until that is over: who may run there
    meanwhile, may.
    """

    def __init__(self) -> None:
        self._asks: list[PlacementAsk] = []
        self._unjudged: list[PlacementAsk] = []
        """Asks for a machine by name, of which it is not known yet whether they could use it."""
        self._kept: set[str] = set()
        self._tried: dict[Kind, int] = {}
        """How many of the asks could never use machines of a kind; -1: one could."""

    def add(self, ask: PlacementAsk) -> None:
        (self._asks if ask.machine is None else self._unjudged).append(ask)

    def __bool__(self) -> bool:
        return bool(self._asks or self._kept or self._unjudged)

    def kept(self, machines: Mapping[str, HasKind]) -> set[str]:
        """Return the names of the machines that are waited for by name, of these."""
        for ask in self._unjudged:
            machine = machines.get(ask.machine or "")
            if machine is not None and could_ever(machine.kind, ask):
                self._kept.add(ask.machine or "")
        self._unjudged.clear()
        return self._kept

    def waits_for(self, kind: Kind) -> bool:
        """Whether an earlier ask could use machines of this kind, were they empty."""
        tried = self._tried.get(kind, 0)
        if 0 <= tried < len(self._asks):
            one_could = any(could_ever(kind, ask) for ask in self._asks[tried:])
            tried = self._tried[kind] = -1 if one_could else len(self._asks)
        return tried < 0


def could_ever(kind: Kind, ask: PlacementAsk) -> bool:
    """Return whether machines of this kind could take it now if nothing else ran on them."""
    if ask.room is not None and not within(on_machine(ask.ask, kind.total), ask.room):
        return False
    return could_hold(kind, ask) and not refused_by(kind.windows, ask.workspace, ask.now, ask.sure_end)


def could_hold(kind: Kind, ask: PlacementAsk) -> bool:
    """Return whether machines of this kind are large enough for it, and what was asked for."""
    if not ask.sees(kind.pool) or ask.pool not in (None, kind.pool) or (ask.drives and not kind.data):
        return False
    most = max((n for model, n in kind.models if ask.takes(model)), default=-1)
    if (ask.gpu_model is not None or ask.ask.gpus) and most < ask.ask.gpus:
        return False
    return within(on_machine(ask.ask, kind.total), kind.total)


def within(need: Resources, most: Resources) -> bool:
    """Whether vCPU, RAM and storage are."""
    return need.vcpu <= most.vcpu and need.ram_mib <= most.ram_mib and need.storage_mib <= most.storage_mib
