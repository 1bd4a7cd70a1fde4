"""What runs goes on through every outage of agent and control plane, and is found again (spec 50, rule 4)."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corral.client.errors import CorralError
from corral.client.machine_models import Machine as MachineShown
from tests.e2e import ground
from tests.e2e.stack import WITHIN_S, Machine, Stack
from tests.live_server import eventually
from tests.podman import run_dir

pytestmark = pytest.mark.podman

TICKER = "(trap '' HUP; while true; do date +%s >> /root/ticks; sleep 1; done) </dev/null >/dev/null 2>&1 & echo $!"
"""What nohup does; busybox has none."""


@pytest.fixture(scope="module")
def stack(e2e_folder: Path, images: Path) -> Iterator[Stack]:
    """A Corral for these tests, each of which takes away what it made."""
    folder = e2e_folder / "outages"
    folder.mkdir()
    with Stack(folder, [images]) as shared:
        shared.add_machine()
        yield shared


@pytest.fixture
def box(stack: Stack) -> Iterator[str]:
    """A compute cluster in which something precious is kept and something runs."""
    stack.create("box", ssh_keys=["key"])
    stack.said("box", "echo precious > /root/kept")
    yield "box"
    connected(stack)
    stack.terminate("box")
    ground.settled(stack, stack.machines[0])


def shown(stack: Stack) -> MachineShown:
    return stack.owner.org("acme").cluster(stack.cluster).machine(stack.machines[0].name).machine


def connected(stack: Stack) -> None:
    """Wait until the machine has a session again, and say that nothing is wrong with it."""
    eventually(lambda: stack.ssh("box", "true").returncode == 0, WITHIN_S)
    assert (shown(stack).quarantine, shown(stack).state) == (None, "up")


def restart_agent(stack: Stack) -> None:
    stack.machines[0].stop()
    stack.machines[0].start()


def kill_agent(stack: Stack) -> None:
    stack.machines[0].kill()
    stack.machines[0].start()


def restart_site(stack: Stack) -> None:
    stack.stop_site()
    stack.start_site()


def kill_site(stack: Stack) -> None:
    stack.kill_site()
    stack.start_site()


@pytest.mark.parametrize("outage", [restart_agent, kill_agent, restart_site, kill_site])
def test_an_outage_drops_ssh_but_what_was_started_with_nohup_goes_on(
    stack: Stack, box: str, outage: Callable[[Stack], None]
) -> None:
    machine = stack.machines[0]
    before = ground.first_process(stack, machine, box)
    pid = stack.said(box, TICKER)
    session = stack.open_ssh(box, "echo in; exec cat")
    assert session.stdout is not None
    assert session.stdout.readline() == b"in\n"
    outage(stack)
    assert session.wait(WITHIN_S) == 255
    connected(stack)
    ticks = int(stack.said(box, "wc -l < /root/ticks"))
    eventually(lambda: int(stack.said(box, "wc -l < /root/ticks")) > ticks, WITHIN_S)
    assert stack.said(box, f"cat /proc/{pid}/comm /root/kept").split() == ["sh", "precious"]
    assert ground.first_process(stack, machine, box) == before
    assert (stack.show(box).state, stack.show(box).restarts) == ("active", 0)


def host_key(stack: Stack, name: str) -> str:
    found: str = stack.workspace.compute_cluster(name).connection().host_key
    return found


def remove_by_hand(stack: Stack, name: str) -> None:
    """Do what an administrator of the machine does who knows its private store."""
    machine = stack.machines[0]
    state = (machine.folder / "podman").resolve()
    store = ["--root", str(state / "store"), "--runroot", f"{run_dir(state)}/run", "--storage-driver", "overlay"]
    command = ["podman", *store, "--tmpdir", f"{run_dir(state)}/libpod", "rm", "-f", "-t", "0"]
    done = subprocess.run([*command, f"corral-{ground.allocation_of(stack, name)}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_container_removed_behind_corrals_back_is_started_again_on_its_storage_and_told(
    stack: Stack, box: str
) -> None:
    machine, key = stack.machines[0], host_key(stack, box)
    before = ground.first_process(stack, machine, box)
    remove_by_hand(stack, box)
    eventually(lambda: stack.show(box).restarts == 1, WITHIN_S)
    stack.until(box, "active")
    (again,) = ground.settled(stack, machine, box)[box]
    assert again != before
    eventually(lambda: stack.ssh(box, "true").returncode == 0, WITHIN_S)
    assert (stack.said(box, "cat /root/kept"), host_key(stack, box)) == ("precious", key)
    told = [entry for entry in stack.owner.org("acme").events() if entry.type == "workload.restarted"]
    assert told[0].data["name"] == box


def test_what_vanishes_while_the_control_plane_is_down_is_restarted_by_the_agent_and_told_later(
    stack: Stack, box: str
) -> None:
    machine = stack.machines[0]
    before = ground.first_process(stack, machine, box)
    id = ground.allocation_of(stack, box)
    stack.stop_site()
    os.kill(before.pid, signal.SIGKILL)
    eventually(lambda: ground.first_processes(machine).get(id, [before]) not in ([before], []), WITHIN_S)
    stack.start_site()
    eventually(lambda: stack.show(box).restarts == 1, WITHIN_S)
    stack.until(box, "active")
    connected(stack)
    assert stack.said(box, "cat /root/kept") == "precious"


def test_a_copied_state_folder_is_noticed_and_gets_no_new_work_while_what_runs_goes_on(stack: Stack, box: str) -> None:
    machine = stack.machines[0]
    before = ground.first_process(stack, machine, box)
    folder = stack.folder / "copy"
    shutil.copytree(machine.folder, folder, ignore=shutil.ignore_patterns("podman"))
    copy = Machine(stack, machine.name, folder, arguments=("--driver", "sim"))
    copy.start()
    try:
        eventually(lambda: shown(stack).quarantine is not None, WITHIN_S)
    finally:
        copy.stop()
    assert (shown(stack).quarantine.kind, "two copies" in shown(stack).closed) == ("clone", True)  # type: ignore[union-attr]
    with pytest.raises(CorralError, match="two copies") as refused:
        stack.create("more")
    assert refused.value.code == "NO_CAPACITY"
    assert ground.first_process(stack, machine, box) == before
    assert [e.type for e in stack.owner.org("acme").events()].count("cluster.node.cloned") == 1
    stack.owner.org("acme").cluster(stack.cluster).release_quarantine(machine.name)
    eventually(lambda: stack.ssh(box, "true").returncode == 0, WITHIN_S)
    stack.create("more")
    stack.terminate("more")
    assert shown(stack).quarantine is None
    assert ground.first_process(stack, machine, box) == before


def copy_database(stack: Stack, to: str, source: str = "site.db") -> None:
    """Copy it as sqlite3's own back-up does."""
    source_db, target = sqlite3.connect(stack.folder / source), sqlite3.connect(stack.folder / to)
    try:
        source_db.backup(target)
    finally:
        source_db.close()
        target.close()


