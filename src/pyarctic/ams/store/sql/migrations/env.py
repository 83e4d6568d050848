"""Alembic runs this for every command: with the connection that the caller has."""

from __future__ import annotations

from alembic import context

from pyarctic.ams.store.sql.revisions import VERSION_TABLE
from pyarctic.ams.store.sql.tables import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA, version_table=VERSION_TABLE)
with context.begin_transaction():
    context.run_migrations()
