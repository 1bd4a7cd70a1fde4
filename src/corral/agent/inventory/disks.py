"""The machine's disks: local file systems that can be written (spec 10, "Data location").

The one that holds the operating system is marked; shared (network) file systems, memory,
images and loop devices are not offered. A file system that is mounted at several places is
listed once, where it is mounted as a whole.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from corral.agent.inventory.files import MIB, printable, read_text, to_int
from corral.protocol.messages import Disk

KINDS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "jfs", "bcachefs", "reiserfs"})
WITHOUT_DEVICE_PATH = frozenset({"zfs", "bcachefs"})
"""Kinds whose source is a pool's name or a list, not one path below /dev."""
SYSTEM_MOUNTS = frozenset({"/", "/usr", "/boot", "/boot/efi"})


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo."""

    device_number: str
    subtree: str
    """What of the file system is mounted: "/" = all of it."""
    path: str
    kind: str
    source: str
    writable: bool
    id: int = -1


def disks(root: Path = Path("/"), statvfs: Callable[[str], os.statvfs_result] = os.statvfs) -> tuple[Disk, ...]:
    """Return the machine's disks in the order of their mount points; a disk that does not answer is left out."""
    mounts = parse_mountinfo(read_text(root, "proc/self/mountinfo"))
    system = {_identity(m) for m in mounts if m.path in SYSTEM_MOUNTS}
    found = (_measured(mount, _identity(mount) in system, statvfs) for mount in local(mounts))
    return tuple(sorted((disk for disk in found if disk is not None), key=lambda disk: disk.mount))


def local(mounts: list[Mount]) -> list[Mount]:
    """Return one mount for each local file system that can be written."""
    best: dict[str, Mount] = {}
    for mount in mounts:
        if is_local(mount) and (_identity(mount) not in best or _rank(mount) < _rank(best[_identity(mount)])):
            best[_identity(mount)] = mount
    return list(best.values())


def parse_mountinfo(text: str) -> list[Mount]:
    """Return the mounts of /proc/self/mountinfo (proc(5)); lines of another shape are left out."""
    mounts = []
    for line in text.splitlines():
        left, dash, right = line.partition(" - ")
        here, there = left.split(" "), right.split(" ")
        if dash and len(here) >= 6 and len(there) >= 3:
            writable = "rw" in here[5].split(",") and "rw" in there[2].split(",")
            number = to_int(here[0])
            where = (here[2], _plain(here[3]), _plain(here[4]))
            mounts.append(Mount(*where, there[0], _plain(there[1]), writable, -1 if number is None else number))
    return mounts


def is_local(mount: Mount) -> bool:
    """Whether a mount is a local file system that can be written."""
    if mount.kind not in KINDS or not mount.writable or mount.source.startswith("/dev/loop"):
        return False
    return mount.source.startswith("/dev/") or mount.kind in WITHOUT_DEVICE_PATH


def _identity(mount: Mount) -> str:
    # Each subvolume of one btrfs has a device number of its own; their source is the same.
    return mount.source if mount.kind == "btrfs" else mount.device_number


def _rank(mount: Mount) -> tuple[bool, int, str]:
    return (mount.subtree != "/", len(mount.path), mount.path)


def _measured(mount: Mount, system: bool, statvfs: Callable[[str], os.statvfs_result]) -> Disk | None:
    try:
        sizes = statvfs(mount.path)
    except OSError:
        return None
    return Disk(
        mount=printable(mount.path, 4096),
        device=printable(mount.source),
        kind=mount.kind,
        size_mib=sizes.f_blocks * sizes.f_frsize // MIB,
        free_mib=sizes.f_bavail * sizes.f_frsize // MIB,
        os=system,
    )


def _plain(field: str) -> str:
    r"""Undo mountinfo's octal escapes: a space is written as \040."""
    raw = re.sub(rb"\\([0-3][0-7]{2})", lambda m: bytes([int(m[1], 8)]), field.encode("utf-8", "surrogateescape"))
    return raw.decode("utf-8", "replace")
