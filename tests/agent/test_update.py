"""An agent that updates, as a process, against a real control plane that serves another release (spec 40, "Update")."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from corral.agent.records import ON_TRIAL, Record
from corral.agent.state import Machine
from corral.server import agents
from corral.store.engine import Database
from corral.usecases import machines as use
from corral.usecases import updates
from tests import releases, scripted_agent
from tests.agent.installed import Installed, installed
from tests.live_server import Site, eventually, live_server
from tests.releases import Serves
from tests.scripted_agent import Enrolled
from tests.world import World

NEW = "9.9.9"
QUICK = {
    "corral/agent/link.py": ("base_s: float = 4.0", "base_s: float = 0.2"),
    "corral/agent/loop.py": ("UNANSWERED_S = 15.0", "UNANSWERED_S = 0.2"),
}
"""Of both releases: tests do not wait as long for a session."""


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The release that is installed: this one."""
    made = releases.base(tmp_path_factory.mktemp("base"))
    return releases.release(made, tmp_path_factory.mktemp("old"), "0.1.0", QUICK).made.pyz


@dataclass
class Ground:
    """A site that serves another release, and a machine of this one."""

    site: Site
    world: World
    agent: Installed
    name: str = "box"

    @property
    def serves(self) -> Serves:
        serves: Serves = self.site.app.state.artefact
        return serves

    def shown(self) -> dict[str, Any]:
        """Return the machine as its admin sees it."""
        with self.world.act("admin", "acme") as ctx:
            row = use.find(ctx, "default", self.name)
        return dict(row)

    def ask(self) -> None:
        with self.world.act("admin", "acme") as ctx:
            updates.ask(ctx, "default", self.name, self.serves.release)

    def update(self) -> None:
        """Start the agent, wait until it is Up, and ask."""
        self.agent.start()
        self.up()
        self.ask()

    def up(self) -> None:
        eventually(lambda: self.shown()["state"] == "up" and self.site.hub.connected(self.shown()["id"]))

    def is_updated(self) -> bool:
        row = self.shown()
        return (row["release"], row["update_state"]) == (NEW, "") and bool(self.site.hub.connected(row["id"]))

    def failed(self) -> str:
        """Return why the update failed ("": it has not)."""
        row = self.shown()
        assert row["release"] == "0.1.0" or row["update_state"] != "failed"
        return str(row["update_message"]) if row["update_state"] == "failed" else ""

    def works_on_the_old_one(self) -> None:
        """The old release is installed, runs and reports; nothing is left beside it."""
        eventually(lambda: self.site.hub.connected(self.shown()["id"]) and self.shown()["release"] == "0.1.0")
        assert self.shown()["quarantine"] is None
        eventually(lambda: not self.agent.beside.exists())
        done = subprocess.run(["python3", str(self.agent.program), "--version"], capture_output=True, check=True)
        assert done.stdout.strip() == b"0.1.0"

    def upgrades(self) -> list[dict[str, Any]]:
        """Return what the journal tells of updates, oldest first."""
        path = "/api/v1/orgs/acme/events?type=cluster.node.upgrade"
        items = self.world.client("admin").get(path).json()["items"]
        return [item["data"] for item in reversed(items)]


Grounds = Callable[..., Ground]


@pytest.fixture
def ground(sqlite_db: Database, tmp_path: Path, old: Path) -> Iterator[Grounds]:
    """Makes the one ground of a test: `ground(changes of the new release)`."""
    with ExitStack() as ending:

        def make(changes: releases.Changes | None = None, of_the_old: releases.Changes | None = None) -> Ground:
            world = World(sqlite_db, tmp_path / "world")
            new = releases.release(old, tmp_path / "new", NEW, changes)
            program = releases.release(old, tmp_path / "old", "0.1.0", of_the_old).made.pyz
            ending.callback(new.hold.set)
            site = ending.enter_context(live_server(sqlite_db, artefact=new))
            world.app = site.app
            where = (world.ids.orgs["acme"], world.ids.clusters["default"])
            box: Enrolled = scripted_agent.enrol(sqlite_db, where, "box")[0]
            machine = Machine(site.url, box.ref.id, "box", "acme", "default")
            agent = ending.enter_context(installed(tmp_path / "machine", program, machine, box.key))
            return Ground(site, world, agent)

        yield make


def test_it_becomes_the_new_release_in_the_same_process(ground: Grounds) -> None:
    g = ground()
    g.update()
    eventually(g.is_updated)
    assert g.agent.process is not None and g.agent.process.poll() is None
    words = Path(f"/proc/{g.agent.pid}/cmdline").read_bytes().split(b"\0")
    assert str(g.agent.program).encode() in words
    assert g.upgrades() == [
        {"name": "box", "state": "asked", "before": "0.1.0", "after": NEW, "reason": ""},
        {"name": "box", "state": "done", "before": "0.1.0", "after": NEW, "reason": ""},
    ]
    eventually(lambda: not g.agent.beside.exists() and not (g.agent.state.path / ON_TRIAL).exists())
    assert g.shown()["quarantine"] is None
    assert g.agent.stop() == 0


