"""An allocation's storage: one folder, in it a disk of its own size, over the image's layers the whole root.

Where loop devices work, the disk is a sparse ext4 file, mounted: its size is the quota of
the container's whole root file system. Elsewhere it is a plain folder, and the machine
reports that storage is not enforced ("none"). Which of the two is a fact of the allocation:
what it began as it stays, whatever the host can do later, or its files would be hidden. The
image's layers lie below, read-only and shared; what the tenant writes goes to the disk and
outlives the container.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path

from corral.agent.drivers.base import DriverError
from corral.agent.drivers.host import (
    disk_error,
    is_mounted,
    make_folder,
    read_text,
    remove_tree,
    run,
    sync_folder,
    unmount,
    wait_for,
)

MIN_DISK_MIB = 16
"""Below this there is no room for the file system itself."""

_IMAGES_AT_LEAST_MIB = 20 << 10

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True)
class Layers:
    """The layers of one image: folders, topmost first, named relative to `base` (the kernel takes 4096 bytes)."""

    base: Path
    names: tuple[str, ...]


def layers(upper: str, lower: str) -> Layers:
    """Return an image's layers out of the `UpperDir` and `LowerDir` that Podman tells.

    Each layer has a short link in its store (`l/ABC…`), which keeps a long image's option short.
    """
    diffs = [Path(path) for path in (upper, *lower.split(":")) if path]
    stores = {diff.parent.parent for diff in diffs}
    links = [read_text(diff.parent / "link").strip() for diff in diffs]
    if len(stores) == 1 and all(links):
        return Layers(stores.pop(), tuple(f"l/{link}" for link in links))
    return Layers(Path("/"), tuple(str(diff) for diff in diffs))


def image_share_mib(disk_mib: int) -> int:
    """Return images' share of a disk: a tenth; where that is little, 20 GiB, but a quarter at most.

    Storage is promised in sparse files: what images took beyond would be write errors in others' disks.
    """
    return max(disk_mib // 10, min(_IMAGES_AT_LEAST_MIB, disk_mib // 4))


class Storage:
    """The folders `allocations/<id>` of one agent. Every step may be repeated after a crash."""

    def __init__(self, state_dir: Path, reserve_mib: int) -> None:
        self.root = make_folder(state_dir / "allocations")
        self._probe_dir = state_dir / "probe"
        self._reserve_mib = reserve_mib
        self._quota: str | None = None
        self._lock = threading.Lock()

    def folder(self, allocation: str) -> Path:
        """Return the allocation's folder (it need not exist). An id that is no plain name is refused."""
        if not _ID.fullmatch(allocation):
            raise DriverError(f"{allocation!r} is not the id of an allocation")
        return self.root / allocation

    def allocations(self) -> list[str]:
        return sorted(path.name for path in self.root.iterdir() if _ID.fullmatch(path.name))

    def rootfs(self, allocation: str) -> Path:
        return self.folder(allocation) / "rootfs"

    def quota(self) -> str:
        """Return "loop" if a file system in a file can be mounted here, else "none"; as last tried."""
        with self._lock:
            if self._quota is None:
                self._quota = "loop" if self._loop_works() else "none"
            return self._quota

    def enforced(self, allocation: str) -> bool:
        """Tell whether the allocation's storage is a disk of its own size, or will be when it is made.

        A host that could mount none is tried again for new storage: its disk may have been full.
        """
        folder = self.folder(allocation)
        if (folder / "disk.img").exists():
            return True
        if (folder / "disk/upper").exists():
            return False
        with self._lock:
            if self._quota == "none":
                self._quota = None
        return self.quota() == "loop"

    def _loop_works(self) -> bool:
        disk = make_folder(self._probe_dir) / "disk"
        try:
            _make_disk(self._probe_dir / "disk.img", 1)
            _mount_disk(self._probe_dir / "disk.img", disk)
        except DriverError:
            return False
        else:
            return True
        finally:
            with contextlib.suppress(DriverError):
                _release(self._probe_dir)

    def capacity_mib(self) -> tuple[int, int]:
        """Return size and free space of the file system that holds all storage, less the reserve and images' share."""
        status = os.statvfs(self.root)
        free = status.f_bavail * status.f_frsize >> 20
        size = self._size_mib() - self.image_share_mib() - self._reserve_mib
        return max(0, size), max(0, free - self._reserve_mib)

    def image_share_mib(self) -> int:
        """Return how much of the file system is kept for images."""
        return image_share_mib(self._size_mib())

    def _size_mib(self) -> int:
        status = os.statvfs(self.root)
        return status.f_blocks * status.f_frsize >> 20

    def prepare(self, allocation: str, size_mib: int, below: Layers) -> Path:
        """Have the allocation's root file system mounted, made if it is not there; return its path."""
        folder = make_folder(self.folder(allocation))
        disk = folder / "disk"
        if self.enforced(allocation):
            if not (folder / "disk.img").exists():
                _make_disk(folder / "disk.img", max(size_mib, MIN_DISK_MIB))
            if not is_mounted(disk):
                _mount_disk(folder / "disk.img", disk)
        make_folder(disk / "upper", 0o755)
        make_folder(disk / "work")
        rootfs = make_folder(folder / "rootfs", 0o755)
        if not is_mounted(rootfs):
            _mount_overlay(below, disk, rootfs)
        return rootfs

    def release(self, allocation: str) -> None:
        """Remove the allocation's folder with all its mounts; no error when there is none."""
        _release(self.folder(allocation))


