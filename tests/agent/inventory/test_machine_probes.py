"""Spec 40, "Reporting": host, CPU, memory, disks, network out of fixture trees; nothing missing stops them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.agent.inventory import cpu, disks, host, memory, network
from corral.agent.inventory.cpu import CpuTimes
from corral.agent.inventory.files import printable
from corral.agent.inventory.memory import Memory


def tree(root: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, "utf-8")
    return root


# Host


def test_the_distribution_tells_its_name(tmp_path: Path) -> None:
    root = tree(tmp_path, {"etc/os-release": 'ID=debian\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n'})
    assert host.os_name(root) == "Debian GNU/Linux 12 (bookworm)"


def test_a_minimal_os_release_gives_name_and_version(tmp_path: Path) -> None:
    assert host.os_name(tree(tmp_path, {"usr/lib/os-release": "NAME=Alpine\nVERSION_ID=3.20\n"})) == "Alpine 3.20"


@pytest.mark.parametrize("text", ["", "garbage", "PRETTY_NAME=", "#PRETTY_NAME=x", "\x00"])
def test_an_os_release_that_says_nothing_gives_nothing(text: str, tmp_path: Path) -> None:
    assert host.os_name(tree(tmp_path, {"etc/os-release": text})) == ""


def test_an_unclosed_quote_in_os_release_is_tolerated(tmp_path: Path) -> None:
    assert host.os_name(tree(tmp_path, {"etc/os-release": 'PRETTY_NAME="My OS\n'})) == "My OS"


def test_control_characters_of_a_host_name_are_escaped(tmp_path: Path) -> None:
    root = tree(tmp_path, {"proc/sys/kernel/hostname": "gpu\x1b[31m\u202e01\n"})
    assert host.hostname(root) == "gpu\\x1b[31m\\u202e01"


def test_names_fall_back_to_the_running_kernel(tmp_path: Path) -> None:
    assert (host.hostname(tmp_path), host.kernel(tmp_path)) == (os.uname().nodename, os.uname().release)


@given(st.text())
def test_printable_text_holds_no_control_character(text: str) -> None:
    assert printable(text).isprintable()


# CPU

CPUINFO = "processor\t: 0\nmodel name\t: AMD EPYC 9654\n\nprocessor\t: 1\nmodel name\t: AMD EPYC 9654\n"


def test_the_cpu_tells_its_model(tmp_path: Path) -> None:
    assert cpu.model(tree(tmp_path, {"proc/cpuinfo": CPUINFO})) == "AMD EPYC 9654"


def test_an_arm_machine_tells_its_board(tmp_path: Path) -> None:
    root = tree(tmp_path, {"proc/cpuinfo": "processor: 0\nBogoMIPS: 50\n", "proc/device-tree/model": "NVIDIA Orin\0"})
    assert cpu.model(root) == "NVIDIA Orin"


@pytest.mark.parametrize(
    ("files", "allowed", "vcpus"),
    [
        ({"sys/devices/system/cpu/online": "0-127,130"}, 1000, 129),
        ({"proc/cpuinfo": CPUINFO}, 1000, 2),
        ({"sys/devices/system/cpu/online": "0-7"}, 3, 3),
        ({"sys/devices/system/cpu/online": "0-7", "sys/fs/cgroup/cpu.max": "350000 100000"}, 8, 3),
        ({"sys/devices/system/cpu/online": "0-7", "sys/fs/cgroup/cpu.max": "50000 100000"}, 8, 1),
        ({"sys/devices/system/cpu/online": "0-7", "sys/fs/cgroup/cpu.max": "max 100000"}, 8, 8),
        (
            {
                "sys/devices/system/cpu/online": "0-7",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            8,
            2,
        ),
        (
            {
                "sys/devices/system/cpu/online": "0-7",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            8,
            8,
        ),
        ({}, 8, 0),
    ],
)
def test_vcpus_are_those_that_containers_may_use(
    files: dict[str, str], allowed: int, vcpus: int, tmp_path: Path
) -> None:
    assert cpu.vcpus(tree(tmp_path, files), allowed) == vcpus


def test_cpu_use_is_the_share_of_ticks_not_idle_nor_waiting(tmp_path: Path) -> None:
    before = cpu.times(tree(tmp_path, {"proc/stat": "cpu  100 0 100 700 100 0 0 0 50 0\ncpu0 1 1 1 1\n"}))
    after = cpu.times(tree(tmp_path, {"proc/stat": "cpu  150 0 125 775 150 0 0 0 90 0\n"}))
    assert (before, cpu.percent(before, after)) == (CpuTimes(200, 1000), 37.5)


@given(st.integers(), st.integers(), st.integers(), st.integers())
def test_cpu_use_is_always_a_percentage(a: int, b: int, c: int, d: int) -> None:
    assert 0.0 <= cpu.percent(CpuTimes(a, b), CpuTimes(c, d)) <= 100.0


# Memory

MEMINFO = "MemTotal:       2097152 kB\nMemFree:  1024 kB\nMemAvailable:   1048576 kB\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/meminfo": MEMINFO}, Memory(2048, 1024)),
        ({"proc/meminfo": "MemTotal: 2097152 kB\nMemFree: 1024 kB\nCached: 2048 kB\n"}, Memory(2048, 3)),
        ({"proc/meminfo": MEMINFO, "sys/fs/cgroup/memory.max": "max"}, Memory(2048, 1024)),
        (
            {
                "proc/meminfo": MEMINFO,
                "sys/fs/cgroup/memory.max": str(512 << 20),
                "sys/fs/cgroup/memory.current": str(500 << 20),
            },
            Memory(512, 12),
        ),
        (
            {"proc/meminfo": MEMINFO, "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"},
            Memory(2048, 1024),
        ),
        ({}, Memory(0, 0)),
    ],
)
def test_memory_is_the_machines_or_the_limit_of_the_container_it_is(
    files: dict[str, str], expected: Memory, tmp_path: Path
) -> None:
    assert memory.memory(tree(tmp_path, files)) == expected


# Disks

MOUNTINFO = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,discard
28 27 259:1 / /boot/efi rw,relatime - vfat /dev/nvme0n1p1 rw
29 27 259:5 / /mnt/big\040disk rw,relatime - xfs /dev/nvme1n1 rw
30 29 259:5 /sub /srv rw,relatime - xfs /dev/nvme1n1 rw
31 27 0:50 / /home rw,relatime - nfs4 10.0.0.1:/home rw
32 27 7:3 / /var/lib/corral/storage/a1 rw,relatime - ext4 /dev/loop3 rw
33 27 0:60 / /run rw - tmpfs tmpfs rw
34 27 259:6 / /media/cd ro,relatime - ext4 /dev/sdb1 ro
35 27 0:70 /@data /data rw - btrfs /dev/sdc1 rw
36 27 0:71 / /data/.snapshots rw - btrfs /dev/sdc1 rw
37 27 0:72 / /tank rw - zfs tank rw
38 27 259:7 / /broken rw - ext4 /dev/sdd1 rw
a line of another shape
"""


