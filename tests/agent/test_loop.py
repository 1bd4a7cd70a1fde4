"""The whole agent: against a scripted site in this process, and as a process that is killed at any moment."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import pytest

from corral.agent import allocation, main
from corral.agent.calls import ThreadCalls
from corral.agent.converge import HELD_BY_ANOTHER, Converger
from corral.agent.kernel_log import KernelLog
from corral.agent.link import Pace
from corral.agent.loop import Agent, Parts
from corral.agent.observe import Observation, Ours, with_foreign
from corral.agent.site import Site
from corral.agent.state import KEY, MACHINE, Machine, StateFolder, Unwritable
from corral.agent.work import BootClock, WorkFolder
from corral.protocol.gpu_faults import GpuHealth
from corral.protocol.messages import (
    AllocationState,
    Condition,
    Desired,
    DesiredAllocation,
    Gpu,
    Inventory,
    Removed,
    Welcome,
)
from tests.agent.fake_site import FakeSite, Session, fake_site, run, until
from tests.agent.scripted import ScriptedDriver, want

QUICK = Pace(base_s=0.02, cap_s=0.1, refused_s=0.1, superseded_s=0.1)


class Observer:
    """Sees one GPU."""

    def __init__(self) -> None:
        self.conditions: tuple[Condition, ...] = ()
        self.probe, self.health = "ok", tuple[GpuHealth, ...]()

    def read(self, ours: Ours) -> Observation:
        gpus = with_foreign((Gpu("nvidia", "GPU-1"), Gpu("nvidia", "GPU-2")), ours.foreign)
        inventory = Inventory("box", gpu_probe=self.probe, gpus=gpus, gpu_health=self.health)
        return Observation(inventory, f"digest-{sorted(ours.foreign)}{self.probe}{self.health}", self.conditions)

    def close(self) -> None:
        return


@dataclass
class Running:
    agent: Agent
    state: StateFolder
    driver: ScriptedDriver
    observer: Observer
    task: asyncio.Task[bool]


def joined(path: Path, url: str) -> StateFolder:
    """Return the folder of a machine that has joined the site at `url`."""
    state = StateFolder(path / "state")
    state.make()
    state.make_key()
    state.write(MACHINE, Machine(url, "m1", "box", "acme", "default", "inc0"))
    return state


@asynccontextmanager
async def agent(path: Path, site: FakeSite, kernel: KernelLog | None = None) -> AsyncIterator[Running]:
    state = joined(path, site.url)
    driver, observer = ScriptedDriver(path / "containers"), Observer()
    calls = ThreadCalls(4, "test")
    work = Converger("m1", driver, WorkFolder(state), calls, BootClock())
    machine = state.machine()
    assert machine is not None
    parts = Parts(state, machine, work, observer, calls, kernel=kernel or KernelLog(None))
    whole = Agent(parts, Site.at(site.url), state.key(), QUICK)
    task = asyncio.ensure_future(whole.run())
    try:
        yield Running(whole, state, driver, observer, task)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        calls.close()


async def reaches(session: Session, state: AllocationState, name: str = "a1") -> None:
    await until(lambda: session.reports and any(a.id == name and a.state is state for a in session.last.allocations))


def test_what_the_site_wants_comes_to_run_and_is_reported(tmp_path: Path) -> None:
    async def test() -> None:
        async with fake_site() as site, agent(tmp_path, site) as a:
            session = await site.session()
            await session.send("desired", Desired((want(gpus=("GPU-1",)),)))
            await reaches(session, AllocationState.RUNNING)
            assert session.reports[0].inventory is not None
            assert session.hello.incarnation == "inc0"
            machine = a.state.machine()
            assert machine is not None
            assert machine.incarnation == "inc1"

    run(test)


def test_losing_the_site_changes_nothing_that_runs(tmp_path: Path) -> None:
    async def test() -> None:
        async with fake_site() as site, agent(tmp_path, site) as a:
            session = await site.session()
            await session.send("desired", Desired((want(),)))
            await reaches(session, AllocationState.RUNNING)
            for _ in range(5):
                site.refuse(HTTPStatus.SERVICE_UNAVAILABLE)
            site.refuse(HTTPStatus.UNAUTHORIZED, {"code": "UNAUTHENTICATED", "message": "who?"})
            session.socket.transport.abort()
            await reaches(await site.session(1), AllocationState.RUNNING)
            assert a.driver.count("start a1") == 1
            assert a.driver.count("stop a1") == 0

    run(test)


def test_gpus_of_another_machines_container_are_reported_busy(tmp_path: Path) -> None:
    async def test() -> None:
        ScriptedDriver(tmp_path / "containers").put("theirs", machine="m0", gpus=["GPU-2"])
        async with fake_site() as site, agent(tmp_path, site):
            session = await site.session()
            await until(lambda: session.reports)
            inventory = session.reports[0].inventory
            assert inventory is not None
            assert [gpu.busy for gpu in inventory.gpus] == ["", HELD_BY_ANOTHER]
            assert session.last.allocations == ()

    run(test)


def test_each_condition_is_reported_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with fake_site() as site, agent(tmp_path, site) as a:
            session = await site.session()
            a.observer.conditions = (Condition("runtime_unavailable", "info fails"), Condition("disk_pressure", "full"))
            a.driver.down = True
            await session.send("desired", Desired((want(),)))
            await until(lambda: session.reports and session.last.conditions)
            assert [c.kind for c in session.last.conditions] == ["runtime_unavailable"]
            assert "systemctl restart podman" in session.last.conditions[0].message

    run(test)


def test_a_disk_that_refuses_is_a_condition_and_work_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        monkeypatch.setattr(allocation, "RETRY_FIRST_S", 0.05)
        async with fake_site() as site, agent(tmp_path, site) as a:
            session = await site.session()
            await session.send("desired", Desired((want("a1"),)))
            await reaches(session, AllocationState.RUNNING)
            with monkeypatch.context() as patch:
                patch.setattr(StateFolder, "write_text", _refuse)
                await session.send("desired", Desired((want("a2"), want("a1", generation=2, stop=True))))
                await reaches(session, AllocationState.GONE)  # a stop never waits for the disk
                await until(lambda: [c.kind for c in session.last.conditions] == ["state_unwritable"])
                assert a.driver.count("start a2") == 0
            await reaches(session, AllocationState.RUNNING, "a2")
            await until(lambda: session.last.conditions == ())

    run(test)


def _refuse(self: StateFolder, name: str, text: str) -> None:
    raise Unwritable("the disk that holds /var/lib/corral-agent is full; free space on it")


@pytest.mark.parametrize("how", ["message", "close", "http"])
def test_a_removed_machine_ends_its_work_and_stays_away(tmp_path: Path, how: str) -> None:
    async def test() -> None:
        async with fake_site() as site, agent(tmp_path, site) as a:
            session = await site.session()
            await session.send("desired", Desired((want(),)))
            await reaches(session, AllocationState.RUNNING)
            a.driver.put("unknown")
            if how == "message":
                await session.send("removed", Removed("removed by an admin"))
            elif how == "close":
                await session.socket.close(4410, "removed by an admin")
            else:
                site.refuse(HTTPStatus.GONE, {"code": "MACHINE_REMOVED", "message": "removed by an admin"})
                session.socket.transport.abort()
            await asyncio.wait_for(a.task, 20)
            assert a.driver.containers() == []
            assert a.state.key() == ""
            stone = a.state.tombstone()
            assert stone is not None
            assert (stone.done, stone.message) == (True, "removed by an admin")
            assert main.main(["run", "--state", str(a.state.path), "--driver", "sim"]) == 0

    run(test)


AGENT = """
import argparse, asyncio, sys
from pathlib import Path
from corral.agent import allocation, main
from corral.agent.kernel_log import KernelLog
from corral.agent.link import Pace
import corral.agent.loop as loop
from tests.agent.scripted import ScriptedDriver
allocation.RETRY_FIRST_S = 0.01
loop.FIRST_LOOK_S = 1.0
main._driver = lambda args, machine, drives: lambda: ScriptedDriver(Path(sys.argv[2]), machine)
sys.exit(main.main(["run", "--state", sys.argv[1]]))
"""


@contextmanager
def process(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The agent as a process of its own, over containers that outlive it."""
    root = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"}
    argv = [sys.executable, "-c", AGENT, str(path / "state"), str(path / "containers")]
    with subprocess.Popen(argv, env=env, stderr=subprocess.DEVNULL) as running:
        try:
            yield running
        finally:
            running.kill()


