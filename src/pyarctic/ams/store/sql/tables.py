"""The tables of the database: one for each kind of rows, with a column for each field, of the same name.

What always holds is held by the database, too: keys, and one open commit of a table. A change here needs a new revision in
`migrations/versions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    Index,
    LargeBinary,
    MetaData,
    Table,
    Text,
)
from sqlalchemy.types import TypeEngine

from pyarctic.ams.rows import (
    ClaimRow,
    CommitRow,
    EventRow,
    OptimizerRow,
    PlanRow,
    ProcessRow,
    ResultRow,
    TableRow,
    TaskRow,
    UnitRow,
)
from pyarctic.ams.store.fields import Field, form_of
from pyarctic.ams.store.port import KEYS

METADATA = MetaData()

# What queries need. The revisions tell how each kind of database stores it.
_TYPES: Mapping[type, type[TypeEngine[Any]]] = {
    int: BigInteger,
    float: Double,
    bool: Boolean,
    datetime: DateTime,
    bytes: LargeBinary,
}


def _column(field: Field, key: tuple[str, ...]) -> Column[Any]:
    kind = _TYPES.get(field.type, Text)
    return Column(field.name, kind(), primary_key=field.name in key, nullable=field.optional, autoincrement=False)


def _table(name: str, kind: type[Any], *indexes: Index) -> Table:
    columns = [_column(field, KEYS[kind]) for field in form_of(kind).fields.values()]
    return Table(name, METADATA, *columns, *indexes)


TABLES: Mapping[type[Any], Table] = {
    TableRow: _table("tables", TableRow, Index("tables_to_look_at", "next_look_at")),
    ProcessRow: _table(
        "processes",
        ProcessRow,
        Index("processes_of_table", "table_uuid", "state"),
        Index("processes_in_state", "state"),
        Index("processes_to_clean", "clean_at"),
        Index("processes_ended", "ended_at"),
    ),
    TaskRow: _table(
        "tasks",
        TaskRow,
        Index("queued_tasks", "group", "state", "queued_at"),
        Index("tasks_in_state", "state"),
        Index("tasks_of_optimizer", "optimizer_id"),
    ),
    UnitRow: _table("units", UnitRow),
    CommitRow: _table(
        "commits",
        CommitRow,
        Index("commits_of_process", "process_id"),
        Index("commits_in_state", "state"),
    ),
    OptimizerRow: _table("optimizers", OptimizerRow),
    ClaimRow: _table("claims", ClaimRow, Index("claims_of_process", "process_id")),
    PlanRow: _table("plans", PlanRow),
    ResultRow: _table("results", ResultRow),
    EventRow: _table(
        "events",
        EventRow,
        Index("events_of_table", "table", "number"),
        Index("events_of_object", "kind", "key", "number"),
    ),
}

_commits = TABLES[CommitRow].c
_IS_OPEN = _commits.state == "open"
# MariaDB has no partial indexes: there it is of a generated column, which is the table for open commits, and else null.
ONE_OPEN_COMMIT = "one_open_commit"
Index(ONE_OPEN_COMMIT, _commits.table_uuid, unique=True, sqlite_where=_IS_OPEN, postgresql_where=_IS_OPEN)

LAST_EVENT = Table("last_event", METADATA, Column("number", BigInteger, nullable=False))
"""One row: the number of the last event. It is never given again, also when events are removed, and whoever increases it
keeps others from it until the end of the transaction: numbers appear in their order."""

LEASE = Table(
    "lease",
    METADATA,
    Column("number", BigInteger, nullable=False),
    Column("holder", Text, nullable=False),
    Column("url", Text, nullable=False),
    Column("expires_at", DateTime, nullable=False),
)
"""One row: who leads the services of this database (`Lease`). Whoever writes anything locks it first, so that transactions
follow one another, also those of several processes."""
