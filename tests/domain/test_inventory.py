"""Which GPUs a machine has (spec 40, "GPUs and their health"): rules, and properties over any course of reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from corral.domain.inventory import MAX_GPUS, STAND_IN, Gpu, GpuState, Inventory, Kept, assignable, fitted, judge_gpus

OK, MISSING, UNREADABLE, CONFLICT = GpuState.OK, GpuState.MISSING, GpuState.UNREADABLE, GpuState.CONFLICT


def gpu(uuid: str, slot: str = "", state: GpuState = OK, busy: str = "") -> Gpu:
    return Gpu("nvidia", uuid, slot or f"slot-{uuid}", "H100", 81920, "", state, "", busy)


def after(kept: Sequence[Kept], reported: Sequence[Gpu]) -> list[Kept]:
    """Return what is kept after a report."""
    changes = judge_gpus(kept, reported)
    changed = {(c.now.gpu.vendor, c.now.gpu.uuid): c.now for c in changes}
    known = [changed.pop((old.gpu.vendor, old.gpu.uuid), old) for old in kept]
    return [*known, *changed.values()]


def can_be_given(gpu: Gpu) -> bool:
    return assignable(gpu.state, gpu.busy, fenced=False)


def test_new_gpus_are_kept_as_reported() -> None:
    assert after([], [gpu("a"), gpu("b", state=UNREADABLE)]) == [Kept(gpu("a")), Kept(gpu("b", state=UNREADABLE))]


def test_one_bad_gpu_leaves_the_others_assignable() -> None:
    kept = after([], [gpu("a", state=UNREADABLE), gpu("b"), gpu("c")])
    assert [can_be_given(one.gpu) for one in kept] == [False, True, True]


def test_a_gpu_that_is_not_reported_any_more_stays_as_a_fault() -> None:
    kept = after([Kept(gpu("a")), Kept(gpu("b"))], [gpu("b")])
    assert kept[0].gpu.state is MISSING
    assert not kept[0].gone
    assert kept[0].gpu.detail


def test_another_readable_uuid_in_its_slot_replaces_it() -> None:
    kept = after([Kept(gpu("a", "s1"))], [gpu("b", "s1")])
    assert kept[0].gone
    assert kept[1] == Kept(gpu("b", "s1"))


def test_a_missing_one_that_the_machine_remembers_is_replaced_too() -> None:
    kept = after([Kept(gpu("a", "s1"))], [gpu("a", "s1", MISSING), gpu("b", "s1")])
    assert kept[0].gone


def test_an_unreadable_one_in_its_slot_replaces_nothing() -> None:
    kept = after([Kept(gpu("a", "s1"))], [gpu("b", "s1", UNREADABLE)])
    assert not kept[0].gone
    assert kept[0].gpu.state is MISSING


def test_a_gpu_moved_to_another_slot_is_not_replaced() -> None:
    kept = after([Kept(gpu("a", "s1"))], [gpu("a", "s2"), gpu("b", "s1")])
    assert kept == [Kept(gpu("a", "s2")), Kept(gpu("b", "s1"))]


def test_a_replaced_gpu_that_is_put_back_counts_again() -> None:
    replaced = after([Kept(gpu("a", "s1"))], [gpu("b", "s1")])
    assert Kept(gpu("a", "s2")) in after(replaced, [gpu("a", "s2"), gpu("b", "s1")])


def test_two_devices_with_one_uuid_are_a_conflict() -> None:
    (kept,) = after([], [gpu("a", "s1"), gpu("a", "s2")])
    assert kept.gpu.state is CONFLICT
    assert "s1" in kept.gpu.detail
    assert "s2" in kept.gpu.detail


def test_a_gpu_that_never_told_its_uuid_is_not_missed() -> None:
    stand_in = gpu(STAND_IN + "index-3", state=UNREADABLE)
    kept = after(after([], [stand_in]), [gpu("a")])
    assert [one.gone for one in kept] == [True, False]


def test_gpus_of_different_vendors_may_share_a_uuid() -> None:
    kept = after([], [gpu("a", "s1"), replace(gpu("a", "s2"), vendor="amd")])
    assert [one.gpu.state for one in kept] == [OK, OK]


def test_what_a_machines_root_claims_is_made_to_fit() -> None:
    wild = Gpu("n" * 50, "u" * 200, "s" * 99, "m\x00" * 200, 2**70, "x" * 99, OK, "d" * 999, "b" * 999)
    made = fitted(Inventory("d" * 99, "h\x00", 2**70, -5, 1, [wild] * (MAX_GPUS + 9), {}))
    one = made.gpus[0]
    sizes = [len(text) for text in (one.vendor, one.uuid, one.slot, one.model, one.serial, one.detail, one.busy)]
    assert sizes == [20, 96, 32, 100, 64, 300, 300]
    assert (one.memory_mib, made.vcpu, made.ram_mib) == (2**31 - 1, 2**31 - 1, 0)
    assert len(made.gpus) == MAX_GPUS
    assert "\x00" not in made.hostname + one.model


uuids = st.sampled_from(["a", "b", "c", "d", STAND_IN + "x"])
gpus = st.builds(gpu, uuids, st.sampled_from(["s1", "s2", "s3"]), st.sampled_from(list(GpuState)), st.just(""))
reports = st.lists(st.lists(gpus, max_size=6), max_size=6)


@given(reports)
def test_the_same_report_twice_changes_nothing(course: list[list[Gpu]]) -> None:
    kept: list[Kept] = []
    for report in course:
        kept = after(kept, report)
        assert judge_gpus(kept, report) == []


@given(reports)
def test_no_gpu_is_ever_forgotten_and_none_is_kept_twice(course: list[list[Gpu]]) -> None:
    kept: list[Kept] = []
    ever: set[str] = set()
    for report in course:
        kept = after(kept, report)
        ever |= {one.uuid for one in report}
        assert sorted(one.gpu.uuid for one in kept) == sorted(ever)


@given(reports)
def test_only_what_this_report_says_is_healthy_is_assignable(course: list[list[Gpu]]) -> None:
    kept: list[Kept] = []
    for report in course:
        kept = after(kept, report)
        said = [one.uuid for one in report]
        healthy = {one.uuid for one in report if can_be_given(one) and said.count(one.uuid) == 1}
        assert {one.gpu.uuid for one in kept if can_be_given(one.gpu) and not one.gone} == healthy


@given(reports)
def test_a_gpu_is_replaced_only_by_a_readable_one_in_a_slot(course: list[list[Gpu]]) -> None:
    kept: list[Kept] = []
    for report in course:
        before = {one.gpu.uuid: one for one in kept}
        kept = after(kept, report)
        readable = {one.slot for one in report if one.state is OK}
        for one in kept:
            newly = one.gone and not before.get(one.gpu.uuid, Kept(one.gpu)).gone
            assert not newly or readable or one.gpu.uuid.startswith(STAND_IN)


@given(st.integers(MAX_GPUS, MAX_GPUS + 50))
def test_a_flood_of_gpus_is_cut(count: int) -> None:
    kept = after([], [gpu(str(n)) for n in range(count)])
    assert len(kept) == MAX_GPUS
    assert len(after(kept, [gpu(f"other-{n}") for n in range(count)])) == MAX_GPUS
