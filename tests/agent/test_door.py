"""What the old release learns of the site while a new one is on trial (spec 40, "Update")."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError
from websockets.exceptions import ConnectionClosed

from corral.agent.door import Door, Knocks, knock
from corral.agent.state import MACHINE, Machine, StateFolder
from corral.server import agents
from corral.store.engine import Database
from corral.usecases import sessions
from tests import scripted_agent
from tests.live_server import Site, eventually, live_server
from tests.scripted_agent import Enrolled
from tests.world import World


@pytest.fixture
def world(sqlite_db: Database, tmp_path: Path) -> World:
    return World(sqlite_db, tmp_path / "world")


@pytest.fixture
def site(sqlite_db: Database, world: World) -> Iterator[Site]:
    with live_server(sqlite_db) as site:
        yield site


@pytest.fixture
def state(world: World, site: Site, tmp_path: Path) -> StateFolder:
    """Of a machine that has joined the site."""
    where = (world.ids.orgs["acme"], world.ids.clusters["default"])
    box: Enrolled = scripted_agent.enrol(world.db, where, "box")[0]
    folder = StateFolder(tmp_path / "state")
    folder.make()
    folder.write_text("key", box.key + "\n")
    folder.write(MACHINE, Machine(site.url, box.ref.id, "box", "acme", "default"))
    return folder


def test_a_site_that_would_take_a_session_is_open_and_none_is_opened(state: StateFolder, site: Site) -> None:
    knock(state)
    assert len(site.hub) == 0


def status(error: pytest.ExceptionInfo[Exception]) -> int:
    return int(error.value.response.status_code)  # type: ignore[attr-defined]


def test_a_site_that_puts_machines_off_is_shut(state: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "MAX_WAITING", 0)
    with pytest.raises(Exception, match="503") as error:
        knock(state)
    assert status(error) == HTTPStatus.SERVICE_UNAVAILABLE


def test_a_site_whose_database_takes_no_writes_is_shut(
    state: StateFolder, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OperationalError("UPDATE machines", {}, OSError("database or disk is full"))

    monkeypatch.setattr(sessions, "open", full)
    with scripted_agent.dial(site, state.key()) as ws, pytest.raises(ConnectionClosed):
        scripted_agent.speak(ws)
    with pytest.raises(Exception, match="503") as error:
        knock(state)
    assert status(error) == HTTPStatus.SERVICE_UNAVAILABLE


def test_a_key_that_the_site_does_not_know_is_no_release_s_fault(state: StateFolder) -> None:
    state.write_text("key", "ab" * 32 + "\n")
    with pytest.raises(Exception, match="401") as error:
        knock(state)
    assert status(error) == HTTPStatus.UNAUTHORIZED


def test_a_site_that_is_away_is_shut(state: StateFolder) -> None:
    state.write(MACHINE, Machine("http://127.0.0.1:9", "m1", "box", "acme", "default"))
    with pytest.raises(OSError, match="refused"):
        knock(state)


def test_the_way_leads_through_the_proxy_of_the_environment(
    state: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with pytest.raises(OSError, match="refused"):
        knock(state)


def test_knocks_begin_when_they_are_wanted_and_tell_each_answer() -> None:
    answers = [OSError("away"), None, ValueError("odd"), None]
    asked = threading.Event()

    def ask() -> None:
        asked.set()
        if answers and (error := answers.pop(0)) is not None:
            raise error

    with Knocks(ask, 0.01) as knocks:
        assert not asked.is_set()
        knocks.start()
        knocks.start()
        assert [knocks.is_open() for _ in range(4)] == [False, True, False, True]
    eventually(lambda: not any(thread.name == "knocks" for thread in threading.enumerate()))


def test_a_door_is_open_or_shut_for_as_long_as_nobody_found_it_otherwise() -> None:
    door = Door()
    assert (door.open_for, door.shut_for) == (0.0, 0.0)
    for now, is_open, said in [
        (100.0, True, (0.0, 0.0)),
        (110.0, True, (10.0, 0.0)),
        (115.0, False, (0.0, 0.0)),
        (130.0, False, (0.0, 15.0)),
        (131.0, True, (0.0, 0.0)),
        (141.0, True, (10.0, 0.0)),
    ]:
        door.seen(is_open, now)
        assert (door.open_for, door.shut_for) == said
