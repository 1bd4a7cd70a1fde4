"""The chain of migrations makes the schema that the tables say (design decision 16)."""

from __future__ import annotations

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from corral.store import migrate
from corral.store.engine import Database
from corral.store.tables import metadata


def test_the_migrations_make_the_tables_as_they_are_written(db: Database) -> None:
    with db.writer.connect() as conn:
        found = compare_metadata(MigrationContext.configure(conn, opts={"compare_type": True}), metadata)
    assert found == [], "make the migration anew from store/tables"


def test_a_migrated_database_stays_as_it_is(db: Database) -> None:
    assert migrate.current(db) == migrate.head()
    migrate.upgrade(db)
    assert migrate.current(db) == migrate.head()
