"""Running the one Alembic chain (design decision 16): by itself on SQLite, explicit and locked on PostgreSQL.

Alembic is imported when there is something to do: for a look at the revision it would cost a tenth of a start.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text

from corral.store.engine import Database

if TYPE_CHECKING:
    from alembic.config import Config

HEAD = "0001"
"""The newest revision of the chain; a test holds it to that."""
MIGRATIONS = Path(__file__).parent / "migrations"


def _config(conn: Connection | None = None) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = conn
    return config


def head() -> str:
    """Return the newest revision this release knows."""
    return HEAD


def current(database: Database) -> str | None:
    """Return the revision the database is at (None = empty)."""
    with database.writer.connect() as conn:
        if not inspect(conn).has_table("alembic_version"):
            return None
        revision: str | None = conn.execute(text("SELECT version_num FROM alembic_version")).scalar()
        return revision


def upgrade(database: Database) -> None:
    """Bring the database to `head()`. Safe to call at every start and from several processes."""
    from alembic import command

    with database.migration() as conn:
        command.upgrade(_config(conn), "head")


def known(revision: str) -> bool:
    """Return whether this release has `revision` in its chain."""
    from alembic.script import ScriptDirectory

    return any(script.revision == revision for script in ScriptDirectory.from_config(_config()).walk_revisions())
