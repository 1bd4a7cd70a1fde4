"""One tenancy's machines, indexed by what they have free (design decision 6).

Cells by pool and GPU model, in each a level for each number of free GPUs, in each the machines grouped
by what else they have free. So finding the best fit costs as much as there are pools and models to
look into, not machines, full or empty. What no machine is any more is forgotten: machines choose what
they report.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from corral.domain.resources import Ask, Resources, on_machine

ANY = "\0"
"""The cell of all GPU models together, which no model is called: where an ask without GPUs looks."""
MOST_LOOKUPS = 1_000
MOST_NEEDS = 10_000
"""Answers kept; people choose what they ask for."""


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
    """GPUs that nobody holds and that may not be given: faulty, missing, busy."""


@dataclass(frozen=True)
class PlacementAsk:
    """What is asked for. `pools` are those granted (None = every machine of the tenancy); selectors given intersect."""

    ask: Ask
    pools: frozenset[str] | None = None
    machine: str | None = None
    pool: str | None = None
    gpu_model: str | None = None

    def sees(self, pool: str) -> bool:
        return self.pools is None or pool in self.pools

    def selects(self, machine: str, pool: str) -> bool:
        """Whether a machine is among those asked for, by pool and name."""
        return self.sees(pool) and self.pool in (None, pool) and self.machine in (None, machine)


@dataclass(frozen=True)
class Plan:
    machine_id: str
    machine: str
    gpus: Sequence[Gpu]
    resources: Resources


class Kind(NamedTuple):
    """What machines have in common that decides what they could ever take."""

    pool: str
    total: Resources
    models: tuple[tuple[str, int], ...]


class Ahead:
    """The asks that wait before another one, each for machines that it could ever use."""

    def __init__(self) -> None:
        self._asks: list[PlacementAsk] = []
        self._machines: set[str] = set()
        self._tried: dict[Kind, int] = {}
        """How many of the asks could never use machines of a kind; -1: one could."""

    def add(self, ask: PlacementAsk) -> None:
        if ask.machine is not None:
            self._machines.add(ask.machine)
        else:
            self._asks.append(ask)

    def __bool__(self) -> bool:
        return bool(self._asks or self._machines)

    @property
    def machines(self) -> set[str]:
        """Machines that are waited for by name."""
        return self._machines

    def waits_for(self, kind: Kind) -> bool:
        """Whether an earlier ask could use machines of this kind, were they empty."""
        tried = self._tried.get(kind, 0)
        if 0 <= tried < len(self._asks):
            one_could = any(_could_ever(kind, ask) for ask in self._asks[tried:])
            tried = self._tried[kind] = -1 if one_could else len(self._asks)
        return tried < 0


def _could_ever(kind: Kind, ask: PlacementAsk) -> bool:
    if not ask.sees(kind.pool) or ask.pool not in (None, kind.pool):
        return False
    if ask.gpu_model is not None or ask.ask.gpus:
        most = max((n for model, n in kind.models if ask.gpu_model in (None, model)), default=-1)
        if most < ask.ask.gpus:
            return False
    need, total = on_machine(ask.ask, kind.total), kind.total
    return need.vcpu <= total.vcpu and need.ram_mib <= total.ram_mib and need.storage_mib <= total.storage_mib


class Machine:
    """A machine in the index, with what is free now."""

    __slots__ = ("by_model", "facts", "homes", "kind", "kind_no", "ram", "storage", "vcpu")

    def __init__(self, facts: MachineFacts, kind: Kind, kind_no: int) -> None:
        self.facts, self.kind, self.kind_no = facts, kind, kind_no
        self.vcpu, self.ram, self.storage = facts.free.vcpu, facts.free.ram_mib, facts.free.storage_mib
        self.by_model: dict[str, list[Gpu]] = {model: [] for model in facts.models}
        for gpu in sorted(facts.gpus):
            self.by_model[gpu.model].append(gpu)
        self.homes: list[tuple[_Level, _Key]] = []


_Key = tuple[int, int, int, int]
"""Free vCPU, RAM, storage (MiB), and the number of the machine's kind."""


