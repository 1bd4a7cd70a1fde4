"""The index of a fleet: it says what a plain search would, and forgets what is no more (design decision 6)."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.domain import fleet as index
from corral.domain.asks import Kind, MachineFacts, PlacementAsk, Plan, held_by
from corral.domain.fleet import Fleet
from corral.domain.placement import refusals, try_place
from corral.domain.reservations import refused_by
from corral.domain.resources import Ask, Resources, on_machine
from tests.facts import GIB, at, machine, planned, reasons, window

# ---- what machines report and people ask for


def _size(fleet: Fleet) -> int:
    """Return how many things a fleet remembers."""
    levels = [level for cell in fleet._cells.values() for level in cell.levels]
    shelves = [shelf for level in levels for shelf in (level.open, *level.others.values())]
    heaps = [len(shape.heap) for shelf in shelves for shape in shelf.shapes.values()]
    kept = (
        len(fleet.machines)
        + len(fleet._names)
        + len(fleet._cells)
        + len(fleet._kinds)
        + len(fleet._by_number)
        + len(fleet._sizes)
    )
    return kept + len(levels) + len(shelves) + sum(heaps)


def test_what_a_machine_reported_once_is_not_remembered_for_ever() -> None:
    fleet = Fleet.of([machine("a"), machine("b", pool="x")])
    began = _size(fleet)
    for number in range(300):
        fleet.replace(machine("b", (f"model {number}",) * 8, pool=f"pool {number}", vcpu=64 + number))
        planned(fleet, PlacementAsk(Ask(gpus=1), gpu_model=f"model {number}"))
    assert _size(fleet) == began
    fleet.remove("b")
    fleet.remove("a")
    assert _size(fleet) == 0


def test_machines_that_come_and_go_under_new_names_leave_nothing_behind() -> None:
    fleet = Fleet.of([machine("a")])
    for number in range(300):
        fleet.replace(machine(f"z{number}"))
        assert planned(fleet, PlacementAsk(Ask(gpus=1))).machine == "a"
        fleet.remove(f"z{number}")
    assert _size(fleet) < 100


def test_what_people_ask_for_is_not_remembered_for_ever() -> None:
    fleet = Fleet.of([machine("a")])
    for number in range(2 * index.MOST_LOOKUPS):
        assert try_place(fleet, PlacementAsk(Ask(gpus=1), gpu_model=f"model {number}")) is None
    assert len(fleet._lookups) <= index.MOST_LOOKUPS


def test_a_gpu_model_that_is_called_like_no_other_hides_none() -> None:
    fleet = Fleet.of([machine("a", ("", "H100")), machine("b", ("",))])
    fleet.remove("b")
    assert try_place(fleet, PlacementAsk(Ask(gpus=1), gpu_model="*")) is None
    fleet.take(planned(fleet, PlacementAsk(Ask(gpus=1))))
    assert planned(fleet, PlacementAsk(Ask(gpus=1), gpu_model="H100")).machine == "a"
    assert planned(fleet, PlacementAsk(Ask())).machine == "a"


# ---- what an ask takes at least


def test_the_least_fair_share_is_that_of_the_sizes_there_are_now() -> None:
    fleet, want = Fleet.of([machine("a", vcpu=64), machine("b", ("A100",) * 8, vcpu=32)]), PlacementAsk(Ask(gpus=1))
    assert (fleet.least(want).vcpu, fleet.least(replace(want, gpu_model="H100")).vcpu) == (4, 8)
    fleet.replace(machine("b", ("A100",) * 8, vcpu=16))
    assert fleet.least(want).vcpu == 2
    fleet.replace(machine("c", vcpu=8))
    assert (fleet.least(want).vcpu, fleet.least(replace(want, machine="a")).vcpu) == (1, 8)
    fleet.remove("c")
    fleet.remove("b")
    assert fleet.least(want).vcpu == 8
    assert fleet.least(replace(want, pools=frozenset({"other"}))) == Resources()


def test_asks_that_differ_by_what_people_choose_freely_look_at_every_size_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Kind] = []

    def looking(kind: Kind, ask: PlacementAsk) -> Resources | None:
        looked.append(kind)
        return held_by(kind, ask)

    monkeypatch.setattr("corral.domain.fleet.held_by", looking)
    fleet = Fleet.of(machine(f"m{number}", vcpu=64 + number) for number in range(20))
    for vcpu in range(1, 50):
        fleet.least(PlacementAsk(Ask(gpus=1, vcpu=vcpu), workspace=f"w{vcpu}"))
    assert len(looked) == 20
    fleet.replace(machine("m0", pool="", vcpu=65))  # one size less
    fleet.least(PlacementAsk(Ask(gpus=1)))
    assert len(looked) == 39


def test_least_shares_that_people_ask_for_are_not_remembered_for_ever() -> None:
    fleet = Fleet.of([machine("a")])
    for number in range(2 * index.MOST_LEASTS):
        fleet.least(PlacementAsk(Ask(gpus=1), gpu_model=f"model {number}"))
    assert len(fleet._leasts) <= index.MOST_LEASTS


def test_a_fleet_whose_last_window_is_gone_has_none() -> None:
    fleet = Fleet.of([machine("a", windows=[window(1, 2)]), machine("b", windows=[window(3, 4)])])
    assert fleet.has_windows
    fleet.replace(machine("a"))
    assert fleet.has_windows
    fleet.replace(machine("b", windows=[window(3, 5)]))
    assert fleet.has_windows
    planned(fleet, PlacementAsk(Ask(gpus=1), now=at(6)))  # it is over
    assert not fleet.has_windows
    fleet.replace(machine("b", windows=[window(7, 8)]))
    assert fleet.has_windows
    fleet.remove("b")
    assert not fleet.has_windows


# ---- the index against a plain search

POOLS, MODELS = ("", "x", "y"), ("A100", "H100")


windows = st.builds(
    lambda start, length, named: window(start, start + length, *named),
    st.integers(-2, 6),
    st.integers(1, 4),
    st.sampled_from(((), ("w1",), ("w2",), ("w1", "w2"))),
)


@st.composite
def fleets(draw: st.DrawFn) -> list[MachineFacts]:
    """Machines, some of them reserved now or soon."""
    made = []
    for number in range(draw(st.integers(0, 6))):
        models = draw(st.lists(st.sampled_from(MODELS), max_size=4))
        closed = draw(st.sampled_from(("", "", "", "cordoned: x")))
        vcpu, pool, data = draw(st.sampled_from((4, 8))), draw(st.sampled_from(POOLS)), draw(st.booleans())
        closing = draw(st.lists(windows, max_size=2, unique=True))
        facts = machine(f"m{number}", models, pool=pool, closed=closed, vcpu=vcpu, windows=closing, data=data)
        made.append(facts)
    return made


asks = st.builds(
    PlacementAsk,
    st.builds(Ask, st.integers(0, 4), st.none() | st.integers(1, 8), st.none() | st.sampled_from((GIB, 300 * GIB))),
    pools=st.none() | st.sets(st.sampled_from(("x", "y"))).map(frozenset),
    machine=st.none() | st.sampled_from([f"m{n}" for n in range(6)]),
    pool=st.none() | st.sampled_from(POOLS),
    gpu_model=st.none() | st.sampled_from(MODELS),
    drives=st.booleans(),
    workspace=st.sampled_from(("w1", "w2", "w3")),
    spent_models=st.just(frozenset()) | st.sets(st.sampled_from(MODELS)).map(frozenset),
    room=st.none() | st.builds(Resources, st.just(0), st.integers(0, 8), st.just(256 * GIB), st.just(4096 * GIB)),
)


def closing(facts: MachineFacts, want: PlacementAsk) -> datetime | None:
    """Return when a machine closes for an ask, as it is sorted by; None: it is closed to it."""
    ahead = [window for window in facts.windows if window.end > want.now]
    if refused_by(ahead, want.workspace, want.now, want.sure_end):
        return None
    never = datetime.max.replace(tzinfo=timezone.utc)
    first = min((window.start for window in ahead), default=never)
    if (want.sure_end or never) <= first:
        return first
    return min((window.start for window in ahead if want.workspace not in window.workspaces), default=never)


class Plain:
    """The rules once more, as a search over every machine."""

    def __init__(self, machines: list[MachineFacts]) -> None:
        self.facts = {m.name: m for m in machines}
        self.free = {m.name: m.free for m in machines}
        self.gpus = {m.name: sorted(m.gpus) for m in machines}

    def place(self, want: PlacementAsk) -> tuple[str, tuple[str, ...]] | None:
        found = []
        for name, facts in self.facts.items():
            need, free = on_machine(want.ask, facts.total), self.free[name]
            closes = closing(facts, want)
            if facts.closed or not want.selects(name, facts.pool) or closes is None or want.drives > facts.data:
                continue
            room = want.room or free
            if need.vcpu > room.vcpu or need.ram_mib > room.ram_mib or need.storage_mib > room.storage_mib:
                continue
            if need.vcpu > free.vcpu or need.ram_mib > free.ram_mib or need.storage_mib > free.storage_mib:
                continue
            if want.gpu_model is not None and want.gpu_model not in facts.models:
                continue
            for model in (want.gpu_model,) if want.gpu_model else sorted(facts.models) if want.ask.gpus else (None,):
                gpus = [gpu for gpu in self.gpus[name] if model in (None, gpu.model)]
                spent = bool(want.ask.gpus) and model in want.spent_models
                if len(gpus) >= want.ask.gpus and not spent:
                    given = tuple(gpu.id for gpu in gpus[: want.ask.gpus])
                    found.append((len(gpus), free.vcpu, free.ram_mib, closes, name, model or "", given))
        return (min(found)[4], min(found)[6]) if found else None

    def facts_of(self, name: str) -> MachineFacts:
        return replace(self.facts[name], free=self.free[name], gpus=self.gpus[name])

    def change(self, plan: Plan, sign: int) -> None:
        self.free[plan.machine] = (
            self.free[plan.machine] - plan.resources if sign < 0 else (self.free[plan.machine] + plan.resources)
        )
        kept = [gpu for gpu in self.gpus[plan.machine] if gpu not in plan.gpus]
        self.gpus[plan.machine] = kept if sign < 0 else sorted([*kept, *plan.gpus])


@settings(max_examples=300, deadline=None)
@given(fleets(), st.lists(st.tuples(asks, st.integers(0, 3), st.integers(0, 4), st.integers(0, 6)), max_size=15))
def test_the_index_finds_what_a_plain_search_finds(
    machines: list[MachineFacts], steps: list[tuple[PlacementAsk, int, int, int]]
) -> None:
    fleet, plain = Fleet.of(machines), Plain(machines)
    held: list[Plan] = []
    now = 0.0
    for want, release, goes_by, limit in steps:
        now += goes_by / 2
        want = replace(want, now=at(now), sure_end=at(now + limit) if limit else None)
        plan = try_place(fleet, want)
        assert (plan and (plan.machine, tuple(gpu.id for gpu in plan.gpus))) == plain.place(want)
        if plan is not None:
            fleet.take(plan)
            plain.change(plan, -1)
            held.append(plan)
        else:
            assert all(reasons(fleet, want).values())
        assert fleet.count(want) == len(list(refusals(fleet, want)))
        if release == 0 and held:
            gone = held.pop(0)
            plain.change(gone, 1)
            fleet.replace(plain.facts_of(gone.machine))
        ids = [gpu.id for plan in held for gpu in plan.gpus]
        assert len(ids) == len(set(ids))
        assert all(min(free.vcpu, free.ram_mib, free.storage_mib) >= 0 for free in plain.free.values())
