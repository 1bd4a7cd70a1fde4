"""The site's key: in a file of its own, readable by its owner only, and bound to what it seals for."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from corral.server.sealing import FILE, SiteKey
from corral.server.setup_error import SetupError


def test_a_key_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    first = SiteKey(tmp_path)
    first.prepare()
    file = tmp_path / FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and file.stat().st_size == 32
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    sealed = first.seal("text ä", "id")
    assert SiteKey(tmp_path).open(sealed, "id") == "text ä"


def test_what_is_sealed_does_not_show_and_never_looks_the_same(tmp_path: Path) -> None:
    key = SiteKey(tmp_path)
    assert b"secret" not in key.seal("secret", "id")
    assert key.seal("secret", "id") != key.seal("secret", "id")


def test_another_key_another_purpose_or_a_changed_byte_opens_nothing(tmp_path: Path) -> None:
    key = SiteKey(tmp_path / "a")
    sealed = key.seal("secret", "id")
    assert SiteKey(tmp_path / "b").open(sealed, "id") is None
    assert key.open(sealed, "other") is None
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 1
        assert key.open(bytes(changed), "id") is None
    for cut in (b"", sealed[:1], sealed[:5], sealed[:-1]):
        assert key.open(cut, "id") is None


def test_a_mode_that_was_opened_is_closed_again(tmp_path: Path) -> None:
    SiteKey(tmp_path).prepare()
    (tmp_path / FILE).chmod(0o644)
    SiteKey(tmp_path).prepare()
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


def test_a_damaged_key_is_said_and_not_replaced(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"short")
    with pytest.raises(SetupError, match="damaged"):
        SiteKey(tmp_path).prepare()
    assert (tmp_path / FILE).read_bytes() == b"short"


def test_a_folder_that_is_none_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="cannot be read or made"):
        SiteKey(tmp_path / "file").prepare()


def test_many_who_need_it_first_at_once_get_one_key(tmp_path: Path) -> None:
    key = SiteKey(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        sealed = list(pool.map(lambda n: key.seal(str(n), "id"), range(16)))
    assert [SiteKey(tmp_path).open(one, "id") for one in sealed] == [str(n) for n in range(16)]
