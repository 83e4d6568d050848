"""From a change and the table as it is now to the request for the catalog: what comes, what goes, the snapshot."""

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
from pyarctic.iceberg.commit.equality_reach import check_reach
from pyarctic.iceberg.commit.manifests import ManifestWork
from pyarctic.iceberg.commit.rebase import Rebase, check_positions_kept, rebase, write_rebased
from pyarctic.iceberg.commit.summary import summarize
from pyarctic.iceberg.commit.table_state import Refusal, TableState
from pyarctic.iceberg.manifest.file_list import FILE_IDENTITY
from pyarctic.iceberg.manifest.reader import DATA, DATA_MANIFEST, FILE_SCHEMA, ManifestRef
from pyarctic.iceberg.write.manifest.entries import EntryBatch
from pyarctic.iceberg.write.manifest.manifest_files import UNASSIGNED, MetadataFiles
from pyarctic.iceberg.write.new_file import NewFile

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is sent to the catalog, and the files that must stay if it gets there."""

    updates: tuple[TableUpdate, ...]
    requirements: tuple[TableRequirement, ...]
    files: frozenset[str]
    built_on: tuple[Hashable, ...] = ()
    """What of the table's state it rests on: unchanged, the very same request may be sent again."""


@dataclass(frozen=True, kw_only=True)
class _Contents:
    """The manifests of the snapshot to be, and what came and went."""

    manifests: list[ManifestRef]
    added: pl.DataFrame
    removed: pl.DataFrame
    rebased_rows: int = 0
    delete_files: tuple[str, ...] = ()


