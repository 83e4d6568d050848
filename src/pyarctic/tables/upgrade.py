"""Upgrading a keyed table whose merged sequences are in statistics files: PyIceberg, and what is built on it, cannot load
such a base store."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, RemoveSnapshotsUpdate, RemoveStatisticsUpdate

from pyarctic.config.table_properties import MERGED_SEQUENCES_STORAGE
from pyarctic.errors import Conflict, Rejected, Unsupported, about
from pyarctic.iceberg.catalog import translate_catalog_errors
from pyarctic.iceberg.commit import Change, RetryPolicy
from pyarctic.iceberg.manifest import IS_DATA
from pyarctic.tables.format.file_names import parse_file_names
from pyarctic.tables.format.merged_sequence import (
    is_in_summary,
    record_merged_sequences,
    snapshots_with_statistics,
    statistics_with_merged_sequences,
)

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

    from pyarctic.tables.keyed_table import KeyedTable


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeReport:
    """What an upgrade did, or would do."""

    table: str
    needed: bool
    snapshot_id: int | None
    """The new snapshot of Base; None if nothing was needed, or in a dry run."""
    expired_snapshots: tuple[int, ...]
    """Older snapshots of Base, which can no longer be read."""
    removed_statistics: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "table": self.table,
            "needed": self.needed,
            "snapshot_id": None if self.snapshot_id is None else str(self.snapshot_id),
            "expired_snapshots": [str(snapshot_id) for snapshot_id in self.expired_snapshots],
            "removed_statistics": list(self.removed_statistics),
        }


def upgrade(table: KeyedTable, *, dry_run: bool = False) -> UpgradeReport:
    """Store the merged sequences in the summary of a new snapshot of Base, and expire the snapshots before it.

    The older snapshots have to go: other engines of the format look for statistics in all ancestors, and PyIceberg cannot
    load a table with such statistics. Files are not removed."""
    commits_of_others: list[int] = []  # their times
    with about(table=table.name):
        for _ in RetryPolicy.of(table.view.metadata).races(lambda: len(commits_of_others)):
            metadata = table.view.metadata
            report = UpgradeReport(
                table=table.name,
                needed=_needs_upgrade(metadata),
                snapshot_id=None,
                expired_snapshots=(),
                removed_statistics=tuple(file.statistics_path for file in statistics_with_merged_sequences(metadata)),
            )
            if not report.needed:
                return report
            _refuse_storage(metadata)
            _refuse_needed_snapshots(table)
            if dry_run:
                return replace(report, expired_snapshots=tuple(s.snapshot_id for s in metadata.snapshots))
            table._commit_alone(lambda: _plan_new_form(table))
            expired = _expire_older_snapshots(table)
            if expired is not None:
                return replace(report, snapshot_id=table.view.snapshot_id, expired_snapshots=expired)
            committed_at = table.view.metadata.last_updated_ms
            table.refresh()
            if (moment := table.view.metadata.last_updated_ms) != committed_at:
                commits_of_others.append(moment)
        raise Conflict("the catalog refused all attempts to expire older snapshots", hint="Nothing is lost. Try again.")


def _needs_upgrade(metadata: TableMetadata) -> bool:
    has_statistics = bool(statistics_with_merged_sequences(metadata))
    return has_statistics or bool(snapshots_with_statistics(metadata, metadata.current_snapshot()))


def _plan_new_form(table: KeyedTable) -> Change:
    view = table.view
    change = Change(start=view.snapshot_id, empty=True, alone=True, snapshot_properties={"arctic.upgrade": "true"})
    record = record_merged_sequences(view.metadata, view.io, change.snapshot_id, {}, storage="summary")
    if record.statistics:
        raise Unsupported(
            "too many partitions have merged changes: their sequence numbers do not fit into the summary of a snapshot",
            hint="The table stays as it is.",
        )
    return record.add_to(change)


def _refuse_storage(metadata: TableMetadata) -> None:
    if MERGED_SEQUENCES_STORAGE.of(metadata.properties) == "statistics":
        raise Rejected(
            f"table property {MERGED_SEQUENCES_STORAGE.name} is statistics: the next merge would write them again",
            hint=f"Unset it first: `arctic table unset … {MERGED_SEQUENCES_STORAGE.name}`.",
            key=MERGED_SEQUENCES_STORAGE.name,
        )


def _refuse_needed_snapshots(table: KeyedTable) -> None:
    """Refuse to expire snapshots that something depends on: a branch or tag, or the order of foreign files."""
    others = sorted(name for name in table.view.metadata.refs if name != MAIN_BRANCH)
    if others:
        raise Rejected(
            f"branch or tag {others[0]!r} of Base needs older snapshots",
            hint="An upgrade expires them. Drop the branch or tag first, or keep the table as it is.",
            ref=others[0],
        )
    files = parse_file_names(table.file_list.frame().filter(IS_DATA), "base").filter("is_foreign")
    if files.height:
        raise Rejected(
            f"{files.height} files of Base were written by another engine: older snapshots tell which of them came last",
            hint="An upgrade expires them. Optimize the table first, which rewrites these files.",
            files=files.height,
        )


def _expire_older_snapshots(table: KeyedTable) -> tuple[int, ...] | None:
    """Remove all snapshots of Base but the current one from its metadata, with their statistics; gives their ids, or None if
    another commit came first."""
    loaded = table._loaded
    metadata = loaded.metadata
    if not is_in_summary(metadata, metadata.current_snapshot()):
        return None  # an engine of the format has committed since
    _refuse_needed_snapshots(table)  # others may have created a tag, or appended
    expired = tuple(s.snapshot_id for s in metadata.snapshots if s.snapshot_id != metadata.current_snapshot_id)
    ids_with_statistics = sorted({file.snapshot_id for file in statistics_with_merged_sequences(metadata)})
    updates = [RemoveStatisticsUpdate.model_validate({"snapshot-id": id_}) for id_ in ids_with_statistics]
    requirements = (
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertRefSnapshotId.model_validate({"ref": MAIN_BRANCH, "snapshot-id": metadata.current_snapshot_id}),
    )
    removal = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": list(expired)})
    with translate_catalog_errors(table._name.catalog, table.name):
        try:
            loaded.metadata = loaded.catalog.commit_table(loaded, requirements, (*updates, removal)).metadata
        except CommitFailedException:
            return None
    return expired
