"""The data location's folder on this machine's disks: found, made, marked, and safe against links (spec 10).

The site has judged the words of the path; here is judged what only the machine can know. Every folder on the
way is opened by its own name and no link is followed; those on the disk must be on the file system that is mounted
where the chosen disk was, so nothing is written beside a disk that is not there. A marker says whose the folder is:
one of another machine, or of anybody else, is never taken over.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from corral.agent.inventory import disks
from corral.agent.inventory.disks import Mount
from corral.agent.inventory.files import printable, read_text

MARKER = ".corral-data.json"
_PART = f"{MARKER}.new"
_MARKER_BYTES = 4096
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
MOST_COPIES = 10_000
"""Counted; no machine keeps more drives."""


class FolderError(Exception):
    """Why the folder cannot be used, and what to do; for people. Holds no changing number."""


class Place(NamedTuple):
    path: str
    mount: str
    """Where the disk that was chosen is mounted."""


class DriveKey(NamedTuple):
    """Whose drive. Organisation and workspace by id."""

    org: str
    workspace: str
    name: str


@dataclass(frozen=True)
class Owner:
    """Whose folder it is: what the marker says."""

    machine: str
    org: str
    site: str
    """Its address, for people who find the folder."""


def mounts() -> list[Mount]:
    return disks.parse_mountinfo(read_text(Path("/"), "proc/self/mountinfo"))


class DataFolder:
    """All of it may be called from any thread, and again after a crash at any point. Errors: `FolderError`."""

    def __init__(self, owner: Owner, state: Path, look: Callable[[], list[Mount]] = mounts) -> None:
        """`state`: the agent's own folder, the container runtime's in it."""
        self._owner, self._look = owner, look
        self._state = os.path.realpath(state)

    def make(self, place: Place) -> None:
        """Make the folder and mark it as this machine's; one that is so marked already is taken as it is."""
        with _said(place), self._walked(place, make=True) as fd:
            mark = _marker(fd, place)
            if mark is None:
                _check_empty(fd, place)
                os.fchmod(fd, 0o700)
                self._mark(fd)
            else:
                self._check_ours(mark, place)

    def check(self, place: Place) -> None:
        """Make sure that the folder made before is there, on its disk, and still this machine's."""
        with _said(place), self._opened(place):
            pass

    def drive(self, place: Place, key: DriveKey) -> Path:
        """Return the folder of a drive, made if it is missing: only root writes there, anybody may read."""
        for name in key:
            if not _NAME.fullmatch(name):
                raise FolderError(f"{printable(name)} is not the name of a drive")
        path = place.path
        with contextlib.ExitStack() as stack, _said(place):
            fd = stack.enter_context(self._opened(place))
            disk = _mount_id(fd)
            for name, mode in zip(key, (0o700, 0o700, 0o755), strict=True):
                path = f"{path}/{name}"
                fd = _step(fd, name, path, mode)
                stack.callback(os.close, fd)
                if _mount_id(fd) != disk:
                    raise FolderError(self._elsewhere(fd, path, place))
        return Path(path)

    def copies(self, place: Place, in_use: Collection[DriveKey]) -> int:
        """Return how many drives are kept there: their folders that hold something, or are in use."""
        with _said(place), self._opened(place) as fd:
            return sum(1 for key, full in _drives(fd) if full or key in in_use)

    # -- the way to the folder ----------------------------------------------------------------

    @contextlib.contextmanager
    def _opened(self, place: Place) -> Iterator[int]:
        """Yield the folder made before, open."""
        with self._walked(place, make=False) as fd:
            mark = _marker(fd, place)
            if mark is None:
                raise FolderError(
                    f"{printable(place.path)} has lost the marker that Corral made: another disk may be mounted at "
                    f"{printable(place.mount)}. Mount the right one, or choose the data location again"
                )
            self._check_ours(mark, place)
            yield fd

    @contextlib.contextmanager
    def _walked(self, place: Place, *, make: bool) -> Iterator[int]:
        """Yield the folder, open, each on the way to it looked at; with `make` those below the mount are made."""
        self._check_words(place)
        with contextlib.ExitStack() as stack:
            fd, path = os.open("/", _FOLDER), ""
            stack.callback(os.close, fd)
            disk = self._disk(fd, place) if place.mount == "/" else -1
            for name in place.path[1:].split("/"):
                below = disk >= 0
                path = f"{path}/{name}"
                fd = _step(fd, name, path, _mode(path, place) if make and below else None)
                stack.callback(os.close, fd)
                if path == place.mount:
                    disk = self._disk(fd, place)
                elif below and _mount_id(fd) != disk:
                    raise FolderError(self._elsewhere(fd, path, place))
            if disk < 0:
                raise FolderError(f"{printable(place.path)} is not on the disk mounted at {printable(place.mount)}")
            yield fd

    def _disk(self, fd: int, place: Place) -> int:
        """Return the id of the mount of the disk that was chosen."""
        number = _mount_id(fd)
        there = next((mount for mount in self._look() if mount.id == number), None)
        if there is None or printable(there.path, 4096) != place.mount:
            raise FolderError(f"no disk is mounted at {printable(place.mount)}: mount it, or choose another disk")
        if not disks.is_local(there):
            kind = printable(there.kind)
            raise FolderError(
                f"{printable(place.mount)} is no local disk that can be written ({kind}): choose another disk"
            )
        return number

    def _elsewhere(self, fd: int, path: str, place: Place) -> str:
        number = _mount_id(fd)
        kind = next((mount.kind for mount in self._look() if mount.id == number), "another")
        return (
            f"{printable(path)} is on a file system of its own ({printable(kind)}), not on the disk mounted at "
            f"{printable(place.mount)}: choose a folder that is"
        )

    def _check_words(self, place: Place) -> None:
        if not place.path.startswith("/") or os.path.normpath(place.path) != place.path or "\0" in place.path:
            raise FolderError(f"{printable(place.path)} is no normal path")
        for one, other in ((place.path, self._state), (self._state, place.path)):
            if os.path.commonpath((one, other)) == one:
                raise FolderError(f"{printable(place.path)} is the agent's own folder, in it, or around it")

    # -- the marker ---------------------------------------------------------------------------

    def _mark(self, fd: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_PART, dir_fd=fd)
        text = json.dumps({"format": 1, "what": "Corral keeps drive copies here", **vars(self._owner)}, indent=1)
        part = os.open(_PART, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=fd)
        with os.fdopen(part, "w", encoding="utf-8") as out:
            out.write(text + "\n")
            out.flush()
            os.fsync(out.fileno())
        os.rename(_PART, MARKER, src_dir_fd=fd, dst_dir_fd=fd)
        os.fsync(fd)

    def _check_ours(self, mark: dict[str, Any], place: Place) -> None:
        if (mark.get("machine"), mark.get("org")) != (self._owner.machine, self._owner.org):
            raise FolderError(
                f"{printable(place.path)} is the data location of another machine "
                f"({printable(str(mark.get('machine')))} of {printable(str(mark.get('site')))}): "
                "choose another folder, or remove this one if nobody needs it"
            )


