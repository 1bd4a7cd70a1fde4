"""A machine behind a network that breaks, over TLS with the site's own CA (spec 05, spec 50 rule 4)."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from corral.client.machine_models import Machine as MachineShown
from tests.e2e import ground
from tests.e2e.stack import WITHIN_S, Stack
from tests.live_server import eventually

pytestmark = pytest.mark.podman

NET = "10.214.77"


def ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"


@dataclass(frozen=True)
class Link:
    """A network namespace joined to this host by one cable. The host is `.1`, the machine in it `.2`."""

    namespace: str
    cable: str

    @property
    def prefix(self) -> list[str]:
        # Not `ip netns exec`: that gives a /sys of its own, without cgroups.
        return ["nsenter", f"--net=/run/netns/{self.namespace}"]

    def down(self) -> None:
        ip("link", "set", self.cable, "down")

    def up(self) -> None:
        ip("link", "set", self.cable, "up")

    def forget_connections(self) -> None:
        """Have the machine's side drop its connections; the site does not hear of that while the cable is down."""
        subprocess.run([*self.prefix, "ss", "-K", "dst", f"{NET}.1"], capture_output=True, check=True)


@pytest.fixture
def link() -> Iterator[Link]:
    if os.geteuid() != 0 or not all(shutil.which(program) for program in ("ip", "nsenter", "ss")):
        pytest.skip("network namespaces need root, iproute2 and util-linux")
    name = uuid.uuid4().hex[:8]
    made = Link(f"corral-test-{name}", f"ct{name}")
    with contextlib.ExitStack() as ending:
        ip("netns", "add", made.namespace)
        ending.callback(subprocess.run, ["ip", "netns", "del", made.namespace], check=True)
        ip("link", "add", made.cable, "type", "veth", "peer", "name", "eth0", "netns", made.namespace)
        ending.callback(subprocess.run, ["ip", "link", "del", made.cable], check=False, capture_output=True)
        ip("address", "add", f"{NET}.1/24", "dev", made.cable)
        ip("-n", made.namespace, "address", "add", f"{NET}.2/24", "dev", "eth0")
        ip("-n", made.namespace, "link", "set", "lo", "up")
        ip("-n", made.namespace, "link", "set", "eth0", "up")
        made.up()
        yield made


def test_a_cut_cable_stops_nothing_and_a_half_open_connection_is_no_clone(
    new_stack: Callable[..., Stack], link: Link
) -> None:
    stack = new_stack(host=f"{NET}.1", tls="own")
    assert stack.url.startswith(f"https://{NET}.1:")
    machine = stack.add_machine(prefix=link.prefix, arguments=["--no-network"])

    def shown() -> MachineShown:
        return stack.owner.org("acme").cluster(stack.cluster).machine(machine.name).machine

    stack.create("box", ssh_keys=["key"])
    assert stack.said("box", "hostname") == "box"
    before = ground.first_process(stack, machine, "box")
    epoch = "select session_epoch from machines"
    ((first,),) = ground.rows(stack, epoch)
    link.down()
    link.forget_connections()
    assert stack.ssh("box", "true").returncode == 255
    eventually(lambda: "no session with" in machine.log, WITHIN_S)
    assert before.alive
    link.up()
    eventually(lambda: ground.rows(stack, epoch) > [(first,)], WITHIN_S)
    eventually(lambda: stack.ssh("box", "true").returncode == 0, WITHIN_S)
    assert (shown().state, shown().quarantine, shown().closed) == ("up", None, "")
    assert ground.first_process(stack, machine, "box") == before
    assert stack.show("box").restarts == 0
    stack.terminate("box")
    ground.settled(stack, machine)
