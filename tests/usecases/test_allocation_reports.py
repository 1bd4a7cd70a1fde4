"""What machines report of their allocations: states, ends, differences, logs (spec 20, "The page"; facts 7-9)."""

from __future__ import annotations

import pytest
from sqlalchemy import select, update

from corral.domain.allocations import LOG_LINES_KEPT, Report, Seen
from corral.domain.compute_clusters import Creation
from corral.store.tables.journal import journal
from corral.store.tables.machines import machines
from corral.usecases import compute_clusters, removal, workload_life
from tests.conftest import Clock
from tests.placing import (
    allocation,
    check_invariants,
    code_of,
    create,
    report,
    saying,
    terminate,
    wanted,
    workload,
)
from tests.world import World


@pytest.fixture
def world(world_on_both: World) -> World:
    """One machine of two GPUs with one compute cluster that holds both."""
    world_on_both.add_machine("gpu-1", gpu_count=2)
    create(world_on_both, Creation("dev", gpus=2))
    return world_on_both


def tick(world: World) -> None:
    with world.db.write() as tx:
        workload_life.tick(tx)


def state(world: World) -> str:
    return str(workload(world, "dev")["state"])


def types(world: World) -> list[str]:
    with world.db.read() as tx:
        rows = tx.all(select(journal.c.type).where(journal.c.workload_id.is_not(None)).order_by(journal.c.seq))
    return [row["type"] for row in rows]


def test_provisioning_goes_on_step_by_step_until_it_is_active(world: World) -> None:
    report(world, "gpu-1", [saying(world, "dev", Seen.PREPARING, step="pulling_image")])
    assert (state(world), workload(world, "dev")["step"]) == ("provisioning", "pulling_image")
    report(world, "gpu-1", [saying(world, "dev", Seen.RUNNING, host_key="ssh-ed25519 AAAA")])
    assert (state(world), allocation(world, "dev")["host_key"]) == ("active", "ssh-ed25519 AAAA")
    assert types(world) == ["workload.created", "workload.placed", "workload.step", "workload.active"]


def test_the_same_report_again_changes_nothing(world: World) -> None:
    for _ in range(3):
        report(world, "gpu-1", [saying(world, "dev", Seen.RUNNING)])
    assert types(world).count("workload.active") == 1


def test_capacity_is_free_when_the_machine_says_it_is_gone_and_not_before(world: World) -> None:
    report(world, "gpu-1", [saying(world, "dev", Seen.RUNNING)])
    terminate(world, "dev")
    assert wanted(world, "gpu-1")["dev"].stop
    assert code_of(world, Creation("next", gpus=1)) == "NO_CAPACITY"
    outcome = report(world, "gpu-1", [saying(world, "dev", Seen.GONE)])
    assert outcome.forget == [allocation(world, "dev")["id"]]
    assert (state(world), workload(world, "dev")["reason"]) == ("terminated", "terminated by member")
    assert wanted(world, "gpu-1") == {}
    assert code_of(world, Creation("next", gpus=2)) == ""
    check_invariants(world.db)


def test_gone_from_before_the_stop_was_heard_of_frees_nothing(world: World) -> None:
    report(world, "gpu-1", [saying(world, "dev", Seen.RUNNING)])
    late = saying(world, "dev", Seen.GONE)
    terminate(world, "dev")
    report(world, "gpu-1", [late])
    assert allocation(world, "dev")["released_at"] is None


def test_a_container_that_vanished_is_out_of_sync_after_30_s_and_active_again_when_restarted(
    world: World, clock: Clock
) -> None:
    report(world, "gpu-1", [saying(world, "dev", Seen.RUNNING)])
    report(world, "gpu-1", [saying(world, "dev", Seen.RESTARTING)])
    clock.forward(29)
    tick(world)
    assert state(world) == "active"
    clock.forward(1)
    tick(world)
    row = workload(world, "dev")
    assert (row["state"], row["seen"]) == ("out_of_sync", "restarting")
    assert row["wanted"].startswith("running with GPUs")
    assert not wanted(world, "gpu-1")["dev"].stop
    report(world, "gpu-1", [saying(world, "dev", Seen.RUNNING, restarts=1)])
    assert (state(world), workload(world, "dev")["wanted"]) == ("active", "")
    assert "workload.restarted" in types(world)


