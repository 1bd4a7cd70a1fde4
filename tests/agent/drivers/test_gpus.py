"""GPUs: given by CDI, looked for inside after the start, refused unless exactly those given are there."""

from __future__ import annotations

import json
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.agent.drivers import cdi, cdi_yaml
from corral.agent.drivers.base import DriverError
from corral.agent.drivers.cdi import Node
from corral.agent.drivers.podman import PodmanDriver
from tests import podman
from tests.podman import Box, Key

NVIDIA_CTK = """\
---
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
  - args:
    - nvidia-ctk
    - hook
    - create-symlinks
    - --link
    - ../libcuda.so.1::/usr/lib/x86_64-linux-gnu/libcuda.so
    hookName: createContainer
    path: /usr/bin/nvidia-ctk
  mounts:
  - containerPath: /usr/bin/nvidia-smi
    hostPath: /usr/bin/nvidia-smi
    options: []
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
      major: 195
      minor: 0
    - major: 226
      minor: 1
      path: "/dev/dri/card1"
  name: "0"
- name: GPU-aaaa
  containerEdits:
    deviceNodes:
      - path: /dev/nvidia0   # the same one
        major: 195
        minor: 0
kind: nvidia.com/gpu
"""


def test_what_nvidia_ctk_writes_is_understood(tmp_path: Path) -> None:
    (tmp_path / "nvidia.yaml").write_text(NVIDIA_CTK)
    assert cdi.read([tmp_path, tmp_path / "missing"]) == {
        "0": frozenset({Node("nvidia0", 195, 0)}),
        "GPU-aaaa": frozenset({Node("nvidia0", 195, 0)}),
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 'it''s'\nb: \"x: y\"\nc:\n- 1\n- -2\nd:\n", {"a": "it's", "b": "x: y", "c": [1, -2], "d": None}),
        ("- - a\n  - b\n-\n  k: true\n", [["a", "b"], {"k": True}]),
        ("a:\n  b:\n    c: 0.5.0\n  d: {}\n", {"a": {"b": {"c": "0.5.0"}, "d": {}}}),
        ("", None),
    ],
)
def test_block_style_yaml_is_read(text: str, value: object) -> None:
    assert cdi_yaml.load(text) == value


@pytest.mark.parametrize(
    "text", ["a: &x 1\n", "a: |\n  text\n", "a: [1, 2]\n", "a:\n\t- b\n", "a: 'open\n", "a: 1\n  b: 2\n"]
)
def test_yaml_that_is_not_understood_is_refused_not_guessed(text: str) -> None:
    with pytest.raises(ValueError, match=r"line \d"):
        cdi_yaml.load(text)


def test_a_broken_specification_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "nvidia.json").write_text('{"kind": "nvidia.com/gpu", "devices": [{"name": "x", "containerEdits": 7}]}')
    with pytest.raises(DriverError, match=r"nvidia\.json cannot be read"):
        cdi.read([tmp_path])


def test_another_vendors_specification_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"kind": "example.com/thing", "devices": [{"name": "x"}]}')
    assert cdi.read([tmp_path]) == {}


SPECIFICATION = {"GPU-a": frozenset({Node("nvidia0", 195, 0)}), "GPU-b": frozenset({Node("nvidia1", 195, 1)})}


def test_the_gpus_given_must_be_the_gpus_there() -> None:
    assert cdi.verify(
        SPECIFICATION, ["GPU-b", "GPU-a"], frozenset({Node("nvidia0", 195, 0), Node("nvidia1", 195, 1)})
    ) == ("GPU-b", "GPU-a")
    assert cdi.verify(SPECIFICATION, [], frozenset()) == ()


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["GPU-a"], [Node("nvidia0", 195, 7)]),
        (["GPU-a"], [Node("nvidia0", 195, 0), Node("other", 195, 1)]),
        (["GPU-a"], []),
        (["GPU-a"], [Node("nvidia1", 195, 1)]),
        (["GPU-a"], [Node("nvidia0", 195, 0), Node("nvidia1", 195, 1)]),
        ([], [Node("nvidia0", 195, 0)]),
        ([], [Node("nvidia9", 195, 9)]),
    ],
)
def test_one_gpu_too_many_or_too_few_is_refused(given: list[str], found: list[Node]) -> None:
    with pytest.raises(DriverError, match="not those given"):
        cdi.verify(SPECIFICATION, given, frozenset(found))


