"""Building the request for the catalog from a change and the current state of the table."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import polars as pl
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePropertiesUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    SetStatisticsUpdate,
    TableRequirement,
    TableUpdate,
)

from pyarctic.iceberg.commit import validation as validate
from pyarctic.iceberg.commit.change import Change, ManifestRewrite, no_files
from pyarctic.iceberg.commit.equality_deletes import check_equality_deletes
from pyarctic.iceberg.commit.manifests import CommitManifests
from pyarctic.iceberg.commit.rebase import Rebase, check_positions_kept, rebase, write_rebased_deletes
from pyarctic.iceberg.commit.summary import summarize
from pyarctic.iceberg.commit.table_state import ChangeRejected, TableState
from pyarctic.iceberg.manifest.file_list import FILE_IDENTITY
from pyarctic.iceberg.manifest.reader import DATA, DATA_MANIFEST, FILE_SCHEMA, ManifestRef
from pyarctic.iceberg.write.manifest.entries import EntryBatch
from pyarctic.iceberg.write.manifest.manifest_files import UNASSIGNED, MetadataFiles
from pyarctic.iceberg.write.new_file import NewFile

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateVersion:
    """The properties of a table's state on which a request depends."""

    format_version: int
    head: int | None
    """The snapshot of the branch."""
    last_sequence_number: int
    next_row_id: int | None


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request for the catalog, and the files that the table needs if it succeeds."""

    updates: tuple[TableUpdate, ...]
    requirements: tuple[TableRequirement, ...]
    files: frozenset[str]
    built_on: StateVersion
    """The state of the table it was built on: if it is unchanged, the same request may be sent again."""


@dataclass(frozen=True, kw_only=True)
class _SnapshotContents:
    """The manifests of the new snapshot, and the added and removed files."""

    manifests: list[ManifestRef]
    added: pl.DataFrame
    removed: pl.DataFrame
    rebased_rows: int = 0
    delete_files: tuple[str, ...] = ()


class RequestBuilder:
    """Builds the requests of all attempts of one commit, and records the files it writes."""

    def __init__(self, files: MetadataFiles, *, check_all_files: bool) -> None:
        """`check_all_files`: look for added files among all files of the table, not only those added since; for callers
        that have all manifests cached."""
        self.files = files
        self._check_all_files = check_all_files
        self.rebased_files: list[str] = []
        self._manifests = CommitManifests(files)
        self._rebased: dict[Hashable, list[NewFile]] = {}
        self._attempts = 0

    def build(self, change: Change | ManifestRewrite, state: TableState) -> Request:
        """Validate the change against the current state of the table and write its metadata files. Raises ChangeRejected."""
        self.files.for_table(state.metadata, state.reader.io)
        self._attempts += 1
        requirements: tuple[TableRequirement, ...] = (AssertTableUUID(uuid=state.metadata.table_uuid),)
        updates: list[TableUpdate] = []
        contents = None
        if isinstance(change, ManifestRewrite):
            contents = self._rewrite_manifests(change, state)
            operation, extra = Operation.REPLACE, dict(change.snapshot_properties)
        else:
            operation, extra = change.operation, _summary_properties(change)
            if change.changes_files:
                contents = self._apply_change(change, state)
                extra |= {"arctic.rebased-rows": str(contents.rebased_rows)} if contents.rebased_rows else {}
        used: set[str] = set()
        if contents is not None:
            snapshot, manifests = self._build_snapshot(change, state, contents, operation, extra)
            updates += [AddSnapshotUpdate(snapshot=snapshot), _move_ref(state, snapshot.snapshot_id)]
            head = state.ref.snapshot_id if state.ref else None
            requirements = (*requirements, AssertRefSnapshotId.model_validate({"ref": state.branch, "snapshot-id": head}))
            used = {snapshot.manifest_list, *(m.path for m in manifests), *contents.delete_files}
        if isinstance(change, Change):
            updates += _metadata_updates(change)
        return Request(
            updates=tuple(updates),
            requirements=requirements,
            files=frozenset(used),
            built_on=state_version(state),
        )

    def _apply_change(self, change: Change, state: TableState) -> _SnapshotContents:
        validate.check_applicable(change, state)
        since = state.changed_since(change.start)
        validate.check_not_committed_before(change, state)
        present = state.reader.files_of(state.manifests) if self._check_all_files else _added_since(since)
        validate.check_not_added_before(change, present)
        if change.is_append:
            return self._build_contents(change, state, change.add, no_files())
        added = _describe(self._manifests.encode_entries(change.add, state, change.snapshot_id))
        removed = validate.locate_removed(validate.files_to_remove(change, state), state, since)
        validate.check_referenced_files(state, added)
        validate.check_position_delete_files(change, state, since)
        validate.check_removed_deletes(change, state, since, added)
        check_positions_kept(change, state)
        check_equality_deletes(change, state, since, added)
        rebased = rebase(change, state, since)
        removed = pl.concat([removed, validate.deletes_of_removed_data(change, state), rebased.removed])
        removed = removed.unique(FILE_IDENTITY, maintain_order=True)
        rebased_deletes = self._write_rebased(change, state, rebased)
        kept = [f for f in change.add if not (f.is_vector and f.referenced_data_file in rebased.replaced_vectors)]
        return self._build_contents(change, state, kept + rebased_deletes, removed, rebased.moved_rows)

    def _build_contents(
        self, change: Change, state: TableState, add: Sequence[NewFile], removed: pl.DataFrame, rebased_rows: int = 0
    ) -> _SnapshotContents:
        batches = self._manifests.encode_entries(add, state, change.snapshot_id)
        new = self._manifests.write_new(batches, state, change.snapshot_id)
        return _SnapshotContents(
            manifests=new + self._manifests.without_files(removed, state, change.snapshot_id),
            added=_describe(batches),
            removed=removed,
            rebased_rows=rebased_rows,
            delete_files=tuple(file.path for file in add if file.content != DATA),
        )

    def _write_rebased(self, change: Change, state: TableState, rebased: Rebase) -> list[NewFile]:
        """Write delete files for rebased positions; attempts with the same positions share them."""
        key = (state.version, rebased.key())
        if key not in self._rebased:
            self._rebased[key] = write_rebased_deletes(change, state, rebased.deleted) if rebased.deleted else []
            self.rebased_files += [file.path for file in self._rebased[key]]
        return self._rebased[key]

    def _rewrite_manifests(self, change: ManifestRewrite, state: TableState) -> _SnapshotContents:
        chosen = [m for m in state.manifests if change.manifests is None or m.path in change.manifests]
        if not chosen:
            raise ChangeRejected("files-gone", "none of the manifests to rewrite is in the table any more")
        kept = [m for m in state.manifests if change.manifests is not None and m.path not in change.manifests]
        written = self._manifests.rewrite(chosen, state, change.snapshot_id)
        return _SnapshotContents(manifests=written + kept, added=no_files(), removed=no_files())

    def _build_snapshot(
        self,
        change: Change | ManifestRewrite,
        state: TableState,
        contents: _SnapshotContents,
        operation: Operation,
        extra: dict[str, str],
    ) -> tuple[Snapshot, list[ManifestRef]]:
        sequence = state.last_sequence_number + 1 if state.version > 1 else 0
        first_row_id = state.next_row_id
        manifests, next_row_id = _assign_numbers(state, contents.manifests, sequence, first_row_id)
        parent_id = state.parent.snapshot_id if state.parent else None
        header = {"snapshot-id": str(change.snapshot_id), "parent-snapshot-id": str(parent_id or "null")}
        header |= {"sequence-number": str(sequence)} if state.version > 1 else {}
        header |= {"first-row-id": str(first_row_id)} if first_row_id is not None else {}
        summary = summarize(
            operation,
            parent=state.parent,
            added=contents.added,
            removed=contents.removed,
            before=state.manifests,
            after=manifests,
            snapshot_id=change.snapshot_id,
            extra=extra,
            live=state.reader.files_of(manifests) if isinstance(change, Change) and change.recounts else None,
        )
        fields = {
            "snapshot-id": change.snapshot_id,
            "parent-snapshot-id": parent_id,
            "sequence-number": sequence,
            "timestamp-ms": max(time.time_ns() // 1_000_000, state.metadata.last_updated_ms + 1),
            "manifest-list": self.files.write_list(manifests, header, f"{change.snapshot_id}-{self._attempts}"),
            "summary": summary,
            "schema-id": state.metadata.current_schema_id,
        }
        if first_row_id is not None and next_row_id is not None:
            fields |= {"first-row-id": first_row_id, "added-rows": next_row_id - first_row_id}
        snapshot = Snapshot.model_validate(fields)
        return snapshot, manifests


def state_version(state: TableState) -> StateVersion:
    """The version of the table's state that a request is built on."""
    return StateVersion(
        format_version=state.version,
        head=state.parent.snapshot_id if state.parent else None,
        last_sequence_number=state.last_sequence_number,
        next_row_id=state.next_row_id,
    )


