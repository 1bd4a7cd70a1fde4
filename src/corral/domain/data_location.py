"""Where a machine may keep drive copies (spec 10, "Data location").

An admin chooses one folder on one of the machine's own disks; the machine makes it and says so. What can be
judged of a path by its words is judged here; what only the machine can know (links, other mounts, what lies
there already) the machine judges, and says as a failure.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from corral.domain.allocations import bounded, legible
from corral.domain.errors import Refusal
from corral.domain.ids import HIDDEN, shown

MAX_PATH_BYTES, MAX_NAME_BYTES = 1024, 255
MAX_BYTES = 2**53
"""Most that `max_bytes` can be: whole in every JSON reader. 0: the disk is the limit."""

SYSTEM_TREES = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/lost+found", "/proc", "/root"),
    *("/run", "/sbin", "/snap", "/sys", "/tmp", "/usr", "/var/backups", "/var/cache", "/var/lock", "/var/log"),  # noqa: S108 (refused)
    *("/var/mail", "/var/run", "/var/spool", "/var/tmp", "/var/www", "/var/lib/apt", "/var/lib/containerd"),  # noqa: S108
    *("/var/lib/containers", "/var/lib/corral", "/var/lib/corral-agent", "/var/lib/docker", "/var/lib/dpkg"),
    *("/var/lib/kubelet", "/var/lib/systemd", "/opt/corral", "/opt/corral-agent"),
)
"""The operating system's, the container runtimes' and Corral's own: nothing in them."""
SYSTEM_FOLDERS = frozenset(("/", "/home", "/media", "/mnt", "/opt", "/srv", "/var", "/var/lib"))
"""Folders that hold others': a folder in them, not they themselves."""


class State(str, Enum):
    NONE = ""  # none chosen
    MAKING = "making"  # chosen; its machine has not said yet that it is there
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True)
class Disk:
    """A local disk that can be written, as its machine reports it."""

    mount: str
    device: str
    kind: str
    size_mib: int
    free_mib: int
    os: bool
    """Holds the operating system."""


@dataclass(frozen=True)
class Asked:
    """What an admin asks for, as it was written."""

    path: str
    max_bytes: int = 0


@dataclass(frozen=True)
class Chosen:
    """A data location. `path` lies on the disk that is mounted at `mount`."""

    path: str
    mount: str
    max_bytes: int = 0


@dataclass(frozen=True)
class Wanted:
    """What a machine is told; `chosen` None: none. The machine makes the folder once in a generation."""

    generation: int
    chosen: Chosen | None


@dataclass(frozen=True)
class Seen:
    """What a machine says of the data location of a generation. `copies`: drives kept there."""

    generation: int
    state: State
    message: str = ""
    copies: int = 0


def disks(facts: Mapping[str, Any], free_mib: Mapping[str, int]) -> list[Disk]:
    """Return the disks to offer, of an inventory's facts; shared (network) ones are never reported.

    `free_mib`: what is free now where that is known, by mount; an inventory's figure is as old as the inventory.
    """
    found = [Disk(**{name: disk[name] for name in Disk.__dataclass_fields__}) for disk in facts.get("disks", ())]
    return [
        replace(disk, free_mib=free_mib.get(disk.mount, disk.free_mib))
        for disk in found
        if not any(_is_in(disk.mount, tree) for tree in SYSTEM_TREES)
    ]


def recommended(offered: Sequence[Disk]) -> Disk | None:
    """Return the disk to propose: of those without the operating system the one with most free space.

    Where there is none, the one with the operating system. None: no disk at all.
    """
    return min(offered, key=lambda disk: (disk.os, -disk.free_mib, disk.mount), default=None)


def choose(asked: Asked, offered: Sequence[Disk]) -> Chosen:
    """Return the data location that was asked for. Errors: `INVALID_PATH`, `INVALID_REQUEST`."""
    path, max_bytes = asked.path, asked.max_bytes
    if not 0 <= max_bytes <= MAX_BYTES:
        raise Refusal(
            "INVALID_REQUEST",
            f"max_bytes: {max_bytes} is not between 0 and {MAX_BYTES}. 0 means that the disk is the limit.",
            field="max_bytes",
        )
    wrong = _not_normal(path) or _of_the_system(path)
    if wrong:
        raise _invalid(path, wrong, offered)
    disk = max((d for d in offered if _is_in(path, d.mount)), key=lambda d: len(d.mount), default=None)
    if disk is None:
        raise _invalid(path, "lies on no disk of this machine", offered)
    if path == disk.mount:
        raise _invalid(path, "is where a whole disk is mounted; name a folder on it", offered)
    return Chosen(path, disk.mount, max_bytes)


def _not_normal(path: str) -> str:
    """Return what is wrong with the words of a path ("" = nothing)."""
    if not path.startswith("/"):
        return "is not absolute: it must begin with '/'"
    if any(unicodedata.category(c) in HIDDEN for c in path):
        return "has characters that do not show"
    if len(path.encode()) > MAX_PATH_BYTES or any(len(name.encode()) > MAX_NAME_BYTES for name in path.split("/")):
        return f"is longer than {MAX_PATH_BYTES} bytes, or a name in it than {MAX_NAME_BYTES}"
    if path != "/" and any(name in ("", ".", "..") for name in path[1:].split("/")):
        return "is not normal: leave out '//', '.', '..' and a '/' at its end"
    return ""


def _of_the_system(path: str) -> str:
    if path in SYSTEM_FOLDERS or any(_is_in(path, tree) for tree in SYSTEM_TREES):
        return "is a folder of the system"
    return ""


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _invalid(path: str, wrong: str, offered: Sequence[Disk]) -> Refusal:
    best = recommended(offered)
    if best is None:
        would_do = "The machine has reported no disk that would do: a local one that can be written."
    else:
        would_do = f"A folder like {shown(_proposed(best), 200)} would do."
    return Refusal("INVALID_PATH", f"{shown(path)} {wrong}. {would_do}", field="path")


def _proposed(disk: Disk) -> str:
    return "/srv/corral" if disk.mount == "/" else f"{disk.mount}/corral"


@dataclass(frozen=True)
class Kept:
    """How a machine's data location stands."""

    generation: int
    state: State
    message: str
    copies: int


def after(kept: Kept, seen: Seen) -> Kept:
    """Return how it stands after its machine's word; an older choice's word says nothing, nor does one of none."""
    if seen.generation != kept.generation or kept.state is State.NONE or seen.state is State.NONE:
        return kept
    return Kept(kept.generation, seen.state, legible(seen.message, 300), bounded(seen.copies))
