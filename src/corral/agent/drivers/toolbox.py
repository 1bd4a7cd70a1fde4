"""The toolbox: a read-only folder with the host's sshd and all it needs, mounted into every container at /.corral.

So ssh, scp, sftp and rsync's transport work in an image that has none of it, whatever its
C library is. Built once from the host's own packages, named by its content, built anew when
the host's sshd changes; containers that run keep the one they were started with.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import threading
from pathlib import Path

from corral.agent.drivers.base import DriverError
from corral.agent.drivers.host import disk_error, find, make_folder, missing, run

MOUNT = "/.corral"
KEEPER = (f"{MOUNT}/bin/catatonit", "-P")
"""First process of a container: waits, reaps orphans, ends at TERM."""
SHELL = f"{MOUNT}/bin/sh"
"""Login shell where the image has none."""
SSHD = f"{MOUNT}/bin/sshd"

_VERSION = "2"
"""Raised when the way of building changes."""
_SFTP_SERVERS = (
    Path("/usr/lib/openssh/sftp-server"),
    Path("/usr/libexec/openssh/sftp-server"),
    Path("/usr/lib/ssh/sftp-server"),
)


class Toolbox:
    """Builds and finds the toolbox of one agent."""

    def __init__(self, state_dir: Path) -> None:
        self._root = make_folder(state_dir / "toolbox", 0o755)
        self._lock = threading.Lock()
        self._known: tuple[tuple[tuple[str, int, int], ...], Path] | None = None

    def path(self) -> Path:
        """Return the folder to mount, built now if need be; DriverError naming the package that is missing."""
        with self._lock:
            programs = _programs()
            stamp = tuple((str(p), p.stat().st_mtime_ns, p.stat().st_size) for p in programs.values())
            if self._known is None or self._known[0] != stamp or not self._known[1].exists():
                self._known = (stamp, self._build(programs))
            return self._known[1]

    def _build(self, programs: dict[str, Path]) -> Path:
        libraries, loader = _libraries(programs)
        digest = _digest([*programs.values(), *libraries.values()])
        final = self._root / digest
        if final.exists():
            return final
        part = self._root / f".{digest}.part"
        shutil.rmtree(part, ignore_errors=True)
        try:
            _fill(part, programs, libraries)
            _bind_to_own_libraries(part, loader)
            part.replace(final)
        except OSError as error:
            shutil.rmtree(part, ignore_errors=True)
            raise disk_error("building the ssh toolbox", error) from error
        except DriverError:
            shutil.rmtree(part, ignore_errors=True)
            raise
        return final


def _programs() -> dict[str, Path]:
    sftp = next((path for path in _SFTP_SERVERS if path.exists()), None)
    if sftp is None:
        raise missing("openssh-sftp-server")
    return {
        "sshd": find("sshd"),
        "sftp-server": sftp,
        "catatonit": find("catatonit"),
        "sh": Path(shutil.which("dash") or find("sh")).resolve(),
    }


def _libraries(programs: dict[str, Path]) -> tuple[dict[str, Path], str]:
    """Return the shared libraries that the programs load, by name, and the loader's name."""
    found: dict[str, Path] = {}
    loader = ""
    for program in programs.values():
        if _is_static(program):
            continue
        for name, path in re.findall(r"^\s*(\S+)(?: => (\S+))? \(0x", run(["ldd", str(program)]), re.MULTILINE):
            real = Path(path or name)
            if real.is_absolute():
                found[real.name] = real
        loader = loader or Path(run(["patchelf", "--print-interpreter", str(program)]).strip()).name
    folder = found[loader].resolve().parent if loader in found else Path("/lib")
    for name in ("libnss_files.so.2", "libnss_dns.so.2"):
        if (folder / name).exists():
            found[name] = folder / name
    return found, loader


def _is_static(program: Path) -> bool:
    try:
        return not run(["patchelf", "--print-interpreter", str(program)]).strip()
    except DriverError as error:
        if "interp" in error.message:
            return True
        raise


def _digest(files: list[Path]) -> str:
    digest = hashlib.sha256(_VERSION.encode())
    for path in files:
        digest.update(path.name.encode() + b"\0")
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]


def _fill(part: Path, programs: dict[str, Path], libraries: dict[str, Path]) -> None:
    for folder, files in (("bin", programs), ("lib", libraries)):
        (part / folder).mkdir(parents=True)
        for name, source in files.items():
            shutil.copyfile(source, part / folder / name)
            (part / folder / name).chmod(0o755)
    for path in (part, part / "bin", part / "lib"):
        path.chmod(0o755)


def _bind_to_own_libraries(part: Path, loader: str) -> None:
    """Make each file load the toolbox's own loader and libraries, never the image's."""
    for path in [*sorted((part / "bin").iterdir()), *sorted((part / "lib").iterdir())]:
        if path.name == loader:
            continue
        if path.parent.name == "bin":
            if _is_static(path):
                continue
            run(["patchelf", "--set-interpreter", f"{MOUNT}/lib/{loader}", str(path)])
        run(["patchelf", "--force-rpath", "--set-rpath", f"{MOUNT}/lib", str(path)])
