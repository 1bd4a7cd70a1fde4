"""From create to Active, and from terminate to free capacity, with Podman and an image that is there."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import TypeVar

from bench.figures import Result, cpu_s, memory_mib, say, spending, spread
from corral.client.compute_models import ComputeDetails
from tests.e2e.stack import Stack

T = TypeVar("T")
LOOK_EVERY_S = 0.01
WITHIN_S = 60.0
REST_S = 10.0


def measure(stack: Stack, times: int) -> Result:
    """Carve and terminate one compute cluster after the other; each is looked at every 10 ms by its person."""
    say(f"carve: {times} compute clusters with Podman")
    answered, created, stopped, free, shares = [], [], [], [], list[dict[str, float]]()
    for number in range(-1, times):
        name = f"carve-{number + 1}"
        before = _available(stack)
        began = time.perf_counter()
        stack.workspace.create_compute_cluster(name, vcpu=1, ram_gib=1, storage_gib=1, ssh_keys=["key"])
        answer = time.perf_counter() - began
        active = _until(lambda name=name: _state(stack, name, "active"))  # type: ignore[misc]
        took = time.perf_counter() - began
        began = time.perf_counter()
        stack.workspace.compute_cluster(name).terminate()
        id = active.id
        _until(lambda id=id: _state(stack, id, "terminated"))  # type: ignore[misc]
        ended = time.perf_counter()
        _until(lambda before=before: _available(stack) == before)  # type: ignore[misc]
        if number >= 0:  # the first one warms what runs for all of them
            answered.append(1000 * answer)
            created.append(1000 * took)
            stopped.append(1000 * (ended - began))
            free.append(1000 * (time.perf_counter() - ended))
            shares.append(_steps(active))
    names = list(shares[0])
    return {
        "create_answered_ms": spread(answered),
        "create_to_active_ms": spread(created),
        "target_create_ms": 1000,
        "steps_ms": {name: round(median(share.get(name, 0.0) for share in shares), 1) for name in names},
        "terminate_to_terminated_ms": spread(stopped),
        "terminated_to_capacity_shown_ms": spread(free),
        "target_capacity_ms": 200,
    }


def agent(stack: Stack) -> Result:
    """Return what the agent is at rest. Its runtime's service and probe are processes of their own."""
    process = stack.machines[0].process
    assert process is not None
    say(f"agent: {REST_S:.0f} s at rest")
    with spending(process.pid) as spent:
        time.sleep(REST_S)
    return {
        "rss_mib": memory_mib(process.pid),
        "target_rss_mib": 50,
        "cpu_percent_of_a_core": spent.percent,
        "target_cpu_percent": 1.0,
        "cpu_s_since_start": round(cpu_s(process.pid), 2),
    }


def _state(stack: Stack, name: str, state: str) -> ComputeDetails | None:
    now = stack.show(name)
    if now.state == "failed":
        raise RuntimeError(f"{name} failed: {now.reason}")
    return now if now.state == state else None


def _available(stack: Stack) -> int:
    machine = next(iter(stack.workspace.machines()))
    return int(machine.ram_mib)


def _steps(active: ComputeDetails) -> dict[str, float]:
    """Return how long each step took, in ms, by the control plane's journal."""
    entries = [(change.step or change.type.removeprefix("workload."), change.at) for change in active.history]
    return {name: (after - at).total_seconds() * 1000 for (name, at), (_, after) in pairwise(entries)}


def _until(look: Callable[[], T | None]) -> T:
    until = time.monotonic() + WITHIN_S
    while time.monotonic() < until:
        if found := look():
            return found
        time.sleep(LOOK_EVERY_S)
    raise RuntimeError(f"not within {WITHIN_S:.0f} s")
