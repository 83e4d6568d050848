"""Changes of tables at the door of the library: what does not work out is raised, with a hint."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from pyiceberg.io import FileIO

from pyarctic import errors
from pyarctic.iceberg.committing import Committed, Conflict, Outcome, Rejected, Unknown
from pyarctic.iceberg.storage import remove_quietly


def accepted(outcome: Outcome) -> Committed:
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


def remove_unused(io: FileIO, paths: Iterable[str], refusal: errors.ArcticError) -> None:
    """Remove the files of a refused change, unless a snapshot has them: one that was rolled back, or cannot be seen now."""
    if refusal.facts.get("reason") not in ("history-lost", "added-twice"):
        remove_quietly(io, paths)


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
