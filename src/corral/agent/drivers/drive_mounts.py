"""Where a container finds its drives, and that they are there and read-only (spec 30, "Drives")."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from corral.agent.drivers.base import DriverError
from corral.agent.inventory.disks import parse_mountinfo

FOLDER = "/drives"
OPTIONS = ["ro", "bind", "nosuid", "nodev"]


def inside(name: str) -> str:
    """Return where a container finds a drive."""
    return f"{FOLDER}/{name}"


def clear_links(rootfs: Path, names: Collection[str]) -> None:
    """Remove links that the tenant put where its drives are mounted: they would be mounted where those lead."""
    folder = rootfs / FOLDER.lstrip("/")
    for path in (folder, *(folder / name for name in names)) if names else ():
        if path.is_symlink():
            path.unlink()


def check(names: Collection[str], pid: int) -> None:
    """Make sure that each drive is mounted in a process's root where it should be, read-only. Errors: `DriverError`."""
    if not names:
        return
    try:
        mounts = parse_mountinfo(Path(f"/proc/{pid}/mountinfo").read_text("utf-8", "surrogateescape"))
    except OSError as error:
        raise DriverError(f"the container ended while it was verified: {error.strerror}", retry=True) from error
    read_only = {mount.path for mount in mounts if not mount.writable}
    missing = [inside(name) for name in names if inside(name) not in read_only]
    if missing:
        raise DriverError(f"not mounted read-only inside: {', '.join(missing)}")
