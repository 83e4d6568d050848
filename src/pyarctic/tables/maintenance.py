"""Maintenance that changes no rows: merging manifests, and going back to an older snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, SetPropertiesUpdate, SetSnapshotRefUpdate

from pyarctic.errors import ArcticError, Conflict, about
from pyarctic.iceberg.commit import Committed, ManifestRewrite, mergeable_manifests
from pyarctic.iceberg.manifest import ManifestReader, snapshot_by_id
from pyarctic.iceberg.write import positive_property

if TYPE_CHECKING:
    from pyarctic.tables.table import Table


MIN_MANIFESTS_TO_MERGE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestReport:
    """What rewriting the manifests did, or would do."""

    table: str
    snapshot_id: int | None
    rewritten: int
    manifests_before: int
    manifests_after: int | None
    change_store: ManifestReport | None = None
    """Of a keyed table: its other store."""

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        facts = asdict(self) | {"snapshot_id": None if self.snapshot_id is None else str(self.snapshot_id)}
        if self.change_store is None:
            facts.pop("change_store")
            return facts
        return facts | {"change_store": self.change_store.to_dict()}


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


def merge_many_manifests(table: Table) -> int:
    """Merge the small manifests of a table if there are as many as Iceberg's `commit.manifest.min-count-to-merge`, unless
    `commit.manifest-merge.enabled` is false; gives their number. The files of the table stay as they are, and no writer has
    to give way: it is left to another time if others keep committing first, or if anything else fails."""
    properties = table.properties
    if properties.get("commit.manifest-merge.enabled", "true").lower() == "false":
        return 0
    try:
        least = positive_property(properties, "commit.manifest.min-count-to-merge", MIN_MANIFESTS_TO_MERGE)
        manifests = ManifestReader(table.view.io).manifests(table.view.metadata.current_snapshot())
        chosen = mergeable_manifests(manifests, properties)
        if len(chosen) < least:
            return 0
        outcome = table.try_commit(ManifestRewrite(manifests=frozenset(chosen)))
    except (ArcticError, OSError):
        return 0
    return len(chosen) if isinstance(outcome, Committed) else 0


def set_current_snapshot(loaded: IcebergTable, snapshot_id: int, properties: Mapping[str, str]) -> None:
    """Make a snapshot the current one of the main branch and set table properties; raises `Conflict` if the branch has moved
    since it was loaded."""
    metadata = loaded.metadata
    snapshot_by_id(metadata, snapshot_id)
    ref = metadata.refs[MAIN_BRANCH]
    move = SetSnapshotRefUpdate.model_validate(
        {
            "ref-name": MAIN_BRANCH,
            "type": SnapshotRefType.BRANCH,
            "snapshot-id": snapshot_id,
            "max-ref-age-ms": ref.max_ref_age_ms,
            "max-snapshot-age-ms": ref.max_snapshot_age_ms,
            "min-snapshots-to-keep": ref.min_snapshots_to_keep,
        }
    )
    updates = (move, SetPropertiesUpdate(updates=dict(properties))) if properties else (move,)
    requirements = (
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertRefSnapshotId.model_validate({"ref": MAIN_BRANCH, "snapshot-id": metadata.current_snapshot_id}),
    )
    try:
        loaded.metadata = loaded.catalog.commit_table(loaded, requirements, updates).metadata
    except CommitFailedException as cause:
        raise Conflict("another commit came first", hint="Nothing was changed. Look at the table and try again.") from cause
