"""What runs here becomes what the site wants; nothing else is ever ended (design decisions 1, 9, 11)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from corral.agent import allocation
from corral.agent.calls import ThreadCalls
from corral.agent.converge import Converger
from corral.agent.drivers.base import DriverError
from corral.agent.state import StateFolder
from corral.agent.waiting import cancelled
from corral.agent.work import BootClock, WorkFolder
from corral.protocol.messages import AllocationReport, AllocationState, Desired, DesiredAllocation
from tests.agent.fake_site import run, until
from tests.agent.scripted import ScriptedDriver, want


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation, "RETRY_FIRST_S", 0.01)
    monkeypatch.setattr(allocation, "RETRY_CAP_S", 0.02)


class Clock(BootClock):
    """A boot clock that a test moves."""

    def __init__(self, boot_id: str = "boot-1") -> None:
        self.time = 1000.0
        super().__init__(lambda: self.time, boot_id)


@dataclass
class Box:
    """One machine: what a process of the agent has of it."""

    work: Converger
    driver: ScriptedDriver
    clock: Clock
    ended: list[str]

    def report(self, name: str = "a1") -> AllocationReport:
        return next(r for r in self.work.reports() if r.id == name)

    async def reached(self, state: AllocationState, name: str = "a1") -> AllocationReport:
        await until(lambda: any(r.id == name and r.state is state for r in self.work.reports()), f"{name} {state}")
        return self.report(name)

    def tell(self, *wants: DesiredAllocation) -> None:
        self.work.accept(Desired(wants))

    async def look(self) -> None:
        self.clock.time += 1
        assert await self.work.look()


@asynccontextmanager
async def box(path: Path, *, adopt: bool = True, clock: Clock | None = None) -> AsyncIterator[Box]:
    """An agent's convergence on a folder; a second one on the same folder is the agent started again."""
    state = StateFolder(path / "state")
    state.make()
    driver, clock = ScriptedDriver(path / "containers"), clock or Clock()
    ended: list[str] = []
    calls = ThreadCalls(4, "test-driver")
    work = Converger("m1", driver, WorkFolder(state), calls, clock)
    work.hooks.ending = ended.append
    if adopt:
        assert await work.adopt()
    try:
        yield Box(work, driver, clock, ended)
    finally:
        driver.hold_start.set()
        await work.close()
        calls.close()


def test_what_is_wanted_is_started_and_reported_with_its_steps(tmp_path: Path) -> None:
    async def test() -> None:
        async with box(tmp_path) as b:
            b.driver.hold_start.clear()
            b.tell(want(gpus=("GPU-1",)))
            await until(lambda: b.report().step)
            assert (b.report().state, b.report().generation) == (AllocationState.PREPARING, 1)
            assert b.report().gpus == ("GPU-1",)  # promised to it: a site that lost it gives them to nobody
            b.driver.hold_start.set()
            seen = await b.reached(AllocationState.RUNNING)
            assert (seen.gpus, seen.host_key, seen.container) == (("GPU-1",), "ssh-ed25519 a1", "c-a1")
            assert [line.text for line in seen.log] == ["pulling busybox", "starting", "running"]
            assert [line.n for line in seen.log] == [1, 2, 3]
            b.work.log_seen({"a1": 2})
            assert [line.n for line in b.report().log] == [3]

    run(test)


def test_an_allocation_missing_from_the_list_is_never_stopped(tmp_path: Path) -> None:
    async def test() -> None:
        async with box(tmp_path) as b:
            b.tell(want("a1"), want("a2"))
            await b.reached(AllocationState.RUNNING, "a1")
            await b.reached(AllocationState.RUNNING, "a2")
            b.tell(want("a2"))
            b.tell()
            await b.look()
            assert b.driver.containers() == ["a1", "a2"]
            assert b.driver.count("stop a1") == 0

    run(test)


def test_an_explicit_stop_ends_it_and_it_is_gone_only_after_all_is_removed(tmp_path: Path) -> None:
    async def test() -> None:
        async with box(tmp_path) as b:
            b.tell(want())
            await b.reached(AllocationState.RUNNING)
            b.driver.fail["remove"] = [DriverError("the disk is still in use", retry=True)] * 3
            b.tell(want(generation=2, stop=True))
            await until(lambda: "still in use" in b.report().message)
            assert b.report().state is AllocationState.STOPPING
            seen = await b.reached(AllocationState.GONE)
            assert (seen.generation, seen.log_tail) == (2, "last words\n")
            assert b.driver.containers() == []
            assert b.ended.count("a1") >= 1

    run(test)


