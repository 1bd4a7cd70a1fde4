"""One tenancy's machines, indexed by what they have free (design decision 6).

Cells by pool, GPU model and whether there is a data location, in each a level for each number of free GPUs, in
each the machines grouped by what else they have free and by when reservations close them (`domain/shelves.py`). So
finding the best fit costs as much as there are pools and models to look into, not machines, full, empty or
reserved. What no machine is any more is forgotten: machines choose what they report.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from corral.domain.asks import Ahead, Gpu, Kind, MachineFacts, PlacementAsk, Plan, held_by, within
from corral.domain.reservations import Window
from corral.domain.resources import Ask, Resources, on_machine
from corral.domain.shelves import NEVER, Cell, Key, Level, Shelf, looked_at, micros, places

ANY = "\0"
"""The cell of all GPU models together, which no model is called: where an ask without GPUs looks."""
MOST_LOOKUPS = 1_000
MOST_NEEDS = 10_000
MOST_LEASTS = 1_000
"""Answers kept; people choose what they ask for."""


class Machine:
    """A machine in the index, with what is free now."""

    __slots__ = ("by_model", "facts", "homes", "kind", "kind_no", "places", "ram", "storage", "vcpu")

    def __init__(self, facts: MachineFacts, kind: Kind, known: _Numbered) -> None:
        self.facts, self.kind, self.kind_no, self.places = facts, kind, known.number, known.places
        self.vcpu, self.ram, self.storage = facts.free.vcpu, facts.free.ram_mib, facts.free.storage_mib
        self.by_model: dict[str, list[Gpu]] = {model: [] for model in facts.models}
        for gpu in sorted(facts.gpus):
            self.by_model[gpu.model].append(gpu)
        self.homes: list[tuple[Shelf, Key]] = []


class _Numbered:
    """A kind's number, how many machines are of it, and on which shelves they stand."""

    __slots__ = ("machines", "number", "places")

    def __init__(self, number: int, windows: Sequence[Window]) -> None:
        self.number = number
        self.machines = 0
        self.places = places(windows)


Found = tuple[int, int, int, int, str, str]
"""Free GPUs, vCPU, RAM, when it closes, machine, GPU model: sorts the best fit first."""


_Search = tuple[PlacementAsk, int, Ahead, set[str]]
"""An ask, its sure end, whom it must not overtake, and the machines those wait for by name."""
_NONE: set[str] = set()
_OTHER = ("vcpu", "ram_mib", "storage_mib")


_Place = tuple[str, str, bool]
"""A cell's pool, GPU model or `ANY`, and whether its machines have a data location."""
_Lookup = tuple[frozenset[str] | None, str | None, bool, str | None]
"""Pools granted, pool asked, whether with a data location, GPU model asked or `ANY`; None = each model by itself."""
_Least = tuple[int, frozenset[str] | None, str | None, str | None, frozenset[str], bool]
"""GPUs asked, pools granted, pool and GPU model asked, models spent, whether with a data location."""


