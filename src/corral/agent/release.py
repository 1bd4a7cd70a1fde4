"""Getting a release of the agent: from the site, checked by exact name, tried out beside the one that runs.

Nothing here touches what is installed (spec 40, "Update"). What is wrong with the release, or with
this machine, is `Refused`; trouble on the way to the site never is: it is `Unreachable`, and tried again.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
import zipimport
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path

import corral
from corral.agent.inventory.files import printable
from corral.agent.link import retry_after
from corral.agent.site import BadUrl, Site
from corral.agent.state import StateFolder
from corral.agent.work import WorkFolder

PYZ, SUMS = "corral-agent.pyz", "SHA256SUMS"
BESIDE = ".corral-agent-update"
"""Folder beside the installed file, for a release that is not installed yet."""
MAX_SUMS = 64 << 10
MAX_SIZE = 256 << 20
CHUNK = 64 << 10
TIMEOUT_S = 60.0
SELF_TEST_S = 120.0
_SUM = re.compile(r"[0-9a-f]{64}")


class Refused(Exception):
    """This release does not get onto this machine; the same ask would end the same way. The message is for people."""


class Unreachable(Exception):
    """The site did not give it now; asking again may help."""

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s
        """Do not ask again before."""


@dataclass(frozen=True)
class Wanted:
    """Which release, and where the site keeps it."""

    release: str
    sha256: str
    size: int
    """Bytes."""
    path: str
    """Of the folder, on the site's own address."""


def installed() -> Path | None:
    """Return the one file that this agent runs from; None where it is part of a Python installation."""
    spec = corral.__spec__
    loader = spec.loader if spec is not None else None
    return Path(loader.archive).resolve() if isinstance(loader, zipimport.zipimporter) else None


def beside(program: Path) -> Path:
    """Return where a release is put that may take the place of `program`."""
    return program.parent / BESIDE / PYZ


def clear(program: Path) -> None:
    """Remove what is left of a release that was not installed."""
    shutil.rmtree(program.parent / BESIDE, ignore_errors=True)


def fetch(site: Site, want: Wanted, path: Path, ended: Callable[[], bool]) -> None:
    """Download a release to `path`, checked. `ended`: nobody waits for it any more.

    Errors: `Refused`, `Unreachable`.
    """
    if not want.path.startswith("/") or not 0 < want.size <= MAX_SIZE:
        raise Refused("the site names no place, or no size, that a release can have")
    _check_sums(b"".join(_read(site, f"{want.path}/{SUMS}", MAX_SUMS)), want)
    try:
        shutil.rmtree(path.parent, ignore_errors=True)
        path.parent.mkdir(mode=0o755)
        digest, size = _save(_read(site, f"{want.path}/{PYZ}", want.size), path, ended)
    except OSError as error:
        raise _cannot_write(path.parent, error) from error
    if size < want.size:
        raise Unreachable("the download was cut short")
    if digest != want.sha256:
        raise Refused(f"what was downloaded as {PYZ} does not match its checksum; nothing was changed")


def _check_sums(text: bytes, want: Wanted) -> None:
    """Hold the release's own list against what the site told. Errors: `Refused`."""
    lines = [line.split() for line in text.decode("ascii", "replace").splitlines()]
    sums = [words[0] for words in lines if len(words) == 2 and words[1] == PYZ]
    if len(sums) != 1 or not _SUM.fullmatch(sums[0]):
        raise Refused(f"{SUMS} has no single good entry for {PYZ}; nothing was changed")
    if sums[0] != want.sha256:
        raise Refused(f"{SUMS} is of another release than the one to update to; nothing was changed")


def _save(chunks: Iterator[bytes], path: Path, ended: Callable[[], bool]) -> tuple[str, int]:
    """Write a file that lasts; return its checksum and size. Errors: OSError, `Unreachable`."""
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        for chunk in chunks:
            if ended():
                raise Unreachable("the agent ends")
            digest.update(chunk)
            size += len(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    path.chmod(0o644)
    return digest.hexdigest(), size


def _read(site: Site, path: str, limit: int) -> Iterator[bytes]:
    """Yield a file of the site, at most `limit` bytes. Errors: `Refused` (it is longer), `Unreachable`."""
    left = limit
    with _open(site, path) as answer:
        while chunk := _chunk(answer):
            left -= len(chunk)
            if left < 0:
                raise Refused(f"{path.rpartition('/')[2]} is longer than the site says; nothing was changed")
            yield chunk


def _open(site: Site, path: str) -> HTTPResponse:
    headers = {"User-Agent": f"corral-agent/{corral.__version__}"}
    try:
        http = urllib.request.Request(site.url + path, headers=headers)  # noqa: S310 (`Site` takes http and https only)
        answer: HTTPResponse = site.http.open(http, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        with error:
            raise Unreachable(f"HTTP {error.code}", retry_after(dict(error.headers.items()))) from error
    except urllib.error.URLError as error:
        raise Unreachable(printable(str(error.reason))) from error
    except (OSError, HTTPException, BadUrl) as error:
        raise Unreachable(printable(str(error) or type(error).__name__)) from error
    return answer


def _chunk(answer: HTTPResponse) -> bytes:
    try:
        return answer.read(CHUNK)
    except (OSError, HTTPException) as error:
        raise Unreachable("the download was cut short") from error


def _cannot_write(folder: Path, error: OSError) -> Refused:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Refused(f"the disk that holds {folder} is full: free space on it, then update again")
    return Refused(f"{folder} cannot be written: {error.strerror or error}")


# -- self-test ----------------------------------------------------------------------------------


def python(program: Path, arguments: list[str]) -> list[str]:
    """Return the command that runs an agent's file with the interpreter, and its options, that run this one."""
    here = installed()
    given = sys.orig_argv[1:]
    options = given[: next((n for n, word in enumerate(given) if here and Path(word).resolve() == here), 0)]
    return [sys.executable, *options, str(program), *arguments]


def try_out(program: Path, state: Path, release: str) -> None:
    """Have a release test itself on this machine, while the one that is installed goes on. Errors: `Refused`."""
    command = python(program, ["self-test", "--state", str(state)])
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SELF_TEST_S, check=False)
    except subprocess.TimeoutExpired:
        raise Refused(f"the new release's self-test did not end within {SELF_TEST_S:.0f} s") from None
    except OSError as error:
        raise Refused(f"the new release cannot be started: {error.strerror or error}") from error
    if done.returncode != 0:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        raise Refused(f"the new release's self-test failed: {printable(last)}")
    said = done.stdout.decode(errors="replace").strip()
    if said != release:
        raise Refused(f"what was downloaded says that it is release {printable(said, 40)!r}")


def self_test(state: StateFolder) -> str:
    """Import every part of this release and read the state folder, changing nothing; return the release.

    Errors: `StateError`, whatever an import raises.
    """
    import corral.agent
    import corral.protocol

    for package in (corral.agent, corral.protocol):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            importlib.import_module(module.name)
    state.key(), state.machine(), state.tombstone(), state.ca()
    WorkFolder(state).load()
    return corral.__version__