def test_a_difference_that_is_over_before_30_s_is_not_shown_any_more(world: World) -> None:
    report(world, "gpu-1", [saying(world, "dev", Seen.RUNNING)])
    report(world, "gpu-1", [saying(world, "dev", Seen.RESTARTING)])
    assert workload(world, "dev")["seen"] == "restarting"
    report(world, "gpu-1", [saying(world, "dev", Seen.RUNNING, restarts=1)])
    row = workload(world, "dev")
    assert (row["state"], row["wanted"], row["seen"]) == ("active", "", "")


def test_what_is_missing_from_a_report_is_a_difference(world: World, clock: Clock) -> None:
    report(world, "gpu-1", [saying(world, "dev", Seen.RUNNING)])
    report(world, "gpu-1", [])
    clock.forward(31)
    tick(world)
    assert (state(world), workload(world, "dev")["seen"]) == ("out_of_sync", "nothing of it on the machine")


def test_a_machine_down_during_the_pull_makes_provisioning_go_on_where_it_was(world: World, clock: Clock) -> None:
    report(world, "gpu-1", [saying(world, "dev", Seen.PREPARING, step="pulling_image")])
    _set_state(world, "down", clock)
    clock.forward(31)
    tick(world)
    assert state(world) == "out_of_sync"
    _set_state(world, "up", clock)
    report(world, "gpu-1", [saying(world, "dev", Seen.PREPARING, step="storage")])
    clock.forward(31)
    tick(world)
    assert (state(world), workload(world, "dev")["step"]) == ("provisioning", "storage")
    report(world, "gpu-1", [saying(world, "dev", Seen.RUNNING)])
    assert state(world) == "active"


def test_a_machine_down_makes_its_work_out_of_sync_until_it_reports_again(world: World, clock: Clock) -> None:
    report(world, "gpu-1", [saying(world, "dev", Seen.RUNNING)])
    _set_state(world, "down", clock)
    clock.forward(31)
    tick(world)
    assert (state(world), workload(world, "dev")["seen"][:19]) == ("out_of_sync", "gpu-1 is down since")
    _set_state(world, "up", clock)
    tick(world)
    assert state(world) == "active"


def _set_state(world: World, to: str, clock: Clock) -> None:
    with world.db.write() as tx:
        tx.run(update(machines).values(state=to, state_since=clock.now))


def test_what_should_be_gone_and_is_not_is_out_of_sync(world: World, clock: Clock) -> None:
    report(world, "gpu-1", [saying(world, "dev", Seen.RUNNING)])
    terminate(world, "dev")
    clock.forward(31)
    tick(world)
    row = workload(world, "dev")
    assert (row["state"], row["wanted"]) == ("out_of_sync", "stopped and removed")
    report(world, "gpu-1", [saying(world, "dev", Seen.GONE)])
    assert state(world) == "terminated"


def test_failed_says_why_and_keeps_the_containers_last_words(world: World) -> None:
    failed = saying(world, "dev", Seen.FAILED, message="no such image", log_tail="boom\x00", exit_code=127)
    report(world, "gpu-1", [failed])
    row = allocation(world, "dev")
    assert (state(world), workload(world, "dev")["reason"]) == ("failed", "no such image")
    assert (row["release_reason"], row["log_tail"], row["exit_code"]) == ("failed", "boom\ufffd", 127)


def test_a_time_limit_counts_from_placement_and_ends_as_terminated(world: World, clock: Clock) -> None:
    world.add_machine("gpu-2", gpu_count=1)
    create(world, Creation("short", machine="gpu-2", gpus=1, time_limit_seconds=60))
    clock.forward(59.5)
    assert wanted(world, "gpu-2")["short"].seconds_left == 1
    clock.forward(0.5)
    report(world, "gpu-2", [saying(world, "short", Seen.GONE)])
    row = workload(world, "short")
    assert (row["state"], row["reason"]) == ("terminated", "time limit over")