def test_a_stop_is_never_taken_back_and_older_generations_are_stale(tmp_path: Path) -> None:
    async def test() -> None:
        async with box(tmp_path) as b:
            b.tell(want(generation=5))
            await b.reached(AllocationState.RUNNING)
            b.tell(want(generation=4, stop=True))
            await b.look()
            assert b.report().state is AllocationState.RUNNING
            b.tell(want(generation=6, stop=True))
            await b.reached(AllocationState.GONE)
            b.tell(want(generation=7))
            assert b.report().state is AllocationState.GONE
            assert b.driver.count("start a1") == 1

    run(test)


def test_a_stop_during_a_start_ends_the_start_at_its_next_step(tmp_path: Path) -> None:
    async def test() -> None:
        async with box(tmp_path) as b:
            b.driver.hold_start.clear()
            b.tell(want())
            await until(lambda: b.report().step)
            b.tell(want(generation=2, stop=True))
            b.driver.hold_start.set()
            await b.reached(AllocationState.GONE)
            assert b.driver.containers() == []

    run(test)


def test_keys_are_brought_to_a_running_container_and_then_its_generation_is_reported(tmp_path: Path) -> None:
    async def test() -> None:
        async with box(tmp_path) as b:
            b.tell(want())
            await b.reached(AllocationState.RUNNING)
            b.driver.fail["update"] = [DriverError("busy", retry=True)] * 2
            b.tell(want(generation=2, authorized_keys=("ssh-ed25519 AAAA me",)))
            await until(lambda: b.driver.count("update a1") >= 1)
            await until(lambda: b.report().generation == 2)
            assert b.driver.count("update a1") == 3
            assert b.driver.count("start a1") == 1

    run(test)


def test_a_container_that_vanished_is_started_again_and_told(tmp_path: Path) -> None:
    async def test() -> None:
        async with box(tmp_path) as b:
            b.tell(want())
            await b.reached(AllocationState.RUNNING)
            b.driver.hold_start.clear()
            b.driver.vanish("a1")
            await b.look()
            seen = await b.reached(AllocationState.RESTARTING)
            assert "not there any more" in seen.message
            assert b.ended == ["a1"]
            b.driver.hold_start.set()
            assert (await b.reached(AllocationState.RUNNING)).restarts == 1

    run(test)


def test_a_container_that_ended_says_its_exit_code_and_that_memory_ran_out(tmp_path: Path) -> None:
    async def test() -> None:
        async with box(tmp_path) as b:
            b.tell(want())
            await b.reached(AllocationState.RUNNING)
            b.driver.hold_start.clear()
            b.driver.put("a1", running=False, exit_code=137, oom_kills=2)
            await b.look()
            seen = await b.reached(AllocationState.RESTARTING)
            assert (seen.exit_code, seen.oom_kills) == (137, 2)
            assert "exit code 137" in seen.message
            assert "lack of memory" in seen.message

    run(test)


def test_a_restart_that_cannot_work_yet_is_tried_on_and_never_given_up(tmp_path: Path) -> None:
    async def test() -> None:
        async with box(tmp_path) as b:
            b.tell(want())
            await b.reached(AllocationState.RUNNING)
            b.driver.fail["start"] = [DriverError("its GPU is not there")] * 20
            b.driver.vanish("a1")
            await b.look()
            await until(lambda: b.report().message == "its GPU is not there")
            assert (await b.reached(AllocationState.RUNNING)).restarts == 1
            assert b.driver.count("remove a1") == 0

    run(test)


def test_a_first_start_that_cannot_work_fails_after_everything_is_removed(tmp_path: Path) -> None:
    async def test() -> None:
        async with box(tmp_path) as b:
            b.driver.fail["start"] = [DriverError("no such image: nonsense")]
            b.driver.fail["remove"] = [DriverError("in use", retry=True)]
            b.tell(want())
            seen = await b.reached(AllocationState.FAILED)
            assert seen.message == "no such image: nonsense"
            assert b.driver.count("remove a1") == 2
            assert b.driver.count("start a1") == 1
        async with box(tmp_path) as b:  # kept over a restart until the site has stored it
            assert b.report().state is AllocationState.FAILED
            b.work.forget(["a1"])
            assert b.work.reports() == ()
        async with box(tmp_path) as b:
            assert b.work.reports() == ()

    run(test)


def test_a_passing_trouble_at_the_first_start_is_tried_some_times(tmp_path: Path) -> None:
    async def test() -> None:
        async with box(tmp_path) as b:
            b.driver.fail["start"] = [DriverError("disk full", retry=True)] * 3
            b.tell(want())
            await b.reached(AllocationState.RUNNING)
            b.driver.fail["start"] = [DriverError("disk full", retry=True)] * 100
            b.tell(want("a2"))
            assert (await b.reached(AllocationState.FAILED, "a2")).message == "disk full"
            assert b.driver.count("start a2") == allocation.FIRST_START_TRIES

    run(test)