class FakeGpus:
    """GPUs that exist only as CDI devices: their numbers are those of /dev/full and /dev/urandom."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"corral-test-{uuid.uuid4().hex}.json"
        self.uuids = [f"GPU-{uuid.uuid4()}" for _ in range(2)]
        self.numbers = {self.uuids[0]: ("/dev/nvidia0", 1, 7), self.uuids[1]: ("/dev/nvidia1", 1, 9)}

    def write(self, path: Path | None = None) -> None:
        devices = [
            {
                "name": name,
                "containerEdits": {"deviceNodes": [{"path": p, "type": "c", "major": major, "minor": minor}]},
            }
            for name, (p, major, minor) in self.numbers.items()
        ]
        edits = {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}
        document = {"cdiVersion": "0.3.0", "kind": cdi.KIND, "devices": devices, "containerEdits": edits}
        (path or self.path).write_text(json.dumps(document))


@pytest.fixture
def gpus() -> Iterator[FakeGpus]:
    folder = Path("/var/run/cdi")
    made = not folder.exists()
    folder.mkdir(exist_ok=True)
    fake = FakeGpus(folder)
    fake.write()
    yield fake
    fake.path.unlink()
    if made:
        folder.rmdir()


@pytest.mark.podman
def test_a_container_gets_the_gpus_it_was_given_and_no_other(
    driver: PodmanDriver, gpus: FakeGpus, key: Key, podman_folder: Path
) -> None:
    want = podman.desired(key, gpus=(gpus.uuids[1],))
    try:
        assert podman.start(driver, want).gpus == (gpus.uuids[1],)
        (found,) = [r for r in driver.list_running() if r.allocation == want.id]
        assert found.gpus == want.gpus
        with podman.ssh(driver, want.id, key, podman_folder) as connection:
            assert connection.text("ls /dev | grep nvidia") == "nvidia1"
            assert connection.text("echo $NVIDIA_VISIBLE_DEVICES") == "void"
    finally:
        driver.remove(want.id)


@pytest.mark.podman
def test_a_container_without_gpus_has_none(driver: PodmanDriver, gpus: FakeGpus, key: Key, podman_folder: Path) -> None:
    want = podman.desired(key)
    podman.start(driver, want)
    try:
        with podman.ssh(driver, want.id, key, podman_folder) as connection:
            assert connection.run("ls /dev | grep nvidia").returncode == 1
    finally:
        driver.remove(want.id)


@pytest.mark.podman
def test_a_gpu_that_no_specification_names_starts_nothing(driver: PodmanDriver, box: Box, gpus: FakeGpus) -> None:
    want = podman.desired(gpus=("GPU-unknown",))
    with pytest.raises(DriverError, match="nvidia-ctk cdi generate"):
        podman.start(driver, want)
    assert not box.folder(want.id).exists()


@pytest.mark.podman
def test_a_start_whose_gpus_are_not_those_given_fails_and_leaves_nothing(
    box: Box, driver: PodmanDriver, gpus: FakeGpus, tmp_path: Path
) -> None:
    """The specification that Podman reads gives another device than the one that the agent knows."""
    swapped = FakeGpus(tmp_path)
    swapped.uuids, swapped.numbers = gpus.uuids, {gpus.uuids[0]: ("/dev/nvidia0", 1, 9)}
    swapped.write()
    want = podman.desired(gpus=(gpus.uuids[0],))
    other = Box(box.state_dir, box.machine, cdi_dirs=(tmp_path,))
    with pytest.raises(DriverError, match="not those given"):
        podman.start(other.driver(), want)
    assert not box.folder(want.id).exists()
    assert [r for r in driver.list_running() if r.allocation == want.id] == []
    other.drivers[0]._sessions.close()


@pytest.mark.podman
def test_an_image_whose_dev_leads_to_the_hosts_is_refused(driver: PodmanDriver, tmp_path: Path) -> None:
    """Followed from the host, such a link would show the host's folder instead of the container's devices."""
    (tmp_path / "elsewhere").mkdir()
    _import_with_dev_link(driver, tmp_path, str(tmp_path / "elsewhere"))
    want = podman.desired(image="localhost/dev-link:latest")
    try:
        with pytest.raises(DriverError, match="plain /dev"):
            podman.start(driver, want)
        assert [r for r in driver.list_running() if r.allocation == want.id] == []
    finally:
        driver.remove(want.id)


def _import_with_dev_link(driver: PodmanDriver, folder: Path, target: str) -> None:
    program = podman.busybox()
    assert program is not None
    with tarfile.open(folder / "image.tar", "w") as tar:
        tar.add(program, arcname="bin/sh")
        link = tarfile.TarInfo("dev")
        link.type, link.linkname = tarfile.SYMTYPE, target
        tar.addfile(link)
    with (folder / "image.tar").open("rb") as source:
        answer = driver._service.upload("/images/import", {"reference": "localhost/dev-link:latest"}, source, 60)
    driver._service.expect("importing", answer)