def sizes(path: str) -> os.statvfs_result:
    if path == "/broken":
        raise OSError(5, "Input/output error")
    return os.statvfs_result((4096, 4096, 256 * 1024, 256 * 512, 256 * 500, 0, 0, 0, 0, 255))


def test_local_file_systems_are_offered_once_and_the_systems_own_is_marked(tmp_path: Path) -> None:
    found = disks.disks(tree(tmp_path, {"proc/self/mountinfo": MOUNTINFO}), sizes)
    assert [(disk.mount, disk.device, disk.kind, disk.os) for disk in found] == [
        ("/", "/dev/nvme0n1p2", "ext4", True),
        ("/data/.snapshots", "/dev/sdc1", "btrfs", False),
        ("/mnt/big disk", "/dev/nvme1n1", "xfs", False),
        ("/tank", "tank", "zfs", False),
    ]
    assert {(disk.size_mib, disk.free_mib) for disk in found} == {(1024, 500)}


def test_a_machine_without_a_mount_table_has_no_disks(tmp_path: Path) -> None:
    assert disks.disks(tmp_path) == ()


# Network


def link(root: Path, name: str, *, physical: bool = True, state: str = "up", speed: str = "") -> None:
    tree(root, {f"sys/class/net/{name}/operstate": state, f"sys/class/net/{name}/speed": speed})
    if physical:
        (root / "sys/class/net" / name / "device").mkdir()


def test_the_speed_is_that_of_the_fastest_physical_link_that_is_up(tmp_path: Path) -> None:
    link(tmp_path, "eth0", speed="10000")
    link(tmp_path, "eth1", speed="25000")
    link(tmp_path, "eth2", speed="100000", state="down")
    link(tmp_path, "bond0", speed="200000", physical=False)
    assert network.fastest_mbps(tmp_path) == 25000


@pytest.mark.parametrize("speed", ["-1", "4294967295", "", "fast"])
def test_a_speed_that_the_link_does_not_know_is_0(speed: str, tmp_path: Path) -> None:
    link(tmp_path, "eth0", speed=speed)
    assert network.fastest_mbps(tmp_path) == 0


def test_no_network_at_all_is_0(tmp_path: Path) -> None:
    assert network.fastest_mbps(tmp_path) == 0


def test_addresses_are_the_global_ones_that_others_can_reach(tmp_path: Path) -> None:
    inet6 = (
        "fe800000000000000000000000000001 04 40 20 80 eth0\n"
        "fd000000000000000000000000000002 04 40 00 80 eth0\n"
        "00000000000000000000000000000001 01 80 10 80 lo\n"
        "nonsense\n"
    )
    v4 = [("lo", "127.0.0.1"), ("eth0", "10.0.0.9"), ("eth0:1", "10.0.0.10"), ("docker0", "172.17.0.1")]
    v4 += [("podman1", "10.89.0.1"), ("br-0123456789ab", "172.18.0.1"), ("br0", "192.168.1.5"), ("eth1", "169.254.3.4")]
    root = tree(tmp_path, {"proc/net/if_inet6": inet6})
    assert network.addresses(root, lambda: v4) == ("10.0.0.9", "10.0.0.10", "192.168.1.5", "fd00::2")


def test_a_machine_that_cannot_list_its_addresses_has_none(tmp_path: Path) -> None:
    def refuse() -> list[tuple[str, str]]:
        raise OSError(1, "Operation not permitted")

    assert network.addresses(tmp_path, refuse) == ()


def test_the_kernel_lists_the_loopback_address() -> None:
    assert ("lo", "127.0.0.1") in network.ipv4_addresses()
