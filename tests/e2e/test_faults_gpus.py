"""GPUs through the whole of Corral: a fake NVIDIA driver, and CDI devices that exist on every host (spec 40)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corral.agent.drivers import cdi
from corral.client.errors import CorralError
from corral.client.gpu_faults import FaultsCleared
from tests.e2e import ground
from tests.e2e.stack import WITHIN_S, Machine, Stack
from tests.fake_nvml import FakeGpu, FakeNvml, fake_gpu
from tests.live_server import eventually

pytestmark = pytest.mark.podman

HOST_DIR = Path("/var/run/cdi")
"""Podman itself looks here; the names in it are of GPUs that only these tests have."""
NODES = {"nvidia0": (1, 7), "nvidia1": (1, 9)}
"""The numbers of /dev/full and /dev/urandom: harmless, and told apart inside."""


class Host:
    """Two GPUs of this host."""

    def __init__(self, folder: Path) -> None:
        self.nvml = FakeNvml(folder)
        self.uuids = [f"GPU-{uuid.uuid4()}" for _ in NODES]
        self.kernel_log = folder / "kmsg"
        self.kernel_log.touch()
        self._said = 0
        self._file = HOST_DIR / f"corral-test-{uuid.uuid4().hex}.json"
        self.show()
        self.describe()

    def show(self, *numbers: int, **counters: int) -> None:
        """Have the driver show these GPUs (none given: both), each with these counters."""
        gpus: list[FakeGpu] = [fake_gpu(n, uuid=self.uuids[n], **counters) for n in numbers or range(len(self.uuids))]
        self.nvml.write(gpus)

    def say(self, text: str) -> None:
        """Have the kernel say a line."""
        self._said += 1
        with self.kernel_log.open("a") as log:
            log.write(f"3,{self._said},{self._said},-;{text}\n")

    def describe(self, *everywhere: str) -> None:
        """Write the CDI specification: which device each GPU is, and which come with whatever GPU."""

        def edits(*nodes: str) -> dict[str, object]:
            found = [{"path": f"/dev/{n}", "type": "c", "major": NODES[n][0], "minor": NODES[n][1]} for n in nodes]
            return {"deviceNodes": found}

        pairs = zip(self.uuids, NODES, strict=True)
        devices = [{"name": name, "containerEdits": edits(node)} for name, node in pairs]
        document = {"cdiVersion": "0.3.0", "kind": cdi.KIND, "devices": devices, "containerEdits": edits(*everywhere)}
        self._file.write_text(json.dumps(document))

    def remove(self) -> None:
        self._file.unlink(missing_ok=True)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = not HOST_DIR.exists()
    HOST_DIR.mkdir(exist_ok=True)
    found = Host(tmp_path / "nvml")
    yield found
    found.remove()
    if made:
        HOST_DIR.rmdir()


def inside(stack: Stack, name: str) -> set[str]:
    return set(stack.said(name, "ls /dev | grep nvidia").split())


def gpus(stack: Stack, machine: Machine) -> dict[str, tuple[str, str | None]]:
    """Return state and holder of each GPU by its UUID."""
    found = stack.owner.org("acme").cluster(stack.cluster).machine(machine.name).gpus
    return {gpu.uuid: (gpu.state, gpu.workload) for gpu in found}


def faults(stack: Stack) -> dict[str, list[str]]:
    """Return the codes of the open faults, by the GPU's UUID."""
    found: dict[str, list[str]] = {}
    for fault in stack.owner.org("acme").cluster(stack.cluster).faults.list():
        found.setdefault(fault.gpu, []).append(fault.code)
    return found


def test_each_cluster_has_exactly_its_own_gpu_and_a_lost_one_is_not_given_away(
    new_stack: Callable[..., Stack], host: Host
) -> None:
    stack = new_stack()
    machine = stack.add_machine(env=host.nvml.env())
    eventually(lambda: {state for state, _ in gpus(stack, machine).values()} == {"ok"}, WITHIN_S)
    one, two = (stack.create(name, gpus=1, ssh_keys=["key"]) for name in ("one", "two"))
    assert sorted([*one.gpu_uuids, *two.gpu_uuids]) == sorted(host.uuids)
    names = dict(zip(host.uuids, NODES, strict=True))
    for cluster in (one, two):
        assert inside(stack, cluster.name) == {names[cluster.gpu_uuids[0]]}
    stack.terminate("two")
    stack.create("cpu", gpus=0)
    stack.terminate("cpu")

    two = stack.create("two", gpus=1, ssh_keys=["key"])
    with pytest.raises(CorralError) as refused:
        stack.create("three", gpus=1)
    assert refused.value.code == "NO_CAPACITY"
    assert machine.name in refused.value.message
    (listed,) = stack.workspace.machines()
    assert (listed.status, listed.gpus_available, listed.gpus_total) == ("Sold Out", 0, 2)
    assert ground.rows(stack, "select count(*) from gpu_holds where released_at is null") == [(2,)]

    # The GPU of `two` drops off the bus while it is used.
    lost = host.uuids.index(two.gpu_uuids[0])
    process = ground.first_process(stack, machine, "two")
    host.show(1 - lost)
    eventually(lambda: gpus(stack, machine)[two.gpu_uuids[0]] == ("missing", "two"), WITHIN_S)
    assert ground.first_process(stack, machine, "two") == process
    stack.terminate("two")
    with pytest.raises(CorralError) as refused:
        stack.create("three", gpus=1)
    assert refused.value.code == "NO_CAPACITY"
    host.show()
    eventually(lambda: gpus(stack, machine)[two.gpu_uuids[0]] == ("ok", None), WITHIN_S)
    with pytest.raises(CorralError) as refused:
        stack.create("three", gpus=1)
    assert refused.value.code == "NO_CAPACITY"
    assert faults(stack) == {two.gpu_uuids[0]: ["missing"]}
    assert stack.owner.org("acme").cluster(stack.cluster).faults.clear(machine.name, two.gpu_uuids[0]).still == []
    stack.create("three", gpus=1)
    for name in ("one", "three"):
        stack.terminate(name)
    ground.settled(stack, machine)
    assert ground.rows(stack, "select count(*) from gpu_holds where released_at is null") == [(0,)]


