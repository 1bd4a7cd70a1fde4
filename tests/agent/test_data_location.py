"""The data location is kept as the site wants it (spec 10): made, watched, forgotten, over restarts of the agent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from corral.agent import data_location
from corral.agent.calls import ThreadCalls
from corral.agent.data_folder import MARKER, DataFolder, DriveKey, Owner, Place
from corral.agent.data_location import DataKeeper
from corral.agent.drivers.base import DriverError
from corral.agent.state import DATA_LOCATION, StateFolder, Unwritable
from corral.agent.waiting import cancelled
from corral.protocol.data_location import DataLocation, DataLocationSeen, DataState
from tests import disks
from tests.agent.fake_site import run, until
from tests.agent.scripted import want
from tests.disks import Disk

OURS = Owner("machine-1", "org-1", "https://corral.test")


@pytest.fixture
def nvme() -> Iterator[Disk]:
    with disks.disk() as made:
        yield made


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    made = StateFolder(tmp_path / "agent")
    made.make()
    return made


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_location, "CHECK_EVERY_S", 0.02)
    monkeypatch.setattr(data_location, "RETRY_FIRST_S", 0.02)
    monkeypatch.setattr(data_location, "RETRY_CAP_S", 0.02)


def told(nvme: Disk, generation: int = 1, *, name: str = "corral", max_bytes: int = 0) -> DataLocation:
    return DataLocation(generation, str(nvme.mount / name), str(nvme.mount), max_bytes)


@asynccontextmanager
async def keeping(state: StateFolder, folder: DataFolder | None = None) -> AsyncIterator[DataKeeper]:
    """A keeper whose agent lives until the block ends."""
    calls = ThreadCalls(4, "data")
    keeper = DataKeeper(state, folder or DataFolder(OURS, state.path), calls)
    task = asyncio.get_running_loop().create_task(keeper.run())
    try:
        yield keeper
    finally:
        await cancelled(task)
        calls.close()


async def reaches(keeper: DataKeeper, wanted: DataState, words: str = "") -> DataLocationSeen:
    def there() -> DataLocationSeen | None:
        seen = keeper.seen()
        return seen if seen is not None and seen.state is wanted and words in seen.message else None

    return await until(there, f"{wanted} {words}")


def test_what_is_told_is_made_said_and_known_to_the_next_agent(nvme: Disk, state: StateFolder) -> None:
    async def test() -> None:
        news: list[DataLocationSeen | None] = []
        async with keeping(state) as keeper:
            assert keeper.seen() is None
            keeper.changed = lambda: news.append(keeper.seen())
            keeper.take(told(nvme))
            assert keeper.seen() == DataLocationSeen(1, DataState.MAKING)
            await reaches(keeper, DataState.READY)
        assert news == [DataLocationSeen(1, DataState.READY)]
        assert (nvme.mount / "corral" / MARKER).exists()
        async with keeping(state) as keeper:
            assert keeper.seen() is None, "said before it was looked at"
            await reaches(keeper, DataState.READY)

    run(test)


def test_a_disk_that_is_pulled_out_is_a_failure_until_it_is_back(nvme: Disk, state: StateFolder) -> None:
    async def test() -> None:
        async with keeping(state) as keeper:
            keeper.take(told(nvme))
            await reaches(keeper, DataState.READY)
            nvme.pull_out()
            await reaches(keeper, DataState.FAILED, "no disk is mounted")
            assert list(nvme.mount.iterdir()) == []
            nvme.put_in()
            await reaches(keeper, DataState.READY)

    run(test)


def test_an_agent_that_begins_without_the_disk_writes_nothing_beside_it(nvme: Disk, state: StateFolder) -> None:
    async def test() -> None:
        async with keeping(state) as keeper:
            keeper.take(told(nvme))
            await reaches(keeper, DataState.READY)
        nvme.pull_out()
        async with keeping(state) as keeper:
            await reaches(keeper, DataState.FAILED)
            keeper.take(told(nvme))
            await reaches(keeper, DataState.FAILED)
        assert list(nvme.mount.iterdir()) == []

    run(test)


def test_a_folder_that_was_made_is_made_anew_only_when_it_is_chosen_anew(nvme: Disk, state: StateFolder) -> None:
    async def test() -> None:
        async with keeping(state) as keeper:
            keeper.take(told(nvme))
            await reaches(keeper, DataState.READY)
            (nvme.mount / "corral").rename(nvme.mount / "moved")
            await reaches(keeper, DataState.FAILED, "is not there")
            keeper.take(told(nvme, max_bytes=5))
            await until(lambda: state.read(DATA_LOCATION, data_location.Kept).want.max_bytes == 5)  # type: ignore[union-attr]
            await reaches(keeper, DataState.FAILED, "is not there")
            keeper.take(told(nvme, 2))
            assert (await reaches(keeper, DataState.READY)).generation == 2
            assert (nvme.mount / "corral" / MARKER).exists()

    run(test)


def test_what_is_forgotten_stays_on_the_disk(nvme: Disk, state: StateFolder) -> None:
    async def test() -> None:
        async with keeping(state) as keeper:
            keeper.take(told(nvme))
            await reaches(keeper, DataState.READY)
            keeper.take(DataLocation(2))
            assert keeper.seen() is None
            await until(lambda: not (state.path / DATA_LOCATION).exists())
            with pytest.raises(DriverError, match="no data location is chosen"):
                keeper.drives(want("a", drives=("weights",)), "")
        assert (nvme.mount / "corral" / MARKER).exists()

    run(test)


def test_a_site_that_says_nothing_of_it_changes_nothing(nvme: Disk, state: StateFolder) -> None:
    async def test() -> None:
        async with keeping(state) as keeper:
            keeper.take(told(nvme))
            await reaches(keeper, DataState.READY)
            keeper.take(None)
            assert keeper.seen() == DataLocationSeen(1, DataState.READY)

    run(test)


def test_nothing_is_made_that_the_agent_could_not_remember(
    nvme: Disk, state: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(name: str, body: object) -> None:
        raise Unwritable("the disk that holds the agent's state is full")

    async def test() -> None:
        async with keeping(state) as keeper:
            with monkeypatch.context() as broken:
                broken.setattr(state, "write", full)
                keeper.take(told(nvme))
                await reaches(keeper, DataState.FAILED, "is full")
                assert not (nvme.mount / "corral").exists()
            await reaches(keeper, DataState.READY)

    run(test)


def test_an_allocations_drives_stay_in_the_data_location_of_its_first_start(nvme: Disk, state: StateFolder) -> None:
    async def test() -> None:
        ask = want("a", drives=("weights", "cache"))
        async with keeping(state) as keeper:
            keeper.take(told(nvme, name="one"))
            await reaches(keeper, DataState.READY)
            before, first = keeper.drives(ask, "")
            assert first["cache"] == nvme.mount / "one" / ask.org / ask.workspace / "cache"
            keeper.take(told(nvme, 2, name="two"))
            await reaches(keeper, DataState.READY)
            assert keeper.drives(ask, before)[1] == first
            assert keeper.drives(want("b", drives=("cache",)), "")[1]["cache"].is_relative_to(nvme.mount / "two")

    run(test)


def test_drives_in_use_are_counted(nvme: Disk, state: StateFolder) -> None:
    async def test() -> None:
        ask = want("a", drives=("weights",))
        key = DriveKey(ask.org, ask.workspace, "weights")
        used = {key}
        async with keeping(state) as keeper:
            keeper.in_use = lambda: used
            keeper.take(told(nvme))
            await reaches(keeper, DataState.READY)
            keeper.drives(ask, "")
            await until(lambda: keeper.seen() == DataLocationSeen(1, DataState.READY, copies=1))
            used.clear()
            await until(lambda: keeper.seen() == DataLocationSeen(1, DataState.READY, copies=0))

    run(test)


def test_a_disk_that_does_not_answer_is_asked_once(
    nvme: Disk, state: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_location, "ANSWERS_WITHIN_S", 0.02)
    answers, asked = threading.Event(), []

    class Hanging(DataFolder):
        def make(self, place: Place) -> None:
            asked.append(place)
            answers.wait(10)
            super().make(place)

    async def test() -> None:
        async with keeping(state, Hanging(OURS, state.path)) as keeper:
            try:
                keeper.take(told(nvme))
                await reaches(keeper, DataState.FAILED, "does not answer")
                keeper.take(told(nvme, max_bytes=7))
                await reaches(keeper, DataState.FAILED, "does not answer")
                assert len(asked) == 1
            finally:
                answers.set()
            await reaches(keeper, DataState.READY)

    run(test)
