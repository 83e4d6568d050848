"""The table as one attempt of a commit finds it, and the refusal to go on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl
from pyiceberg.table.metadata import TableMetadata, TableMetadataV1, TableMetadataV3
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from pyarctic.errors import Unsupported, UsageError
from pyarctic.iceberg.commit.change import Rejected, RejectedCode
from pyarctic.iceberg.manifest.file_list import changed_files
from pyarctic.iceberg.manifest.partition_keys import PartitionDecoder
from pyarctic.iceberg.manifest.reader import DELETES_MANIFEST, ManifestReader, ManifestRef

PLAN_ANEW = "Plan it anew on the current snapshot."


class Refusal(Exception):
    """Carries a rejection out of the depth of an attempt."""

    def __init__(self, code: RejectedCode, reason: str, hint: str = PLAN_ANEW, **facts: Any) -> None:
        super().__init__(reason)
        self.rejected = Rejected(code=code, reason=reason, hint=hint, facts=facts)


@dataclass(frozen=True)
class TableState:
    """Metadata as just loaded, the branch's head, and the manifests to build on."""

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
        return self.metadata.format_version

    @property
    def last_sequence_number(self) -> int:
        return 0 if isinstance(self.metadata, TableMetadataV1) else self.metadata.last_sequence_number

    @property
    def next_row_id(self) -> int | None:
        """The row id that comes next; None where rows have none."""
        return (self.metadata.next_row_id or 0) if isinstance(self.metadata, TableMetadataV3) else None

    @property
    def ref(self) -> SnapshotRef | None:
        return self.metadata.refs.get(self.branch)

    @cached_property
    def parent(self) -> Snapshot | None:
        """The head of the branch; a new branch begins at the table's current snapshot."""
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
        """What came and went since a snapshot, as `changed_files` tells it. Its history must lead to that snapshot."""
        if start == (self.parent.snapshot_id if self.parent else None):
            return changed_files(self.reader, None, None)
        lineage = list(ancestors_of(self.parent, self.metadata))
        if start is None:  # planned on the empty table: the history must be there from the beginning
            if not self._is_first(lineage[-1]):
                raise self._history_lost(start)
            return changed_files(self.reader, None, self.parent)
        begun = next((snapshot for snapshot in lineage if snapshot.snapshot_id == start), None)
        if begun is None:
            raise self._history_lost(start)
        return changed_files(self.reader, begun, self.parent)

    def has_left(self, snapshot: Snapshot) -> bool:
        """True when a snapshot of the table is certainly not in the history of the branch."""
        lineage = list(ancestors_of(self.parent, self.metadata)) if self.parent else []
        if any(one.snapshot_id == snapshot.snapshot_id for one in lineage):
            return False
        # A history that was cut by expiry may have had it.
        return not lineage or self._is_first(lineage[-1])

    def _is_first(self, snapshot: Snapshot) -> bool:
        """True when nothing came before it. PyIceberg's expiry takes a snapshot its parent, but neither its number nor what
        its manifests tell; in version 1 all numbers are zero."""
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

    def _history_lost(self, start: int | None) -> Refusal:
        planned = "the empty table" if start is None else f"snapshot {start}"
        return Refusal(
            "history-lost",
            f"{planned}, on which the change was planned, is not in the history of {self.branch!r} any more",
            "The table was rolled back, or its old snapshots were expired, while the change was made. " + PLAN_ANEW,
            start=start,
        )
