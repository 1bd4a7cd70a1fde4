"""The base image: made from the host's own installed Debian packages, so that no registry is needed.

Only what packages brought goes in, and accounts made here: no key, password, machine id or
setting of the host. Debian's own tools (apt, dpkg) come along with the list of what is inside.
"""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from corral.agent.drivers.base import DriverError
from corral.agent.drivers.host import disk_error, find, run

BASE_IMAGE = "localhost/corral/base:latest"
"""The image a compute cluster gets when none is named."""

REQUIRED = (
    "base-files", "base-passwd", "bash", "coreutils", "dash", "debianutils", "diffutils", "findutils", "grep", "gzip",
    "hostname", "libc-bin", "libc6", "login", "mount", "passwd", "procps", "sed", "tar", "util-linux",
)  # fmt: skip
OPTIONAL = (
    "apt", "bzip2", "ca-certificates", "curl", "debian-archive-keyring", "dpkg", "file", "htop", "iproute2",
    "iputils-ping", "less", "libpython3-stdlib", "libstdc++6", "nano", "ncurses-base", "ncurses-bin", "openssh-client",
    "openssh-sftp-server", "python3", "python3-minimal", "python3-venv", "rsync", "sudo", "tmux", "tzdata",
    "ubuntu-keyring", "vim-tiny", "wget", "xz-utils",
)  # fmt: skip
"""What people expect in a shell; taken where the host has it."""

_SKIPPED = ("/usr/share/doc/", "/usr/share/man/", "/usr/share/locale/", "/usr/share/info/", "/etc/ssh/ssh_host")
_MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Folders that Debian keeps below /usr and links to."""
_FOLDERS = {
    "dev": 0o755, "proc": 0o555, "sys": 0o555, "tmp": 0o1777, "root": 0o700, "run": 0o755, "home": 0o755, "var": 0o755,
    "var/log": 0o755, "var/tmp": 0o1777, "var/cache": 0o755, "etc": 0o755,
}  # fmt: skip
_MADE_BY_SCRIPTS = ("/etc/ld.so.cache", "/etc/nsswitch.conf", "/etc/ssl/certs", "/etc/alternatives", "/etc/terminfo")
"""Files that packages make when they are installed, so that no package lists them."""
_ACCOUNTS = {
    "etc/passwd": (
        "root:*:0:0:root:/root:/bin/bash\n_apt:*:100:65534::/nonexistent:/usr/sbin/nologin\n"
        "sshd:*:102:65534::/run/sshd:/usr/sbin/nologin\nnobody:*:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
        0o644,
    ),
    "etc/group": (
        "root:x:0:\ntty:x:5:\nmail:x:8:\nshadow:x:42:\nutmp:x:43:\nstaff:x:50:\nusers:x:100:\nnogroup:x:65534:\n",
        0o644,
    ),
    "root/.profile": ('[ -n "$BASH" ] && [ -f ~/.bashrc ] && . ~/.bashrc\n', 0o644),
    "root/.bashrc": ("PS1='\\u@\\h:\\w\\$ '\nalias ls='ls --color=auto'\n", 0o644),
}


@contextlib.contextmanager
def build(folder: Path) -> Iterator[IO[bytes]]:
    """Yield the image's root file system as a tar archive, open at its start; it is gone afterwards.

    Needs about 150 MB in `folder`. Raises DriverError on a host that is not Debian's kind, and when the disk is full.
    """
    packages = _packages()
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            _write(file, packages)
            file.flush()
            file.seek(0)
            yield file
    except OSError as error:
        raise disk_error("building the base image", error) from error


def _packages() -> list[str]:
    """Return the installed packages to take: what is wanted, and all it depends on."""
    try:
        find("dpkg-query")
        find("apt-cache")
    except DriverError as error:
        raise DriverError(
            "the base image can only be built on Debian or Ubuntu; give another image's name, "
            f"or load one with: podman load (as {BASE_IMAGE})"
        ) from error
    installed = _installed()
    lacking = [name for name in REQUIRED if name not in installed]
    if lacking:
        raise DriverError(f"the base image needs these packages on the machine: apt-get install {' '.join(lacking)}")
    wanted = [name for name in (*REQUIRED, *OPTIONAL) if name in installed]
    leave_out = [f"--no-{kind}" for kind in ("suggests", "recommends", "conflicts", "breaks", "replaces", "enhances")]
    listed = run(["apt-cache", "depends", "--recurse", "--installed", *leave_out, *wanted])
    names = {line.strip().split(":")[0] for line in listed.splitlines() if line[:1].isalnum()}
    return sorted(installed[name] for name in names | set(wanted) if name in installed)


def _installed() -> dict[str, str]:
    """Return name -> name as dpkg wants it ("libc6:amd64") of each installed package."""
    listed = run(["dpkg-query", "-W", "-f", "${Package} ${binary:Package} ${db:Status-Status}\n"])
    rows = (line.split() for line in listed.splitlines())
    return {row[0]: row[1] for row in rows if len(row) == 3 and row[2] == "installed"}


def _write(file: IO[bytes], packages: list[str]) -> None:
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        tree = _Tree(archive)
        for name in _MERGED:
            if Path("/", name).is_symlink():
                tree.link(name, f"usr/{name}")
        for name, mode in _FOLDERS.items():
            tree.folder(name, mode)
        for name, (text, mode) in _ACCOUNTS.items():
            tree.text(name, text, mode)
        tree.text("etc/shadow", "root:*:19000:0:99999:7:::\nsshd:*:19000::::::\n_apt:*:19000::::::\n", 0o640)
        tree.text("var/lib/dpkg/status", run(["dpkg-query", "-s", *packages]), 0o644)
        tree.text("etc/apt/sources.list", _sources(), 0o644)
        for path in sorted(set(run(["dpkg-query", "-L", *packages]).splitlines())):
            if path.startswith("/") and path != "/.":
                tree.host(path)
        for path in _MADE_BY_SCRIPTS:
            tree.host_folder(path)
        for package in packages:
            tree.host_all(Path("/var/lib/dpkg/info").glob(f"{package}.*"))


def _sources() -> str:
    """Return the host's one-line package sources, but none that carries a password."""
    files = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*.list"))]
    lines = [line for file in files if file.exists() for line in file.read_text(errors="replace").splitlines()]
    return "".join(line + "\n" for line in lines if line.startswith("deb") and "@" not in line)


