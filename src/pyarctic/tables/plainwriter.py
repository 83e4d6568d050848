"""Rows into tables without a primary key: files are added, and by an overwrite others replaced, in one commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyarctic.errors import Conflict, Rejected, UsageError
from pyarctic.iceberg.committing import Change
from pyarctic.tables.baseload import Scope, replaced_files, write_load
from pyarctic.tables.commits import remove_unused

if TYPE_CHECKING:
    from pyarctic.tables.handle import Table


def write_plain(table: Table, data: Any, scope: Scope, *, appends: bool) -> int | None:
    """Write rows; gives the snapshot, or None if nothing changed."""
    load = write_load(table.view, data, scope, transaction_id=0)

    def plan(_: int) -> Change | None:
        removed = replaced_files(table.view.metadata, table.file_list, scope, load)
        if not load.files and removed.is_empty():
            return None
        return Change(start=table.view.snapshot_id, add=load.files, remove=removed, alone=True)

    try:
        if appends:
            return table._append(add=load.files).snapshot_id if load.files else None
        return table._commit_alone(plan)
    except (Conflict, Rejected, UsageError) as refusal:
        remove_unused(table.view.io, [file.path for file in load.files], refusal)
        raise
