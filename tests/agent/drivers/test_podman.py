"""A real container from start to removal: what it may use, what it sees, what is left of it."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corral.agent.drivers import podman_images, toolbox
from corral.agent.drivers.base import DriverError
from corral.agent.drivers.etc_files import resolvers
from corral.agent.drivers.host import is_mounted, unmount, wait_for
from corral.agent.drivers.podman import PodmanDriver
from corral.domain import compute_clusters
from corral.protocol.messages import DesiredAllocation, Step
from tests import podman
from tests.podman import Box, Key, Ssh

pytestmark = pytest.mark.podman


@pytest.fixture(scope="module")
def cluster(driver: PodmanDriver, key: Key) -> Iterator[DesiredAllocation]:
    """A running compute cluster in a pure busybox image."""
    env = {"GREETING": 'say "hi" twice', "EMPTY": "", "FOLDER": "C:\\", "ODD": '\\" \\\\"'}
    want = podman.desired(key, pids=40, env=env)
    podman.start(driver, want)
    yield want
    driver.remove(want.id)


@pytest.fixture(scope="module")
def shell(driver: PodmanDriver, cluster: DesiredAllocation, key: Key, podman_folder: Path) -> Iterator[Ssh]:
    with podman.ssh(driver, cluster.id, key, podman_folder) as connection:
        yield connection


def test_a_start_says_its_steps_in_order(driver: PodmanDriver) -> None:
    want, steps = podman.desired(), []
    try:
        driver.start(want, lambda step, line: steps.append((step, line)))
        order = [step for i, (step, _) in enumerate(steps) if i == 0 or steps[i - 1][0] is not step]
        assert order == [Step.PULLING_IMAGE, Step.STORAGE, Step.STARTING, Step.VERIFYING]
        assert all(line for _, line in steps)
    finally:
        driver.remove(want.id)


def test_a_container_is_listed_with_its_machine(driver: PodmanDriver, box: Box, cluster: DesiredAllocation) -> None:
    (found,) = [r for r in driver.list_running() if r.allocation == cluster.id]
    assert (found.machine, found.running, found.exit_code) == (box.machine, True, None)


def test_the_first_process_is_the_keeper_whatever_the_image_says(shell: Ssh) -> None:
    assert shell.text("cat /proc/1/cmdline").split("\0")[:2] == list(toolbox.KEEPER)


def test_a_session_sees_the_environment_that_was_asked_for(shell: Ssh) -> None:
    seen = shell.text("env").splitlines()
    assert 'GREETING=say "hi" twice' in seen
    assert "EMPTY=" in seen
    assert 'ODD=\\" \\\\"' in seen
    assert any(line.startswith("PATH=") and "/usr/bin" in line for line in seen)


def test_a_container_has_few_capabilities_and_cannot_gain_any(shell: Ssh) -> None:
    status = dict(line.split(":\t") for line in shell.text("cat /proc/self/status").splitlines() if ":\t" in line)
    effective = int(status["CapEff"], 16)
    forbidden = {"net_admin": 12, "net_raw": 13, "sys_module": 16, "sys_ptrace": 19, "sys_admin": 21, "mknod": 27}
    assert {name for name, bit in forbidden.items() if effective >> bit & 1} == set()
    assert status["NoNewPrivs"].strip() == "1"
    assert status["Seccomp"].strip() == "2"


def test_a_container_shares_no_namespace_with_the_host(shell: Ssh) -> None:
    for kind in ("pid", "net", "ipc", "uts", "mnt"):
        assert shell.text(f"readlink /proc/self/ns/{kind}") != str(Path(f"/proc/self/ns/{kind}").readlink())


def test_no_host_path_is_inside_but_the_toolbox_and_the_ssh_folder(shell: Ssh, box: Box) -> None:
    mounts = [line.split() for line in shell.text("cat /proc/self/mountinfo").splitlines()]
    disk = [m[4] for m in mounts if m[m.index("-") + 1] in ("ext4", "xfs", "btrfs")]
    allowed = {"/.corral", "/.corral-ssh", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/run/.containerenv"}
    assert set(disk) <= allowed
    assert shell.run("touch /.corral/x || touch /.corral-ssh/x").returncode != 0


def test_the_private_host_key_is_not_in_the_image_and_the_public_one_is_told(
    driver: PodmanDriver, box: Box, cluster: DesiredAllocation, key: Key, podman_folder: Path
) -> None:
    told = podman.start(driver, cluster).host_key
    with podman.ssh(driver, cluster.id, key, podman_folder) as connection:
        connection.text("true")
        assert told.split()[1] in connection.known_hosts.read_text()
    assert (box.folder(cluster.id) / "ssh/etc/host_key").stat().st_mode & 0o077 == 0


def test_vcpus_are_a_quota_of_the_cgroup(shell: Ssh) -> None:
    quota = shell.text("cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us 2>/dev/null || cut -d' ' -f1 /sys/fs/cgroup/cpu.max")
    assert quota == "100000"


def test_the_limit_on_processes_holds(shell: Ssh) -> None:
    done = shell.run("trap 'kill 0' EXIT; for i in $(seq 60); do sleep 20 & done")
    assert b"can't fork" in done.stderr


def test_storage_ends_at_its_quota(shell: Ssh, driver: PodmanDriver) -> None:
    if subprocess.run(["losetup", "-f"], capture_output=True, check=False).returncode != 0:
        pytest.skip("there are no loop devices here, so storage cannot be enforced")
    assert driver.info().storage_quota == "loop"
    done = shell.run("dd if=/dev/zero of=/fill bs=1M count=100; rm /fill")
    assert b"No space left" in done.stderr


@pytest.mark.parametrize("path", ["/etc/hosts", "/etc/resolv.conf", "/etc/hostname", "/run/.containerenv"])
def test_a_file_laid_over_the_image_counts_as_the_tenants_storage(shell: Ssh, path: str) -> None:
    done = shell.run(f"cp {path} /tmp/was; dd if=/dev/zero of={path} bs=1M count=100; cat /tmp/was > {path}")
    assert b"No space left" in done.stderr
    assert shell.text("hostname; cat /etc/hosts").splitlines()[:2] == ["dev", "127.0.0.1 localhost"]


def test_name_servers_on_the_hosts_loopback_are_not_offered() -> None:
    systemd, plain = "nameserver 127.0.0.53\n", "search a.example\nnameserver 10.0.0.2\nnameserver ::1\n"
    assert resolvers([systemd, plain]) == "nameserver 10.0.0.2\nsearch a.example\n"
    assert resolvers(["", systemd]) == ""


def test_more_memory_than_granted_is_killed_and_counted(driver: PodmanDriver, key: Key, podman_folder: Path) -> None:
    want = podman.desired(key, ram_mib=64)
    podman.start(driver, want)
    try:
        with podman.ssh(driver, want.id, key, podman_folder) as connection:
            limits = "memory/memory.limit_in_bytes memory/memory.memsw.limit_in_bytes memory.max"
            shown = connection.run(f"cd /sys/fs/cgroup; cat {limits} 2>/dev/null").stdout.split()
            assert set(shown) == {str(64 << 20).encode()}, "memory, and no swap beside it"
            assert connection.run("awk 'BEGIN { x = \"0123456789\"; while (1) x = x x }'; echo $?").stdout == b"137\n"
        (found,) = [r for r in driver.list_running() if r.allocation == want.id]
        assert (found.running, found.oom_kills) == (True, 1)
        driver.stop(want.id, 1)
        podman.start(driver, want)
        (found,) = [r for r in driver.list_running() if r.allocation == want.id]
        assert found.oom_kills == 1, "the kills of the container before count too"
    finally:
        driver.remove(want.id)


def test_starting_again_what_runs_changes_nothing(driver: PodmanDriver, cluster: DesiredAllocation) -> None:
    first, second = podman.start(driver, cluster), podman.start(driver, cluster)
    assert first == second


def test_a_vanished_container_comes_back_on_the_same_storage_with_the_same_host_key(
    driver: PodmanDriver, key: Key, podman_folder: Path
) -> None:
    want = podman.desired(key)
    before = podman.start(driver, want)
    try:
        with podman.ssh(driver, want.id, key, podman_folder) as connection:
            connection.text("echo mine > /root/file")
        driver._service.call("DELETE", f"/containers/{before.container}", {"force": "true"})
        assert [r for r in driver.list_running() if r.allocation == want.id] == []
        after = podman.start(driver, want)
        assert (after.host_key, after.container != before.container) == (before.host_key, True)
        with podman.ssh(driver, want.id, key, podman_folder) as connection:
            assert connection.text("cat /root/file") == "mine"
    finally:
        driver.remove(want.id)


def test_a_stopped_container_keeps_its_storage_and_is_listed_as_ended(driver: PodmanDriver, box: Box) -> None:
    want = podman.desired()
    podman.start(driver, want)
    try:
        driver.stop(want.id, 1)
        driver.stop(want.id, 1)
        (found,) = [r for r in driver.list_running() if r.allocation == want.id]
        assert not found.running
        assert (box.folder(want.id) / "disk").exists()
    finally:
        driver.remove(want.id)


def test_stopping_asks_every_process_before_it_kills(driver: PodmanDriver, key: Key, podman_folder: Path) -> None:
    want = podman.desired(key)
    podman.start(driver, want)
    try:
        with podman.ssh(driver, want.id, key, podman_folder) as connection:
            script = "trap 'echo asked > /root/said; exit' TERM; echo ready > /root/ready; while :; do sleep 0.1; done"
            connection.text(
                f'setsid sh -c "{script}" </dev/null >/dev/null 2>&1 & until [ -e /root/ready ]; do :; done'
            )
        driver.stop(want.id, 20)
        podman.start(driver, want)
        with podman.ssh(driver, want.id, key, podman_folder) as connection:
            assert connection.text("cat /root/said") == "asked"
    finally:
        driver.remove(want.id)


def test_removal_leaves_nothing_and_may_be_repeated(new_box: Callable[..., Box]) -> None:
    box = new_box()
    driver, want = box.driver(), podman.desired()
    podman.start(driver, want)
    driver.remove(want.id)
    driver.remove(want.id)
    driver.stop(want.id, 1)
    assert podman.remains(box) == []
    assert not box.folder(want.id).exists()
    assert list(driver.list_running()) == []


def test_removal_goes_on_where_half_of_it_is_done(driver: PodmanDriver, box: Box) -> None:
    want = podman.desired()
    container = podman.start(driver, want).container
    driver._service.call("DELETE", f"/containers/{container}", {"force": "true"})
    unmount(box.folder(want.id) / "rootfs")
    driver.remove(want.id)
    assert not box.folder(want.id).exists()


def test_removal_waits_for_a_busy_mount(driver: PodmanDriver, box: Box) -> None:
    want = podman.desired()
    podman.start(driver, want)
    holder = (box.folder(want.id) / "disk/upper/held").open("w")
    released = []

    def let_go() -> None:
        wait_for(lambda: not is_mounted(box.folder(want.id) / "rootfs"), 10)
        released.append(True)
        holder.close()

    thread = threading.Thread(target=let_go)
    thread.start()
    driver.remove(want.id)
    thread.join()
    assert released
    assert not box.folder(want.id).exists()


def test_another_machines_container_is_reported_and_never_touched(new_box: Callable[..., Box]) -> None:
    box = new_box()
    want = podman.desired()
    podman.start(box.driver(), want)
    mine = box.machine
    box.machine = "machine-other"
    other = box.driver()
    (found,) = other.list_running()
    assert (found.machine, found.running) == (mine, True)
    for act in (lambda: other.stop(want.id, 0), lambda: other.remove(want.id), lambda: podman.start(other, want)):
        with pytest.raises(DriverError, match="belongs to machine"):
            act()
    (found,) = other.list_running()
    assert found.running
    box.machine = mine
    box.driver()


def test_an_image_that_cannot_be_pulled_says_why_and_leaves_nothing(driver: PodmanDriver, box: Box) -> None:
    want = podman.desired(image="localhost:1/nowhere/nothing:1")
    with pytest.raises(DriverError, match="could not be pulled"):
        podman.start(driver, want)
    assert not box.folder(want.id).exists()


@pytest.mark.parametrize(
    "image",
    [
        "",
        "../x",
        "a b",
        "x?y=1",
        "-v",
        "x\n",
        "ü",
        "dir:/etc",
        "docker-archive:/x.tar",
        "oci:/x",
        "docker://a/b",
        "a/b:c/d",
    ],
)
def test_a_name_that_is_no_image_is_refused(driver: PodmanDriver, image: str) -> None:
    with pytest.raises(DriverError, match="not the name of an image"):
        podman.start(driver, podman.desired(image=image))


def test_a_name_is_an_image_for_the_agent_as_for_the_site() -> None:
    assert (podman_images._REFERENCE.pattern, podman_images.MAX_REFERENCE) == (compute_clusters._IMAGE.pattern, 300)


@pytest.mark.parametrize("allocation", ["", "..", "a/b", "/etc", "x" * 65, "a\0b"])
def test_an_id_that_is_no_plain_name_is_refused(driver: PodmanDriver, allocation: str) -> None:
    with pytest.raises(DriverError, match="not the id of an allocation"):
        driver.remove(allocation)


def test_output_of_the_first_process_is_the_log(driver: PodmanDriver, cluster: DesiredAllocation, shell: Ssh) -> None:
    shell.text("for i in 1 2 3; do echo line $i > /proc/1/fd/1; done")
    assert wait_for(lambda: driver.log_tail(cluster.id, 1000).endswith(b"line 1\nline 2\nline 3\n"), 5)
    assert driver.log_tail(cluster.id, 7) == b"line 3\n"
    with driver.open_logs(cluster.id, 2) as stream:
        assert _read(stream, 14) == b"line 2\nline 3\n"
        shell.text("echo more > /proc/1/fd/1")
        assert _read(stream, 5) == b"more\n"


def test_a_port_inside_is_reached_and_a_closed_one_says_so(
    driver: PodmanDriver, cluster: DesiredAllocation, shell: Ssh
) -> None:
    with pytest.raises(DriverError, match="nothing listens on port 7070"):
        driver.open_port(cluster.id, 7070)
    server = shell.open("nc -l -p 7070 -e cat")
    try:
        streams: list[socket.socket] = []

        def connected() -> bool:
            try:
                streams.append(driver.open_port(cluster.id, 7070))
            except DriverError:
                return False
            return True

        assert wait_for(connected, 10)
        with streams[0] as stream:
            stream.sendall(b"echo")
            assert _read(stream, 4) == b"echo"
    finally:
        server.kill()
        server.communicate()


def test_a_container_that_does_not_run_has_no_streams(driver: PodmanDriver) -> None:
    for opened in (driver.open_ssh, lambda a: driver.open_port(a, 80)):
        with pytest.raises(DriverError, match="not running"):
            opened("nobody")
    assert driver.log_tail("nobody", 100) == b""


def _read(stream: socket.socket, size: int) -> bytes:
    stream.settimeout(10)
    data = b""
    while len(data) < size:
        data += stream.recv(size - len(data))
    return data