SOON = {"corral/agent/trial.py": ("COMES_WITHIN_S = 180.0", "COMES_WITHIN_S = 3.0")}
SOON_TESTED = {"corral/agent/release.py": ("SELF_TEST_S = 120.0", "SELF_TEST_S = 2.0")}


@pytest.mark.parametrize(
    ("changes", "of_the_old", "why"),
    [
        (releases.BROKEN_IMPORT, None, "self-test failed: ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        (releases.NEWER_LAYOUT, None, "self-test failed: .* has layout 1, this agent knows 0"),
        (releases.HANGS_IN_TEST, SOON_TESTED, "self-test did not end within 2 s"),
        (releases.DIES_AT_WORK, None, r"ended on its trial \(exit code 1\); the agent's log says why"),
        (releases.HANGS_AT_WORK, SOON, "did not come to work within 3 s"),
    ],
    ids=["import", "state", "self-test", "dies", "hangs"],
)
def test_a_release_that_does_not_work_leaves_the_old_one_and_is_not_tried_again_by_itself(
    ground: Grounds, changes: releases.Changes, of_the_old: releases.Changes | None, why: str
) -> None:
    g = ground(changes, of_the_old)
    g.update()
    assert re.search(why, eventually(g.failed)), g.failed()
    g.works_on_the_old_one()
    assert [one["state"] for one in g.upgrades()] == ["asked", "failed"]
    assert re.search(why, g.upgrades()[-1]["reason"])
    asked = g.serves.asked
    assert g.agent.stop() == 0
    g.agent.start()
    g.works_on_the_old_one()
    assert re.search(why, g.failed())
    assert g.serves.asked == asked
    g.ask()
    eventually(lambda: [one["state"] for one in g.upgrades()] == ["asked", "failed"] * 2)
    assert g.serves.asked == asked + 3
    g.works_on_the_old_one()


def test_a_release_that_failed_is_taken_once_it_is_a_good_one(ground: Grounds, old: Path, tmp_path: Path) -> None:
    g = ground(releases.DIES_AT_WORK)
    g.update()
    eventually(g.failed)
    g.serves.made = releases.release(old, tmp_path / "better", NEW).made
    g.ask()
    eventually(g.is_updated)


@pytest.mark.parametrize("wrong", ["sums", "body", "none"])
def test_a_wrong_checksum_changes_nothing(ground: Grounds, wrong: str) -> None:
    g = ground()
    made = g.serves.made
    if wrong == "body":
        data = made.pyz.read_bytes()
        made.pyz.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    else:
        made.sums.write_text("" if wrong == "none" else made.sums.read_text() * 2)
    before = g.agent.program.read_bytes()
    g.update()
    assert "nothing was changed" in eventually(g.failed)
    g.works_on_the_old_one()
    assert g.agent.program.read_bytes() == before
    assert g.agent.others() == []


def knocks(once: str, soon: str) -> releases.Changes:
    """Return a change of the watchdog: it knocks often, and does not wait long for one of its two ends."""
    every = "KNOCK_EVERY_S, OPEN_FOR_S, SHUT_FOR_S = 15.0, 180.0, 180.0"
    return {"corral/agent/trial.py": (every, every.replace(once, soon, 1).replace("15.0", "0.1"))}


OPEN_SOON, SHUT_SOON = knocks("180.0, 180.0", "1.0, 180.0"), knocks("180.0, 180.0", "180.0, 1.0")


@pytest.mark.parametrize(
    "changes", [releases.NEVER_CONNECTS, releases.TOO_OLD, releases.WRONG_KEY], ids=["no session", "refused", "key"]
)
def test_a_release_that_can_open_no_session_leaves_the_old_one_where_the_site_takes_sessions(
    ground: Grounds, changes: releases.Changes
) -> None:
    g = ground(changes, OPEN_SOON)
    g.update()
    told = "the site acknowledged nothing of the new release for 1 s, while it took sessions of this machine"
    eventually(lambda: told in g.failed())
    g.works_on_the_old_one()
    assert [one["state"] for one in g.upgrades()] == ["asked", "failed"]


def test_an_outage_of_the_site_rolls_nothing_back(ground: Grounds) -> None:
    g = ground(releases.NEVER_CONNECTS, SHUT_SOON)
    g.update()
    eventually(lambda: on_trial(g))
    g.site.server.should_exit = True
    eventually(lambda: b"/api/v1/agent/nothing" in unpacked(g.agent.program, "corral/agent/link.py"))
    eventually(lambda: g.agent.others() == [])
    assert g.agent.process is not None and g.agent.process.poll() is None
    assert not g.failed()


def test_a_site_that_puts_machines_off_rolls_nothing_back(ground: Grounds, monkeypatch: pytest.MonkeyPatch) -> None:
    g = ground(of_the_old=SHUT_SOON)
    g.agent.start()
    g.up()
    with monkeypatch.context() as busy:
        g.ask()
        eventually(lambda: running(g, "tests itself"))
        busy.setattr(agents, "MAX_WAITING", 0)
        eventually(lambda: b'"9.9.9"' in unpacked(g.agent.program, "corral/__init__.py"))
    eventually(g.is_updated)


def unpacked(program: Path, name: str) -> bytes:
    with zipfile.ZipFile(program) as archive:
        return archive.read(name)


def test_a_full_disk_leaves_the_old_release(ground: Grounds) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    g = ground()
    opt = g.agent.program.parent
    whole = g.agent.program.read_bytes()
    size = (len(whole) // 4096 + 20) * 4096
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(opt)], check=True)
    try:
        g.agent.program.write_bytes(whole)
        g.update()
        assert "is full: free space on it, then update again" in eventually(g.failed)
        g.works_on_the_old_one()
        subprocess.run(["mount", "-o", "remount,size=64m", str(opt)], check=True)
        g.ask()
        eventually(g.is_updated)
        g.agent.end()
    finally:
        g.agent.end()
        subprocess.run(["umount", str(opt)], check=True)


