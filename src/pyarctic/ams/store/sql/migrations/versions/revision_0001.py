"""The first revision."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from pyarctic.ams.store.sql.migrations.portable import create_index, create_table, is_mariadb

revision = "0001"
down_revision = None

# A question mark: the column may be null. An asterisk: it belongs to the key.
_TABLES = {
    "tables": (
        "uuid text*",
        "name text",
        "catalog text",
        "kind text",
        "state text",
        "group text",
        "base_snapshot_id int?",
        "change_snapshot_id int?",
        "base_sequence int?",
        "change_sequence int?",
        "figures text",
        "looked_at time?",
        "next_look_at time",
        "look_seconds float",
        "trigger text?",
        "must_plan bool",
        "planned_at time?",
        "committed_at time?",
        "failed_in_a_row int",
        "plan_after time?",
        "paused_by text?",
        "pause_reason text?",
        "paused_until time?",
        "problem text?",
    ),
    "processes": (
        "id text*",
        "table_uuid text",
        "table text",
        "group text",
        "kinds text",
        "state text",
        "trigger text",
        "job_id text",
        "commits_at_once bool",
        "reasons text",
        "expected text",
        "actual text",
        "outcome text?",
        "tasks int",
        "created_at time",
        "started_at time?",
        "ended_at time?",
        "clean_at time?",
    ),
    "tasks": (
        "process_id text*",
        "number int*",
        "table_uuid text",
        "group text",
        "unit int",
        "kind text",
        "partition text",
        "state text",
        "version int",
        "attempt int?",
        "optimizer_id text?",
        "retries int",
        "failures text",
        "input_files int",
        "input_bytes int",
        "rows_done int",
        "bytes_done int",
        "created_at time",
        "queued_at time?",
        "handed_out_at time?",
        "acknowledged_at time?",
        "progressed_at time?",
        "retry_at time?",
        "prepared_at time?",
        "ended_at time?",
    ),
    "units": (
        "process_id text*",
        "unit int*",
        "dropped text?",
    ),
    "commits": (
        "snapshot_id int*",
        "process_id text",
        "table_uuid text",
        "state text",
        "record text",
        "position int",
        "changed_at time",
        "open_table_uuid text? mariadb CASE WHEN state = 'open' THEN table_uuid END",
    ),
    "optimizers": (
        "id text*",
        "group text",
        "container text?",
        "state text",
        "parallelism int",
        "memory_bytes int?",
        "version text",
        "host text",
        "token_hash text",
        "heartbeat_seconds float",
        "registered_at time",
        "heard_at time",
        "ended_at time?",
    ),
    "claims": (
        "table_uuid text*",
        "key text*",
        "process_id text",
    ),
    "plans": (
        "process_id text*",
        "data bytes",
    ),
    "results": (
        "process_id text*",
        "number int*",
        "data bytes",
    ),
    "events": (
        "number int*",
        "at time",
        "kind text",
        "key text",
        "table text?",
        "before text?",
        "after text",
        "why text",
        "by text",
    ),
    "last_event": ("number int",),
}
_INDEXES = (
    ("processes_in_state", "processes", ["state"]),
    ("processes_of_table", "processes", ["table_uuid", "state"]),
    ("queued_tasks", "tasks", ["group", "state", "queued_at"]),
    ("tasks_in_state", "tasks", ["state"]),
    ("tasks_of_optimizer", "tasks", ["optimizer_id"]),
    ("commits_in_state", "commits", ["state"]),
    ("commits_of_process", "commits", ["process_id"]),
    ("claims_of_process", "claims", ["process_id"]),
    ("events_of_object", "events", ["kind", "key", "number"]),
    ("events_of_table", "events", ["table", "number"]),
)


_KEYED = {("claims", "key")}
"""Texts of any length in a key. MariaDB has none: there a hash stands for them."""


def upgrade() -> None:
    """From an empty database."""
    indexed = {(table, field) for _, table, fields in _INDEXES for field in fields}
    for table, columns in _TABLES.items():
        create_table(table, columns, indexed=indexed, hashed=_KEYED)
    for name, table, fields in _INDEXES:
        create_index(name, table, fields)
    if is_mariadb():
        create_index("one_open_commit", "commits", ["open_table_uuid"], unique=True)
    else:
        is_open = sa.text("state = 'open'")
        options = {"sqlite_where": is_open, "postgresql_where": is_open}
        create_index("one_open_commit", "commits", ["table_uuid"], unique=True, **options)
    op.execute("INSERT INTO last_event SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM last_event)")
