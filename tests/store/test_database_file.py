"""SQLite's files: only their owner may read them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from corral.store import migrate
from corral.store.engine import Database


@pytest.mark.parametrize("before", [False, True])
def test_only_its_owner_may_read_the_database(tmp_path: Path, before: bool) -> None:
    file = tmp_path / "corral.db"
    if before:
        file.touch(mode=0o644)
    database = Database(f"sqlite:///{file}")
    try:
        migrate.upgrade(database)
        with database.write():
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    finally:
        database.close()
    assert set(modes.values()) == {0o600}, modes
