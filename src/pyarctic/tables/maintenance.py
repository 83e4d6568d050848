"""Maintenance that changes no rows: merging manifests, and going back to an older snapshot."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, SetSnapshotRefUpdate

from pyarctic.errors import Conflict, about
from pyarctic.iceberg.commit import ManifestRewrite, mergeable_manifests
from pyarctic.iceberg.manifest import ManifestReader, snapshot_by_id

if TYPE_CHECKING:
    from pyarctic.tables.table import Table


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


def rewrite_manifests(table: Table, *, everything: bool, dry_run: bool) -> ManifestReport:
    """Merge the small manifests of a table, or all of them."""
    with about(table=table.name):
        before = ManifestReader(table.view.io).manifests(table.view.metadata.current_snapshot())
        chosen = [m.path for m in before] if everything else mergeable_manifests(before, table.properties)
    snapshot_id = after = None
    if chosen and not dry_run:
        snapshot_id = table.commit(ManifestRewrite(manifests=frozenset(chosen))).snapshot_id
        after = len(ManifestReader(table.view.io).manifests(table.view.metadata.current_snapshot()))
    return ManifestReport(
        table=table.name,
        snapshot_id=snapshot_id,
        rewritten=len(chosen),
        manifests_before=len(before),
        manifests_after=after,
    )


def set_current_snapshot(loaded: IcebergTable, snapshot_id: int) -> None:
    """Make a snapshot the current one of the main branch; raises `Conflict` if the branch has moved since it was loaded."""
    metadata = loaded.metadata
    snapshot_by_id(metadata, snapshot_id)
    ref = metadata.refs[MAIN_BRANCH]
    update = SetSnapshotRefUpdate.model_validate(
        {
            "ref-name": MAIN_BRANCH,
            "type": SnapshotRefType.BRANCH,
            "snapshot-id": snapshot_id,
            "max-ref-age-ms": ref.max_ref_age_ms,
            "max-snapshot-age-ms": ref.max_snapshot_age_ms,
            "min-snapshots-to-keep": ref.min_snapshots_to_keep,
        }
    )
    requirements = (
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertRefSnapshotId.model_validate({"ref": MAIN_BRANCH, "snapshot-id": metadata.current_snapshot_id}),
    )
    try:
        loaded.metadata = loaded.catalog.commit_table(loaded, requirements, (update,)).metadata
    except CommitFailedException as cause:
        raise Conflict("another commit came first", hint="Nothing was changed. Look at the table and try again.") from cause
