"""States, cordon and what developers read beside a machine (spec 10, spec 20)."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from corral.domain.errors import Refusal
from corral.domain.inventory import GpuCounts
from corral.domain.machines import (
    DOWN_AFTER,
    MachineState,
    Standing,
    closed_because,
    cordon_reason,
    state_after,
    status_text,
)

IDLE, UP, DOWN = MachineState.IDLE, MachineState.UP, MachineState.DOWN
NOW = datetime(2026, 3, 1, tzinfo=timezone.utc)
SECOND = timedelta(seconds=1)
LONG_AGO = NOW - timedelta(hours=5)


def test_a_machine_that_never_reported_is_idle() -> None:
    assert state_after(IDLE, None, LONG_AGO, NOW) is IDLE


def test_a_machine_is_down_after_60_seconds_of_silence() -> None:
    assert state_after(UP, NOW - DOWN_AFTER + SECOND, LONG_AGO, NOW) is UP
    assert state_after(UP, NOW - DOWN_AFTER, LONG_AGO, NOW) is DOWN


def test_an_outage_of_the_control_plane_marks_nothing_down() -> None:
    an_hour_ago = NOW - timedelta(hours=1)
    assert state_after(UP, an_hour_ago, listening_since=NOW - SECOND, now=NOW) is UP


def test_silence_after_an_outage_counts_from_its_end() -> None:
    an_hour_ago = NOW - timedelta(hours=1)
    assert state_after(UP, an_hour_ago, listening_since=NOW - DOWN_AFTER, now=NOW) is DOWN


def test_what_was_down_stays_so_until_it_reports() -> None:
    since = NOW - SECOND
    assert state_after(DOWN, since - SECOND, since, NOW) is DOWN
    assert state_after(DOWN, NOW, since, NOW) is UP


@pytest.mark.parametrize(
    ("standing", "why"),
    [
        (Standing(UP, None, None, ""), ""),
        (Standing(IDLE, None, None, ""), "has not reported yet"),
        (Standing(DOWN, "disk swap", None, ""), "down"),
        (Standing(UP, "disk swap", None, ""), "cordoned: disk swap"),
        (Standing(UP, None, "clone", ""), "quarantined: two copies of it report"),
        (Standing(UP, None, "unknown_work", ""), "quarantined: it runs work that this site does not know"),
        (Standing(UP, None, None, "disk_pressure: full"), "disk_pressure: full"),
    ],
)
def test_why_no_new_work_lands_on_a_machine(standing: Standing, why: str) -> None:
    assert closed_because(standing) == why


@pytest.mark.parametrize(
    ("closed", "gpus", "quota", "text"),
    [
        ("", GpuCounts(8, 8, 7, 1), False, "available"),
        ("", GpuCounts(8, 8, 8, 0), False, "Sold Out"),
        ("", GpuCounts(8, 6, 6, 0), False, "Sold Out"),
        ("", GpuCounts(8, 0, 0, 0), False, "all GPUs faulty"),
        ("", GpuCounts(8, 8, 4, 0), False, "GPUs busy: held by processes outside Corral"),
        ("", GpuCounts(8, 8, 0, 8), True, "quota reached"),
        ("", GpuCounts(), False, "available"),
        ("", GpuCounts(), True, "quota reached"),
        ("down", GpuCounts(8, 8, 8, 0), True, "down"),
    ],
)
def test_what_a_developer_reads_beside_a_machine(closed: str, gpus: GpuCounts, quota: bool, text: str) -> None:
    assert status_text(closed, gpus, quota) == text


def test_a_cordon_without_a_reason_is_maintenance() -> None:
    assert cordon_reason(None) == cordon_reason("  ") == "maintenance"
    assert cordon_reason(" disk swap ") == "disk swap"


@pytest.mark.parametrize("reason", ["x" * 201, "a\x1b[2J", "a\nb", "\u202eabc", "\x00"])
def test_a_reason_is_short_and_printable(reason: str) -> None:
    with pytest.raises(Refusal) as refused:
        cordon_reason(reason)
    assert refused.value.code == "INVALID_REQUEST"
