"""What a machine's root can cause as often as it likes is written so often a minute, and no more."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import select

from corral.domain.allocations import Seen
from corral.domain.compute_clusters import Creation
from corral.domain.events import LIMITED, TYPES, Class
from corral.domain.inventory import Gpu, GpuState, Inventory
from corral.domain.machines import Quarantine
from corral.domain.sessions import Opened, Report
from corral.store.quieted import A_MINUTE
from corral.store.tables.journal import journal
from corral.usecases import reports, sessions
from tests.conftest import Clock
from tests.placing import create, ref, saying
from tests.world import World


@pytest.fixture
def world(world_on_both: World) -> World:
    world_on_both.add_machine("gpu-1", gpu_count=1)
    return world_on_both


def hear(world: World, said: Report) -> None:
    where = ref(world, "gpu-1")
    with world.db.write() as tx:
        reports.receive(tx, Opened(where.id, where.org_id, where.cluster_id, where.name, 0, ""), said)


def entries(world: World, *types: str) -> list[dict[str, Any]]:
    with world.db.read() as tx:
        rows = tx.all(select(journal).where(journal.c.type.in_(types)).order_by(journal.c.seq))
    return [dict(row) for row in rows]


def _flips(number: int) -> Report:
    """A report in which each of 250 GPUs is another state than in the one before."""
    state = GpuState.OK if number % 2 else GpuState.UNREADABLE
    gpus = [Gpu("nvidia", f"GPU-{n}", f"{n}", "H100", 1, "", state, "d" * 300, "") for n in range(250)]
    return Report("", f"d{number}", Inventory(f"d{number}", "h", 16, 65536, 1_048_576, gpus, {}), (), ())


def test_a_machine_that_changes_with_every_report_writes_so_much_a_minute_and_says_so(
    world: World, clock: Clock
) -> None:
    for number in range(A_MINUTE + 10):
        hear(world, _flips(number))
    assert len(entries(world, "cluster.node.inventory")) == A_MINUTE
    (quieted,) = entries(world, "cluster.node.quieted")
    assert (quieted["machine_id"], quieted["event"], quieted["audit"]) == (ref(world, "gpu-1").id, True, True)
    clock.forward(61)
    hear(world, _flips(A_MINUTE + 12))
    assert len(entries(world, "cluster.node.inventory")) == A_MINUTE + 1


def test_what_the_audit_has_is_never_left_out(world: World) -> None:
    assert {kind for kind in LIMITED if TYPES[kind][0] is not Class.EVENT} == set()
    for number in range(A_MINUTE + 10):
        hear(world, _flips(number))
    with world.db.write() as tx:
        sessions.quarantine(tx, ref(world, "gpu-1"), Quarantine.UNKNOWN_WORK, "It runs what nobody knows.")
        sessions.quarantine(tx, ref(world, "gpu-1"), Quarantine.CLONE, "Two copies report in turn.")
    told = entries(world, "cluster.node.unknown_work", "cluster.node.cloned")
    assert [(entry["type"], entry["audit"]) for entry in told] == [
        ("cluster.node.unknown_work", True),
        ("cluster.node.cloned", True),
    ]


def test_an_entry_names_a_few_gpus_and_counts_the_rest(world: World) -> None:
    hear(world, _flips(0))
    hear(world, _flips(1))
    entry = entries(world, "cluster.node.inventory")[-1]
    assert (len(entry["data"]["gpus"]), entry["data"]["gpus_left_out"]) == (16, 234)
    assert len(json.dumps(entry["data"])) < 10_000


def test_steps_and_out_of_memory_are_limited_by_workload_and_changes_of_state_never(world: World) -> None:
    create(world, Creation("noisy", gpus=0))
    create(world, Creation("quiet", gpus=0))
    for number in range(2 * A_MINUTE):
        step = "storage" if number % 2 else "starting"
        said = saying(world, "noisy", Seen.PREPARING, step=step, oom_kills=number)
        hear(world, Report("", "", None, (), [said, saying(world, "quiet", Seen.PREPARING)]))
    noisy, quiet = saying(world, "noisy", Seen.RUNNING), saying(world, "quiet", Seen.RUNNING, oom_kills=1)
    hear(world, Report("", "", None, (), [noisy, quiet]))
    assert len(entries(world, "workload.step", "workload.oom")) == A_MINUTE + 1
    assert len(entries(world, "cluster.node.quieted")) == 1
    assert len(entries(world, "workload.active")) == 2