def test_a_dead_runtime_fails_no_allocation_and_is_a_condition(tmp_path: Path) -> None:
    async def test() -> None:
        async with box(tmp_path) as b:
            b.tell(want("a1"))
            await b.reached(AllocationState.RUNNING, "a1")
            b.driver.down = True
            b.tell(want("a2"))
            await until(lambda: "systemctl restart podman" in b.report("a2").message)
            assert not await b.work.look()
            assert [c.kind for c in b.work.conditions()] == ["runtime_unavailable"]
            assert b.work.conditions()[0].blocking
            assert b.report("a1").state is AllocationState.RUNNING
            assert b.report("a2").state is AllocationState.PREPARING
            b.driver.down = False
            await b.reached(AllocationState.RUNNING, "a2")
            await b.look()
            assert b.work.conditions() == ()

    run(test)


def test_what_runs_is_adopted_before_anything_new_is_started(tmp_path: Path) -> None:
    async def test() -> None:
        async with box(tmp_path) as b:
            b.tell(want("a1", generation=3))
            await b.reached(AllocationState.RUNNING, "a1")
        async with box(tmp_path, adopt=False) as b:
            b.driver.down = True
            assert not await b.work.adopt()
            b.tell(want("a2"))
            assert b.report("a1").state is AllocationState.RESTARTING
            assert b.driver.calls == ["list_running"]
            b.driver.down = False
            assert await b.work.adopt()
            seen = await b.reached(AllocationState.RUNNING, "a1")
            await b.reached(AllocationState.RUNNING, "a2")
            assert (seen.host_key, seen.restarts, seen.generation) == ("ssh-ed25519 a1", 0, 3)
            assert b.driver.count("start a1") == 0

    run(test)


def test_after_a_reboot_work_is_started_again_on_the_same_storage(tmp_path: Path) -> None:
    async def test() -> None:
        async with box(tmp_path) as b:
            b.tell(want())
            await b.reached(AllocationState.RUNNING)
            b.driver.vanish("a1")
        async with box(tmp_path, clock=Clock("boot-2")) as b:
            seen = await b.reached(AllocationState.RUNNING)
            assert seen.restarts == 1
            assert b.driver.count("remove a1") == 0

    run(test)


def test_a_stop_that_an_agent_took_is_finished_by_the_next_one(tmp_path: Path) -> None:
    async def test() -> None:
        async with box(tmp_path) as b:
            b.tell(want())
            await b.reached(AllocationState.RUNNING)
            b.driver.fail["remove"] = [DriverError("in use", retry=True)] * 1000
            b.tell(want(generation=2, stop=True))
            await until(lambda: b.driver.count("remove a1"))
        async with box(tmp_path) as b:
            assert (await b.reached(AllocationState.GONE)).generation == 2
            assert b.driver.containers() == []

    run(test)


def test_an_own_container_without_a_record_is_reported_and_left_alone_until_told(tmp_path: Path) -> None:
    async def test() -> None:
        async with box(tmp_path, adopt=False) as b:
            b.driver.put("a9", gpus=["GPU-9"])
            assert await b.work.adopt()
            seen = b.report("a9")
            assert (seen.state, seen.generation, seen.gpus) == (AllocationState.RUNNING, 0, ("GPU-9",))
            assert b.work.allocated_gpus() == {"GPU-9"}
            assert b.work.describe(["a9"]).allocations == ()
            b.tell(want("a9", generation=4, gpus=("GPU-9",)))
            assert (await b.reached(AllocationState.RUNNING, "a9")).generation == 4
            assert len(b.work.reports()) == 1
            assert b.work.describe(["a9"]).allocations[0].generation == 4

    run(test)


def test_a_stop_for_something_never_heard_of_is_answered_gone(tmp_path: Path) -> None:
    async def test() -> None:
        async with box(tmp_path) as b:
            b.tell(want("a7", generation=3, stop=True))
            assert (await b.reached(AllocationState.GONE, "a7")).generation == 3
            assert b.driver.count("start a7") == 0

    run(test)


def test_containers_of_another_machine_are_never_touched_and_hold_their_gpus(tmp_path: Path) -> None:
    async def test() -> None:
        async with box(tmp_path, adopt=False) as b:
            b.driver.put("theirs", machine="m0", gpus=["GPU-5"])
            assert await b.work.adopt()
            assert b.work.reports() == ()
            assert b.work.foreign_gpus == {"GPU-5"}
            await b.work.end_everything()
            assert b.driver.containers() == ["theirs"]
            b.driver.vanish("theirs")
            await b.look()
            assert b.work.foreign_gpus == frozenset()

    run(test)


