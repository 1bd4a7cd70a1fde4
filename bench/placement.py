"""Placements a second in the domain: at 1,000 and 10,000 machines of 8 GPUs, empty and 95% full."""

from __future__ import annotations

import gc
from time import perf_counter, process_time

from bench.figures import say
from corral.domain.asks import Gpu, MachineFacts, PlacementAsk, Plan
from corral.domain.fleet import Fleet
from corral.domain.placement import try_place
from corral.domain.resources import Ask, Resources

GPUS = 8
TOTAL = Resources(GPUS, 128, 1024 * 1024, 8 * 1024 * 1024)
SIZES = (1_000, 10_000)
ONE = PlacementAsk(Ask(gpus=1))
WHOLE = PlacementAsk(Ask(gpus=GPUS))


def machine(number: int) -> MachineFacts:
    name = f"gpu-{number:05d}"
    gpus = tuple(
        Gpu(f"00000000:{slot:02x}:00.0", f"GPU-{number}-{slot}", f"{name}/{slot}", "H100") for slot in range(GPUS)
    )
    return MachineFacts(name, name, "h100", "", TOTAL, TOTAL, {"H100": GPUS}, gpus)


def fill(fleet: Fleet, count: int) -> None:
    for _ in range(count):
        fleet.take(placed(try_place(fleet, WHOLE)))


def placed(plan: Plan | None) -> Plan:
    if plan is None:
        raise RuntimeError("the fleet is full: the bench asks for more than there is")
    return plan


ROUNDS = 3
"""The best is told: a shared machine only ever makes it slower."""


def rate(machines: int, full: float) -> tuple[float, float]:
    """Return placements of one GPU a second and a CPU second, until half of what is free is taken (at most 20,000)."""
    fleet = Fleet.of(machine(number) for number in range(machines))
    fill(fleet, int(machines * full))
    count = min(20_000, int(machines * GPUS * (1 - full) / 2))
    gc.collect()
    gc.freeze()
    began, cpu = perf_counter(), process_time()
    for _ in range(count):
        fleet.take(placed(try_place(fleet, ONE)))
    return count / (perf_counter() - began), count / (process_time() - cpu)


def measured(machines: int, full: float) -> dict[str, int]:
    rates = [rate(machines, full) for _ in range(ROUNDS)]
    return {
        "machines": machines,
        "full_percent": int(full * 100),
        "placements_per_second": round(max(wall for wall, _ in rates)),
        "placements_per_cpu_second": round(max(cpu for _, cpu in rates)),
    }


def measure() -> list[dict[str, int]]:
    say("placement: in the domain")
    return [measured(machines, full) for machines in SIZES for full in (0.0, 0.95)]