# -- killed at any step ---------------------------------------------------------------------------


def running(g: Ground, what: str) -> bool:
    row = g.shown()
    return (row["update_state"], row["update_message"]) == ("running", what)


def crash(g: Ground) -> None:
    """Kill the agent, and wait until nothing of it is left that could get into the way."""
    g.agent.kill()
    eventually(lambda: not g.agent.others())


def test_killed_while_it_downloads_it_does_so_again(ground: Grounds) -> None:
    g = ground()
    g.serves.hold.clear()
    g.update()
    eventually(lambda: running(g, "downloads"))
    crash(g)
    g.agent.start()
    eventually(lambda: g.site.hub.connected(g.shown()["id"]))
    g.serves.hold.set()
    eventually(g.is_updated)


def test_killed_while_the_release_tests_itself_the_old_one_runs(ground: Grounds) -> None:
    g = ground(releases.HANGS_IN_TEST, SOON_TESTED)
    g.update()
    eventually(lambda: running(g, "tests itself"))
    g.agent.kill()
    g.agent.start()
    assert "did not end" in eventually(g.failed)
    g.works_on_the_old_one()


def on_trial(g: Ground) -> list[int]:
    """Return the process of the release on trial."""
    return [pid for pid in g.agent.others() if b"--trial-fd" in command_line(pid)]


def command_line(pid: int) -> bytes:
    """Return a process's command; nothing when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_killed_on_trial_the_successor_ends_too_and_the_old_release_says_so(ground: Grounds) -> None:
    g = ground(releases.HANGS_AT_WORK)
    g.update()
    eventually(lambda: on_trial(g))
    crash(g)
    g.agent.start()
    assert eventually(g.failed) == "the agent ended in the middle of the new release's trial"
    g.works_on_the_old_one()


def test_a_successor_that_is_killed_is_followed_by_the_old_release_in_the_same_process(ground: Grounds) -> None:
    g = ground(releases.HANGS_AT_WORK)
    g.update()
    (successor,) = eventually(lambda: on_trial(g))
    os.kill(successor, signal.SIGKILL)
    assert "ended on its trial (signal 9)" in eventually(g.failed)
    g.works_on_the_old_one()
    assert g.agent.process is not None and g.agent.process.poll() is None


def test_stopped_on_trial_it_ends_and_tries_again_when_it_is_started(ground: Grounds) -> None:
    g = ground(releases.HANGS_AT_WORK)
    g.update()
    eventually(lambda: on_trial(g))
    assert g.agent.stop() == 0
    assert g.agent.others() == []
    g.agent.start()
    eventually(lambda: on_trial(g))
    assert not g.failed()


def test_killed_after_the_switch_the_new_release_is_there(ground: Grounds) -> None:
    g = ground()
    g.agent.start()
    g.up()
    crash(g)
    g.ask()
    g.agent.state.write(ON_TRIAL, Record(g.shown()["update_ask"], NEW))
    shutil.copy(g.serves.made.pyz, g.agent.program)
    g.agent.start()
    eventually(g.is_updated)
    assert not (g.agent.state.path / ON_TRIAL).exists()


def test_an_agent_of_a_python_installation_says_how_it_is_updated(ground: Grounds) -> None:
    g = ground()
    g.agent.start("-m", "corral.agent.main")
    g.up()
    g.ask()
    assert "update it the way it was installed" in eventually(g.failed)
