"""Several services of one database, of which one leads; and indexes for many tables and a long history."""

from __future__ import annotations

from alembic import op

from pyarctic.ams.store.sql.migrations.portable import create_index, create_table

revision = "0002"
down_revision = "0001"


_INDEXES = (
    ("tables_to_look_at", "tables", ["next_look_at"]),
    ("processes_to_clean", "processes", ["clean_at"]),
    ("processes_ended", "processes", ["ended_at"]),
)


def upgrade() -> None:
    """From 0001."""
    create_table("lease", ("number int", "holder text", "url text", "expires_at time"))
    for name, table, fields in _INDEXES:
        create_index(name, table, fields)
    op.execute("INSERT INTO lease SELECT 0, '', '', '2000-01-01 00:00:00' WHERE NOT EXISTS (SELECT 1 FROM lease)")