class _Shape:
    """Machines that have the same free; the first by name is at hand. Left ones are dropped from the heap lazily."""

    __slots__ = ("heap", "inside", "members")

    def __init__(self) -> None:
        self.heap: list[str] = []
        self.inside: set[str] = set()
        self.members: set[str] = set()

    def add(self, name: str) -> None:
        self.members.add(name)
        if name not in self.inside:
            self.inside.add(name)
            heappush(self.heap, name)

    def remove(self, name: str) -> None:
        self.members.remove(name)
        if len(self.heap) > 2 * len(self.members) + 16:  # most of those in it have left
            self.heap, self.inside = sorted(self.members), set(self.members)

    def first(self, but: set[str]) -> str | None:
        heap, members = self.heap, self.members
        while heap[0] not in members:
            self.inside.remove(heappop(heap))
        if heap[0] not in but:
            return heap[0]
        return min(members - but, default=None)


class _Level:
    """The machines of a cell with one number of free GPUs."""

    __slots__ = ("order", "shapes")

    def __init__(self) -> None:
        self.order: list[_Key] = []
        self.shapes: dict[_Key, _Shape] = {}

    def add(self, key: _Key, name: str) -> None:
        shape = self.shapes.get(key)
        if shape is None:
            shape = self.shapes[key] = _Shape()
            insort(self.order, key)
        shape.add(name)

    def remove(self, key: _Key, name: str) -> None:
        shape = self.shapes[key]
        shape.remove(name)
        if not shape.members:
            del self.shapes[key]
            del self.order[bisect_left(self.order, key)]


class _Cell:
    """The machines of one pool that have one GPU model; `machines` counts those too that take no work now."""

    __slots__ = ("levels", "machines")

    def __init__(self) -> None:
        self.levels: list[_Level] = []
        self.machines = 0


