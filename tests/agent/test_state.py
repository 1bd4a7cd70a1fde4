"""The state folder: whole files or none, on a disk that fills up at any write, at any byte of a power cut."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from corral.agent.state import CA, KEY, MACHINE, TOMBSTONE, Machine, StateError, StateFolder, Unwritable, clean_token
from corral.agent.work import Record, WorkFolder
from tests.agent.scripted import want

MACHINE_1 = Machine("https://corral.test", "m1", "box", "acme", "default", "inc1")


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    folder = StateFolder(tmp_path / "state")
    folder.make()
    return folder


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 KiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@contextmanager
def full(disk: Path, leave: int = 0) -> Iterator[None]:
    """Fill a disk up to `leave` bytes."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as out:
        try:
            while True:
                out.write(bytes(4096))
        except OSError:
            pass
        out.truncate(max(0, out.tell() - leave))
    try:
        yield
    finally:
        ballast.unlink()


def test_the_folder_is_only_roots_and_so_are_its_files(state: StateFolder) -> None:
    state.make_key()
    state.write(MACHINE, MACHINE_1)
    assert state.path.stat().st_mode & 0o777 == 0o700
    assert (state.path / KEY).stat().st_mode & 0o777 == 0o600
    assert (state.path / MACHINE).stat().st_mode & 0o777 == 0o600


def test_a_key_is_256_bits_and_stays_the_same(state: StateFolder) -> None:
    key = state.make_key()
    assert len(bytes.fromhex(key)) == 32
    assert state.make_key() == key == StateFolder(state.path).key()


WRITES: list[tuple[str, Callable[[StateFolder], object]]] = [
    (KEY, lambda state: state.make_key()),
    (MACHINE, lambda state: state.write(MACHINE, MACHINE_1)),
    (CA, lambda state: state.write_text(CA, "-----BEGIN CERTIFICATE-----\n" * 300)),
    (TOMBSTONE, lambda state: state.write(TOMBSTONE, MACHINE_1)),
    ("work/a1.json", lambda state: WorkFolder(state).put(Record(want(env={"x": "y" * 9000}, generation=2)))),
]


@pytest.mark.parametrize(("name", "write"), WRITES, ids=[name for name, _ in WRITES])
@pytest.mark.parametrize("leave", [0, 4096])
def test_a_full_disk_at_any_write_leaves_the_old_file_whole(
    small_disk: Path, name: str, write: Callable[[StateFolder], object], leave: int
) -> None:
    state = StateFolder(small_disk / "state")
    state.make()
    WorkFolder(state).put(Record(want()))
    if name == CA:
        state.write_text(CA, "the old one")
    before = {path: path.read_bytes() for path in state.path.rglob("*") if path.is_file()}
    fits = leave and name not in (CA, "work/a1.json")
    with full(small_disk, leave):
        if fits:
            write(state)
        else:
            with pytest.raises(Unwritable, match="full; free space"):
                write(state)
            assert {path: path.read_bytes() for path in state.path.rglob("*") if path.is_file()} == before
            assert WorkFolder(state).load() == [Record(want())]
    write(state)
    assert (state.path / name).exists()


@pytest.mark.parametrize(
    "damage", [b"", b"{", b'{"format":1}', b'{"format":1,"body":{"url":7}}', b"\xff\xfe\x00", b"[]"]
)
def test_a_damaged_file_is_refused_and_left_as_it_is(state: StateFolder, damage: bytes) -> None:
    (state.path / MACHINE).write_bytes(damage)
    with pytest.raises(StateError, match=r"machine\.json is damaged .* join it again"):
        state.machine()
    assert (state.path / MACHINE).read_bytes() == damage


def test_a_damaged_key_is_never_replaced_silently(state: StateFolder) -> None:
    (state.path / KEY).write_text("abc")
    with pytest.raises(StateError, match="damaged"):
        state.make_key()


def test_a_damaged_record_of_work_is_refused(state: StateFolder) -> None:
    WorkFolder(state).put(Record(want()))
    path = state.path / "work" / "a1.json"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(StateError, match="damaged"):
        WorkFolder(state).load()
    path.rename(path.with_name("a2.json"))


def test_a_record_under_another_name_is_refused(state: StateFolder) -> None:
    WorkFolder(state).put(Record(want()))
    (state.path / "work" / "a1.json").rename(state.path / "work" / "a2.json")
    with pytest.raises(StateError, match="another allocation"):
        WorkFolder(state).load()


def test_a_newer_layout_is_refused(state: StateFolder) -> None:
    (state.path / MACHINE).write_text('{"format":2,"body":{}}')
    with pytest.raises(StateError, match="newer agent"):
        state.machine()


def test_what_a_crash_left_beside_a_file_is_ignored(state: StateFolder) -> None:
    state.write(MACHINE, MACHINE_1)
    (state.path / "machine.json.new").write_text("{half")
    WorkFolder(state).put(Record(want()))
    (state.path / "work" / "a1.json.new").write_text("{half")
    assert state.machine() == MACHINE_1
    assert WorkFolder(state).load() == [Record(want())]


def test_only_one_agent_has_the_folder(state: StateFolder) -> None:
    hold = (
        "import sys,pathlib; from corral.agent.state import StateFolder as S; s=S(pathlib.Path(sys.argv[1])); s.lock()"
    )
    state.lock()
    assert state.held()
    second = subprocess.run([sys.executable, "-c", hold, state.path], capture_output=True, text=True, check=False)
    assert "another agent works with" in second.stderr
    state.unlock()
    assert not state.held()
    subprocess.run([sys.executable, "-c", hold, state.path], check=True)


TOKEN = "corj_abc_def_ghi"


@pytest.mark.parametrize(
    "raw",
    [
        TOKEN.encode(),
        f"{TOKEN}\n".encode(),
        f"\ufeff{TOKEN}\r\n".encode(),
        f"  \t{TOKEN} \n\n".encode(),
        f"{TOKEN}\n".encode("utf-16"),
        f"{TOKEN}\x00\x00".encode(),
    ],
)
def test_a_token_file_may_hold_what_editors_put_round_it(raw: bytes) -> None:
    assert clean_token(raw) == TOKEN


@pytest.mark.parametrize("raw", [b"", b" \n", b"\xff\xff\xff", b"two tokens", b"x" * 300, "tök".encode()])
def test_a_token_file_without_one_token_is_refused(raw: bytes) -> None:
    with pytest.raises(StateError):
        clean_token(raw)
