"""`corral site doctor`: finds what is wrong, says what to do, changes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import namedtuple
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from sqlalchemy import text, update

from corral.server import certificates, doctor, tls
from corral.server.config import Config
from corral.store.engine import Database
from corral.store.tables.machines import machines
from tests.world import World


@pytest.fixture
def config(sqlite_db: Database, tmp_path: Path) -> Config:
    return Config(str(sqlite_db.url), tmp_path)


def _found(config: Config) -> dict[str, doctor.Finding]:
    return {finding.check: finding for finding in doctor.examine(config)}


def test_a_sound_site_has_no_finding(config: Config) -> None:
    found = _found(config)
    assert {finding.result for finding in found.values()} == {doctor.OK}
    assert list(found) == ["database", "schema", "clock", "agents", "disk", "certificate", "artefact"]


def test_a_missing_database_is_bad_and_is_not_made(tmp_path: Path) -> None:
    found = _found(Config(f"sqlite:///{tmp_path}/corral.db", tmp_path))
    assert found["database"].result == doctor.BAD and found["database"].next_step
    assert list(tmp_path.iterdir()) == []


def test_an_old_schema_is_bad(config: Config, sqlite_db: Database) -> None:
    with sqlite_db.write() as tx:
        tx.run(text("DELETE FROM alembic_version"))
    assert _found(config)["schema"].result == doctor.BAD
    with sqlite_db.write() as tx:
        tx.run(text("INSERT INTO alembic_version VALUES ('9999')"))
    assert "newer" in _found(config)["schema"].what


def test_a_database_that_does_not_answer_is_bad(config: Config) -> None:
    found = _found(replace(config, database="postgresql://corral:geheim@127.0.0.1:1/x"))
    assert found["database"].result == doctor.BAD and "geheim" not in found["database"].what


def test_agents_of_another_release_are_counted(config: Config, sqlite_db: Database, tmp_path: Path) -> None:
    world = World(sqlite_db, tmp_path / "world")
    for name in ("gpu-1", "gpu-2"):
        world.add_machine(name)
    with sqlite_db.write() as tx:
        tx.run(update(machines).where(machines.c.name == "gpu-1").values(release="0.0.9"))
    finding = _found(config)["agents"]
    assert finding.result == doctor.WARNING and "1 at 0.0.9" in finding.what and "1 of 2" in finding.what


def test_little_disk_space_is_told(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    for free, result in ((3 * 1024**3, doctor.OK), (1024**3, doctor.WARNING), (1024**2, doctor.BAD)):
        monkeypatch.setattr("shutil.disk_usage", lambda _, free=free: usage(0, 0, free))
        assert _found(config)["disk"].result == result


def test_a_certificate_that_ends_soon_is_told(config: Config) -> None:
    made = datetime.now(timezone.utc) - certificates.SERVER_LIFE
    for left, result in ((31, doctor.OK), (20, doctor.WARNING), (2, doctor.BAD)):
        folder = config.state_dir / str(left)
        tls.prepare(replace(config, state_dir=folder, tls="own"), made + timedelta(days=left, hours=1))
        assert _found(replace(config, state_dir=folder))["certificate"].result == result


def test_a_clock_that_is_off_is_told(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    behind = datetime.now(timezone.utc) - timedelta(seconds=60)
    monkeypatch.setattr("corral.store.engine.utc_now", lambda: behind)
    found = _found(config)["clock"]
    assert found.result == doctor.BAD and "NTP" in found.next_step


def test_the_exit_code_says_whether_something_is_bad(config: Config, tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "corral", "site", "doctor", "--json", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    good = run("--state-dir", str(tmp_path), "--database", config.database)
    assert good.returncode == 0 and json.loads(good.stdout)["ok"] is True
    bad = run("--state-dir", str(tmp_path / "nowhere"))
    assert bad.returncode == 1 and json.loads(bad.stdout)["ok"] is False
