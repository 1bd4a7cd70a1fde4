"""Placements a second in the domain: at 1,000 and 10,000 machines of 8 GPUs, empty, 95% full, and half of them reserved
soon, each by a window of its own."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from time import perf_counter, process_time

from bench.figures import say
from corral.domain.asks import Gpu, MachineFacts, PlacementAsk, Plan
from corral.domain.fleet import Fleet
from corral.domain.placement import try_place
from corral.domain.reservations import Window
from corral.domain.resources import Ask, Resources

GPUS = 8
TOTAL = Resources(GPUS, 128, 1024 * 1024, 8 * 1024 * 1024)
SIZES = (1_000, 10_000)
ONE = PlacementAsk(Ask(gpus=1))
WHOLE = PlacementAsk(Ask(gpus=GPUS))


NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
SHORT = replace(ONE, workspace="research", now=NOW, sure_end=NOW + timedelta(hours=30))


def machine(number: int, windows: tuple[Window, ...] = ()) -> MachineFacts:
    name = f"gpu-{number:05d}"
    gpus = tuple(
        Gpu(f"00000000:{slot:02x}:00.0", f"GPU-{number}-{slot}", f"{name}/{slot}", "H100") for slot in range(GPUS)
    )
    return MachineFacts(name, name, "h100", "", TOTAL, TOTAL, {"H100": GPUS}, gpus, windows=windows)


def window(number: int) -> Window:
    """Return a reservation for somebody else within the next 500 hours; work of 30 hours ends before most of them."""
    start = NOW + timedelta(hours=1 + number * 7 % 500)
    return Window(str(number), start, start + timedelta(hours=8), frozenset({"others"}), "others")


def fill(fleet: Fleet, count: int) -> None:
    for _ in range(count):
        fleet.take(placed(try_place(fleet, WHOLE)))


def placed(plan: Plan | None) -> Plan:
    if plan is None:
        raise RuntimeError("the fleet is full: the bench asks for more than there is")
    return plan


ROUNDS = 3
"""The best is told: a shared machine only ever makes it slower."""


def rate(fleet: Fleet, count: int, asks: Sequence[PlacementAsk]) -> tuple[float, float]:
    """Return placements of one GPU a second and a CPU second."""
    gc.collect()
    gc.freeze()
    began, cpu = perf_counter(), process_time()
    for number in range(count):
        fleet.take(placed(try_place(fleet, asks[number % len(asks)])))
    return count / (perf_counter() - began), count / (process_time() - cpu)


def full(machines: int, part: float) -> tuple[float, float]:
    """Until half of what is free is taken (at most 20,000)."""
    fleet = Fleet.of(machine(number) for number in range(machines))
    fill(fleet, int(machines * part))
    return rate(fleet, min(20_000, int(machines * GPUS * (1 - part) / 2)), (ONE,))


def reserved(machines: int) -> tuple[float, float]:
    """Work with a time limit and without in turns, where every second machine has a window of its own."""
    fleet = Fleet.of(machine(n, (window(n),) if n % 2 else ()) for n in range(machines))
    return rate(fleet, min(20_000, machines * GPUS // 4), (ONE, SHORT))


def measured(what: dict[str, int], once: Callable[[], tuple[float, float]]) -> dict[str, int]:
    rates = [once() for _ in range(ROUNDS)]
    return {
        **what,
        "placements_per_second": round(max(wall for wall, _ in rates)),
        "placements_per_cpu_second": round(max(cpu for _, cpu in rates)),
    }


def measure() -> list[dict[str, int]]:
    say("placement: in the domain")
    found = []
    for machines in SIZES:
        for part in (0.0, 0.95):
            what = {"machines": machines, "full_percent": int(part * 100)}
            found.append(measured(what, partial(full, machines, part)))
        found.append(measured({"machines": machines, "windows": machines // 2}, partial(reserved, machines)))
    return found
