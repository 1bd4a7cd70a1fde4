"""Which asks of a site an agent follows, and what it remembers (spec 40, "Update")."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

import corral
from corral.agent import join, release
from corral.agent.records import Record, keep, recall
from corral.agent.site import Site
from corral.agent.state import TOMBSTONE, StateFolder, Tombstone
from corral.agent.update import CUT_SHORT, Updater
from corral.protocol.updates import Update, UpdateReport, UpdateState
from tests.agent.fake_site import run, until

NEW = Update(1, "9.9.9", "ab" * 32, 10, "/files")


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    folder = StateFolder(tmp_path / "state")
    folder.make()
    return folder


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Releases that were fetched; each download fails as being wrong unless a test says otherwise."""
    asked: list[str] = []

    def fetch(_site: Site, want: release.Wanted, _path: Path, _ended: Callable[[], bool]) -> None:
        asked.append(want.release)
        raise release.Refused("wrong")

    monkeypatch.setattr(release, "installed", lambda: tmp_path / "opt" / release.PYZ)
    monkeypatch.setattr(release, "fetch", fetch)
    return asked


def updater(state: StateFolder, *, on_trial: bool = False) -> Updater:
    return Updater(state, Site("http://127.0.0.1:9"), lambda: None, on_trial=on_trial)


async def settled(one: Updater, *asks: Update) -> None:
    """Have it take asks, one after the other, until each is done with."""
    going = asyncio.ensure_future(one.run())
    try:
        for ask in asks:
            one.want(ask)
            await until(lambda: one.report is not None and one.report.state is UpdateState.FAILED)
            await asyncio.sleep(0)
    finally:
        going.cancel()
        await asyncio.gather(going, return_exceptions=True)


def other(ask: int, version: str = "9.9.9") -> Update:
    return Update(ask, version, NEW.sha256, NEW.size, NEW.path)


def test_the_same_ask_is_tried_once_and_another_again(state: StateFolder, fetched: list[str]) -> None:
    async def test() -> None:
        await settled(updater(state), NEW, NEW, NEW)
        assert fetched == ["9.9.9"]
        again = updater(state)
        assert again.report == UpdateReport(1, UpdateState.FAILED, "wrong")
        await settled(again, NEW)
        assert fetched == ["9.9.9"]
        await settled(again, other(2))
        await until(lambda: fetched == ["9.9.9"] * 2)

    run(test)


@pytest.mark.parametrize("ask", [other(0), other(1, "9.9.8")])
def test_after_a_restored_back_up_a_lower_number_or_another_release_is_an_ask_too(
    state: StateFolder, fetched: list[str], ask: Update
) -> None:
    async def test() -> None:
        await settled(updater(state), NEW)
        again = updater(state)
        await settled(again, ask)
        await until(lambda: len(fetched) == 2)

    run(test)


def test_its_own_release_is_nothing_to_update_to(state: StateFolder, fetched: list[str]) -> None:
    one = updater(state)
    one.want(other(1, corral.__version__))
    assert one.report is None
    assert fetched == []


def test_on_trial_it_takes_no_asks_and_says_that_it_is(state: StateFolder, fetched: list[str]) -> None:
    keep(state, Record(1, corral.__version__))
    one = updater(state, on_trial=True)
    one.want(other(2))
    assert one.report == UpdateReport(1, UpdateState.RUNNING, "on trial")
    assert recall(state) == Record(1, corral.__version__)


def test_what_was_on_trial_and_is_this_release_now_is_forgotten(state: StateFolder, fetched: list[str]) -> None:
    keep(state, Record(1, corral.__version__))
    assert updater(state).report is None
    assert recall(state) is None


def test_a_trial_without_an_end_counts_as_failed(state: StateFolder, fetched: list[str]) -> None:
    keep(state, Record(1, "9.9.9"))
    assert updater(state).report == UpdateReport(1, UpdateState.FAILED, CUT_SHORT)
    assert recall(state) == Record(1, "9.9.9", CUT_SHORT)


def test_a_record_that_cannot_be_read_keeps_no_agent_from_working(state: StateFolder, fetched: list[str]) -> None:
    state.write_text("update.json", "{")
    assert updater(state).report is None
    assert not (state.path / "update.json").exists()


def test_a_failure_is_remembered_while_the_disk_refuses_it(
    state: StateFolder, fetched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        one = updater(state)
        state.path.joinpath("update.json.new").mkdir()  # nothing can be written there
        await settled(one, NEW, NEW)
        assert fetched == ["9.9.9"]
        assert recall(state) is None

    run(test)


def test_trouble_on_the_way_is_told_and_tried_again(
    state: StateFolder, fetched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def fetch(*_: object) -> None:
        tries.append(1)
        if len(tries) < 4:
            raise release.Unreachable("HTTP 429", 0.0)
        raise release.Refused("wrong")

    monkeypatch.setattr(release, "fetch", fetch)
    monkeypatch.setattr("corral.agent.update.AGAIN_BASE_S", 0.01)

    async def test() -> None:
        one = updater(state)
        seen: list[UpdateReport | None] = []
        one._changed = lambda: seen.append(one.report)
        await settled(one, NEW)
        assert [report.message for report in seen if report] == [
            *["downloads", "waits to be downloaded: HTTP 429"] * 3,
            "downloads",
            "wrong",
        ]

    run(test)


def test_a_machine_that_joins_anew_remembers_no_update(state: StateFolder, tmp_path: Path) -> None:
    keep(state, Record(1, "9.9.9", "wrong"))
    state.write(TOMBSTONE, Tombstone("m", "m", "removed", done=True))
    join._clear_the_buried(state)
    assert recall(state) is None