class _Numbered:
    """A kind's number, and how many machines are of it."""

    __slots__ = ("machines", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.machines = 0


Found = tuple[int, int, int, str, str]
"""Free GPUs, vCPU, RAM, machine, GPU model: sorts the best fit first."""


_Lookup = tuple[frozenset[str] | None, str | None, str | None]
"""Pools granted, pool asked, GPU model asked or `ANY`; None = each model by itself."""


@dataclass
class Fleet:
    """One tenancy's machines, indexed. Not safe for several threads at once."""

    machines: dict[str, Machine] = field(default_factory=dict)
    """By name."""
    _names: dict[str, str] = field(default_factory=dict)
    _sorted: list[str] = field(default_factory=list)
    """The names in order, when that was last asked for; empty: to be sorted anew."""
    _cells: dict[tuple[str, str], _Cell] = field(default_factory=dict)
    _kinds: dict[Kind, _Numbered] = field(default_factory=dict)
    _by_number: dict[int, Kind] = field(default_factory=dict)
    _last_number: int = 0
    _needs: dict[tuple[Ask, int], Resources] = field(default_factory=dict)
    _lookups: dict[_Lookup, list[tuple[str, _Cell]]] = field(default_factory=dict)

    @classmethod
    def of(cls, machines: Iterable[MachineFacts]) -> Fleet:
        fleet = cls()
        for facts in machines:
            fleet.replace(facts)
        return fleet

    def replace(self, facts: MachineFacts) -> None:
        """Put in a machine, or what has become of it."""
        kind = Kind(facts.pool, facts.total, tuple(sorted(facts.models.items())))
        machine = Machine(facts, kind, self._enter(kind))  # before it leaves: what is as it was is not built anew
        self.remove(facts.id)
        self.machines[facts.name] = machine
        self._names[facts.id] = facts.name
        self._sorted = []
        self._settle(machine)

    def remove(self, machine_id: str) -> None:
        """Take a machine out; nothing happens if it is not there."""
        name = self._names.pop(machine_id, None)
        if name is not None:
            machine = self.machines.pop(name)
            self._sorted = []
            self._unsettle(machine)
            self._leave(machine.kind)

    def _enter(self, kind: Kind) -> int:
        """Count one more machine of a kind; return the kind's number."""
        known = self._kinds.get(kind)
        if known is None:
            self._last_number += 1
            known = self._kinds[kind] = _Numbered(self._last_number)
            self._by_number[known.number] = kind
        known.machines += 1
        for where in _cells_of(kind):
            if where not in self._cells:
                self._cells[where] = _Cell()
                self._lookups.clear()
            self._cells[where].machines += 1
        return known.number

    def _leave(self, kind: Kind) -> None:
        known = self._kinds[kind]
        known.machines -= 1
        if not known.machines:
            del self._kinds[kind], self._by_number[known.number]
        for where in _cells_of(kind):
            cell = self._cells[where]
            cell.machines -= 1
            if not cell.machines:
                del self._cells[where]
                self._lookups.clear()

    def take(self, plan: Plan) -> None:
        """The plan's resources are held from now on."""
        machine = self.machines[plan.machine]
        self._unsettle(machine)
        if plan.gpus:
            free = machine.by_model[plan.gpus[0].model]
            if free[: len(plan.gpus)] == list(plan.gpus):
                del free[: len(plan.gpus)]
            else:
                for gpu in plan.gpus:
                    free.remove(gpu)
        machine.vcpu -= plan.resources.vcpu
        machine.ram -= plan.resources.ram_mib
        machine.storage -= plan.resources.storage_mib
        self._settle(machine)

    def _settle(self, machine: Machine) -> None:
        """Put a machine that takes work where asks look for it."""
        facts = machine.facts
        if facts.closed:
            return
        key = (machine.vcpu, machine.ram, machine.storage, machine.kind_no)
        every = 0
        for model, free in machine.by_model.items():
            every += len(free)
            self._house(machine, (facts.pool, model), len(free), key)
        self._house(machine, (facts.pool, ANY), every, key)

    def _house(self, machine: Machine, where: tuple[str, str], free: int, key: _Key) -> None:
        levels = self._cells[where].levels
        while len(levels) <= free:
            levels.append(_Level())
        levels[free].add(key, machine.facts.name)
        machine.homes.append((levels[free], key))

    def _unsettle(self, machine: Machine) -> None:
        for level, key in machine.homes:
            level.remove(key, machine.facts.name)
        machine.homes.clear()

    def need(self, ask: Ask, kind_no: int) -> Resources:
        """Return what the ask means on machines of this kind."""
        known = self._needs.get((ask, kind_no))
        if known is None:
            if len(self._needs) >= MOST_NEEDS:
                self._needs.clear()
            known = self._needs[(ask, kind_no)] = on_machine(ask, self._by_number[kind_no].total)
        return known

    def find(self, want: PlacementAsk, ahead: Ahead) -> Found | None:
        """Return the best fit for an ask that names no machine, or None."""
        best: Found | None = None
        each = want.gpu_model is None and want.ask.gpus > 0
        for model, cell in self._lookup(want, None if each else want.gpu_model or ANY):
            levels = cell.levels
            for free in range(want.ask.gpus, len(levels)):
                if best is not None and free > best[0]:
                    break
                if levels[free].order:
                    found = self._in_level(levels[free], free, model, want.ask, ahead)
                    if found is not None:
                        best = found if best is None else min(best, found)
                        break
        return best

    def names(self) -> Sequence[str]:
        """Return the names of all machines, in order."""
        if not self._sorted:
            self._sorted = sorted(self.machines)
        return self._sorted

    def count(self, want: PlacementAsk) -> int:
        """Return how many machines are among those asked for, by pool and name."""
        if want.machine is None:
            return sum(cell.machines for _, cell in self._lookup(want, ANY))
        machine = self.machines.get(want.machine)
        return int(machine is not None and want.selects(want.machine, machine.facts.pool))

    def _lookup(self, want: PlacementAsk, model: str | None) -> list[tuple[str, _Cell]]:
        """Return the cells of a model in the pools asked for, with their GPU model. None: of each model."""
        known = self._lookups.get((want.pools, want.pool, model))
        if known is None:
            if len(self._lookups) >= MOST_LOOKUPS:
                self._lookups.clear()
            known = self._lookups[(want.pools, want.pool, model)] = [
                (cell_model, cell)
                for (pool, cell_model), cell in self._cells.items()
                if want.sees(pool)
                and want.pool in (None, pool)
                and (cell_model != ANY if model is None else cell_model == model)
            ]
        return known

    def _in_level(self, level: _Level, free: int, model: str, ask: Ask, ahead: Ahead) -> Found | None:
        best: Found | None = None
        order = level.order
        start = bisect_left(order, (ask.vcpu or 0, 0, 0, 0))  # those with less free vCPU come before
        for index in range(start, len(order)):
            key = order[index]
            vcpu, ram, storage, kind_no = key
            if best is not None and (vcpu, ram) != best[1:3]:
                break
            need = self.need(ask, kind_no)
            if need.vcpu > vcpu or need.ram_mib > ram or need.storage_mib > storage:
                continue
            if ahead and ahead.waits_for(self._by_number[kind_no]):
                continue
            name = level.shapes[key].first(ahead.machines)
            if name is not None and (best is None or name < best[3]):
                best = (free, vcpu, ram, name, model)
        return best


def _cells_of(kind: Kind) -> list[tuple[str, str]]:
    return [(kind.pool, ANY), *((kind.pool, model) for model, _ in kind.models)]
