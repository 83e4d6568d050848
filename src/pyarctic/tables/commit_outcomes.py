"""Outcomes of commits: failures become errors with hints, and files that were not committed are removed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyarctic import errors
from pyarctic.iceberg import remove_quietly
from pyarctic.iceberg.commit import Committed, Conflict, Outcome, Rejected, Unknown, referenced_files

if TYPE_CHECKING:
    from pyarctic.tables.table import Table


def require_committed(outcome: Outcome) -> Committed:
    """The commit; raises an error if there is none."""
    match outcome:
        case Committed():
            return outcome
        case Conflict():
            raise errors.Conflict(
                f"{outcome.attempts} attempts to commit lost against other writers: {outcome.reason}",
                hint="Nothing was changed. Try again, or raise the table property commit.retry.num-retries.",
                attempts=outcome.attempts,
            )
        case Rejected():
            raise errors.Rejected(outcome.reason, hint=outcome.hint, reason=outcome.code, **outcome.facts)
        case Unknown():
            raise errors.OutcomeUnknown(
                f"the outcome of the commit of snapshot {outcome.snapshot_id} is not known: {outcome.reason}",
                hint="No file was deleted. Commit the same change again: it is recognised if it is in the table already.",
                snapshot_id=outcome.snapshot_id,
            )


def remove_outputs(table: Table, paths: Iterable[str], *, since: int | None) -> None:
    """Remove files that were written for a table and not committed. No file is removed that any snapshot of the newest
    metadata refers to; if the metadata cannot be read, none is removed.

    It must not be called while the outcome of a commit of these files is unknown. `since`: a snapshot that is older than the
    files."""
    paths, uuid = set(paths), table.uuid
    if not paths:
        return
    try:
        table.refresh()
        if table.uuid != uuid:
            return
        paths -= referenced_files(table.view.metadata, table.reader(), paths, since=since)
    except errors.ArcticError:  # orphans can be cleaned later, lost files cannot be brought back
        return
    remove_quietly(table.view.io, paths)
