"""Container networks: a workspace's own, closed to the host, to the metadata address and to all others."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from corral.agent.drivers.networks import Networks
from corral.agent.drivers.podman import PodmanDriver
from tests import podman
from tests.podman import Box, Key, Ssh

pytestmark = pytest.mark.podman


@pytest.fixture(scope="module")
def shells(driver: PodmanDriver, key: Key, podman_folder: Path) -> Iterator[dict[str, Ssh]]:
    """Shells in containers: "a" and "mate" of one workspace, "b" of another one, "c" of another organisation."""
    wanted = {
        "a": podman.desired(key, name="a"),
        "mate": podman.desired(key, name="mate"),
        "b": podman.desired(key, workspace="ws-2"),
        "c": podman.desired(key, org="org-2"),
    }
    with ExitStack() as stack:
        found = {}
        for name, want in wanted.items():
            podman.start(driver, want)
            stack.callback(driver.remove, want.id)
            found[name] = stack.enter_context(podman.ssh(driver, want.id, key, podman_folder))
        yield found


def address(shell: Ssh) -> str:
    return shell.text("ip -4 -o addr show eth0 | awk '{print $4}'").partition("/")[0]


def reaches(shell: Ssh, host: str, port: int) -> bool:
    """Tell whether a TCP connection, or at least a refusal, comes back within a second."""
    done = shell.run(f"echo | nc -w 1 {host} {port}")
    return done.returncode == 0 or b"refused" in done.stderr


def test_containers_of_one_workspace_reach_each_other(shells: dict[str, Ssh]) -> None:
    assert reaches(shells["a"], address(shells["mate"]), 9)


@pytest.mark.parametrize("other", ["b", "c"])
def test_another_workspace_and_another_organisation_are_out_of_reach(shells: dict[str, Ssh], other: str) -> None:
    assert not reaches(shells["a"], address(shells[other]), 9)
    assert not reaches(shells[other], address(shells["a"]), 9)


def test_the_hosts_own_ports_are_closed(shells: dict[str, Ssh]) -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        gateway = address(shells["a"]).rpartition(".")[0] + ".1"
        assert not reaches(shells["a"], gateway, port)
        for host in host_addresses():
            assert not reaches(shells["a"], host, port)


def host_addresses() -> list[str]:
    listed = subprocess.run(["ip", "-4", "-o", "addr", "show", "scope", "global"], capture_output=True, text=True)
    rows = (line.split() for line in listed.stdout.splitlines())
    return [row[3].partition("/")[0] for row in rows if not row[1].startswith("corral-")]


def test_the_metadata_address_is_closed(shells: dict[str, Ssh]) -> None:
    """The address is put on a far side that would answer, were the way not closed."""
    listing = subprocess.run(["nft", "list", "ruleset"], capture_output=True, text=True, check=True).stdout
    assert "ip daddr 169.254.0.0/16 drop" in listing
    with far_side("169.254.169.254"):
        assert not reaches(shells["a"], "169.254.169.254", 80)
    with far_side("198.51.100.7"):
        assert reaches(shells["a"], "198.51.100.7", 80), "the way out is open for everything else"


class far_side:
    """A network namespace beyond the host that has one address and refuses connections."""

    def __init__(self, ip: str) -> None:
        self._ip = ip

    def __enter__(self) -> None:
        for command in (
            "ip netns add corral-test-far",
            "ip link add crlfar0 type veth peer name eth0 netns corral-test-far",
            "ip addr add 203.0.113.1/30 dev crlfar0",
            "ip link set crlfar0 up",
            "ip -n corral-test-far addr add 203.0.113.2/30 dev eth0",
            "ip -n corral-test-far link set eth0 up",
            "ip -n corral-test-far link set lo up",
            f"ip -n corral-test-far addr add {self._ip}/32 dev lo",
            f"ip route add {self._ip}/32 via 203.0.113.2",
        ):
            subprocess.run(command.split(), check=True)

    def __exit__(self, *_: object) -> None:
        subprocess.run(["ip", "link", "del", "crlfar0"], check=True)
        subprocess.run(["ip", "netns", "del", "corral-test-far"], check=True)


def test_a_container_knows_its_own_name_and_nothing_of_the_host(shells: dict[str, Ssh]) -> None:
    hosts = shells["a"].text("cat /etc/hosts")
    assert f"{address(shells['a'])} a" in hosts
    assert socket.gethostname() not in hosts.split()


def test_a_network_goes_with_its_last_allocation(new_box: Callable[..., Box]) -> None:
    box = new_box()
    driver = box.driver()
    first, second = podman.desired(), podman.desired()
    bridge = driver._networks.bridge(first.org, first.workspace)
    podman.start(driver, first)
    podman.start(driver, second)
    driver.remove(first.id)
    assert Path("/sys/class/net", bridge).exists()
    driver.remove(second.id)
    assert not Path("/sys/class/net", bridge).exists()
    tables = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout
    assert bridge.replace("-", "_") not in tables


def test_agents_on_one_host_never_choose_the_same_subnet(podman_folder: Path, tmp_path: Path) -> None:
    pool = "10.214.0.0/21"  # eight subnets for eight
    machines = [Networks(tmp_path / str(n), f"m{n}", pool) for n in range(8)]
    found: list[str] = []
    threads = [threading.Thread(target=lambda n=n: found.append(n.attach("x", "o", "w").address)) for n in machines]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({ip.rpartition(".")[0] for ip in found}) == 8
    finally:
        for machine in machines:
            machine.release("x")


def test_attaching_again_gives_the_same_address(podman_folder: Path, tmp_path: Path) -> None:
    networks = Networks(tmp_path, "m", "10.214.8.0/24")
    try:
        first = networks.attach("x", "o", "w")
        assert networks.attach("x", "o", "w") == first
        assert networks.attach("y", "o", "w").address != first.address
    finally:
        networks.release("x")
        networks.release("y")


def test_the_allocation_is_the_only_thing_a_network_needs_to_be_released(podman_folder: Path, tmp_path: Path) -> None:
    networks = Networks(tmp_path, "m", "10.214.8.0/24")
    networks.release("never attached")
    place = networks.attach("x", "o", "w")
    Networks(tmp_path, "m", "10.214.8.0/24").release("x")
    assert not place.netns.exists()
    assert not list((tmp_path / "networks").iterdir())


FIREWALL = """
table ip filter {
  chain FORWARD { type filter hook forward priority filter; policy drop; ip saddr 1.2.3.4 accept; }
}
"""
ATTACH_AND_RELEASE = """
import subprocess, sys
from pathlib import Path
from corral.agent.drivers.networks import Networks
show = lambda: print(subprocess.run(["nft", "list", "ruleset"], capture_output=True, text=True).stdout, "-" * 9)
networks = Networks(Path(sys.argv[1]), "m", "10.214.8.0/24")
networks.attach("x", "o", "w"); networks.attach("y", "o", "w"); show()
networks.release("x"); networks.release("y"); show()
"""


def test_a_host_firewall_that_forwards_nothing_lets_containers_out_and_is_left_as_it_was(
    podman_folder: Path, tmp_path: Path
) -> None:
    """In a network namespace that stands for a host with Docker or ufw."""
    subprocess.run(["ip", "netns", "add", "corral-test-host"], check=True)
    inside = ["ip", "netns", "exec", "corral-test-host"]
    try:
        subprocess.run([*inside, "nft", "-f", "-"], input=FIREWALL, text=True, check=True)
        argv = [*inside, sys.executable, "-c", ATTACH_AND_RELEASE, str(tmp_path)]
        with_bridge, after, _ = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split("-" * 9)
        forward = with_bridge.partition("table ip filter")[2].partition("table inet")[0]
        assert forward.count("accept") == 3
        assert "corral" not in after
        assert "1.2.3.4" in after
    finally:
        subprocess.run(["ip", "netns", "del", "corral-test-host"], check=True)