def test_past_its_limit_it_is_told_to_stop_though_its_machine_is_silent(world: World, clock: Clock) -> None:
    world.add_machine("gpu-2", gpu_count=1)
    create(world, Creation("short", machine="gpu-2", gpus=1, time_limit_seconds=60))
    clock.forward(60)
    tick(world)
    assert wanted(world, "gpu-2")["short"].stop
    assert workload(world, "short")["stop_reason"] == "time limit over"


def test_out_of_memory_is_said_once_for_each_kill(world: World) -> None:
    for kills in (0, 1, 1, 3):
        report(world, "gpu-1", [saying(world, "dev", Seen.RUNNING, oom_kills=kills)])
    assert types(world).count("workload.oom") == 2
    assert allocation(world, "dev")["oom_kills"] == 3


def test_each_log_line_is_stored_once_and_no_more_than_are_kept(world: World) -> None:
    id = allocation(world, "dev")["id"]
    first = report(world, "gpu-1", [saying(world, "dev", Seen.PREPARING, log=[(1, "a"), (2, "b")])])
    again = report(world, "gpu-1", [saying(world, "dev", Seen.PREPARING, log=[(2, "b"), (3, "c\x00")])])
    last = LOG_LINES_KEPT + 5
    beyond = report(world, "gpu-1", [saying(world, "dev", Seen.PREPARING, log=[(last, "z")])])
    assert [o.log_seen[id] for o in (first, again, beyond)] == [2, 3, last]
    with world.act("member", "acme", "research") as ctx:
        assert list(compute_clusters.provisioning_log(ctx, "dev").lines) == ["a", "b", "c\ufffd"]


def test_unknown_allocations_are_asked_about_and_never_stopped(world: World) -> None:
    stranger = "00000000-0000-7000-8000-000000000000"
    outcome = report(world, "gpu-1", [Report(stranger, 1, Seen.RUNNING)])
    assert (outcome.describe, outcome.forget) == ([stranger], [])
    assert list(wanted(world, "gpu-1")) == ["dev"]


def test_what_was_released_and_runs_is_stopped_and_its_gpus_wait_for_that(world: World) -> None:
    report(world, "gpu-1", [saying(world, "dev", Seen.FAILED, message="x")])
    report(world, "gpu-1", [saying(world, "dev", Seen.RUNNING)])
    assert wanted(world, "gpu-1")["dev"].stop
    assert code_of(world, Creation("next", gpus=1)) == "NO_CAPACITY"
    report(world, "gpu-1", [saying(world, "dev", Seen.GONE)])
    assert wanted(world, "gpu-1") == {}
    assert code_of(world, Creation("next", gpus=2)) == ""


def test_a_machine_ahead_of_a_restored_database_is_told_something_newer(world: World) -> None:
    report(world, "gpu-1", [saying(world, "dev", Seen.RUNNING, generation=7)])
    assert (state(world), allocation(world, "dev")["generation"]) == ("active", 8)


def test_what_a_machine_with_newer_work_does_not_know_any_more_ended_after_the_back_up(world: World) -> None:
    report(world, "gpu-1", [saying(world, "dev", Seen.RUNNING)])
    newer = Report("00000000-0000-7000-8000-000000000000", 1, Seen.RUNNING)
    assert report(world, "gpu-1", [newer]).describe == [newer.id]
    assert (state(world), workload(world, "dev")["reason"][:5]) == ("terminated", "ended")
    assert wanted(world, "gpu-1") == {}
    check_invariants(world.db)


def test_a_machine_removed_by_force_ends_its_work_as_lost(world: World) -> None:
    report(world, "gpu-1", [saying(world, "dev", Seen.RUNNING)])
    with world.act("admin", "acme") as ctx:
        removal.remove(ctx, "default", "gpu-1", force=True)
    assert (state(world), workload(world, "dev")["reason"]) == ("failed", "lost: machine gpu-1 was removed")
    assert allocation(world, "dev")["release_reason"] == "lost"


def test_a_machine_says_nothing_of_another_machines_work(world: World) -> None:
    world.add_machine("gpu-2")
    outcome = report(world, "gpu-2", [saying(world, "dev", Seen.GONE, generation=99)])
    assert outcome.describe == [allocation(world, "dev")["id"]]
    assert allocation(world, "dev")["released_at"] is None
