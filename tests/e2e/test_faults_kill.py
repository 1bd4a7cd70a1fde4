"""kill -9 of agent, control plane and Podman's service at random moments: nothing lost, doubled or left (spec 50)."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e import ground
from tests.e2e.stack import Machine, Stack
from tests.live_server import eventually
from tests.podman import BUSYBOX

pytestmark = pytest.mark.podman

SEED = int(os.environ.get("CORRAL_TEST_SEED", "20"))
SPAN_S = 2.5
"""A kill hits at a random moment of so long: terminate, wait for its place, create, run."""


@pytest.fixture
def victim(new_stack: Callable[..., Stack]) -> Iterator[Stack]:
    """A Corral of its own with a compute cluster `keeper` that everything must leave alone."""
    stack = new_stack()
    stack.add_machine()
    stack.create("keeper", ssh_keys=["key"])
    yield stack


def create(stack: Stack, name: str) -> None:
    """Ask until there is an answer, as a person does: an answer that was lost must not double anything."""
    asked = {"image": BUSYBOX, "vcpu": 1, "ram_gib": 1, "storage_gib": 1, "machine": stack.machines[0].name}
    stack.workspace.create_compute_cluster(name, wait=True, **asked)


def kill_agent(stack: Stack) -> Callable[[], None]:
    stack.machines[0].kill()
    return stack.machines[0].start


def kill_site(stack: Stack) -> Callable[[], None]:
    stack.kill_site()
    return lambda: _start(stack)


def _start(stack: Stack) -> None:
    stack.start_site()


def kill_service(stack: Stack) -> Callable[[], None]:
    pid = ground.service_pid(stack.machines[0])
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return lambda: None


def full(stack: Stack, machine: Machine) -> dict[str, int]:
    """Return what live allocations hold of the machine by the site's books."""
    query = "select coalesce(sum(vcpu), 0), count(*) from allocations where released_at is null and machine_id = ?"
    ((vcpu, count),) = ground.rows(stack, query, ground.machine_id(machine))
    return {"vcpu": int(str(vcpu)), "allocations": int(str(count))}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kill", "rounds"),
    [(kill_agent, 6), (kill_site, 4), (kill_service, 8)],
    ids=["agent", "control_plane", "podman"],
)
def test_killed_at_any_moment_of_create_run_and_terminate_nothing_is_lost_doubled_or_left(
    victim: Stack, kill: Callable[[Stack], Callable[[], None]], rounds: int
) -> None:
    """Each round ends one compute cluster and creates the next, while a third runs on."""
    stack, machine = victim, victim.machines[0]
    chance = random.Random(SEED)
    print(f"seed {SEED} (CORRAL_TEST_SEED)")
    stack.said("keeper", "echo precious > /root/kept")
    keeper = ground.first_process(stack, machine, "keeper")
    create(stack, "c0")
    stack.until("c0", "active")
    for number in range(rounds):
        before, now = f"c{number}", f"c{number + 1}"
        with ThreadPoolExecutor(1) as pool:
            stack.workspace.compute_cluster(before).terminate()
            asking = pool.submit(create, stack, now)
            moment = chance.uniform(0, SPAN_S)
            print(f"round {number}: {moment:.3f} s")
            time.sleep(moment)  # where the kill hits is what this test varies
            back = kill(stack)
            back()
            asking.result(60)
        shown = stack.until(now, "active")
        processes = ground.settled(stack, machine, "keeper", now)
        assert processes["keeper"] == [keeper]
        assert (shown.restarts, stack.show("keeper").restarts) == (0, 0)
        assert full(stack, machine) == {"vcpu": 2, "allocations": 2}
    eventually(lambda: stack.ssh("keeper", "true").returncode == 0, 60)
    assert stack.said("keeper", "cat /root/kept") == "precious"
    for name in ("keeper", f"c{rounds}"):
        stack.terminate(name)
    ground.settled(stack, machine)
    assert full(stack, machine) == {"vcpu": 0, "allocations": 0}
    assert ground.rows(stack, "select count(*) from gpu_holds where released_at is null") == [(0,)]
    # All of the machine can be had again.
    whole = stack.owner.org("acme").cluster(stack.cluster).machine(machine.name).machine
    (answer,) = stack.workspace.explain_placement(vcpu=whole.vcpu, ram_gib=1, storage_gib=1).machines
    assert answer.takes, answer.reason
