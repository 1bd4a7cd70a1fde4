"""Updating agents on the command line, against a running site."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import update

import corral
from corral.cli import updates
from corral.protocol import updates as wire_updates
from corral.store.tables.machines import machines
from tests import scripted_agent
from tests.cli.conftest import Cli, Running
from tests.live_server import eventually
from tests.scripted_agent import Enrolled

OLD, NEW = "0.0.1", corral.__version__


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates, "EVERY_S", 0.05)


@contextmanager
def connected(running: Running, name: str, *, fails: str = "", works: str = "") -> Iterator[None]:
    """Have a machine of the old release that updates when it is asked, or says why it cannot, or what it works on."""
    world = running.world
    where = (world.ids.orgs["acme"], world.ids.clusters["default"])
    machine: Enrolled = scripted_agent.enrol(running.site.db, where, name)[0]
    up, leave = threading.Event(), threading.Event()

    def live() -> None:
        with scripted_agent.session(running.site, machine, "old", release=OLD) as speaker:
            speaker.report(release=OLD)
            up.set()
            ask = speaker.next(wire_updates.Update).ask
            if fails or works:
                state = wire_updates.UpdateState.FAILED if fails else wire_updates.UpdateState.RUNNING
                speaker.report(release=OLD, update=wire_updates.UpdateReport(ask, state, fails or works))
                leave.wait(30)
                return
        with scripted_agent.session(running.site, machine, "new", release=NEW) as speaker:
            speaker.report(release=NEW)
            leave.wait(30)

    thread = threading.Thread(target=live)
    thread.start()
    try:
        assert up.wait(30)
        yield
    finally:
        leave.set()
        thread.join()


def behind(running: Running, *names: str) -> None:
    for name in names:
        running.world.add_machine(name)
    with running.site.db.write() as tx:
        tx.run(update(machines).values(release=OLD))


def test_a_machine_is_updated_and_waited_for(running: Running, cli: Cli) -> None:
    with connected(running, "box"):
        assert f"{OLD} (behind)" in cli("admin", "machine", "list").out
        told = cli("admin", "machine", "update", "box", "--dry-run")
        assert f"goes from release {OLD} to {NEW}" in told.out and "stops no work" in told.out
        ran = cli("admin", "machine", "update", "box", "--wait")
        assert ran.code == 0, ran.err
        assert "its agent restarts in a few seconds" in ran.err
        assert ran.out == f"box has release {NEW}.\n"
        assert cli("admin", "machine", "update", "box").out == f"box has release {NEW}.\n"
        assert "already" in cli("admin", "machine", "update", "box", "--dry-run").out
        assert "behind" not in cli("admin", "machine", "list").out


def test_a_machine_that_cannot_update_says_why(running: Running, cli: Cli) -> None:
    with connected(running, "box", fails="the disk is \x1b[1mfull"):
        ran = cli("admin", "machine", "update", "box", "--wait")
        assert ran.code == 1 and "UPDATE_FAILED" in ran.err
        assert f"box could not update to {NEW}: the disk is \\x1b[1mfull" in ran.out
        assert f"{OLD} (update to {NEW} failed: the disk is" in cli("admin", "machine", "show", "box").out


def test_a_machine_that_is_away_updates_when_it_comes_back(running: Running, cli: Cli) -> None:
    behind(running, "box")
    ran = cli("admin", "machine", "update", "box")
    assert ran.code == 0 and "when it comes back" in ran.out
    assert f"{OLD} (updating to {NEW})" in cli("admin", "machine", "show", "box").out
    assert cli("admin", "machine", "update", "none").code == 3
    assert cli("member", "machine", "update", "box").code != 0


def test_waiting_for_a_machine_that_does_not_come_back_has_an_end(
    running: Running, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates, "WAITS_S", 0.0)
    behind(running, "box")
    ran = cli("admin", "machine", "update", "box", "--wait")
    assert ran.code == 1 and "box stays asked. Look later: corral machine show box" in ran.err
    assert ran.out == f"box is not connected: it updates to {NEW} when it comes back.\n"


def test_a_machine_that_goes_on_downloading_says_so_when_waiting_ends(
    running: Running, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates, "WAITS_S", 0.0)
    with connected(running, "box", works="waits to be downloaded: HTTP 502"):
        cli("admin", "machine", "update", "box")
        eventually(lambda: "HTTP 502" in cli("admin", "machine", "show", "box", "--json").out)
        ran = cli("admin", "machine", "update", "box", "--wait")
        assert ran.code == 1
        assert ran.out == f"box updates to {NEW}: waits to be downloaded: HTTP 502.\n"


def test_all_agents_are_updated_and_watched(running: Running, cli: Cli) -> None:
    with connected(running, "m0"), connected(running, "m1"), connected(running, "m2"):
        planned = cli("admin", "cluster", "update-agents", "--dry-run").out.splitlines()
        assert [line.split()[:3] for line in planned[1:]] == [
            ["m0", "one", "waiting"],
            ["m1", "a", "tenth"],
            ["m2", "the", "rest"],
        ]
        ran = cli("admin", "cluster", "update-agents", "--watch")
        assert ran.code == 0, ran.err
        assert ran.out == f"Update to release {NEW}: done: 3 done\n"
        assert "stage 1 of 3 (one)" in ran.err
        shown = cli("admin", "cluster", "update-progress")
        assert shown.out.count("done") == 5
        rows = json.loads(cli("admin", "cluster", "update-progress", "--json").out)["machines"]
        assert [(row["name"], row["state"], row["release"]) for row in rows] == [
            (name, "done", NEW) for name in ("m0", "m1", "m2")
        ]
        again = cli("admin", "cluster", "update-agents")
        assert again.code == 0 and "nothing was asked" in again.out


def test_the_first_that_does_not_come_back_ends_it(running: Running, cli: Cli) -> None:
    with connected(running, "m0", fails="bad checksum"):
        behind(running, "m1")
        ran = cli("admin", "cluster", "update-agents", "--watch")
        assert ran.code == 1 and "UPDATE_FAILED" in ran.err
        assert "failed: 1 failed, 1 left out. stopped, because m0 did not come back: bad checksum" in ran.out


def test_an_update_is_stopped(running: Running, cli: Cli) -> None:
    behind(running, "m0", "m1")
    assert cli("admin", "cluster", "stop-update").code == 3
    assert cli("admin", "cluster", "update-agents").code == 0
    ran = cli("admin", "cluster", "update-agents")
    assert ran.code == 1 and "CONFLICT" in ran.err and "stop-update" in ran.err
    assert "stopped by admin" in cli("admin", "cluster", "stop-update").out
    assert json.loads(cli("admin", "cluster", "update-progress", "--json").out)["state"] == "stopped"
