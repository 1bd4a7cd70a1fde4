"""Which paths can be a machine's data location, and which disk is proposed (spec 10, "Data location")."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.domain.data_location import (
    MAX_BYTES,
    SYSTEM_TREES,
    Asked,
    Chosen,
    Disk,
    Kept,
    Seen,
    State,
    after,
    choose,
    disks,
    recommended,
)
from corral.domain.errors import Refusal
from corral.domain.ids import HIDDEN

OS = Disk("/", "/dev/sda2", "ext4", 900_000, 500_000, os=True)
NVME = Disk("/mnt/nvme0", "/dev/nvme0n1", "xfs", 3_800_000, 3_000_000, os=False)
FULL = Disk("/mnt/nvme1", "/dev/nvme1n1", "xfs", 3_800_000, 10, os=False)
DISKS = [OS, NVME, FULL]


def refusal(path: str, max_bytes: int = 0, offered: list[Disk] = DISKS) -> Refusal:
    with pytest.raises(Refusal) as refused:
        choose(Asked(path, max_bytes), offered)
    return refused.value


@pytest.mark.parametrize(
    ("path", "mount"),
    [
        ("/mnt/nvme0/corral", "/mnt/nvme0"),
        ("/mnt/nvme0/a/b c/ü", "/mnt/nvme0"),
        ("/mnt/nvme01", "/"),
        ("/srv/corral", "/"),
        ("/home/data", "/"),
        ("/var/lib/data", "/"),
        ("/data", "/"),
        ("/etcetera", "/"),
    ],
)
def test_a_folder_on_a_disk_is_chosen_with_where_that_is_mounted(path: str, mount: str) -> None:
    assert choose(Asked(path, 7), DISKS) == Chosen(path, mount, 7)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("", "not absolute"),
        ("corral", "not absolute"),
        ("~/corral", "not absolute"),
        ("/mnt/nvme0/../../etc", "not normal"),
        ("/mnt/nvme0/.", "not normal"),
        ("/mnt//nvme0/corral", "not normal"),
        ("//mnt/nvme0/corral", "not normal"),
        ("/mnt/nvme0/corral/", "not normal"),
        ("/mnt/nvme0/a\nb", "do not show"),
        ("/mnt/nvme0/a\0b", "do not show"),
        ("/mnt/nvme0/\u202e", "do not show"),
        ("/mnt/nvme0/\ud800", "do not show"),
        ("/mnt/nvme0/" + "x" * 256, "longer"),
        ("/mnt/nvme0" + "/ab" * 500, "longer"),
        ("/", "of the system"),
        ("/home", "of the system"),
        ("/mnt", "of the system"),
        ("/var/lib", "of the system"),
        ("/etc/corral", "of the system"),
        ("/usr/local/data", "of the system"),
        ("/proc/1/root", "of the system"),
        ("/var/lib/corral-agent/podman", "of the system"),
        ("/var/lib/docker/data", "of the system"),
        ("/mnt/nvme0", "whole disk"),
    ],
)
def test_other_paths_are_refused_saying_why_and_what_would_do(path: str, why: str) -> None:
    refused = refusal(path)
    assert (refused.code, refused.details["field"]) == ("INVALID_PATH", "path")
    assert why in refused.message
    assert "'/mnt/nvme0/corral' would do" in refused.message


def test_a_path_on_no_disk_of_the_machine_is_refused() -> None:
    assert "no disk of this machine" in refusal("/srv/corral", offered=[NVME]).message
    assert "has reported no disk" in refusal("/srv/corral", offered=[]).message


@pytest.mark.parametrize("tree", SYSTEM_TREES)
def test_nothing_in_a_folder_of_the_system_is_chosen(tree: str) -> None:
    assert refusal(tree).code == refusal(f"{tree}/corral").code == "INVALID_PATH"
    assert disks({"disks": [{**vars(NVME), "mount": tree}]}, {}) == []


@pytest.mark.parametrize("max_bytes", [-1, MAX_BYTES + 1, 10**30])
def test_a_limit_is_neither_negative_nor_huge(max_bytes: int) -> None:
    refused = refusal("/mnt/nvme0/corral", max_bytes)
    assert (refused.code, refused.details["field"]) == ("INVALID_REQUEST", "max_bytes")


@given(st.text() | st.from_regex(r"(/[a-z.]{0,3}){0,5}", fullmatch=True))
def test_any_text_is_chosen_or_refused(path: str) -> None:
    try:
        chosen = choose(Asked(path), DISKS)
    except Refusal as refused:
        assert refused.code == "INVALID_PATH"
        assert not any(unicodedata.category(c) in HIDDEN for c in refused.message)
    else:
        assert chosen.path == path
        assert ".." not in path.split("/")
        assert not path.startswith(("/etc/", "/usr/", "/proc/"))


@pytest.mark.parametrize(
    ("offered", "best"),
    [
        (DISKS, NVME),
        ([OS, FULL], FULL),
        ([OS], OS),
        ([], None),
        ([FULL, Disk("/a", "d", "xfs", 9, 10, os=False)], None),
    ],
)
def test_the_disk_with_most_free_space_that_does_not_hold_the_system_is_recommended(
    offered: list[Disk], best: Disk | None
) -> None:
    found = recommended(offered)
    assert found == (best if best is not None or not offered else offered[1])


def test_what_is_free_now_counts_and_not_what_was_when_the_inventory_was_taken() -> None:
    facts: dict[str, Any] = {"disks": [vars(disk) for disk in DISKS]}
    found = disks(facts, {"/mnt/nvme1": 3_700_000, "/elsewhere": 1})
    assert [disk.free_mib for disk in found] == [500_000, 3_000_000, 3_700_000]
    assert recommended(found) == found[2]
    assert disks({}, {}) == []


def test_a_machines_word_counts_for_the_choice_it_speaks_of() -> None:
    kept = Kept(3, State.MAKING, "", 0)
    assert after(kept, Seen(3, State.FAILED, "full\0", 2)) == Kept(3, State.FAILED, "full\ufffd", 2)
    assert after(kept, Seen(2, State.READY)) == kept
    assert after(kept, Seen(3, State.NONE)) == kept
    none = Kept(3, State.NONE, "", 0)
    assert after(none, Seen(3, State.READY)) == none