def _added_since(since: pl.DataFrame) -> pl.DataFrame:
    return since.filter(pl.col("change") == "added")


def _describe(batches: Sequence[EntryBatch]) -> pl.DataFrame:
    return pl.concat([no_files(), *(batch.facts.select(FILE_SCHEMA.names()) for batch in batches)])


def _assign_numbers(
    state: TableState, manifests: Sequence[ManifestRef], sequence: int, next_row_id: int | None
) -> tuple[list[ManifestRef], int | None]:
    """Assign the sequence number of the commit to the manifests, and first row ids to those without."""
    assigned = []
    for manifest in manifests:
        if manifest.sequence_number == UNASSIGNED:
            manifest = replace(manifest, sequence_number=sequence)
        if manifest.min_sequence_number == UNASSIGNED:
            manifest = replace(manifest, min_sequence_number=sequence)
        if manifest.added_files is None or manifest.added_rows is None:
            manifest = _with_counts(state, manifest)
        if next_row_id is not None and manifest.content == DATA_MANIFEST and manifest.first_row_id is None:
            manifest = replace(manifest, first_row_id=next_row_id)
            next_row_id += (manifest.existing_rows or 0) + (manifest.added_rows or 0)
        assigned.append(manifest)
    return assigned, next_row_id


def _with_counts(state: TableState, manifest: ManifestRef) -> ManifestRef:
    """The manifest with counts, which old v1 writers omitted. All its live files are counted as existing."""
    files = state.reader.files(manifest)
    return replace(
        manifest,
        added_files=0,
        existing_files=files.height,
        deleted_files=0,
        added_rows=0,
        existing_rows=int(files["record_count"].sum()),
        deleted_rows=0,
    )


def _summary_properties(change: Change) -> dict[str, str]:
    return {**change.snapshot_properties, **(change.proof.summary() if change.proof else {})}


def _move_ref(state: TableState, snapshot_id: int) -> SetSnapshotRefUpdate:
    """Move the branch to the new snapshot and keep its retention settings."""
    fields: dict[str, object] = {"ref-name": state.branch, "type": SnapshotRefType.BRANCH, "snapshot-id": snapshot_id}
    if state.ref is not None:
        fields |= {
            "max-ref-age-ms": state.ref.max_ref_age_ms,
            "max-snapshot-age-ms": state.ref.max_snapshot_age_ms,
            "min-snapshots-to-keep": state.ref.min_snapshots_to_keep,
        }
    return SetSnapshotRefUpdate.model_validate(fields)


def _metadata_updates(change: Change) -> list[TableUpdate]:
    updates: list[TableUpdate] = []
    if change.set_properties:
        updates.append(SetPropertiesUpdate(updates=dict(change.set_properties)))
    if change.remove_properties:
        updates.append(RemovePropertiesUpdate(removals=list(change.remove_properties)))
    updates += [SetStatisticsUpdate.model_validate({"statistics": file}) for file in change.statistics]
    return updates