class Preparation:
    """Prepares the attempts of one commit and remembers what they wrote."""

    def __init__(self, files: MetadataFiles, *, thorough: bool) -> None:
        """`thorough`: all manifests are at hand, so that all files of the table can be looked at."""
        self.files = files
        self._thorough = thorough
        self.rebased_files: list[str] = []
        self._manifests = ManifestWork(files)
        self._rebased: dict[Hashable, list[NewFile]] = {}
        self._attempts = 0

    def request(self, change: Change | ManifestRewrite, state: TableState) -> Request:
        """Validate the change against the table as it is, write what is needed; refuses if it does not fit."""
        self.files.for_table(state.metadata, state.reader.io)
        self._attempts += 1
        requirements: tuple[TableRequirement, ...] = (AssertTableUUID(uuid=state.metadata.table_uuid),)
        updates: list[TableUpdate] = []
        contents = None
        if isinstance(change, ManifestRewrite):
            contents = self._rewritten(change, state)
            operation, extra = Operation.REPLACE, dict(change.snapshot_properties)
        else:
            operation, extra = change.operation, _told(change)
            if change.changes_files:
                contents = self._changed(change, state)
                extra |= {"arctic.rebased-rows": str(contents.rebased_rows)} if contents.rebased_rows else {}
        used: set[str] = set()
        if contents is not None:
            snapshot, manifests = self._snapshot(change, state, contents, operation, extra)
            updates += [AddSnapshotUpdate(snapshot=snapshot), _moved_ref(state, snapshot.snapshot_id)]
            head = state.ref.snapshot_id if state.ref else None
            requirements = (*requirements, AssertRefSnapshotId.model_validate({"ref": state.branch, "snapshot-id": head}))
            used = {snapshot.manifest_list, *(m.path for m in manifests), *contents.delete_files}
        if isinstance(change, Change):
            updates += _other_updates(change)
        return Request(
            updates=tuple(updates),
            requirements=requirements,
            files=frozenset(used),
            built_on=foundation(state),
        )

    def _changed(self, change: Change, state: TableState) -> _Contents:
        validate.check_fits(change, state)
        since = state.changed_since(change.start)
        validate.check_not_there(change, state.reader.files_of(state.manifests) if self._thorough else _arrived(since))
        if change.is_append:
            return self._contents(change, state, change.add, no_files())
        described = _described(self._manifests.encoded(change.add, state, change.snapshot_id))
        removed = validate.locate(validate.still_to_remove(change, state), state, since)
        validate.check_targets(state, described)
        validate.check_named_files(change, state, since)
        validate.check_removed_deletes(change, state, since, described)
        check_positions_kept(change, state)
        check_reach(change, state, since, described)
        rebased = rebase(change, state, since)
        removed = pl.concat([removed, validate.companions(change, state), rebased.leaving])
        removed = removed.unique(FILE_IDENTITY, maintain_order=True)
        moved = self._moved(change, state, rebased)
        add = [f for f in change.add if not (f.is_vector and f.referenced_data_file in rebased.replaced_vectors)] + moved
        return self._contents(change, state, add, removed, rebased.moved_rows)

    def _contents(
        self, change: Change, state: TableState, add: Sequence[NewFile], removed: pl.DataFrame, rebased_rows: int = 0
    ) -> _Contents:
        batches = self._manifests.encoded(add, state, change.snapshot_id)
        new = self._manifests.of_new_files(batches, state, change.snapshot_id)
        return _Contents(
            manifests=new + self._manifests.without(removed, state, change.snapshot_id),
            added=_described(batches),
            removed=removed,
            rebased_rows=rebased_rows,
            delete_files=tuple(file.path for file in add if file.content != DATA),
        )

    def _moved(self, change: Change, state: TableState, rebased: Rebase) -> list[NewFile]:
        """Delete files for what was rebased; the same for every attempt that needs the same."""
        key = (state.version, rebased.key())
        if key not in self._rebased:
            self._rebased[key] = write_rebased(change, state, rebased.dead) if rebased.dead else []
            self.rebased_files += [file.path for file in self._rebased[key]]
        return self._rebased[key]

    def _rewritten(self, change: ManifestRewrite, state: TableState) -> _Contents:
        chosen = [m for m in state.manifests if change.manifests is None or m.path in change.manifests]
        if not chosen:
            raise Refusal("files-gone", "none of the manifests to rewrite is in the table any more")
        rest = [m for m in state.manifests if change.manifests is not None and m.path not in change.manifests]
        written = self._manifests.rewritten(chosen, state, change.snapshot_id)
        return _Contents(manifests=written + rest, added=no_files(), removed=no_files())

    def _snapshot(
        self,
        change: Change | ManifestRewrite,
        state: TableState,
        contents: _Contents,
        operation: Operation,
        extra: dict[str, str],
    ) -> tuple[Snapshot, list[ManifestRef]]:
        sequence = state.last_sequence_number + 1 if state.version > 1 else 0
        first_row = state.next_row_id
        manifests, next_row = _assigned(state, contents.manifests, sequence, first_row)
        parent_id = state.parent.snapshot_id if state.parent else None
        header = {"snapshot-id": str(change.snapshot_id), "parent-snapshot-id": str(parent_id or "null")}
        header |= {"sequence-number": str(sequence)} if state.version > 1 else {}
        header |= {"first-row-id": str(first_row)} if first_row is not None else {}
        summary = summarize(
            operation,
            parent=state.parent,
            added=contents.added,
            removed=contents.removed,
            before=state.manifests,
            after=manifests,
            snapshot_id=change.snapshot_id,
            extra=extra,
        )
        told = {
            "snapshot-id": change.snapshot_id,
            "parent-snapshot-id": parent_id,
            "sequence-number": sequence,
            "timestamp-ms": max(time.time_ns() // 1_000_000, state.metadata.last_updated_ms + 1),
            "manifest-list": self.files.write_list(manifests, header, f"{change.snapshot_id}-{self._attempts}"),
            "summary": summary,
            "schema-id": state.metadata.current_schema_id,
        }
        if first_row is not None and next_row is not None:
            told |= {"first-row-id": first_row, "added-rows": next_row - first_row}
        snapshot = Snapshot.model_validate(told)
        return snapshot, manifests


def foundation(state: TableState) -> tuple[Hashable, ...]:
    """What a request rests on."""
    head = state.parent.snapshot_id if state.parent else None
    return (state.version, head, state.last_sequence_number, state.next_row_id)


def _arrived(since: pl.DataFrame) -> pl.DataFrame:
    return since.filter(pl.col("change") == "added")


def _described(batches: Sequence[EntryBatch]) -> pl.DataFrame:
    return pl.concat([no_files(), *(batch.facts.select(FILE_SCHEMA.names()) for batch in batches)])


def _assigned(
    state: TableState, manifests: Sequence[ManifestRef], sequence: int, next_row: int | None
) -> tuple[list[ManifestRef], int | None]:
    """The manifests with what only the commit can give: its sequence number, and row ids to all that have none."""
    assigned = []
    for manifest in manifests:
        if manifest.sequence_number == UNASSIGNED:
            manifest = replace(manifest, sequence_number=sequence)
        if manifest.min_sequence_number == UNASSIGNED:
            manifest = replace(manifest, min_sequence_number=sequence)
        if manifest.added_files is None or manifest.added_rows is None:
            manifest = _counted(state, manifest)
        if next_row is not None and manifest.content == DATA_MANIFEST and manifest.first_row_id is None:
            manifest = replace(manifest, first_row_id=next_row)
            next_row += (manifest.existing_rows or 0) + (manifest.added_rows or 0)
        assigned.append(manifest)
    return assigned, next_row


def _counted(state: TableState, manifest: ManifestRef) -> ManifestRef:
    """Old v1 writers told no counts. All live files of such a manifest are told as existing."""
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


def _told(change: Change) -> dict[str, str]:
    return {**change.snapshot_properties, **(change.proof.summary() if change.proof else {})}


def _moved_ref(state: TableState, snapshot_id: int) -> SetSnapshotRefUpdate:
    """The branch at the new snapshot, with the retention it had."""
    told: dict[str, object] = {"ref-name": state.branch, "type": SnapshotRefType.BRANCH, "snapshot-id": snapshot_id}
    if state.ref is not None:
        told |= {
            "max-ref-age-ms": state.ref.max_ref_age_ms,
            "max-snapshot-age-ms": state.ref.max_snapshot_age_ms,
            "min-snapshots-to-keep": state.ref.min_snapshots_to_keep,
        }
    return SetSnapshotRefUpdate.model_validate(told)


def _other_updates(change: Change) -> list[TableUpdate]:
    updates: list[TableUpdate] = []
    if change.set_properties:
        updates.append(SetPropertiesUpdate(updates=dict(change.set_properties)))
    if change.remove_properties:
        updates.append(RemovePropertiesUpdate(removals=list(change.remove_properties)))
    updates += [SetStatisticsUpdate.model_validate({"statistics": file}) for file in change.statistics]
    return updates
