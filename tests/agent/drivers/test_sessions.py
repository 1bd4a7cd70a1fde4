"""ssh into a container: any client, any image, no port, and nothing left running when a connection ends."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from corral.agent.drivers.base import DriverError
from corral.agent.drivers.host import wait_for
from corral.agent.drivers.podman import PodmanDriver
from corral.agent.drivers.sessions import Process, Session, Sessions, leftovers
from corral.protocol.messages import DesiredAllocation
from tests import podman
from tests.podman import Box, Key, Ssh


def process(pid: int, session: int, tag: str = "a", *, on_connection: bool = True, nohup: bool = False) -> Process:
    return Process(pid, session, tag, on_connection, nohup)


def test_what_an_ended_connection_left_is_ended() -> None:
    shell, child = process(10, 10), process(11, 10, on_connection=False)
    assert leftovers([shell, child], live=()) == [shell, child]


def test_what_belongs_to_an_open_connection_is_left_alone() -> None:
    assert leftovers([process(10, 10)], live=("a",)) == []


def test_what_ignores_the_hang_up_lives_on() -> None:
    assert leftovers([process(10, 10, nohup=True)], live=()) == []


def test_what_has_a_session_of_its_own_and_let_go_of_the_connection_lives_on() -> None:
    assert leftovers([process(20, 20, on_connection=False)], live=()) == []


def test_what_came_by_no_connection_is_left_alone() -> None:
    assert leftovers([process(1, 1, tag="")], live=()) == []


@pytest.fixture
def sessions() -> Iterator[Sessions]:
    made = Sessions()
    yield made
    made.close()


def connection_that_ends(sessions: Sessions, container: str, members: Callable[[], list[int]]) -> None:
    """Let a connection of this container be over at once."""
    ended = subprocess.Popen(["sleep", "600"])
    sessions._watch(Session("tag", container, members), ended.pid)
    ended.kill()
    ended.wait()


def test_a_container_that_is_slow_to_clear_up_holds_up_no_other(sessions: Sessions) -> None:
    let_go, looked = threading.Event(), threading.Event()

    def slow() -> list[int]:
        let_go.wait(20)
        return []

    def quick() -> list[int]:
        looked.set()
        return []

    try:
        connection_that_ends(sessions, "a", slow)
        connection_that_ends(sessions, "b", quick)
        assert looked.wait(10)
    finally:
        let_go.set()


def test_connections_that_end_together_are_cleared_up_together(sessions: Sessions) -> None:
    first, let_go, looks = threading.Event(), threading.Event(), []

    def members() -> list[int]:
        looks.append(True)
        first.set()
        let_go.wait(20)
        return []

    try:
        connection_that_ends(sessions, "a", members)
        assert first.wait(10)
        for _ in range(20):
            connection_that_ends(sessions, "a", members)
        assert wait_for(lambda: len(sessions._selector.get_map()) == 1, 10)
    finally:
        let_go.set()
    sessions.close()
    assert len(looks) == 2, "the one that ran, and one for all that ended meanwhile"


def test_a_clearing_up_that_fails_is_not_the_last_one(sessions: Sessions) -> None:
    failed, looked = threading.Event(), threading.Event()

    def broken() -> list[int]:
        failed.set()
        raise ValueError

    def whole() -> list[int]:
        looked.set()
        return []

    connection_that_ends(sessions, "a", broken)
    assert failed.wait(10)
    assert wait_for(lambda: not sessions._due, 10)
    connection_that_ends(sessions, "a", whole)
    assert looked.wait(10)


@pytest.fixture(scope="module")
def cluster(driver: PodmanDriver, key: Key) -> Iterator[DesiredAllocation]:
    want = podman.desired(key, ram_mib=256)
    podman.start(driver, want)
    yield want
    driver.remove(want.id)


@pytest.fixture
def shell(driver: PodmanDriver, cluster: DesiredAllocation, key: Key, podman_folder: Path) -> Iterator[Ssh]:
    with podman.ssh(driver, cluster.id, key, podman_folder) as connection:
        yield connection


@pytest.mark.podman
def test_exit_codes_and_both_outputs_come_through(shell: Ssh) -> None:
    done = shell.run("cat; echo wrong >&2; exit 7", stdin=b"in")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"in", b"wrong\n")


@pytest.mark.podman
def test_a_terminal_works(shell: Ssh) -> None:
    argv = ["ssh", "-tt", *shell.options(), "root@box", "tty"]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    assert done.stdout.startswith(b"/dev/pts/")


@pytest.mark.podman
def test_scp_and_sftp_work_in_an_image_that_has_neither(shell: Ssh, tmp_path: Path) -> None:
    data = bytes(range(256)) * 8192
    (tmp_path / "up").write_bytes(data)
    subprocess.run(["scp", "-q", *shell.options(), tmp_path / "up", "root@box:/root/f"], check=True, timeout=60)
    batch = f"get /root/f {tmp_path}/down\n".encode()
    subprocess.run(["sftp", "-q", *shell.options(), "-b", "-", "root@box"], input=batch, check=True, timeout=60)
    assert (tmp_path / "down").read_bytes() == data


@pytest.mark.podman
def test_a_stream_of_many_megabytes_arrives_whole(shell: Ssh) -> None:
    done = shell.run("head -c 50000000 /dev/zero | tee /dev/stderr | md5sum >/dev/null; head -c 50000000 /dev/zero")
    assert (len(done.stdout), len(done.stderr)) == (50_000_000, 50_000_000)


@pytest.mark.podman
def test_it_works_without_any_network(new_box: Callable[..., Box], key: Key, podman_folder: Path) -> None:
    box = new_box(network=False)
    driver, want = box.driver(), podman.desired(key)
    podman.start(driver, want)
    with podman.ssh(driver, want.id, key, podman_folder) as connection:
        assert connection.text("ls /sys/class/net") == "lo"
    driver.remove(want.id)


@pytest.mark.podman
def test_a_key_counts_from_when_it_is_attached_until_it_is_detached(
    driver: PodmanDriver, cluster: DesiredAllocation, key: Key, podman_folder: Path, tmp_path: Path
) -> None:
    other = podman.make_key(tmp_path)
    with podman.ssh(driver, cluster.id, other, podman_folder) as connection:
        assert b"Permission denied" in connection.run("true").stderr
        driver.update(replace(cluster, authorized_keys=(key.public, other.public)))
        assert connection.run("true").returncode == 0
        driver.update(cluster)
        assert b"Permission denied" in connection.run("true").stderr


@pytest.mark.podman
def test_a_key_line_cannot_smuggle_another_one_in(
    driver: PodmanDriver, cluster: DesiredAllocation, key: Key, podman_folder: Path, tmp_path: Path
) -> None:
    other = podman.make_key(tmp_path)
    driver.update(replace(cluster, authorized_keys=(key.public, f"{key.public}\n{other.public}")))
    try:
        with podman.ssh(driver, cluster.id, other, podman_folder) as connection:
            assert connection.run("true").returncode != 0
    finally:
        driver.update(cluster)


def running(shell: Ssh, command: str) -> list[str]:
    """Return the process ids in the container whose command line is exactly `command`."""
    listed = shell.text("for p in /proc/[0-9]*; do echo ${p#/proc/} $(tr '\\0' ' ' < $p/cmdline); done 2>/dev/null")
    return [line.split()[0] for line in listed.splitlines() if line.partition(" ")[2] == command]


@pytest.mark.podman
def test_a_closed_connection_leaves_no_process_behind(shell: Ssh) -> None:
    client = shell.open("sleep 1001 | sleep 1002")
    assert wait_for(lambda: len(running(shell, "sleep 1002")) == 1, 10)
    client.kill()
    client.communicate()
    assert wait_for(lambda: running(shell, "sleep 1001") + running(shell, "sleep 1002") == [], 10)
    assert wait_for(lambda: len(running(shell, "sshd: root@notty")) == 1, 10), "only the one that looks"


@pytest.mark.podman
def test_what_was_detached_outlives_the_connection(shell: Ssh) -> None:
    shell.text("setsid sleep 1003 </dev/null >/dev/null 2>&1 & (trap '' HUP; exec sleep 1004 >/dev/null 2>&1) &")
    client = shell.open("sleep 1005")
    assert wait_for(lambda: len(running(shell, "sleep 1005")) == 1, 10)
    client.kill()
    client.communicate()
    assert wait_for(lambda: running(shell, "sleep 1005") == [], 10)
    kept = running(shell, "sleep 1003") + running(shell, "sleep 1004")
    assert len(kept) == 2
    shell.text(f"kill -9 {' '.join(kept)}")


@pytest.mark.podman
def test_a_new_agent_ends_what_a_dead_agents_connections_left(
    new_box: Callable[..., Box], key: Key, podman_folder: Path
) -> None:
    box = new_box()
    first, want = box.driver(), podman.desired(key)
    podman.start(first, want)
    first._sessions.sweep = lambda members: None  # type: ignore[method-assign]  # as an agent that is dead
    with podman.ssh(first, want.id, key, podman_folder) as connection:
        client = connection.open("sleep 1006")
        assert wait_for(lambda: len(running(connection, "sleep 1006")) == 1, 10)
        client.kill()
        client.communicate()
        assert len(running(connection, "sleep 1006")) == 1
    second = box.driver()
    podman.start(second, want)
    with podman.ssh(second, want.id, key, podman_folder) as connection:
        assert running(connection, "sleep 1006") == []
    second.remove(want.id)


@pytest.mark.podman
def test_an_sshd_that_does_not_start_fails_the_start_in_its_own_words(driver: PodmanDriver, box: Box) -> None:
    want = podman.desired()
    podman.start(driver, want)
    try:
        (box.folder(want.id) / "ssh/etc/host_key").write_text("no key")
        with pytest.raises(DriverError, match=r"does not answer: .*(host_key|hostkeys)"):
            podman.start(driver, want)
    finally:
        driver.remove(want.id)