class _Tree:
    """A tar archive that takes each path once, its parents first."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._seen: set[str] = set()

    def link(self, name: str, target: str) -> None:
        entry = tarfile.TarInfo(f"./{name}")
        entry.type, entry.linkname = tarfile.SYMTYPE, target
        self._add(entry)

    def folder(self, name: str, mode: int) -> None:
        entry = tarfile.TarInfo(f"./{name}")
        entry.type, entry.mode = tarfile.DIRTYPE, mode
        self._add(entry)

    def text(self, name: str, text: str, mode: int) -> None:
        self._parents(f"/{name}")
        entry = tarfile.TarInfo(f"./{name}")
        data = text.encode()
        entry.size, entry.mode = len(data), mode
        self._add(entry, io.BytesIO(data))

    def _add(self, entry: tarfile.TarInfo, data: io.BytesIO | None = None) -> None:
        self._seen.add(entry.name[1:])
        self._archive.addfile(entry, data)

    def host(self, path: str) -> None:
        """Add one path of the host as it is; what is not there, or was added already, is passed over."""
        path = _canonical(path)
        if path in self._seen or path.startswith(_SKIPPED):
            return
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            return
        self._parents(path)
        if path not in self._seen and not os.path.ismount(path):
            self._seen.add(path)
            if mode:
                self._archive.add(path, arcname=f".{path}", recursive=False)

    def host_all(self, paths: Iterable[Path]) -> None:
        for path in sorted(paths):
            self.host(str(path))

    def host_folder(self, path: str) -> None:
        self.host(path)
        if Path(path).is_dir() and not Path(path).is_symlink():
            self.host_all(Path(path).rglob("*"))

    def _parents(self, path: str) -> None:
        parent = str(Path(path).parent)
        if parent != "/" and parent not in self._seen:
            self.host(parent)


def _canonical(path: str) -> str:
    """Return the path below /usr where the host has merged the two."""
    first = path.split("/")[1]
    return f"/usr{path}" if first in _MERGED and Path("/", first).is_symlink() and path != f"/{first}" else path
