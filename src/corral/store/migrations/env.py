"""Alembic's entry: runs the chain on the connection that `store.migrate` holds."""

from alembic import context

from corral.store.tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
