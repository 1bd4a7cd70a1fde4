"""Machines as placement sees them, and short ways to ask, for tests of the domain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

from corral.domain.asks import Ahead, Gpu, MachineFacts, PlacementAsk, Plan
from corral.domain.fleet import Fleet
from corral.domain.placement import refusals, try_place
from corral.domain.reservations import Window, whom
from corral.domain.resources import Resources

GIB = 1024


def machine(
    name: str,
    models: Sequence[str] = ("H100",) * 8,
    *,
    pool: str = "",
    closed: str = "",
    vcpu: int = 64,
    faulty: int = 0,
    windows: Sequence[Window] = (),
    data: bool = False,
) -> MachineFacts:
    total = Resources(len(models), vcpu, 512 * GIB, 4096 * GIB)
    gpus = [Gpu(f"0000:{slot:02x}:00.0", f"{name}-{slot}", f"{name}/{slot}", m) for slot, m in enumerate(models)]
    free, held = gpus[faulty:], Counter(models)
    return MachineFacts(name, name, pool, closed, total, total, held, free, faulty, tuple(windows), data)


NOBODY = Ahead()


def planned(fleet: Fleet, want: PlacementAsk, ahead: Ahead = NOBODY) -> Plan:
    plan = try_place(fleet, want, ahead)
    assert plan is not None, dict(refusals(fleet, want, ahead))
    return plan


def reasons(fleet: Fleet, want: PlacementAsk, ahead: Ahead = NOBODY) -> dict[str, str]:
    assert try_place(fleet, want, ahead) is None
    return dict(refusals(fleet, want, ahead))


NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


def at(hours: float) -> datetime:
    """Return a moment so many hours after noon."""
    return NOON + timedelta(hours=hours)


def window(start: float, end: float, *workspaces: str) -> Window:
    """Return a reservation from so many hours after noon to so many."""
    return Window(f"{start}-{end}-{workspaces}", at(start), at(end), frozenset(workspaces), whom(workspaces))
