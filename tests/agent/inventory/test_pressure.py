"""Spec 10, "Machine states": new work unless under pressure (disk, memory)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.agent.inventory import pressure
from corral.agent.inventory.pressure import GIB, Level, Pressure

PLENTY = Level(64 * GIB, 32 * GIB)
levels = st.builds(Level, st.integers(0, 1 << 30), st.integers(0, 1 << 30))


@pytest.mark.parametrize(
    ("whole_gib", "free_mib", "short"),
    [
        (20, 2 * GIB - 1, True),  # below 2 GiB
        (20, 2 * GIB, False),
        (400, 20 * GIB - 1, True),  # below 5 percent
        (400, 20 * GIB, False),
        (100_000, 50 * GIB - 1, True),  # a big disk: 50 GiB are enough
        (100_000, 50 * GIB, False),
        (0, 0, False),  # not known
    ],
)
def test_a_disk_is_short_below_a_share_or_a_fixed_amount(whole_gib: int, free_mib: int, short: bool) -> None:
    now = pressure.after(Pressure(), Level(whole_gib * GIB, free_mib), PLENTY)
    assert [c.kind for c in pressure.conditions(now)] == (["disk_pressure"] if short else [])


def test_memory_is_short_below_three_percent() -> None:
    whole = 100 * GIB
    assert pressure.after(Pressure(), PLENTY, Level(whole, 3 * GIB - 1)) == Pressure(memory=True)
    assert pressure.after(Pressure(), PLENTY, Level(whole, 3 * GIB)) == Pressure()


def test_what_is_short_stays_so_until_there_is_clearly_more() -> None:
    was = Pressure(disk=True, memory=True)
    edge = pressure.after(was, Level(400 * GIB, 24 * GIB), Level(100 * GIB, 4 * GIB))
    assert edge == was
    assert pressure.after(was, Level(400 * GIB, 28 * GIB), Level(100 * GIB, 5 * GIB)) == Pressure()


def test_both_conditions_keep_new_work_away() -> None:
    found = pressure.conditions(Pressure(disk=True, memory=True))
    assert [(c.kind, c.blocking) for c in found] == [("disk_pressure", True), ("memory_pressure", True)]


@given(levels, levels)
def test_what_enters_does_not_leave_at_the_same_levels(disk: Level, memory: Level) -> None:
    for was in (Pressure(), Pressure(disk=True, memory=True)):
        now = pressure.after(was, disk, memory)
        assert pressure.after(now, disk, memory) == now


@given(levels, levels)
def test_text_does_not_change_with_the_levels(disk: Level, memory: Level) -> None:
    both = pressure.conditions(Pressure(disk=True, memory=True))
    assert set(pressure.conditions(pressure.after(Pressure(), disk, memory))) <= set(both)
