"""Running the one Alembic chain (design decision 16): by itself on SQLite, explicit and locked on PostgreSQL."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from corral.store.engine import Database

MIGRATIONS = Path(__file__).parent / "migrations"


def _config(conn: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = conn
    return config


def head() -> str | None:
    """Return the newest revision this release knows."""
    return ScriptDirectory.from_config(_config()).get_current_head()


def current(database: Database) -> str | None:
    """Return the revision the database is at (None = empty)."""
    with database.writer.connect() as conn:
        return MigrationContext.configure(conn).get_current_revision()


def upgrade(database: Database) -> None:
    """Bring the database to `head()`. Safe to call at every start and from several processes."""
    with database.migration() as conn:
        command.upgrade(_config(conn), "head")


def known(revision: str) -> bool:
    """Return whether this release has `revision` in its chain."""
    return any(script.revision == revision for script in ScriptDirectory.from_config(_config()).walk_revisions())