def put_back(stack: Stack) -> None:
    for suffix in ("", "-wal", "-shm"):
        (stack.folder / f"site.db{suffix}").unlink(missing_ok=True)
    copy_database(stack, "site.db", "backup.db")


@pytest.mark.parametrize("told", [True, False], ids=["restored", "forgotten"])
def test_a_restored_older_database_kills_nothing_and_places_nothing_twice(
    new_stack: Callable[..., Stack], told: bool
) -> None:
    stack = new_stack()
    machine = stack.add_machine()
    stack.create("kept", ssh_keys=["key"])
    stack.create("old")
    copy_database(stack, "backup.db")
    stack.terminate("old")
    stack.create("newer", ssh_keys=["key"])
    stack.said("newer", "echo precious > /root/kept")
    before = ground.settled(stack, machine, "kept", "newer")
    allocation = ground.allocation_of(stack, "newer")
    stack.stop_site()
    put_back(stack)
    if told:
        done = stack.corral("site", "restored", "--database", stack.database, "--state-dir", str(stack.folder / "site"))
        assert done.returncode == 0, done.stderr
        assert "operator-link operator" in done.stdout
    stack.start_site()
    if not told:  # nothing shows that the database is older: it goes on, and an admin decides
        eventually(lambda: ground.rows(stack, "select quarantine from machines") == [("unknown_work",)], WITHIN_S)
        eventually(lambda: sorted(ground.live(stack).values()) == ["kept"], WITHIN_S)
        kept = ground.allocation_of(stack, "kept")
        assert ground.first_processes(machine) == {kept: before["kept"], allocation: before["newer"]}
        return
    after = ground.settled(stack, machine, "kept", "newer")
    assert after == before
    assert ground.allocation_of(stack, "newer") == allocation
    query = "select name, state, reason from workloads order by name"
    rows = ground.rows(stack, query)
    states = {name: state for name, state, _ in rows}
    assert states == {"kept": "active", "newer": "active", "old": "terminated"}
    assert "back-up" in str(rows[2][2])
    eventually(lambda: ground.rows(stack, "select quarantine from machines") == [(None,)], WITHIN_S)
    held = "select sum(vcpu), count(*) from allocations where released_at is null"
    assert ground.rows(stack, held) == [(2, 2)]
    with pytest.raises(CorralError) as refused:
        stack.show("kept")
    assert refused.value.status == 401
