"""The table as loaded for one attempt of a commit, and the exception that rejects a change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl
from pyiceberg.table.metadata import TableMetadata, TableMetadataV1, TableMetadataV3
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from pyarctic.errors import Unsupported, UsageError
from pyarctic.iceberg.commit.change import Rejected, RejectedCode
from pyarctic.iceberg.manifest.expired_history import SnapshotHistory
from pyarctic.iceberg.manifest.file_list import ManifestReader, ancestors, changed_files
from pyarctic.iceberg.manifest.partition_keys import PartitionDecoder
from pyarctic.iceberg.manifest.reader import DELETES_MANIFEST, ManifestRef

PLAN_AGAIN = "Plan it again on the current snapshot."


class ChangeRejected(Exception):
    """Raised during an attempt if the change cannot be applied to the table."""

    def __init__(
        self, code: RejectedCode, reason: str, hint: str = PLAN_AGAIN, *, may_have_landed: bool = False, **facts: Any
    ) -> None:
        super().__init__(reason)
        self.rejected = Rejected(code=code, reason=reason, hint=hint, facts=facts, may_have_landed=may_have_landed)


@dataclass(frozen=True)
class TableState:
    """The metadata as loaded, the head of the branch, and its manifests."""

    metadata: TableMetadata
    branch: str
    reader: ManifestReader

    def __post_init__(self) -> None:
        if self.ref is not None and self.ref.snapshot_ref_type != SnapshotRefType.BRANCH:
            raise UsageError(f"{self.branch!r} is a tag: tags do not move", hint="Commit to a branch.")
        if "encryption.key-id" in self.metadata.properties:
            raise Unsupported("the table is encrypted", hint="PyArctic does not write encrypted tables yet.")

    @property
    def version(self) -> int:
        """The format version."""
        return self.metadata.format_version

    @property
    def last_sequence_number(self) -> int:
        return 0 if isinstance(self.metadata, TableMetadataV1) else self.metadata.last_sequence_number

    @property
    def next_row_id(self) -> int | None:
        """The next row id; None before format version 3."""
        return (self.metadata.next_row_id or 0) if isinstance(self.metadata, TableMetadataV3) else None

    @property
    def ref(self) -> SnapshotRef | None:
        """The branch; None if it does not exist yet."""
        return self.metadata.refs.get(self.branch)

    @cached_property
    def parent(self) -> Snapshot | None:
        """The head of the branch; a new branch starts at the table's current snapshot."""
        if self.ref is None:
            return self.metadata.current_snapshot()
        return self.metadata.snapshot_by_id(self.ref.snapshot_id)

    @cached_property
    def manifests(self) -> list[ManifestRef]:
        return self.reader.manifests(self.parent)

    @cached_property
    def decoder(self) -> PartitionDecoder:
        return PartitionDecoder(self.metadata)

    def deletes(self) -> pl.DataFrame:
        """All live delete files."""
        return self.reader.files_of(m for m in self.manifests if m.content == DELETES_MANIFEST)

    def data(self, spec_ids: set[int]) -> pl.DataFrame:
        """The live data files of some partition specs."""
        return self.reader.files_of(m for m in self.manifests if m.content != DELETES_MANIFEST and m.spec_id in spec_ids)

    def changed_since(self, start: int | None) -> pl.DataFrame:
        """The `changed_files` since a snapshot, which must be in the history of the branch."""
        if start == (self.parent.snapshot_id if self.parent else None):
            return changed_files(self.reader, None, None)
        if start is None:  # planned on the empty table: the history must be complete
            if not self.is_first(list(ancestors(self.metadata, self.parent))[-1]):
                raise self._history_lost(start)
            return changed_files(self.reader, None, self.parent)
        start_snapshot = self.metadata.snapshot_by_id(start)
        if start_snapshot is None or not self._is_ancestor(start_snapshot):
            raise self._history_lost(start)
        return changed_files(self.reader, start_snapshot, self.parent)

    def history(self) -> Iterator[Snapshot]:
        """The head of the branch and its ancestors, newest first; also those that were expired, as far as older metadata
        files have them."""
        known = SnapshotHistory(self.metadata, self.reader.io)
        snapshot = self.parent
        while snapshot is not None:
            yield snapshot
            snapshot = known.parent_of(snapshot)

    def not_in_history(self, snapshot_ids: Iterable[int], since: int | None) -> set[int]:
        """Those of the snapshots that are not in the history of the branch since another one."""
        missing = set(snapshot_ids)
        for ancestor in self.history() if missing else ():
            missing.discard(ancestor.snapshot_id)
            if not missing or ancestor.snapshot_id == since:
                break
        return missing

    def _is_ancestor(self, snapshot: Snapshot) -> bool:
        for ancestor in self.history():
            if ancestor.snapshot_id == snapshot.snapshot_id:
                return True
            if (ancestor.sequence_number or 0) < (snapshot.sequence_number or 0):
                return False
        return False

    def has_left(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot of the table is certainly not in the history of the branch."""
        lineage = list(ancestors(self.metadata, self.parent)) if self.parent else []
        if any(ancestor.snapshot_id == snapshot.snapshot_id for ancestor in lineage):
            return False
        # If snapshots were expired, the missing part of the history may have had it.
        return not lineage or self.is_first(lineage[-1])

    def is_first(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot is the first of the table. PyIceberg's expiry removes the parent id of a snapshot, but keeps
        its sequence number and manifests; in format version 1 all sequence numbers are zero."""
        if snapshot.parent_snapshot_id is not None or (snapshot.sequence_number or 0) > 1:
            return False
        manifests = self.reader.manifests(snapshot)
        return all(
            m.added_snapshot_id == snapshot.snapshot_id and not m.existing_files and not m.deleted_files for m in manifests
        )

    def sequence_of(self, start: int | None) -> int:
        """The sequence number of the snapshot a change was planned on."""
        if start is None:
            return 0
        snapshot = self.metadata.snapshot_by_id(start)
        if snapshot is None:
            raise self._history_lost(start)
        return snapshot.sequence_number or 0

    def _history_lost(self, start: int | None) -> ChangeRejected:
        planned = "the empty table" if start is None else f"snapshot {start}"
        return ChangeRejected(
            "history-lost",
            f"{planned}, on which the change was planned, is not in the history of {self.branch!r} any more",
            "The table was rolled back, or its old snapshots were expired, since the change was planned. " + PLAN_AGAIN,
            start=start,
        )