@contextlib.contextmanager
def _said(place: Place) -> Iterator[None]:
    """Say in words what a disk refuses."""
    try:
        yield
    except OSError as error:
        where = printable(place.path)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise FolderError(f"the disk that holds {where} is full: free space on it") from error
        if error.errno == errno.EROFS:
            raise FolderError(f"the disk that holds {where} is mounted read-only") from error
        raise FolderError(f"{where} cannot be used: {error.strerror or type(error).__name__}") from error


def _mode(path: str, place: Place) -> int:
    return 0o700 if path == place.path else 0o755


def _step(parent: int, name: str, path: str, mode: int | None) -> int:
    """Open a folder in an open one; make it with `mode` if that is not None and it is missing."""
    made = False
    try:
        fd = os.open(name, _FOLDER, dir_fd=parent)
    except FileNotFoundError:
        if mode is None:
            raise FolderError(
                f"{printable(path)} is not there: if its disk is not mounted, mount it; "
                "else choose the data location again"
            ) from None
        fd, made = _made(parent, name, mode), True
    except OSError as error:
        raise _no_folder(error, parent, name, path) from error
    try:
        _check_safe(fd, path)
        if made and mode is not None:
            os.fchmod(fd, mode)  # whatever the umask is
    except BaseException:
        os.close(fd)
        raise
    return fd


def _made(parent: int, name: str, mode: int) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, mode, dir_fd=parent)
    os.fsync(parent)
    return os.open(name, _FOLDER, dir_fd=parent)


def _no_folder(error: OSError, parent: int, name: str, path: str) -> Exception:
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        is_link = stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
        what = "a symbolic link: name the folder that it leads to" if is_link else "no folder"
        return FolderError(f"{printable(path)} is {what}")
    return error


def _check_safe(fd: int, path: str) -> None:
    """Who else may write into a folder could put another one into the place of what lies there."""
    status = os.fstat(fd)
    others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX
    if status.st_uid not in (0, os.geteuid()) or others:
        raise FolderError(
            f"{printable(path)} may be changed by others than root: choose another folder, or run "
            f"chown root {printable(path)} and chmod go-w {printable(path)}"
        )


def _mount_id(fd: int) -> int:
    text = read_text(Path("/"), f"proc/self/fdinfo/{fd}")
    found = re.search(r"^mnt_id:\s*(\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else -1


def _check_empty(fd: int, place: Place) -> None:
    if set(os.listdir(fd)) - {_PART}:
        raise FolderError(f"{printable(place.path)} is not empty and Corral did not make it: choose another folder")


def _marker(fd: int, place: Place) -> dict[str, Any] | None:
    """Return what the folder's marker says; None when it has none."""
    try:
        file = os.open(MARKER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
    except FileNotFoundError:
        return None
    with os.fdopen(file, "rb") as marker:
        raw = marker.read(_MARKER_BYTES) if stat.S_ISREG(os.fstat(file).st_mode) else b""
    try:
        said = json.loads(raw)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise FolderError(f"the marker in {printable(place.path)} cannot be read: choose another folder")
    return said


def _drives(fd: int) -> Iterator[tuple[DriveKey, bool]]:
    """Yield each drive's folder and whether it holds something."""
    left = MOST_COPIES
    for org, in_org in _folders(fd):
        for workspace, in_workspace in _folders(in_org):
            for name, in_drive in _folders(in_workspace):
                with os.scandir(in_drive) as entries:
                    yield DriveKey(org, workspace, name), next(entries, None) is not None
                left -= 1
                if not left:
                    return


def _folders(fd: int) -> Iterator[tuple[str, int]]:
    """Yield the folders in an open one that may be drives' or on the way to them, open while they are looked at."""
    for name in sorted(os.listdir(fd)):
        if not _NAME.fullmatch(name):
            continue
        try:
            inner = os.open(name, _FOLDER, dir_fd=fd)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                continue
            raise
        try:
            yield name, inner
        finally:
            os.close(inner)
