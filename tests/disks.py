"""Real disks for tests: small ext4 file systems in files, mounted by device nodes of their own.

The agent offers no loop devices, for those are containers' storage; so a test's disk has another name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.agent.drivers.host import unmount

PROGRAMS = ("mkfs.ext4", "losetup", "mount", "umount")


def why_not() -> str:
    """Return why disks cannot be made here, "" when they can."""
    if os.geteuid() != 0:
        return "mounting disks needs root"
    path = "/usr/sbin:/sbin:" + os.environ.get("PATH", "")
    lacking = [program for program in PROGRAMS if shutil.which(program, path=path) is None]
    return f"not installed: {', '.join(lacking)}" if lacking else ""


class Disk:
    """An ext4 disk of `mib` MiB, mounted at `mount` until it is pulled out."""

    def __init__(self, folder: Path, mount: Path, mib: int) -> None:
        self.mount = mount
        self._image = folder / f"{mount.name}.img"
        self._node = Path("/dev", f"corral-test-{os.getpid()}-{mount.name}")
        with self._image.open("wb") as image:
            image.truncate(mib << 20)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", str(self._image))
        mount.mkdir(parents=True)
        self._loop = ""

    def put_in(self, *options: str) -> None:
        self._loop = _run("losetup", "--find", "--show", str(self._image)).strip()
        os.mknod(self._node, 0o600 | stat.S_IFBLK, Path(self._loop).stat().st_rdev)
        _run("mount", *options, str(self._node), str(self.mount))

    def pull_out(self) -> None:
        unmount(self.mount)
        self._node.unlink(missing_ok=True)
        if self._loop:
            _run("losetup", "--detach", self._loop)
            self._loop = ""


def _run(*argv: str) -> str:
    path = f"/usr/sbin:/sbin:{os.environ.get('PATH', '')}"
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path})
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"
    return done.stdout


@contextlib.contextmanager
def disk(mib: int = 16, *, name: str = "nvme") -> Iterator[Disk]:
    """Yield a disk that is mounted outside of every system folder; skips, saying why, where none can be."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    below = Path(tempfile.mkdtemp(prefix="corral-disk-", dir="/mnt"))
    below.chmod(0o755)
    made = None
    try:
        made = Disk(below, below / name, mib)
        made.put_in()
        yield made
    finally:
        if made is not None:
            made.pull_out()
        shutil.rmtree(below)
