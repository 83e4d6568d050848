"""Files of both stores, their rows judged by the last word of their key: scans and optimizing go by one rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import polars as pl
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import LongType, NestedField

from pyarctic.iceberg.delete import KeyColumns, Mask, Positions
from pyarctic.iceberg.read import DataFileReader, FileBatch, TableReader, newest_first
from pyarctic.tables.format.change_columns import FILE_OFFSET, ChangeFile
from pyarctic.tables.format.key_hash import key_hashes
from pyarctic.tables.format.store_properties import key_ids
from pyarctic.tables.format.tree import Node
from pyarctic.tables.read.latest_versions import KeyVersions, LatestVersions, Versions, base_version, change_versions


@dataclass(frozen=True, slots=True, kw_only=True)
class PrimaryKey:
    """The key columns of a table."""

    fields: tuple[NestedField, ...]
    """In the order of their declaration, in which they are hashed."""
    columns: KeyColumns
    """In the order in which they are compared."""

    @classmethod
    def of(cls, metadata: TableMetadata, table: str) -> Self:
        ids = key_ids(metadata)
        return cls(
            fields=tuple(metadata.schema().find_field(field_id) for field_id in ids),
            columns=KeyColumns.of(ids, [metadata.schema(), *newest_first(metadata)], table),
        )

    def was_widened(self, stores: Iterable[TableMetadata], files: Iterable[pl.DataFrame]) -> bool:
        """Whether another engine made a key of ints one of longs. Negative ones have another hash since then, so that nodes
        do not tell which files may share a key. Where old schemas were cleaned, bounds tell it."""
        kinds = {(f.field_id, type(f.field_type)) for metadata in stores for s in metadata.schemas for f in s.fields}
        if any(sum(field_id == key.field_id for field_id, _ in kinds) > 1 for key in self.fields):
            return True
        longs = [f"lower_{key.field_id}" for key in self.fields if isinstance(key.field_type, LongType)]
        return any((frame[name].bin.size() == _INT_BYTES).any() for frame in files for name in longs)


_INT_BYTES = 4


class MergedFile(DataFileReader, ABC):
    """A file whose rows live only if they are the last word of their key."""

    words: LatestVersions | None = None
    key: PrimaryKey
    mark_fields: tuple[NestedField, ...] = ()
    node: Node | None = None
    """Only rows of this node are of interest; None: all are."""

    @abstractmethod
    def marks(self, piece: FileBatch) -> int | Versions:
        """The marks of some rows, or the one that all of them have."""

    def key_frames(self) -> Iterator[tuple[FileBatch, Mask | None, pl.DataFrame]]:
        """Key columns piece by piece, with the rows of the node that no delete file hits."""
        for piece, alive in super().live_batches((*self.key.columns.fields, *self.mark_fields)):
            own = self._own(piece)
            if own is not None:
                alive = own if alive is None else alive & own
            yield piece, alive, self.key.columns.frame(piece, self.constants)

    @property
    def needs_keys(self) -> bool:
        return self.node is not None

    def own_of(self, positions: Positions) -> Positions:
        """Those of some rows that belong to the node."""
        if self.node is None or not len(positions):
            return positions
        found = []
        for piece in self.pieces(self.key.columns.fields):
            first, last = np.searchsorted(positions, (piece.position, piece.position + piece.batch.num_rows))
            some, own = positions[first:last], self._own(piece)
            found.append(some if own is None else some[own[some - piece.position]])
        return np.concatenate(found)

    def find_deleted_positions(self) -> Positions:
        if self.words is not None:
            words, self.words = self.words, None
            for piece, _, keys in self.key_frames():
                self.mark_deleted(np.flatnonzero(words.dead(keys, self.marks(piece))) + piece.position)
        return super().find_deleted_positions()

    @property
    def has_deleted_rows(self) -> bool:
        return super().has_deleted_rows or self.words is not None

    def live_batches(
        self, fields: Sequence[NestedField], *, dictionaries: bool = False, row_groups: Collection[int] | None = None
    ) -> Iterator[tuple[FileBatch, Mask | None]]:
        if self.words is None and self.node is None:
            yield from super().live_batches(fields, dictionaries=dictionaries, row_groups=row_groups)
            return
        read = (*fields, *self.key.columns.fields, *self.mark_fields)
        for piece, alive in super().live_batches(read, dictionaries=dictionaries, row_groups=row_groups):
            own = self._own(piece)
            if own is not None:
                self.skipped += piece.batch.num_rows - int(own.sum())
                alive = own if alive is None else alive & own
            if self.words is not None:
                dead = self.words.dead(self.key.columns.frame(piece, self.constants), self.marks(piece))
                if dead.any():
                    alive = ~dead if alive is None else alive & ~dead
            yield piece, alive

    def _own(self, piece: FileBatch) -> Mask | None:
        """Which rows belong to the node; None: all do."""
        if self.node is None:
            return None
        rows = self.project(piece, self.key.fields)
        return self.node.holds(key_hashes(rows.columns, [field.field_type for field in self.key.fields]))


class MergedBaseFile(MergedFile):
    """A file of the base store; `row` has the `rank` of its transaction."""

    def __init__(self, reading: TableReader, row: dict[str, Any], key: PrimaryKey, node: Node | None = None) -> None:
        super().__init__(reading, row, [])
        self.key = key
        self.node = node
        self._mark = base_version(row["rank"])

    def marks(self, piece: FileBatch) -> int | Versions:  # noqa: ARG002  # all rows have the same
        return self._mark


class MergedChangeFile(ChangeFile, MergedFile):
    """A file of the change store, of inserted or deleted rows."""

    mark_fields = (FILE_OFFSET,)

    def __init__(self, reading: TableReader, row: dict[str, Any], key: PrimaryKey, node: Node | None = None) -> None:
        super().__init__(reading, row)
        self.key = key
        self.node = node
        self._rank: int = row["rank"]

    def marks(self, piece: FileBatch) -> int | Versions:
        return change_versions(self._rank, self.offsets(piece), inserts=self.inserts)


def resolve(files: Sequence[MergedFile], speakers: Iterable[MergedFile], words: KeyVersions) -> None:
    """Let the files know which of their rows are dead, by what the speakers say of their keys.

    Words that fit into memory are asked when a file is read. For others the dead rows of every file are found at once, by
    its key columns."""
    for speaker in speakers:
        for piece, alive, keys in speaker.key_frames():
            marks = speaker.marks(piece)
            own = np.full(keys.height, marks) if isinstance(marks, int) else marks
            words.add(*((keys, own) if alive is None else (keys.filter(alive), own[alive])))
    if not words.spilled:
        index = words.index()
        for file in files:
            file.words = index
        return
    for number, file in enumerate(files):
        for piece, _, keys in file.key_frames():
            words.ask(number, piece.position, keys, file.marks(piece))
    for number, positions in words.verdicts():
        files[number].mark_deleted(positions)