def _make_disk(image: Path, size_mib: int) -> None:
    """Make a sparse ext4 image, whole or not at all. Its tables are written later, as they are used."""
    part = image.with_suffix(".part")
    try:
        with part.open("wb") as out:
            out.truncate(size_mib << 20)
        options = "lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=0:0"
        run(["mkfs.ext4", "-q", "-F", "-m", "0", "-E", options, str(part)], timeout_s=300)
        fd = os.open(part, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        part.replace(image)
        sync_folder(image.parent)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise disk_error("making the allocation's disk", error) from error
    except DriverError as error:
        part.unlink(missing_ok=True)
        free_mib = os.statvfs(image.parent).f_bavail * os.statvfs(image.parent).f_frsize >> 20
        raise DriverError(
            f"the allocation's disk could not be made ({free_mib} MiB free on the machine): {error.message}", retry=True
        ) from error


def _mount_disk(image: Path, disk: Path) -> None:
    make_folder(disk)
    try:
        run(["mount", "-o", "loop,nodev,nosuid,noatime", str(image), str(disk)])
    except DriverError as error:
        raise DriverError(
            f"the allocation's disk could not be mounted: {error.message}; it is kept and tried again "
            f"(look at it with: fsck.ext4 -n {image}, and losetup -f)",
            retry=True,
        ) from error


def _mount_overlay(below: Layers, disk: Path, rootfs: Path) -> None:
    """Mount the root file system. The layers' short names count from the store's own folder."""
    options = f"lowerdir={':'.join(below.names)},upperdir={disk}/upper,workdir={disk}/work"
    run(
        ["mount", "-t", "overlay", "overlay", "-o", options, str(rootfs)],
        cwd=below.base,
        # util-linux 2.39 and later would cut options longer than 256 bytes.
        env={"LIBMOUNT_FORCE_MOUNT2": "always"},
    )


def _release(folder: Path) -> None:
    unmount(folder / "rootfs")
    unmount(folder / "disk")
    image = folder / "disk.img"
    if not wait_for(lambda: not _has_loop_device(image), 15):
        raise DriverError(f"{image} is still attached to a loop device; end what uses it", retry=True)
    remove_tree(folder)


def _has_loop_device(image: Path) -> bool:
    backing = (read_text(path).strip() for path in Path("/sys/block").glob("loop*/loop/backing_file"))
    return str(image) in backing
