"""Files of both stores whose rows are superseded by later versions of their keys: one rule for scans and optimizing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl
from pyiceberg.types import NestedField

from pyarctic.iceberg.delete import Mask, Positions
from pyarctic.iceberg.read import DataFileReader, FileBatch, TableReader
from pyarctic.tables.format.change_columns import FILE_OFFSET, ChangeFile
from pyarctic.tables.format.key_hash import key_hashes
from pyarctic.tables.format.primary_key import PrimaryKey
from pyarctic.tables.format.tree import Node
from pyarctic.tables.read.latest_versions import KeyVersions, LatestVersions, Versions, base_version, change_versions


class MergedFile(DataFileReader, ABC):
    """A file of which only those rows are live that are the latest version of their key."""

    latest: LatestVersions | None = None
    """The versions to compare rows with when they are read; None: there are none, or `resolve` has compared them."""
    key: PrimaryKey
    version_fields: tuple[NestedField, ...] = ()
    """The columns that versions are made of."""
    node: Node | None = None
    """Only rows of this node are read; None: all rows."""

    @abstractmethod
    def versions(self, batch: FileBatch) -> int | Versions:
        """The versions of the rows of a batch, or the one that all of them have."""

    def key_batches(self) -> Iterator[tuple[FileBatch, Mask | None, pl.DataFrame]]:
        """The key columns in batches, with a mask of the rows of the node that no delete file deletes."""
        for batch, live in super().live_batches((*self.key.columns.fields, *self.version_fields)):
            in_node = self._mask_node(batch)
            if in_node is not None:
                live = in_node if live is None else live & in_node
            yield batch, live, self.key.columns.frame(batch, self.constants)

    @property
    def is_joinable(self) -> bool:
        return False  # its own rules decide which rows are live

    @property
    def needs_keys(self) -> bool:
        return self.node is not None

    def positions_in_node(self, positions: Positions) -> Positions:
        """Those of some positions, in ascending order, whose rows belong to the node."""
        if self.node is None or not len(positions):
            return positions
        kept = []
        for batch in self.all_batches(self.key.columns.fields):
            first, last = np.searchsorted(positions, (batch.position, batch.position + batch.batch.num_rows))
            in_batch, in_node = positions[first:last], self._mask_node(batch)
            kept.append(in_batch if in_node is None else in_batch[in_node[in_batch - batch.position]])
        return np.concatenate(kept)

    def find_deleted_positions(self) -> Positions:
        if self.latest is not None:
            latest, self.latest = self.latest, None
            for batch, _, keys in self.key_batches():
                superseded = latest.find_superseded(keys, self.versions(batch))
                self.mark_deleted(np.flatnonzero(superseded) + batch.position)
        return super().find_deleted_positions()

    @property
    def has_deleted_rows(self) -> bool:
        return super().has_deleted_rows or self.latest is not None

    def live_batches(
        self, fields: Sequence[NestedField], *, dictionaries: bool = False, row_groups: Collection[int] | None = None
    ) -> Iterator[tuple[FileBatch, Mask | None]]:
        if self.latest is None and self.node is None:
            yield from super().live_batches(fields, dictionaries=dictionaries, row_groups=row_groups)
            return
        read_fields = (*fields, *self.key.columns.fields, *self.version_fields)
        for batch, live in super().live_batches(read_fields, dictionaries=dictionaries, row_groups=row_groups):
            in_node = self._mask_node(batch)
            if in_node is not None:
                self.skipped += batch.batch.num_rows - int(in_node.sum())
                live = in_node if live is None else live & in_node
            if self.latest is not None:
                keys = self.key.columns.frame(batch, self.constants)
                superseded = self.latest.find_superseded(keys, self.versions(batch))
                if superseded.any():
                    live = ~superseded if live is None else live & ~superseded
            yield batch, live

    def _mask_node(self, batch: FileBatch) -> Mask | None:
        """Which rows belong to the node; None: all do."""
        if self.node is None:
            return None
        rows = self.project(batch, self.key.fields)
        return self.node.holds(key_hashes(rows.columns, [field.field_type for field in self.key.fields]))


class MergedBaseFile(MergedFile):
    """A file of the base store; `row` has the `rank` of its transaction, and its `foreign_order`."""

    def __init__(self, reading: TableReader, row: dict[str, Any], key: PrimaryKey, node: Node | None = None) -> None:
        super().__init__(reading, row, [])
        self.key = key
        self.node = node
        self._version = base_version(row["rank"])
        self._foreign_order: int = row["foreign_order"]

    def versions(self, batch: FileBatch) -> int | Versions:  # noqa: ARG002  # all rows have the same
        return self._version

    def base_versions(self, batch: FileBatch) -> int | Versions:
        """The versions of rows among those of the base store. A foreign file may hold a key twice: the later row counts."""
        if not self._foreign_order:
            return 0
        positions = np.arange(batch.position, batch.position + batch.batch.num_rows)
        return change_versions(self._foreign_order, positions, inserts=True)


class MergedChangeFile(ChangeFile, MergedFile):
    """A file of the change store, of inserted or deleted rows; `row` has the `rank` of its transaction."""

    version_fields = (FILE_OFFSET,)

    def __init__(self, reading: TableReader, row: dict[str, Any], key: PrimaryKey, node: Node | None = None) -> None:
        super().__init__(reading, row)
        self.key = key
        self.node = node
        self._rank: int = row["rank"]

    def versions(self, batch: FileBatch) -> int | Versions:
        return change_versions(self._rank, self.offsets(batch), inserts=self.inserts)


def resolve_foreign(files: Sequence[MergedBaseFile], foreign: Iterable[MergedBaseFile], versions: KeyVersions) -> None:
    """Find the rows of base files that are superseded by rows of foreign files, from their key columns."""
    for foreign_file in foreign:
        for batch, live, keys in foreign_file.key_batches():
            row_versions = np.asarray(foreign_file.base_versions(batch))
            versions.add(*((keys, row_versions) if live is None else (keys.filter(live), row_versions[live])))
    latest = None if versions.spilled else versions.index()
    for number, file in enumerate(files):
        for batch, _, keys in file.key_batches():
            if latest is None:
                versions.add_probes(number, batch.position, keys, file.base_versions(batch))
            else:
                superseded = latest.find_superseded(keys, file.base_versions(batch))
                file.mark_deleted(np.flatnonzero(superseded) + batch.position)
    if latest is None:
        for number, positions in versions.superseded_rows():
            files[number].mark_deleted(positions)


def resolve(files: Sequence[MergedFile], version_files: Iterable[MergedFile], versions: KeyVersions) -> None:
    """Find the superseded rows of files, by the versions of keys in `version_files`.

    Versions that fit into memory are compared when a file is read. Otherwise the superseded rows of all files are found
    here, from their key columns."""
    for version_file in version_files:
        for batch, live, keys in version_file.key_batches():
            row_versions = version_file.versions(batch)
            if isinstance(row_versions, int):
                row_versions = np.full(keys.height, row_versions)
            versions.add(*((keys, row_versions) if live is None else (keys.filter(live), row_versions[live])))
    if not versions.spilled:
        latest = versions.index()
        for file in files:
            file.latest = latest
        return
    for number, file in enumerate(files):
        for batch, _, keys in file.key_batches():
            versions.add_probes(number, batch.position, keys, file.versions(batch))
    for number, positions in versions.superseded_rows():
        files[number].mark_deleted(positions)