def test_a_specification_that_gives_the_wrong_devices_fails_the_start_and_frees_the_gpu(
    new_stack: Callable[..., Stack], host: Host
) -> None:
    stack = new_stack()
    machine = stack.add_machine(env=host.nvml.env())
    eventually(lambda: len(gpus(stack, machine)) == 2, WITHIN_S)
    host.describe(*NODES)
    stack.create("wrong", gpus=1, active=False)
    failed = stack.until("wrong", "failed")
    assert "the GPUs inside are not those given" in failed.reason
    assert "nvidia-ctk cdi generate" in failed.reason
    ground.settled(stack, machine)
    assert ground.rows(stack, "select count(*) from gpu_holds where released_at is null") == [(0,)]
    host.describe()
    assert len(stack.create("right", gpus=1).gpu_uuids) == 1
    stack.terminate("right")


def test_a_fault_fences_until_it_is_cleared_and_work_goes_on(new_stack: Callable[..., Stack], host: Host) -> None:
    stack = new_stack()
    machine = stack.add_machine(env=host.nvml.env(), arguments=["--kernel-log", str(host.kernel_log)])
    eventually(lambda: len(gpus(stack, machine)) == 2, WITHIN_S)
    cluster = stack.owner.org("acme").cluster(stack.cluster)
    one = stack.create("one", gpus=1)
    broken = host.uuids.index(one.gpu_uuids[0])
    slot = f"PCI:0000:{0x10 + broken:02x}:00"
    process = ground.first_process(stack, machine, "one")

    host.say(f"NVRM: Xid ({slot}): 31, pid=7, name=python3, Ch 00000008, MMU Fault")
    host.say(f"NVRM: Xid ({slot}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    host.say(f"NVRM: Xid ({slot}): 119, pid=430, name=nv_queue, Timeout waiting for RPC from GSP!")
    eventually(lambda: faults(stack) == {host.uuids[broken]: ["xid_79"]}, WITHIN_S)
    assert (stack.show("one").state, ground.first_process(stack, machine, "one")) == ("active", process)
    (listed,) = stack.workspace.machines()
    assert listed.gpus_available == 1
    stack.terminate("one")
    two = stack.create("two", gpus=1)
    assert two.gpu_uuids == [host.uuids[1 - broken]]
    with pytest.raises(CorralError) as refused:
        stack.create("three", gpus=1)
    assert refused.value.code == "NO_CAPACITY"

    # Nobody who restarts makes anything of it anew.
    machine.kill()
    stack.kill_site()
    stack.start_site()
    machine.start()
    eventually(lambda: cluster.machine(machine.name).machine.connected, WITHIN_S)
    done = eventually(lambda: _cleared(stack, machine, host.uuids[broken]), WITHIN_S)
    assert done is not None
    assert ([fault.code for fault in done.cleared], done.still) == (["xid_79"], [])
    stack.create("three", gpus=1)
    machine.kill()
    machine.start()
    host.say(f"NVRM: Xid ({slot}): 45, pid=7, name=python3, Ch 00000001 caused by previous Xid 79")
    told = "select data from journal where type = 'cluster.node.gpu_event'"
    eventually(lambda: "xid_45" in str(ground.rows(stack, told)), WITHIN_S)
    assert faults(stack) == {}

    # The same fault again, and one that only a counter tells.
    host.say(f"NVRM: Xid ({slot}): 79, GPU has fallen off the bus.")
    eventually(lambda: faults(stack) == {host.uuids[broken]: ["xid_79"]}, WITHIN_S)
    host.show(ecc_vol=1, ecc_agg=1)
    eventually(lambda: len(faults(stack)) == 2, WITHIN_S)
    assert faults(stack)[host.uuids[1 - broken]] == ["ecc_uncorrected"]
    for name in ("two", "three"):
        assert stack.show(name).state == "active"
        stack.terminate(name)
    ground.settled(stack, machine)


def _cleared(stack: Stack, machine: Machine, uuid: str) -> FaultsCleared | None:
    """Clear; None while the machine has no session."""
    try:
        return stack.owner.org("acme").cluster(stack.cluster).faults.clear(machine.name, uuid)
    except CorralError as error:
        assert error.code == "NODE_NOT_CONNECTED", error
        return None
