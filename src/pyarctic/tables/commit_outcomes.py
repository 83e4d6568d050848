"""Changes of tables at the door of the library: what does not work out is raised, with a hint."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pyarctic import errors
from pyarctic.iceberg import remove_quietly
from pyarctic.iceberg.commit import Committed, Conflict, Outcome, Rejected, Unknown, referenced_files

if TYPE_CHECKING:
    from pyarctic.tables.table import Table


def require_committed(outcome: Outcome) -> Committed:
    """The commit, or the error that says why there is none."""
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
                f"the catalog did not answer the commit of snapshot {outcome.snapshot_id}: {outcome.reason}",
                hint="Nothing was deleted. Commit the same change again: if it is in the table already, that is recognised.",
                snapshot_id=outcome.snapshot_id,
            )


def remove_outputs(table: Table, paths: Iterable[str], *, since: int | None) -> None:
    """Remove files that were written for a table and did not get into it. The one rule for it: never a path that a snapshot
    of the table may hold. The newest metadata is asked; without an answer everything stays.

    Nobody may call it while the outcome of a commit of these files is open. `since` is a snapshot older than the files."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestReport:
    """What rewriting the manifests did, or would do."""

    table: str
    snapshot_id: int | None
    rewritten: int
    manifests_before: int
    manifests_after: int | None

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        snapshot_id = None if self.snapshot_id is None else str(self.snapshot_id)
        return asdict(self) | {"snapshot_id": snapshot_id}