def test_killed_at_random_moments_the_agent_loses_and_doubles_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        chance = random.Random(7)
        site = FakeSite(welcome=Welcome("m1", "box", 1, "inc1", report_every_s=0.1))
        async with fake_site(site):
            joined(tmp_path, site.url)
            wanted: dict[str, DesiredAllocation] = {}
            for number in range(6):
                with process(tmp_path) as running:
                    session = await site.session(number)
                    name = f"a{number}"
                    wanted[name] = want(name)
                    if number > 1:
                        old = f"a{number - 2}"
                        wanted[old] = want(old, generation=2, stop=True)
                    await session.send("desired", Desired(tuple(wanted.values())))
                    await asyncio.sleep(chance.random() * 0.05)  # any moment is as good as another
                    running.send_signal(signal.SIGKILL)
            with process(tmp_path):
                session = await site.session(6)
                await session.send("desired", Desired(tuple(wanted.values())))
                for name, one in wanted.items():
                    state = AllocationState.GONE if one.stop else AllocationState.RUNNING
                    await reaches(session, state, name)
            running_now = ScriptedDriver(tmp_path / "containers").containers()
            assert running_now == sorted(name for name, one in wanted.items() if not one.stop)
            assert len(session.last.allocations) == len(wanted)

    run(test)


def test_sigterm_ends_the_agent_and_not_the_work(tmp_path: Path) -> None:
    async def test() -> None:
        async with fake_site() as site:
            joined(tmp_path, site.url)
            with process(tmp_path) as running:
                session = await site.session()
                await session.send("desired", Desired((want(),)))
                await reaches(session, AllocationState.RUNNING)
                running.send_signal(signal.SIGTERM)
                assert await asyncio.get_running_loop().run_in_executor(None, running.wait, 20) == 0
            assert ScriptedDriver(tmp_path / "containers").containers() == ["a1"]

    run(test)


def test_a_second_agent_on_the_folder_ends_with_a_message(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    state = joined(tmp_path, "http://127.0.0.1:9")
    state.lock()
    try:
        assert main.main(["run", "--state", str(state.path), "--driver", "sim"]) == main.CANNOT
    finally:
        state.unlock()
    assert "another agent works with" in capfd.readouterr().err


def test_an_agent_that_has_not_joined_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.main(["run", "--state", str(tmp_path / "none")]) == main.REFUSED
    (tmp_path / "empty").mkdir()
    assert main.main(["run", "--state", str(tmp_path / "empty")]) == main.REFUSED
    assert capfd.readouterr().err.count("corral-agent join") == 2


def test_status_says_which_machine_this_is(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    state = joined(tmp_path, "http://127.0.0.1:9")
    assert main.main(["status", "--state", str(state.path), "--json"]) == 0
    said = capfd.readouterr().out
    assert '"machine": "box"' in said
    assert '"running": false' in said
    assert (state.path / KEY).read_text().strip() not in said