def test_a_time_limit_ends_it_without_any_word_from_the_site(tmp_path: Path) -> None:
    async def test() -> None:
        async with box(tmp_path) as b:
            b.tell(want(seconds_left=3600))
            await b.reached(AllocationState.RUNNING)
            b.clock.time += 3601
            b.tell(want(generation=2, authorized_keys=("k",), seconds_left=0))
            assert (await b.reached(AllocationState.GONE)).message == "its time limit is over"

    run(test)


def test_a_time_limit_goes_on_over_a_restart_of_the_agent_and_over_a_reboot(tmp_path: Path) -> None:
    async def test() -> None:
        async with box(tmp_path) as b:
            b.tell(want(seconds_left=3600))
            await b.reached(AllocationState.RUNNING)
            b.clock.time += 3000
            b.work._all["a1"].keep()
            b.driver.fail["remove"] = [DriverError("in use", retry=True)] * 1000
        later = Clock()
        later.time += 3590
        async with box(tmp_path, clock=later) as b:
            await b.reached(AllocationState.RUNNING)
        rebooted = Clock("boot-2")
        rebooted.time = 5.0
        async with box(tmp_path, clock=rebooted) as b:
            b.driver.hold_start.clear()
            await until(lambda: b.report().state is AllocationState.RUNNING)
            left = b.work._all["a1"]._limit.left_s()
            assert left is not None
            assert 5 < left <= 600  # 600 s were left when that was last written

    run(test)


def test_the_end_of_a_machine_ends_all_of_its_work_and_only_that(tmp_path: Path) -> None:
    async def test() -> None:
        async with box(tmp_path) as b:
            b.tell(want("a1"), want("a2"))
            await b.reached(AllocationState.RUNNING, "a1")
            await b.reached(AllocationState.RUNNING, "a2")
            b.driver.put("unknown")
            b.driver.put("theirs", machine="m0")
            b.driver.fail["stop"] = [DriverError("busy", retry=True)] * 2
            await b.work.end_everything()
            assert b.driver.containers() == ["theirs"]

    run(test)


def test_a_driver_that_breaks_unexpectedly_does_not_end_the_task(tmp_path: Path) -> None:
    async def test() -> None:
        async with box(tmp_path) as b:
            b.driver.fail["start"] = [KeyError("Id")]  # type: ignore[list-item]
            b.tell(want())
            await b.reached(AllocationState.RUNNING)

    run(test)


def test_a_task_that_died_of_a_bug_comes_back_without_a_word_from_the_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, bugs = allocation.Allocation._start, [ZeroDivisionError("a bug")]

    async def breaks_once(self: allocation.Allocation) -> None:
        if bugs:
            raise bugs.pop()
        await start(self)

    async def test() -> None:
        async with box(tmp_path) as b:
            monkeypatch.setattr(allocation.Allocation, "_start", breaks_once)
            b.tell(want())
            await until(lambda: not bugs, "it broke")
            supervised = asyncio.get_running_loop().create_task(b.work.supervise(0.01))
            await b.reached(AllocationState.RUNNING)
            await cancelled(supervised)

    run(test)


def test_an_id_that_is_no_plain_name_is_not_taken(tmp_path: Path) -> None:
    async def test() -> None:
        async with box(tmp_path) as b:
            b.tell(want("../../etc/passwd"), want("a/b"), want(""), want("a1"))
            await b.reached(AllocationState.RUNNING)
            assert [r.id for r in b.work.reports()] == ["a1"]

    run(test)


def test_log_numbers_are_never_used_twice_over_restarts(tmp_path: Path) -> None:
    async def test() -> None:
        used: list[int] = []
        for _ in range(3):
            async with box(tmp_path) as b:
                b.tell(want())
                await b.reached(AllocationState.RUNNING)
                used += [line.n for line in b.report().log]
                b.driver.vanish("a1")
        assert len(used) == len(set(used))
        assert used == sorted(used)

    run(test)


def test_the_streams_of_an_allocation_are_closed_before_it_stops(tmp_path: Path) -> None:
    async def test() -> None:
        async with box(tmp_path) as b:
            b.tell(want())
            await b.reached(AllocationState.RUNNING)
            assert b.work.running("a1", 1) is not None
            assert b.work.running("a1", 2) is None
            b.tell(want(generation=2, stop=True))
            assert b.ended[:1] == ["a1"]
            assert b.work.running("a1", 2) is None
            await asyncio.sleep(0)

    run(test)
