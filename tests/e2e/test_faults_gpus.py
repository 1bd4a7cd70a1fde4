"""GPUs through the whole of Corral: a fake NVIDIA driver, and CDI devices that exist on every host (spec 40)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corral.agent.drivers import cdi
from corral.client.errors import CorralError
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
        self._file = HOST_DIR / f"corral-test-{uuid.uuid4().hex}.json"
        self.show()
        self.describe()

    def show(self, *numbers: int) -> None:
        """Have the driver show these GPUs (none given: both)."""
        gpus: list[FakeGpu] = [fake_gpu(n, uuid=self.uuids[n]) for n in numbers or range(len(self.uuids))]
        self.nvml.write(gpus)

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