@dataclass
class Fleet:
    """One tenancy's machines, indexed. Not safe for several threads at once."""

    machines: dict[str, Machine] = field(default_factory=dict)
    """By name."""
    _names: dict[str, str] = field(default_factory=dict)
    _sorted: list[str] = field(default_factory=list)
    """The names in order, when that was last asked for; empty: to be sorted anew."""
    _cells: dict[_Place, Cell] = field(default_factory=dict)
    _kinds: dict[Kind, _Numbered] = field(default_factory=dict)
    _by_number: dict[int, Kind] = field(default_factory=dict)
    _sizes: Counter[Kind] = field(default_factory=Counter)
    """How many kinds there are that differ by their windows only."""
    _windowed: int = 0
    """How many kinds there are that have windows."""
    _last_number: int = 0
    _next_end: int = NEVER
    """No window that a machine has is over before."""
    _forgotten: int = 0
    """How often windows were taken away because they were over."""
    _needs: dict[tuple[Ask, int], Resources] = field(default_factory=dict)
    _lookups: dict[_Lookup, list[tuple[str, Cell]]] = field(default_factory=dict)
    _leasts: dict[_Least, Resources] = field(default_factory=dict)
    """Of the sizes that there are now."""

    @classmethod
    def of(cls, machines: Iterable[MachineFacts]) -> Fleet:
        fleet = cls()
        for facts in machines:
            fleet.replace(facts)
        return fleet

    def replace(self, facts: MachineFacts) -> None:
        """Put in a machine, or what has become of it."""
        kind = Kind.of(facts)
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

    def _enter(self, kind: Kind) -> _Numbered:
        """Count one more machine of a kind."""
        known = self._kinds.get(kind)
        if known is None:
            self._last_number += 1
            known = self._kinds[kind] = _Numbered(self._last_number, kind.windows)
            self._by_number[known.number] = kind
            self._windowed += bool(kind.windows)
            size = kind._replace(windows=())
            if size not in self._sizes:
                self._leasts.clear()
            self._sizes[size] += 1
            self._next_end = min((self._next_end, *(micros(window.end) for window in kind.windows)))
        known.machines += 1
        for where in _cells_of(kind):
            if where not in self._cells:
                self._cells[where] = Cell()
                self._lookups.clear()
            self._cells[where].machines += 1
        return known

    def _leave(self, kind: Kind) -> None:
        known = self._kinds[kind]
        known.machines -= 1
        if not known.machines:
            del self._kinds[kind], self._by_number[known.number]
            self._windowed -= bool(kind.windows)
            size = kind._replace(windows=())
            self._sizes[size] -= 1
            if not self._sizes[size]:
                del self._sizes[size]
                self._leasts.clear()
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
        every = 0
        for model, free in machine.by_model.items():
            every += len(free)
            self._house(machine, model, len(free))
        self._house(machine, ANY, every)

    def _house(self, machine: Machine, model: str, free: int) -> None:
        facts = machine.facts
        levels = self._cells[facts.pool, model, facts.data].levels
        while len(levels) <= free:
            levels.append(Level())
        for where, closes in machine.places:
            key = (machine.vcpu, machine.ram, closes, machine.storage, machine.kind_no)
            shelf = levels[free].shelf(where)
            shelf.add(key, facts.name)
            machine.homes.append((shelf, key))

    def _unsettle(self, machine: Machine) -> None:
        for shelf, key in machine.homes:
            shelf.remove(key, machine.facts.name)
        machine.homes.clear()

    @property
    def has_windows(self) -> bool:
        """Whether a reservation closes one of the machines now or later."""
        return self._windowed > 0

    def forget_windows(self, now: datetime) -> int:
        """Take away the windows that are over; return how often that was done, for what was judged before."""
        if self._next_end < NEVER and self._next_end <= micros(now):
            self._forget_windows(micros(now))
        return self._forgotten

    def _forget_windows(self, now: int) -> None:
        """Take away the windows that are over: their machines stand elsewhere from now on."""
        self._forgotten += 1
        for machine in self.machines.values():
            if any(micros(window.end) <= now for window in machine.facts.windows):
                left = tuple(window for window in machine.facts.windows if micros(window.end) > now)
                self._unsettle(machine)
                machine.facts = replace(machine.facts, windows=left)
                was, machine.kind = machine.kind, Kind.of(machine.facts)
                known = self._enter(machine.kind)
                machine.kind_no, machine.places = known.number, known.places
                self._leave(was)
                self._settle(machine)
        ends = (micros(window.end) for kind in self._kinds for window in kind.windows)
        self._next_end = min(ends, default=NEVER)

    def need(self, ask: Ask, kind_no: int) -> Resources:
        """Return what the ask means on machines of this kind."""
        known = self._needs.get((ask, kind_no))
        if known is None:
            if len(self._needs) >= MOST_NEEDS:
                self._needs.clear()
            known = self._needs[(ask, kind_no)] = on_machine(ask, self._by_number[kind_no].total)
        return known

    def least(self, want: PlacementAsk) -> Resources:
        """Return the least vCPU, RAM and storage that a fair share for its GPUs is, wherever there are such GPUs.

        What else is asked for does not count: people choose that freely, and each answer looks at every size.
        """
        named = self.machines.get(want.machine) if want.machine is not None else None
        if named is not None:
            return _least(want, [named.kind])
        asked = (want.ask.gpus, want.pools, want.pool, want.gpu_model, want.spent_models, want.drives)
        known = self._leasts.get(asked)
        if known is None:
            if len(self._leasts) >= MOST_LEASTS:
                self._leasts.clear()
            known = self._leasts[asked] = _least(want, self._sizes)
        return known

    def find(self, want: PlacementAsk, ahead: Ahead) -> Found | None:
        """Return the best fit for an ask that names no machine, or None."""
        self.forget_windows(want.now)
        until = NEVER if want.sure_end is None else micros(want.sure_end)
        search: _Search = (want, until, ahead, ahead.kept(self.machines) if ahead else _NONE)
        best: Found | None = None
        each = want.gpu_model is None and want.ask.gpus > 0
        for model, cell in self._lookup(want, None if each else want.gpu_model or ANY):
            if want.spent_models and want.ask.gpus and model in want.spent_models:
                continue
            levels = cell.levels
            for free in range(want.ask.gpus, len(levels)):
                if best is not None and free > best[0]:
                    break
                level = levels[free]
                if level.open.order or level.others:
                    found = self._in_level(level, free, model, search)
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
            return sum(cell.machines for _, cell in self._lookup(replace(want, drives=False), ANY))
        machine = self.machines.get(want.machine)
        return int(machine is not None and want.selects(want.machine, machine.facts.pool))

    def _lookup(self, want: PlacementAsk, model: str | None) -> list[tuple[str, Cell]]:
        """Return the cells of a model in the pools asked for, with their GPU model. None: of each model."""
        asked = (want.pools, want.pool, want.drives, model)
        known = self._lookups.get(asked)
        if known is None:
            if len(self._lookups) >= MOST_LOOKUPS:
                self._lookups.clear()
            known = self._lookups[asked] = [
                (cell_model, cell)
                for (pool, cell_model, data), cell in self._cells.items()
                if want.sees(pool)
                and want.pool in (None, pool)
                and (data or not want.drives)
                and (cell_model != ANY if model is None else cell_model == model)
            ]
        return known

    def _in_level(self, level: Level, free: int, model: str, search: _Search) -> Found | None:
        best = self._on_shelf(level.open, free, model, search) if level.open.order else None
        if level.others:
            for where in looked_at(search[0].workspace, search[1]):
                shelf = level.others.get(where)
                found = self._on_shelf(shelf, free, model, search) if shelf is not None else None
                if found is not None:
                    best = found if best is None else min(best, found)
        return best

    def _on_shelf(self, shelf: Shelf, free: int, model: str, search: _Search) -> Found | None:
        best: Found | None = None
        order, (want, until, ahead, but) = shelf.order, search
        index = bisect_left(order, (want.ask.vcpu or 0, 0, 0, 0, 0))  # those with less free vCPU come before
        while index < len(order):
            key = order[index]
            vcpu, ram, closes, storage, kind_no = key
            if best is not None and (vcpu, ram, closes) != best[1:4]:
                break
            if closes < until:  # all of these are closed too soon
                index = bisect_left(order, (vcpu, ram, until, 0, 0), index + 1)
                continue
            index += 1
            need = self.need(want.ask, kind_no)
            if need.vcpu > vcpu or need.ram_mib > ram or need.storage_mib > storage:
                continue
            if want.room is not None and not within(need, want.room):
                continue
            if ahead and ahead.waits_for(self._by_number[kind_no]):
                continue
            name = shelf.shapes[key].first(but)
            if name is not None and (best is None or name < best[4]):
                best = (free, vcpu, ram, closes, name, model)
        return best


def _cells_of(kind: Kind) -> list[_Place]:
    return [(kind.pool, ANY, kind.data), *((kind.pool, model, kind.data) for model, _ in kind.models)]


def _least(want: PlacementAsk, kinds: Iterable[Kind]) -> Resources:
    share = replace(want, ask=Ask(want.ask.gpus))
    needs = [need for kind in kinds if (need := held_by(kind, share)) is not None]
    if not needs:
        return Resources()
    return Resources(want.ask.gpus, *(min(getattr(need, name) for need in needs) for name in _OTHER))
