"""What is asked of a fleet, what a machine is to placement, and whom an ask must not overtake (spec 30, "Placement").

First come, first served: a later ask takes no machine that an earlier one which still waits could ever use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import NamedTuple, Protocol

from corral.domain.reservations import Window, refused_by
from corral.domain.resources import Ask, Resources, on_machine

EARLIEST = datetime.min.replace(tzinfo=timezone.utc)
"""A moment before every window."""
NOTHING = Resources()


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


class _Theirs:
    """What one workspace asks for."""

    __slots__ = ("_tried", "asks", "named", "taken")

    def __init__(self) -> None:
        self.asks: list[PlacementAsk] = []
        self.named: list[PlacementAsk] = []
        """Those for a machine by name."""
        self.taken = NOTHING
        """What its quota leaves less to each of them than when it was added."""
        self._tried: dict[Kind, int] = {}
        """How many of the asks could never use machines of a kind; -1: one could."""

    def one_could(self, kind: Kind) -> bool:
        tried = self._tried.get(kind, 0)
        if 0 <= tried < len(self.asks):
            one_could = any(could_ever(kind, ask, self.taken) for ask in self.asks[tried:])
            tried = self._tried[kind] = -1 if one_could else len(self.asks)
        return tried < 0

    def narrow(self, taken: Resources) -> bool:
        """The quota leaves so much less; return whether that matters to one of them."""
        limited = any(ask.room is not None for ask in (*self.asks[:1], *self.named[:1]))
        if limited:
            self.taken += taken
            self._tried = {kind: tried for kind, tried in self._tried.items() if tried >= 0}
        return limited


class Ahead:
    """The asks that wait before another one, each for machines that it could ever use; by workspace, for one's quota
    changes nothing of the others'.

    One that a reservation keeps out of a machine holds back nobody there until that is over: who may run there
    meanwhile, may.
    """

    def __init__(self) -> None:
        self._of: dict[str, _Theirs] = {}
        self._unjudged: list[tuple[_Theirs, PlacementAsk]] = []
        """Asks for a machine by name, of which it is not known yet whether they could use it."""
        self._kept: set[str] = set()
        self._added: list[tuple[_Theirs, PlacementAsk]] = []
        """The others, since all were asked about a kind last."""
        self._tried: dict[Kind, int] = {}
        """How many of those added are tried with a kind, as all before them are; -1: one of them could use it."""

    def add(self, ask: PlacementAsk) -> None:
        """Add the last one. Of one workspace all have a `room`, or none has."""
        theirs = self._of.setdefault(ask.workspace, _Theirs())
        if ask.room is not None:
            ask = replace(ask, room=ask.room + theirs.taken)
        if ask.machine is not None:
            theirs.named.append(ask)
            self._unjudged.append((theirs, ask))
        else:
            theirs.asks.append(ask)
            self._added.append((theirs, ask))

    def forget(self, workspace: str) -> None:
        """Take out what a workspace asks for."""
        if self._of.pop(workspace, None) is not None:
            self._judge_anew()

    def narrow(self, workspace: str, taken: Resources) -> None:
        """A workspace's quota leaves it so much less."""
        theirs = self._of.get(workspace)
        if theirs is not None and theirs.narrow(taken):
            self._judge_anew()

    def _judge_anew(self) -> None:
        self._added.clear()
        self._tried.clear()
        self._kept.clear()
        self._unjudged = [(theirs, ask) for theirs in self._of.values() for ask in theirs.named]

    def __bool__(self) -> bool:
        return bool(self._of)

    def kept(self, machines: Mapping[str, HasKind]) -> set[str]:
        """Return the names of the machines that are waited for by name, of these."""
        for theirs, ask in self._unjudged:
            machine = machines.get(ask.machine or "")
            if machine is not None and could_ever(machine.kind, ask, theirs.taken):
                self._kept.add(ask.machine or "")
        self._unjudged.clear()
        return self._kept

    def waits_for(self, kind: Kind) -> bool:
        """Whether an earlier ask could use machines of this kind, were they empty."""
        tried = self._tried.get(kind)
        if tried is None:
            one_could = any(theirs.one_could(kind) for theirs in self._of.values())
        elif 0 <= tried < len(self._added):
            one_could = any(could_ever(kind, ask, theirs.taken) for theirs, ask in self._added[tried:])
        else:
            return tried < 0
        self._tried[kind] = -1 if one_could else len(self._added)
        return one_could


def could_ever(kind: Kind, ask: PlacementAsk, taken: Resources = NOTHING) -> bool:
    """Return whether machines of this kind could take it now if nothing else ran on them.

    `taken`: what its quota leaves less than it says.
    """
    need = held_by(kind, ask)
    if need is None or (ask.room is not None and not within(need + taken, ask.room)):
        return False
    return not refused_by(kind.windows, ask.workspace, ask.now, ask.sure_end)


def held_by(kind: Kind, ask: PlacementAsk) -> Resources | None:
    """Return what the ask means on machines of this kind; None: they are too small, or not what was asked for."""
    if not ask.sees(kind.pool) or ask.pool not in (None, kind.pool) or (ask.drives and not kind.data):
        return None
    most = max((n for model, n in kind.models if ask.takes(model)), default=-1)
    if (ask.gpu_model is not None or ask.ask.gpus) and most < ask.ask.gpus:
        return None
    need = on_machine(ask.ask, kind.total)
    return need if within(need, kind.total) else None


def within(need: Resources, most: Resources) -> bool:
    """Whether vCPU, RAM and storage are."""
    return need.vcpu <= most.vcpu and need.ram_mib <= most.ram_mib and need.storage_mib <= most.storage_mib
