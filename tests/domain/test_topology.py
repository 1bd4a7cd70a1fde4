"""Where GPUs are and what of one a developer may know (domain/topology.py)."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from corral.domain.inventory import GpuState
from corral.domain.topology import GpuUse, Machine, gpu_use, tree

LABELS = st.sampled_from(["", "a", "b"])


def machine(name: str, site: str, rack: str, fabric: str) -> Machine:
    return Machine(name, "default", "", site, rack, fabric, "available", ())


@given(st.lists(st.tuples(LABELS, LABELS, LABELS), max_size=12))
def test_every_machine_stands_once_under_its_own_labels(places: list[tuple[str, str, str]]) -> None:
    machines = [machine(f"m{n}", *place) for n, place in enumerate(sorted(places))]
    found = [
        (site.name, rack.name, fabric.name, one.name)
        for site in tree(machines)
        for rack in site.racks
        for fabric in rack.fabrics
        for one in fabric.machines
    ]
    assert found == [(one.site, one.rack, one.fabric, one.name) for one in machines]
    assert len(tree(machines)) == len({site for site, _, _ in places})


def test_a_fault_is_told_before_anything_else() -> None:
    for state, busy, held in product(GpuState, ("", "someone"), (False, True)):
        use = gpu_use(state, busy, held=held, fenced=True)
        assert use is (GpuUse.MISSING if state is GpuState.MISSING else GpuUse.FAULTY)
    assert gpu_use(GpuState.UNREADABLE, "", held=True, fenced=False) is GpuUse.FAULTY


def test_a_well_gpu_is_allocated_busy_or_free() -> None:
    assert gpu_use(GpuState.OK, "", held=False, fenced=False) is GpuUse.FREE
    assert gpu_use(GpuState.OK, "someone", held=False, fenced=False) is GpuUse.BUSY
    assert gpu_use(GpuState.OK, "someone", held=True, fenced=False) is GpuUse.ALLOCATED
