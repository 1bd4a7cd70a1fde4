"""The data location's folder on real disks (spec 10, "Data location"): links, mounts, markers, crashes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.agent import data_folder
from corral.agent.data_folder import MARKER, DataFolder, DriveKey, FolderError, Owner, Place
from corral.agent.drivers.host import unmount
from tests import disks
from tests.disks import Disk

OURS = Owner("machine-1", "org-1", "https://corral.test")
KEY = DriveKey("0190aaaa-0000-7000-8000-000000000001", "0190aaaa-0000-7000-8000-000000000002", "weights")


@pytest.fixture
def nvme() -> Iterator[Disk]:
    with disks.disk() as made:
        yield made


def folder(owner: Owner = OURS, state: str = "/nowhere/agent") -> DataFolder:
    return DataFolder(owner, Path(state))


def place(nvme: Disk, below: str = "corral") -> Place:
    return Place(str(nvme.mount / below), str(nvme.mount))


def refused(where: Place, owner: Owner = OURS, *, check: bool = False) -> str:
    with pytest.raises(FolderError) as said:
        folder(owner).check(where) if check else folder(owner).make(where)
    return str(said.value)


def names(path: Path) -> list[str]:
    return sorted(one.name for one in path.iterdir())


def test_a_folder_is_made_with_those_above_it_only_for_root_and_marked(nvme: Disk) -> None:
    where = place(nvme, "data/corral")
    folder().make(where)
    folder().check(where)
    assert Path(where.path).stat().st_mode & 0o7777 == 0o700
    assert (nvme.mount / "data").stat().st_mode & 0o7777 == 0o755
    mark = json.loads(Path(where.path, MARKER).read_text("utf-8"))
    assert (mark["machine"], mark["org"], mark["site"]) == ("machine-1", "org-1", "https://corral.test")


def test_a_folder_of_this_machines_own_is_taken_as_it_is(nvme: Disk) -> None:
    folder().make(place(nvme))
    Path(place(nvme).path, "copy").write_text("kept", "ascii")
    folder().make(place(nvme))
    assert Path(place(nvme).path, "copy").read_text("ascii") == "kept"


@pytest.mark.parametrize("other", [Owner("machine-2", "org-1", "x"), Owner("machine-1", "org-2", "x")])
def test_another_machines_or_organisations_folder_is_never_taken_over(other: Owner, nvme: Disk) -> None:
    folder(other).make(place(nvme))
    assert "data location of another machine" in refused(place(nvme))
    assert "data location of another machine" in refused(place(nvme), check=True)
    folder(other).check(place(nvme))


def test_a_folder_with_somebodys_files_is_not_taken(nvme: Disk) -> None:
    (nvme.mount / "corral").mkdir()
    (nvme.mount / "corral/thesis").write_text("x", "ascii")
    assert "not empty" in refused(place(nvme))
    assert names(nvme.mount / "corral") == ["thesis"]


@pytest.mark.parametrize("text", ["", "[]", "{", "\udc80", '"x"'])
def test_a_marker_that_says_nothing_is_nobodys(text: str, nvme: Disk) -> None:
    (nvme.mount / "corral").mkdir()
    (nvme.mount / "corral" / MARKER).write_bytes(text.encode("utf-8", "surrogateescape"))
    assert "cannot be read" in refused(place(nvme))


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_marker_that_is_no_file_is_not_read(kind: str, nvme: Disk) -> None:
    folder().make(place(nvme))
    marker = Path(place(nvme).path, MARKER)
    marker.rename(nvme.mount / "marker")
    os.mkfifo(marker) if kind == "pipe" else marker.symlink_to(nvme.mount / "marker")
    assert refused(place(nvme), check=True)


@pytest.mark.parametrize("at", ["corral", "data"])
def test_no_link_on_the_way_is_followed(at: str, nvme: Disk, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (nvme.mount / at).symlink_to(tmp_path / "elsewhere")
    where = place(nvme, "corral" if at == "corral" else "data/corral")
    assert "symbolic link" in refused(where)
    assert names(tmp_path / "elsewhere") == []


def test_a_link_that_leads_to_the_disk_is_named_too(nvme: Disk) -> None:
    link = nvme.mount.parent / "link"
    link.symlink_to(nvme.mount)
    assert "symbolic link" in refused(Place(f"{link}/corral", str(link)))


def test_a_folder_on_a_file_system_below_the_disk_is_not_on_the_disk(nvme: Disk) -> None:
    (nvme.mount / "ram").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(nvme.mount / "ram")], check=True)
    try:
        assert "file system of its own (tmpfs)" in refused(place(nvme, "ram/corral"))
        assert "no local disk that can be written (tmpfs)" in refused(
            Place(f"{nvme.mount}/ram/corral", f"{nvme.mount}/ram")
        )
    finally:
        unmount(nvme.mount / "ram")


def test_a_bound_folder_of_the_same_disk_is_another_mount(nvme: Disk) -> None:
    for name in ("one", "two"):
        (nvme.mount / name).mkdir()
    subprocess.run(["mount", "--bind", str(nvme.mount / "one"), str(nvme.mount / "two")], check=True)
    try:
        assert "file system of its own" in refused(place(nvme, "two/corral"))
    finally:
        unmount(nvme.mount / "two")


def test_without_its_disk_nothing_is_written_beside_it(nvme: Disk) -> None:
    nvme.pull_out()
    assert "no disk is mounted" in refused(place(nvme))
    assert names(nvme.mount) == []


def test_a_disk_that_is_gone_or_another_one_is_noticed(nvme: Disk) -> None:
    folder().make(place(nvme))
    nvme.pull_out()
    assert "no disk is mounted" in refused(place(nvme), check=True)
    with disks.disk(name="spare") as spare:
        subprocess.run(["mount", "--bind", str(spare.mount), str(nvme.mount)], check=True)
        try:
            assert "is not there" in refused(place(nvme), check=True)
        finally:
            unmount(nvme.mount)
    nvme.put_in()
    folder().check(place(nvme))


def test_a_lost_marker_is_a_failure(nvme: Disk) -> None:
    folder().make(place(nvme))
    Path(place(nvme).path, MARKER).unlink()
    assert "lost the marker" in refused(place(nvme), check=True)


def test_a_disk_that_became_read_only_is_said(nvme: Disk) -> None:
    nvme.pull_out()
    nvme.put_in("-o", "ro")
    assert "no local disk that can be written" in refused(place(nvme))


def test_a_full_disk_is_said_and_leaves_nothing_half_made(nvme: Disk) -> None:
    filler = nvme.mount / "filler"
    with pytest.raises(OSError, match="No space"), filler.open("wb", buffering=0) as out:
        while True:
            out.write(b"x" * 512)
    assert "is full" in refused(place(nvme))
    filler.unlink()
    folder().make(place(nvme))
    folder().check(place(nvme))


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_a_folder_that_others_may_change_is_refused(mode: int, nvme: Disk) -> None:
    (nvme.mount / "shared").mkdir()
    (nvme.mount / "shared").chmod(mode)
    assert "chmod go-w" in refused(place(nvme, "shared/corral"))


def test_a_folder_of_somebody_else_is_refused(nvme: Disk) -> None:
    (nvme.mount / "corral").mkdir()
    os.chown(nvme.mount / "corral", 12345, 12345)
    assert "chown root" in refused(place(nvme))


@pytest.mark.parametrize(
    ("path", "state"),
    [("agent", "agent"), ("agent/data", "agent"), ("corral", "corral/agent"), ("corral", "link/agent")],
)
def test_the_agents_own_folder_is_kept_out_of(path: str, state: str, nvme: Disk) -> None:
    (nvme.mount / "link").symlink_to(nvme.mount / "corral")
    with pytest.raises(FolderError, match="agent's own folder"):
        folder(state=str(nvme.mount / state)).make(place(nvme, path))


@pytest.mark.parametrize("path", ["corral", "/mnt/../etc", "/mnt//x", "/mnt/x/", "/mnt/\0"])
def test_a_path_that_is_not_normal_is_refused_here_too(path: str) -> None:
    assert "no normal path" in refused(Place(path, "/"))


def test_a_path_that_is_not_below_the_mount_is_refused(nvme: Disk) -> None:
    assert "is not on the disk" in refused(Place("/srv", str(nvme.mount)))


# -- drives ----------------------------------------------------------------------------------------


def test_a_drives_folder_is_made_for_its_organisation_and_workspace(nvme: Disk) -> None:
    folder().make(place(nvme))
    made = folder().drive(place(nvme), KEY)
    assert made == Path(place(nvme).path, *KEY)
    assert (made.stat().st_mode & 0o7777, made.parent.stat().st_mode & 0o7777) == (0o755, 0o700)
    assert folder().drive(place(nvme), KEY) == made


def test_without_the_data_location_there_is_no_drive(nvme: Disk) -> None:
    with pytest.raises(FolderError, match="is not there"):
        folder().drive(place(nvme), KEY)
    folder().make(place(nvme))
    nvme.pull_out()
    with pytest.raises(FolderError, match="no disk is mounted"):
        folder().drive(place(nvme), KEY)
    assert names(nvme.mount) == []


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_link_in_the_place_of_a_drive_is_not_followed(part: int, nvme: Disk, tmp_path: Path) -> None:
    folder().make(place(nvme))
    (tmp_path / "elsewhere").mkdir()
    Path(place(nvme).path, *KEY[:part]).mkdir(parents=True, exist_ok=True)
    Path(place(nvme).path, *KEY[: part + 1]).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FolderError, match="symbolic link"):
        folder().drive(place(nvme), KEY)
    assert names(tmp_path / "elsewhere") == []
    assert folder().copies(place(nvme), {KEY}) == 0


@pytest.mark.parametrize("name", ["..", "a/b", "", ".", "a\0b"])
def test_a_drives_name_is_one_name(name: str, nvme: Disk) -> None:
    folder().make(place(nvme))
    for key in (KEY._replace(name=name), KEY._replace(org=name)):
        with pytest.raises(FolderError, match="not the name of a drive"):
            folder().drive(place(nvme), key)


def test_copies_are_drives_that_hold_something_or_are_in_use(nvme: Disk) -> None:
    folder().make(place(nvme))
    keys = [KEY._replace(name=name) for name in ("full", "used", "empty")]
    made = {key.name: folder().drive(place(nvme), key) for key in keys}
    (made["full"] / "model").write_text("x", "ascii")
    assert folder().copies(place(nvme), {keys[1]}) == 2
    assert folder().copies(place(nvme), ()) == 1


# -- crashes ---------------------------------------------------------------------------------------

CRASH = """
import os, sys
from pathlib import Path
from corral.agent import data_folder
calls, die_at = 0, int(sys.argv[3])
def dying(name):
    was = getattr(os, name)
    def call(*args, **kwargs):
        global calls
        calls += 1
        if calls == die_at:
            os.kill(os.getpid(), 9)
        return was(*args, **kwargs)
    return call
for name in ("mkdir", "fchmod", "fsync", "rename", "open"):
    setattr(os, name, dying(name))
owner = data_folder.Owner("machine-1", "org-1", "https://corral.test")
data_folder.DataFolder(owner, Path("/nowhere")).make(data_folder.Place(sys.argv[1], sys.argv[2]))
print("made")
"""


def test_killed_at_any_step_it_is_made_by_the_next_try(nvme: Disk) -> None:
    root = Path(data_folder.__file__).parents[2]
    step = 0
    while True:
        step += 1
        where = place(nvme, f"{step}/corral")
        argv = [sys.executable, "-c", CRASH, *where, str(step)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(root)})
        folder().make(where)
        folder().check(where)
        if done.stdout == "made\n":
            break
        assert done.returncode == -9, done.stderr
    assert step > 10
