"""The limits that people ask for through the API are real inside (spec 20, spec 40)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.e2e.stack import WITHIN_S, Stack
from tests.live_server import eventually

pytestmark = pytest.mark.podman

GIB = 1 << 30


@pytest.fixture(scope="module")
def limited(stack: Stack) -> Iterator[str]:
    stack.create("limited", vcpu=1, ram_gib=1, storage_gib=1, ssh_keys=["key"])
    yield "limited"
    stack.terminate("limited")


def test_more_memory_than_granted_is_killed_and_said_to_be_out_of_memory(stack: Stack, limited: str) -> None:
    files = "memory/memory.limit_in_bytes memory.max"
    assert stack.ssh(limited, f"cd /sys/fs/cgroup; cat {files} 2>/dev/null").stdout.split() == [str(GIB)]
    # tail keeps what has no newline: it grows until it is killed.
    done = stack.ssh(limited, "tail /dev/zero")
    assert done.returncode != 0
    eventually(lambda: stack.show(limited).oom_kills >= 1, WITHIN_S)
    told = stack.corral("compute", "show", limited)
    assert told.returncode == 0, told.stderr
    assert "out of memory" in told.stdout
    # The cluster itself goes on.
    assert stack.said(limited, "echo on") == "on"
    assert (stack.show(limited).state, stack.show(limited).restarts) == ("active", 0)


USED = "cd /sys/fs/cgroup; cat cpuacct/cpuacct.usage 2>/dev/null || awk '/usage_usec/ { print $2 * 1000 }' cpu.stat"
"""Prints the nanoseconds of processor time that the container has used."""


def test_vcpus_are_a_quota(stack: Stack, limited: str) -> None:
    """Two busy loops on one vCPU get the time of one processor, however many there are."""
    files = "cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us cpu.max"
    quota, period, *_ = stack.ssh(limited, f"cd /sys/fs/cgroup; cat {files} 2>/dev/null").stdout.split()
    assert quota == period
    busy = "timeout 2 sh -c 'while :; do :; done'"
    began = time.monotonic()
    used = [int(word) for word in stack.ssh(limited, f"{USED}; {busy} & {busy} & wait; {USED}").stdout.split()]
    passed = time.monotonic() - began
    assert 0 < used[1] - used[0] <= (passed + 0.2) * 1e9


def test_the_limit_on_processes_holds_and_the_cluster_lives_on(stack: Stack, limited: str) -> None:
    done = stack.ssh(limited, "trap 'kill 0' EXIT; for i in $(seq 20000); do sleep 20 & done; echo none refused")
    assert "can't fork" in done.stderr
    assert "none refused" not in done.stdout
    eventually(lambda: stack.ssh(limited, "true").returncode == 0, WITHIN_S)


def test_storage_ends_at_its_quota_and_says_which_kind_it_is(stack: Stack, limited: str) -> None:
    kind = stack.show(limited).storage_quota
    assert kind in ("loop", "none")
    shown = stack.corral("compute", "show", limited).stdout
    if kind == "none":
        assert "not enforced on this machine" in shown
        pytest.skip("this host has no loop devices: storage is not enforced, and that is shown")
    assert "a real limit" in shown
    done = stack.ssh(limited, "dd if=/dev/zero of=/root/fill bs=1M count=1200; rm -f /root/fill")
    assert "No space left on device" in done.stderr
    assert stack.said(limited, "echo there is space again > /root/x && cat /root/x") == "there is space again"
