"""Fixtures everybody uses: a fresh migrated database, on both kinds, with a clock a test can move."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from corral.store import migrate
from corral.store.engine import Database
from tests import postgres
from tests.world import World

_numbers = count(1)


class Clock:
    """The database's time in tests: stands still until it is moved."""

    def __init__(self) -> None:
        self.now = datetime(2026, 3, 1, 12, 0, tzinfo=timezone.utc)

    def __call__(self) -> datetime:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """URL of a server's own database; skips, saying so, where PostgreSQL is missing."""
    if postgres.binaries() is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    with postgres.server() as url:
        yield url


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file to copy: quicker than migrating for each test."""
    path = tmp_path_factory.mktemp("template") / "corral.db"
    database = Database(f"sqlite:///{path}")
    migrate.upgrade(database)
    database.close()
    return path


@pytest.fixture(scope="session")
def postgres_template(postgres_url: str) -> str:
    """Name of a migrated PostgreSQL database to copy."""
    _admin(postgres_url, "CREATE DATABASE template_corral")
    database = Database(postgres_url.replace("/postgres?", "/template_corral?"))
    migrate.upgrade(database)
    database.close()
    return "template_corral"


def _admin(url: str, statement: str) -> None:
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"), isolation_level="AUTOCOMMIT")
    with engine.connect() as conn:
        conn.execute(text(statement))
    engine.dispose()


@contextmanager
def _fresh(request: pytest.FixtureRequest, kind: str, folder: Path) -> Iterator[str]:
    """Yield the URL of a fresh, migrated database of a kind; SQLite's file lies in `folder`."""
    if kind == "sqlite":
        path = folder / "corral.db"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        yield f"sqlite:///{path}"
        return
    server: str = request.getfixturevalue("postgres_url")
    name = f"t{next(_numbers)}"
    _admin(server, f"CREATE DATABASE {name} TEMPLATE {request.getfixturevalue('postgres_template')}")
    try:
        yield server.replace("/postgres?", f"/{name}?")
    finally:
        _admin(server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgresql"])
def db_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a fresh, migrated database, once on each kind."""
    with _fresh(request, request.param, tmp_path) as url:
        yield url


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def module_db_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The same, for all tests of a file."""
    with _fresh(request, request.param, tmp_path_factory.mktemp("module")) as url:
        yield url


@pytest.fixture
def db(db_url: str, clock: Clock) -> Iterator[Database]:
    """A fresh database whose time is `clock`."""
    database = Database(db_url, clock=clock)
    yield database
    database.close()


@pytest.fixture
def sqlite_db(sqlite_template: Path, tmp_path: Path, clock: Clock) -> Iterator[Database]:
    """A fresh SQLite database, for tests whose rule does not depend on the kind of database."""
    path = tmp_path / "corral.db"
    shutil.copy(sqlite_template, path)
    database = Database(f"sqlite:///{path}", clock=clock)
    yield database
    database.close()


@pytest.fixture
def world(sqlite_db: Database, tmp_path: Path) -> World:
    """Two organisations and their people (tests/world.py) on SQLite, behind the real app."""
    return World(sqlite_db, tmp_path)


@pytest.fixture
def world_on_both(db: Database, tmp_path: Path) -> World:
    """The same, once on each kind of database."""
    return World(db, tmp_path)
