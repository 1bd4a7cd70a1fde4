"""The base image: built from the host's own packages, with nothing of the host's secrets, and good to work in."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.agent import images
from corral.agent.drivers.base import DriverError
from tests import podman
from tests.podman import Box, Ssh


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    if shutil.which("dpkg-query") is None:
        pytest.skip("not a Debian host: no base image can be built")
    with images.build(tmp_path_factory.mktemp("image")) as file, tarfile.open(fileobj=file) as archive:
        return {name.removeprefix("./") for name in archive.getnames()}


def test_nothing_of_the_hosts_own_is_inside(names: set[str]) -> None:
    forbidden = {"etc/machine-id", "etc/hostname", "etc/resolv.conf", "etc/hosts", "etc/apt/auth.conf", "etc/gshadow"}
    assert names & forbidden == set()
    assert [
        n for n in names if n.startswith(("etc/ssh/ssh_host", "etc/ssl/private/", "etc/sudoers.d/", "root/.ssh"))
    ] == []


def test_each_path_stands_once_and_below_its_parents(names: set[str]) -> None:
    assert [n for n in names if "/" in n and n.rpartition("/")[0] not in names] == []


def test_a_host_that_is_not_debian_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(program: str) -> Path:
        raise DriverError(f"{program} is not installed")

    monkeypatch.setattr(images, "find", nowhere)
    with pytest.raises(DriverError, match="give another image's name"), images.build(tmp_path):
        pass


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ssh]:
    """A shell in a container of the base image, on a machine that had no image at all."""
    if reason := podman.why_not():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("base")
    box, key = Box(folder / "box"), podman.make_key(folder)
    want = podman.desired(key, image=images.BASE_IMAGE, ram_mib=512, storage_mib=256)
    try:
        podman.start(box.driver(), want)
        with podman.ssh(box.drivers[0], want.id, key, folder) as connection:
            yield connection
    finally:
        box.clean()
        shutil.rmtree(folder)


@pytest.mark.podman
def test_a_base_image_that_nobody_serves_is_built_and_has_a_shell(shell: Ssh) -> None:
    assert shell.text("bash -c 'echo $BASH_VERSION; ps -e | grep -c catatonit'").splitlines()[-1] == "1"
    assert shell.text("dpkg -l bash | tail -1").startswith("ii")


@pytest.mark.podman
def test_rsync_works_where_the_host_has_it(shell: Ssh, tmp_path: Path) -> None:
    if shutil.which("rsync") is None:
        pytest.skip("rsync is not installed on this host, so it is not in the base image either")
    (tmp_path / "a").write_text("content")
    remote = " ".join(["ssh", *(f"'{option}'" for option in shell.options())])
    subprocess.run(["rsync", "-e", remote, tmp_path / "a", "root@box:/root/"], check=True, timeout=60)
    assert shell.text("cat /root/a") == "content"
