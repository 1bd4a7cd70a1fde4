"""Out-of-memory kills and processes as the kernel shows them, in both kinds of control groups (by fixture)."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral.agent.drivers.cgroups import Cgroups

CONTAINER = "8c37d519a7f5"
V1 = f"8:pids:/libpod_parent/libpod-{CONTAINER}\n4:memory:/libpod_parent/libpod-{CONTAINER}\n0::/user\n"
V2 = f"0::/machine.slice/libpod-{CONTAINER}.scope/container\n"


@pytest.fixture
def kernel(tmp_path: Path) -> Cgroups:
    return Cgroups(tmp_path / "proc", tmp_path / "cgroup")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def process(kernel: Cgroups, pid: int, cgroup: str, state: str = "S") -> None:
    write(kernel.proc / str(pid) / "cgroup", cgroup)
    write(kernel.proc / str(pid) / "stat", f"{pid} (a name) with) {state} 1 1 1")


def test_kills_are_counted_on_version_1(kernel: Cgroups) -> None:
    process(kernel, 7, V1)
    folder = kernel.root / f"memory/libpod_parent/libpod-{CONTAINER}"
    write(folder / "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert kernel.oom_kills(7) == 3


def test_kills_are_counted_on_version_2(kernel: Cgroups) -> None:
    process(kernel, 7, V2)
    folder = kernel.root / f"machine.slice/libpod-{CONTAINER}.scope/container"
    write(folder / "memory.events", "low 0\nhigh 0\nmax 41\noom 5\noom_kill 2\noom_group_kill 0\n")
    assert kernel.oom_kills(7) == 2


def test_a_process_that_is_gone_has_no_kills_and_no_processes(kernel: Cgroups) -> None:
    assert (kernel.oom_kills(7), kernel.processes(7), kernel.alive(7, CONTAINER)) == (0, [], False)


def test_processes_of_nested_groups_belong_to_the_container(kernel: Cgroups) -> None:
    process(kernel, 7, V2)
    folder = kernel.root / f"machine.slice/libpod-{CONTAINER}.scope/container"
    write(folder / "cgroup.procs", "7\n9\n")
    write(folder / "inner/cgroup.procs", "11\n")
    assert sorted(kernel.processes(7)) == [7, 9, 11]


def test_the_hosts_own_group_is_never_taken_for_a_containers(kernel: Cgroups) -> None:
    process(kernel, 7, "0::/\n")
    write(kernel.root / "cgroup.procs", "1\n2\n")
    assert kernel.processes(7) == []


def test_a_number_used_again_by_another_process_is_not_the_container(kernel: Cgroups) -> None:
    process(kernel, 7, "0::/system.slice/other.service\n")
    assert not kernel.alive(7, CONTAINER)
    process(kernel, 7, V2)
    assert kernel.alive(7, CONTAINER)


def test_a_zombie_is_not_alive(kernel: Cgroups) -> None:
    process(kernel, 7, V2, state="Z")
    assert not kernel.alive(7, CONTAINER)
