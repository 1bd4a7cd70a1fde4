"""The agent as one file, for every architecture and every Python from 3.10 on, with its checksum (spec 40, "Joining").

It is put together from what is installed beside the control plane: no network is used, and the
agent that a site serves is the one of its own release. Compiled speed-ups are left out; each of
these distributions works without. The same sources give the same bytes.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath
from threading import Lock

import corral

PYZ, SUMS = "corral-agent.pyz", "SHA256SUMS"
ARTEFACT_FOLDER = "/api/v1/agent/artefact"
"""Where machines find the two on the site's address."""
DISTRIBUTIONS = ("websockets", "nvidia-ml-py")
"""What the agent imports that is not Python's own; both pure Python, and without requirements of theirs."""
_OURS = ("agent", "protocol")
_KEPT = {".py"}
_NOT_OURS_TO_SHIP = ("example.py",)
_EPOCH = (1980, 1, 1, 0, 0, 0)
_SHEBANG = b"#!/usr/bin/env python3\n"
_MAIN = b"""\
import sys

if sys.version_info < (3, 10):
    sys.exit("corral-agent needs Python 3.10 or newer; this is " + sys.version.split()[0])

from corral.agent.main import main

sys.exit(main())
"""


@dataclass(frozen=True)
class Artefact:
    pyz: Path
    sums: Path
    sha256: str
    size: int
    """Bytes."""


class ArtefactStore:
    """Makes the artefact once in this process, when it is first wanted. Thread-safe."""

    release = corral.__version__
    """Of the agent that is served."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = Lock()
        self._made: Artefact | None = None

    def get(self) -> Artefact:
        with self._lock:
            if self._made is None:
                self._made = build(self._folder)
            return self._made


def build(folder: Path) -> Artefact:
    """Write `corral-agent.pyz` and `SHA256SUMS` into `folder`, or leave them if they are as they would be.

    Errors: OSError, `metadata.PackageNotFoundError`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pyz, sums, made_of = folder / PYZ, folder / SUMS, folder / "made-of"
    files = _contents()
    source = _fingerprint(files)
    if not _as_made(pyz, sums, made_of, source):
        _replace(pyz, lambda path: _write_archive(path, files))
        _replace(sums, lambda path: path.write_text(f"{_sha256(pyz)}  {PYZ}\n", "ascii"))
        _replace(made_of, lambda path: path.write_text(source + "\n", "ascii"))
    return Artefact(pyz, sums, _sha256(pyz), pyz.stat().st_size)


def _contents() -> dict[str, bytes]:
    """Return every file of the archive by its path there."""
    root = Path(corral.__file__).parent
    found = {"__main__.py": _MAIN, "corral/__init__.py": (root / "__init__.py").read_bytes()}
    for part in _OURS:
        for path in (root / part).rglob("*.py"):
            found[f"corral/{path.relative_to(root).as_posix()}"] = path.read_bytes()
    for name in DISTRIBUTIONS:
        found.update(_installed(metadata.distribution(name)))
    return found


def _installed(distribution: metadata.Distribution) -> Iterator[tuple[str, bytes]]:
    """Yield a distribution's Python files, licences and metadata."""
    for file in distribution.files or ():
        path = PurePosixPath(file.as_posix())
        info = path.parts[0].endswith(".dist-info")
        wanted = path.name == "METADATA" or "licenses" in path.parts if info else path.suffix in _KEPT
        if wanted and ".." not in path.parts and str(path) not in _NOT_OURS_TO_SHIP:
            yield str(path), Path(str(distribution.locate_file(file))).read_bytes()


def _write_archive(path: Path, files: Mapping[str, bytes]) -> None:
    with path.open("wb") as out:
        out.write(_SHEBANG)
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for name in sorted(files):
                entry = zipfile.ZipInfo(name, _EPOCH)
                entry.external_attr = 0o644 << 16
                entry.create_system = 3  # Unix, wherever it is made
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, files[name])


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file whole or not at all: a reader never meets half of one."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    beside = Path(name)
    try:
        write(beside)
        beside.chmod(0o644)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _as_made(pyz: Path, sums: Path, made_of: Path, source: str) -> bool:
    """Return whether the three files are whole and of these sources."""
    try:
        whole = sums.read_text("ascii") == f"{_sha256(pyz)}  {PYZ}\n"
        return whole and made_of.read_text("ascii") == source + "\n"
    except (OSError, UnicodeDecodeError):
        return False


def _fingerprint(files: Mapping[str, bytes]) -> str:
    return hashlib.sha256(b"".join(_marks(files))).hexdigest()


def _marks(files: Mapping[str, bytes]) -> Iterable[bytes]:
    for name in sorted(files):
        yield f"{name}\0{hashlib.sha256(files[name]).hexdigest()}\n".encode()


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
