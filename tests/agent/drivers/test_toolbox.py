"""The toolbox: the host's sshd, whole, for images that have none; built once and anew when the host's changes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from corral.agent.drivers import toolbox
from corral.agent.drivers.base import DriverError
from corral.agent.drivers.host import run
from corral.agent.drivers.toolbox import Toolbox
from tests import podman


@pytest.fixture
def state(tmp_path: Path) -> Path:
    if reason := podman.why_not():
        pytest.skip(reason)
    return tmp_path


@pytest.mark.podman
def test_it_is_built_once(state: Path) -> None:
    first = Toolbox(state).path()
    stamp = (first / "bin/sshd").stat().st_ino
    assert Toolbox(state).path() == first
    assert (first / "bin/sshd").stat().st_ino == stamp


@pytest.mark.podman
def test_it_needs_nothing_outside_itself(state: Path) -> None:
    folder = Toolbox(state).path()
    for program in ("sshd", "sftp-server", "sh"):
        names = run(["patchelf", "--print-needed", str(folder / "bin" / program)]).split()
        assert names
        assert [name for name in names if not (folder / "lib" / name).exists()] == []


@pytest.mark.podman
def test_a_changed_sshd_makes_a_new_one_and_keeps_the_old(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = Toolbox(state)
    old = tools.path()
    changed = state / "sshd"
    shutil.copy(shutil.which("sshd", path="/usr/sbin") or "", changed)
    with changed.open("ab") as file:
        file.write(b"\0")
    programs = toolbox._programs()
    monkeypatch.setattr(toolbox, "_programs", lambda: {**programs, "sshd": changed})
    new = tools.path()
    assert new != old
    assert old.exists()


@pytest.mark.podman
def test_a_broken_build_leaves_nothing(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(part: Path, loader: str) -> None:
        raise DriverError("patchelf failed")

    monkeypatch.setattr(toolbox, "_bind_to_own_libraries", fail)
    with pytest.raises(DriverError):
        Toolbox(state).path()
    assert list((state / "toolbox").iterdir()) == []
