"""How the drivers ask the host for something: its programs, files that are never half, mounts.

Whatever goes wrong here becomes a `DriverError` whose text says what to do.
"""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from corral.agent.drivers.base import DriverError

PACKAGES = {
    "podman": "podman",
    "runc": "runc",
    "catatonit": "catatonit",
    "patchelf": "patchelf",
    "sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
    "mkfs.ext4": "e2fsprogs",
    "nft": "nftables",
    "ip": "iproute2",
    "mount": "mount",
    "umount": "mount",
    "ldd": "libc-bin",
}
"""Which Debian package brings which program."""

REMOVAL_TIMEOUT_S = 600
"""What of a large tree is removed by then stays removed when it is tried again."""

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def run(
    argv: Sequence[str],
    *,
    stdin: str = "",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 60,
) -> str:
    """Run one of the host's programs to its end; return its output.

    Raises DriverError with what it said on its error stream, or with the package to install.
    """
    try:
        done = subprocess.run(
            list(argv),
            input=stdin,
            cwd=cwd,
            env={**os.environ, "PATH": SYSTEM_PATH, "LC_ALL": "C", **(env or {})},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError as error:
        raise missing(argv[0]) from error
    except subprocess.TimeoutExpired as error:
        raise DriverError(f"{argv[0]} did not end within {timeout_s:.0f} s", retry=True) from error
    except OSError as error:
        raise DriverError(f"cannot start {argv[0]}: {error.strerror}", retry=True) from error
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()
        raise DriverError(f"{argv[0]} failed: {' '.join(said[-3:])}")
    return done.stdout


def missing(program: str) -> DriverError:
    """Return the error that says which package brings `program`."""
    package = PACKAGES.get(program, program)
    return DriverError(f"{program} is not installed on this machine; run: apt-get install {package}")


def find(program: str) -> Path:
    """Return where `program` stands on this host; DriverError naming its package when it is missing."""
    for folder in SYSTEM_PATH.split(":"):
        path = Path(folder, program)
        if os.access(path, os.X_OK):
            return path
    raise missing(program)


def disk_error(doing: str, error: OSError) -> DriverError:
    """Return the error for a write that the host refused; a full disk says so."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DriverError(f"the machine's disk is full while {doing}; free space on it", retry=True)
    return DriverError(f"{doing} failed: {error.strerror or error}", retry=True)


def make_folder(path: Path, mode: int = 0o700) -> Path:
    """Make `path` and its parents, only root's; return it."""
    try:
        path.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(f"making {path}", error) from error
    return path


def remove_tree(path: Path) -> None:
    """Remove a folder with all that is in it, on this file system only; no error when there is none.

    What tenants made can be deeper than Python's own removal can go.
    """
    try:
        run(["rm", "-rf", "--one-file-system", "--", str(path)], timeout_s=REMOVAL_TIMEOUT_S)
    except DriverError as error:
        raise DriverError(f"removing {path} failed: {error.message}", retry=True) from error


def write_atomic(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a whole file or none: readers see the old content or the new one, also after a crash."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as out:
            os.fchmod(out.fileno(), mode)
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        part.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise disk_error(f"writing {path}", error) from error


def sync_folder(path: Path) -> None:
    """Make the names in a folder last through a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_text(path: Path) -> str:
    """Return the file's text, "" when there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
        return ""
    except OSError as error:
        raise disk_error(f"reading {path}", error) from error


def mount_points(mountinfo: str) -> list[str]:
    """Return the mount points named in a /proc/*/mountinfo text, oldest first."""
    return [line.split()[4].encode().decode("unicode_escape") for line in mountinfo.splitlines() if line]


def is_mounted(path: Path) -> bool:
    return str(path) in mount_points(Path("/proc/self/mountinfo").read_text(encoding="utf-8"))


def unmount(path: Path, deadline_s: float = 15) -> None:
    """Unmount everything that lies on `path`; a busy one is tried until the deadline."""

    def gone() -> bool:
        if not is_mounted(path):
            return True
        try:
            run(["umount", str(path)])
        except DriverError as error:
            if "not mounted" not in error.message:
                return False
        return not is_mounted(path)

    if not wait_for(gone, deadline_s):
        raise DriverError(f"{path} is still in use and cannot be unmounted; end what uses it", retry=True)


def wait_for(condition: Callable[[], bool], deadline_s: float, step_s: float = 0.02) -> bool:
    """Ask until the condition holds or the deadline is over; return whether it holds."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(step_s)
    return True
