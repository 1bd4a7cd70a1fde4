"""Placement: best fit, deterministic, with reasons; the index says what a plain search would (spec 30)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.domain import asks as terms
from corral.domain import fleet as index
from corral.domain import placement
from corral.domain.asks import Ahead, Gpu, Kind, MachineFacts, PlacementAsk, Plan
from corral.domain.fleet import Fleet
from corral.domain.placement import REASONS_KEPT, explain, refusals, try_place, why_it_waits
from corral.domain.resources import Ask, Resources, on_machine

GIB = 1024


def machine(
    name: str,
    models: Sequence[str] = ("H100",) * 8,
    *,
    pool: str = "",
    closed: str = "",
    vcpu: int = 64,
    faulty: int = 0,
) -> MachineFacts:
    total = Resources(len(models), vcpu, 512 * GIB, 4096 * GIB)
    gpus = [Gpu(f"0000:{slot:02x}:00.0", f"{name}-{slot}", f"{name}/{slot}", m) for slot, m in enumerate(models)]
    return MachineFacts(name, name, pool, closed, total, total, Counter(models), gpus[faulty:], faulty)


NOBODY = Ahead()


def planned(fleet: Fleet, want: PlacementAsk, ahead: Ahead = NOBODY) -> Plan:
    plan = try_place(fleet, want, ahead)
    assert plan is not None, dict(refusals(fleet, want, ahead))
    return plan


def reasons(fleet: Fleet, want: PlacementAsk, ahead: Ahead = NOBODY) -> dict[str, str]:
    assert try_place(fleet, want, ahead) is None
    return dict(refusals(fleet, want, ahead))


def test_the_machine_with_the_fewest_free_gpus_is_taken_so_whole_machines_stay_whole() -> None:
    fleet = Fleet.of([machine("a"), machine("b")])
    first = planned(fleet, PlacementAsk(Ask(gpus=3)))
    fleet.take(first)
    second = planned(fleet, PlacementAsk(Ask(gpus=5)))
    fleet.take(second)
    assert (first.machine, second.machine) == ("a", "a")
    assert planned(fleet, PlacementAsk(Ask(gpus=8))).machine == "b"


def test_among_equals_the_one_with_least_free_vcpu_then_the_first_by_name() -> None:
    fleet = Fleet.of([machine("c"), machine("b"), machine("a", vcpu=96)])
    assert planned(fleet, PlacementAsk(Ask(gpus=1))).machine == "b"


def test_gpus_are_given_in_pci_bus_order_and_come_back() -> None:
    fleet = Fleet.of([machine("a")])
    first = planned(fleet, PlacementAsk(Ask(gpus=2)))
    assert [gpu.slot for gpu in first.gpus] == ["0000:00:00.0", "0000:01:00.0"]
    fleet.take(first)
    fleet.take(planned(fleet, PlacementAsk(Ask(gpus=1))))
    fleet.replace(machine("a"))
    assert planned(fleet, PlacementAsk(Ask(gpus=2))).gpus == first.gpus


def test_the_gpus_of_one_workload_are_of_one_model() -> None:
    fleet = Fleet.of([machine("mixed", ("A100", "A100", "H100", "H100"))])
    assert {gpu.model for gpu in planned(fleet, PlacementAsk(Ask(gpus=2))).gpus} == {"A100"}
    assert reasons(fleet, PlacementAsk(Ask(gpus=3))) == {"mixed": "2 of 4 GPUs free, 3 asked of one model"}


def test_selectors_intersect() -> None:
    fleet = Fleet.of([machine("a", pool="x"), machine("b", pool="y"), machine("c", ("A100",) * 4, pool="y")])
    assert planned(fleet, PlacementAsk(Ask(gpus=1), pool="y", gpu_model="H100")).machine == "b"
    assert planned(fleet, PlacementAsk(Ask(), machine="c", pool="y")).machine == "c"
    assert reasons(fleet, PlacementAsk(Ask(gpus=1), machine="a", pool="y")) == {}


def test_work_without_gpus_goes_where_gpus_are_taken_first() -> None:
    fleet = Fleet.of([machine("whole"), machine("taken")])
    fleet.take(planned(fleet, PlacementAsk(Ask(gpus=8, vcpu=8, ram_mib=GIB, storage_mib=GIB), machine="taken")))
    plan = planned(fleet, PlacementAsk(Ask()))
    assert (plan.machine, plan.gpus, plan.resources) == ("taken", (), Resources(0, 1, 2 * GIB, 10 * GIB))


def test_machines_outside_the_granted_pools_are_never_named() -> None:
    fleet = Fleet.of(
        [machine("mine", pool="a", closed="down since noon"), machine("theirs", pool="b"), machine("none")]
    )
    want = PlacementAsk(Ask(gpus=1), pools=frozenset({"a"}))
    assert reasons(fleet, want) == {"mine": "down since noon"}
    assert [answer.machine for answer in explain(fleet, want)] == ["mine"]


def test_each_reason_says_what_is_short_in_numbers() -> None:
    fleet = Fleet.of([machine("a", faulty=2), machine("cpu", ()), machine("c", closed="cordoned: maintenance")])
    assert reasons(fleet, PlacementAsk(Ask(gpus=8))) == {
        "a": "6 of 8 GPUs free (2 faulty or busy), 8 asked",
        "c": "cordoned: maintenance",
        "cpu": "has no GPU, 8 asked",
    }
    want = PlacementAsk(Ask(gpus=1, vcpu=65), machine="a")
    assert reasons(fleet, want) == {"a": "64 of 64 vCPU free, 65 asked"}
    want = PlacementAsk(Ask(ram_mib=513 * GIB), machine="a")
    assert reasons(fleet, want) == {"a": "512 of 512 GiB RAM free, 513 asked"}
    want = PlacementAsk(Ask(storage_mib=5000 * GIB), machine="a")
    assert reasons(fleet, want) == {"a": "4096 of 4096 GiB storage free, 5000 asked"}
    want = PlacementAsk(Ask(gpus=1), machine="a", gpu_model="A100")
    assert reasons(fleet, want) == {"a": "has H100, A100 asked"}


def test_a_later_ask_takes_no_machine_that_an_earlier_waiting_one_could_use() -> None:
    fleet = Fleet.of([machine("a", pool="x"), machine("b", pool="y")])
    fleet.take(planned(fleet, PlacementAsk(Ask(gpus=1), pool="x")))
    ahead = Ahead()
    ahead.add(PlacementAsk(Ask(gpus=8), pool="x"))
    assert reasons(fleet, PlacementAsk(Ask(gpus=1), pool="x"), ahead) == {"a": "kept for work that has waited longer"}
    assert planned(fleet, PlacementAsk(Ask(gpus=1)), ahead).machine == "b"


def test_what_could_never_be_placed_holds_nobody_back() -> None:
    fleet, ahead = Fleet.of([machine("a")]), Ahead()
    ahead.add(PlacementAsk(Ask(gpus=16)))
    assert planned(fleet, PlacementAsk(Ask(gpus=1)), ahead).machine == "a"


def test_a_machine_waited_for_by_name_is_kept_and_others_are_not() -> None:
    fleet, ahead = Fleet.of([machine("a"), machine("b")]), Ahead()
    ahead.add(PlacementAsk(Ask(gpus=8), machine="a"))
    assert planned(fleet, PlacementAsk(Ask(gpus=1)), ahead).machine == "b"


def test_many_asks_that_wait_are_each_looked_at_once_for_a_kind_of_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[PlacementAsk] = []
    could = terms.could_ever

    def looking(kind: Kind, ask: PlacementAsk) -> bool:
        looked.append(ask)
        return could(kind, ask)

    monkeypatch.setattr(terms, "could_ever", looking)
    fleet, ahead = Fleet.of([machine("a"), machine("b")]), Ahead()
    for _ in range(50):
        ahead.add(PlacementAsk(Ask(gpus=16)))
        assert planned(fleet, PlacementAsk(Ask(gpus=1)), ahead).machine == "a"
    assert len(looked) == 50
    ahead.add(PlacementAsk(Ask(gpus=8)))
    assert set(reasons(fleet, PlacementAsk(Ask(gpus=1)), ahead).values()) == {"kept for work that has waited longer"}


def test_why_something_waits_names_some_machines_and_judges_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet.of([machine(f"m{n:03}", pool="ab"[n % 2]) for n in range(100)])
    judged: list[str] = []
    why_not = placement.why_not

    def judging(fleet: Fleet, machine: index.Machine, want: PlacementAsk, ahead: Ahead) -> str:
        judged.append(machine.facts.name)
        return why_not(fleet, machine, want, ahead)

    monkeypatch.setattr(placement, "why_not", judging)
    said = why_it_waits(fleet, PlacementAsk(Ask(gpus=9), pool="b"))
    assert said.startswith("m001: 8 of 8 GPUs free, 9 asked; m003: ") and said.endswith("; and 30 more machines")
    assert len(judged) == said.count(": ") == REASONS_KEPT
    assert why_it_waits(fleet, PlacementAsk(Ask(gpus=9), machine="m000")) == "m000: 8 of 8 GPUs free, 9 asked"
    assert why_it_waits(fleet, PlacementAsk(Ask(), pool="c")).startswith("no machine that this workspace may use")


# ---- what machines report and people ask for


def _size(fleet: Fleet) -> int:
    """Return how many things a fleet remembers."""
    levels = [level for cell in fleet._cells.values() for level in cell.levels]
    shelves = [shelf for level in levels for shelf in (level.open, *level.others.values())]
    heaps = [len(shape.heap) for shelf in shelves for shape in shelf.shapes.values()]
    kept = len(fleet.machines) + len(fleet._names) + len(fleet._cells) + len(fleet._kinds) + len(fleet._by_number)
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


# ---- the index against a plain search

POOLS, MODELS = ("", "x", "y"), ("A100", "H100")


@st.composite
def fleets(draw: st.DrawFn) -> list[MachineFacts]:
    made = []
    for number in range(draw(st.integers(0, 6))):
        models = draw(st.lists(st.sampled_from(MODELS), max_size=4))
        closed = draw(st.sampled_from(("", "", "", "cordoned: x")))
        vcpu = draw(st.sampled_from((4, 8)))
        made.append(machine(f"m{number}", models, pool=draw(st.sampled_from(POOLS)), closed=closed, vcpu=vcpu))
    return made


asks = st.builds(
    PlacementAsk,
    st.builds(Ask, st.integers(0, 4), st.none() | st.integers(1, 8), st.none() | st.sampled_from((GIB, 300 * GIB))),
    pools=st.none() | st.sets(st.sampled_from(("x", "y"))).map(frozenset),
    machine=st.none() | st.sampled_from([f"m{n}" for n in range(6)]),
    pool=st.none() | st.sampled_from(POOLS),
    gpu_model=st.none() | st.sampled_from(MODELS),
)


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
            if facts.closed or not want.selects(name, facts.pool):
                continue
            if need.vcpu > free.vcpu or need.ram_mib > free.ram_mib or need.storage_mib > free.storage_mib:
                continue
            if want.gpu_model is not None and want.gpu_model not in facts.models:
                continue
            for model in (want.gpu_model,) if want.gpu_model else sorted(facts.models) if want.ask.gpus else (None,):
                gpus = [gpu for gpu in self.gpus[name] if model in (None, gpu.model)]
                if len(gpus) >= want.ask.gpus:
                    given = tuple(gpu.id for gpu in gpus[: want.ask.gpus])
                    found.append((len(gpus), free.vcpu, free.ram_mib, name, model or "", given))
        return (min(found)[3], min(found)[5]) if found else None

    def facts_of(self, name: str) -> MachineFacts:
        return replace(self.facts[name], free=self.free[name], gpus=self.gpus[name])

    def change(self, plan: Plan, sign: int) -> None:
        self.free[plan.machine] = (
            self.free[plan.machine] - plan.resources if sign < 0 else (self.free[plan.machine] + plan.resources)
        )
        kept = [gpu for gpu in self.gpus[plan.machine] if gpu not in plan.gpus]
        self.gpus[plan.machine] = kept if sign < 0 else sorted([*kept, *plan.gpus])


@settings(max_examples=300, deadline=None)
@given(fleets(), st.lists(st.tuples(asks, st.integers(0, 3)), max_size=15))
def test_the_index_finds_what_a_plain_search_finds(
    machines: list[MachineFacts], steps: list[tuple[PlacementAsk, int]]
) -> None:
    fleet, plain = Fleet.of(machines), Plain(machines)
    held: list[Plan] = []
    for want, release in steps:
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
