"""Outcomes of commits: failures become errors with hints, and files that were not committed are removed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from pyarctic import errors
from pyarctic.iceberg import remove_quietly
from pyarctic.iceberg.commit import (
    Committed,
    Conflict,
    Outcome,
    Rejected,
    Unknown,
    kept_metadata_files,
    referenced_files,
)

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
                hint="Nothing was changed. Try again, or raise the table properties commit.retry.num-retries and "
                "commit.retry.total-timeout-ms.",
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


@dataclass(frozen=True, kw_only=True)
class Removal:
    """What became of files that were to be removed. Those that a snapshot refers to are in neither set."""

    removed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    """Files that may be orphans, and are left."""


def remove_outputs(table: Table, paths: Iterable[str], *, table_uuid: UUID, since: int | None) -> Removal:
    """Remove files that were written for a table and not committed, metadata files too. No file is removed that any snapshot
    of the newest metadata refers to, and no metadata file that the table may have had; if that cannot be read, or another
    table has the name by now, none is.

    It must not be called while the outcome of a commit of these files is unknown. `table_uuid` and `since` describe the
    table that the files were written for: its uuid, and a snapshot older than the files. The handle is not refreshed: a
    commit that is being prepared relies on the state it has checked."""
    paths = set(paths)
    if not paths:
        return Removal()
    try:
        newest = table.load_newest()
        if newest.metadata.table_uuid != table_uuid:
            return Removal(failed=paths)
        paths -= kept_metadata_files(newest.metadata, newest.metadata_location, paths)
        paths -= referenced_files(newest.metadata, table.reader(), paths, since=since)
    except Exception:  # noqa: BLE001  # every catalog has its own; orphans can be cleaned later, lost files are lost
        return Removal(failed=paths)
    failed = remove_quietly(newest.io, sorted(paths, reverse=True))
    return Removal(removed=paths - failed, failed=failed)
