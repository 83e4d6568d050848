"""Keys that have several rows in the base store.

Files are divided into key groups, as for reading. Within a group every row has a version, its place in an order: rows of
foreign files come last, as in merged reads; else rows that pending changes do not reach, because their transaction is later;
then the sequence number of the file counts, then the position. A row whose key has a greater version is a duplicate, and the
last row remains. If the greater version is in a foreign file, merged reads know it already: the row is replaced. Versions
beyond the memory budget are spilled, as in merged reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from pyarctic.errors import Damaged
from pyarctic.iceberg.check import SnapshotFiles
from pyarctic.iceberg.delete import PARTITION_KEY, EqualityDeletes, Mask, PositionDeletes, Positions, match_deletes
from pyarctic.iceberg.manifest import FileList, ManifestReader, PartitionDecoder
from pyarctic.iceberg.read import FileBatch, TableReader, TableView
from pyarctic.tables.format.file_names import parse_file_names
from pyarctic.tables.format.primary_key import PrimaryKey
from pyarctic.tables.format.tree import ROOT, assign_roots
from pyarctic.tables.read.foreign_files import IS_FOREIGN, order_foreign_files
from pyarctic.tables.read.key_groups import split_by_key_ranges, with_key_ranges
from pyarctic.tables.read.latest_versions import KeyVersions, Versions
from pyarctic.tables.read.merged_file import MergedFile, resolve

_GROUP = [*PARTITION_KEY, "root", "component"]
"""Files of different groups have no key in common."""


class _OrderedFile(MergedFile):
    """A base file whose rows are numbered. Rows without a key are no duplicates."""

    def __init__(self, reading: TableReader, row: dict[str, Any], key: PrimaryKey) -> None:
        super().__init__(reading, row, [])
        self.key = key
        self._first: int = row["first_version"]

    def versions(self, batch: FileBatch) -> Versions:
        return np.arange(batch.batch.num_rows, dtype=np.int64) + (self._first + batch.position)

    def key_batches(self) -> Iterator[tuple[FileBatch, Mask | None, pl.DataFrame]]:
        for batch, live, keys in super().key_batches():
            if any(keys.null_count().row(0)):
                has_key = keys.select(pl.all_horizontal(pl.all().is_not_null())).to_series().to_numpy()
                live = has_key if live is None else live & has_key
            yield batch, live, keys


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateRows:
    """Live rows of a base file whose key has a later row."""

    path: str
    positions: Positions
    """Ascending."""
    is_replaced: bool
    """Whether the later row is in a foreign file, so that merged reads return it alone."""


class BaseRows:
    """The base store at its current snapshot, for looking at the keys of its rows."""

    def __init__(
        self,
        view: TableView,
        state: SnapshotFiles,
        key: PrimaryKey,
        memory_bytes: int,
        *,
        pending: pl.Series | None = None,
    ) -> None:
        """`pending`: the transactions of changes that are not merged yet."""
        self._view = view
        self._key = key
        self._memory_bytes = memory_bytes
        matches = match_deletes(state.files, PartitionDecoder(view.metadata).unpartitioned_specs())
        self._positions = PositionDeletes(view.io, memory_bytes // 4)
        self._reader = TableReader(view.metadata, view.io, matches, self._positions, EqualityDeletes(view.io, [], 0))
        files = parse_file_names(self._reader.numbered_files(), "base")
        ordered = order_foreign_files(files, state.files, view, ManifestReader(view.io))
        transactions = np.unique(pending.to_numpy()) if pending is not None else np.zeros(0, np.int64)
        beyond = np.searchsorted(transactions, ordered["transaction_id"].to_numpy(), side="right")
        self.files = ordered.with_columns(beyond=pl.Series(beyond, dtype=pl.Int64))
        """With `beyond`: how many of the pending transactions the rows of a file come after."""

    def deleted_positions(self, paths: set[str]) -> dict[str, Positions]:
        """The positions that delete files name, for those of some files that are in the snapshot."""
        rows = self.files.filter(pl.col("file_path").is_in(list(paths))).select("file_path", "row").iter_rows()
        return {path: self._positions.of(path, self._reader.matches.of(row)) for path, row in rows}

    def find_duplicates(self, misplaced: set[str], *, ignore_nodes: bool) -> Iterator[DuplicateRows | Damaged]:
        """Base files with rows whose key has a later row; or what cannot be read.

        `misplaced`: files with rows of other nodes. `ignore_nodes`: no file says which keys it may hold."""
        if self.files.is_empty():
            return
        is_anywhere = pl.lit(value=ignore_nodes) | pl.col("file_path").is_in(list(misplaced))
        nodes = pl.when(is_anywhere).then(ROOT.id).otherwise("node_id")
        files = FileList.of(self._view.metadata, self._view.io, self._view.metadata.current_snapshot())
        ranged = with_key_ranges(self.files.with_columns(node_id=nodes), files, self._view.io, self._key.fields)
        grouped = split_by_key_ranges(assign_roots(ranged), self._key.fields[0])
        for _, group in grouped.group_by(_GROUP, maintain_order=True):
            try:
                yield from self._duplicates_of(group.sort("foreign_order", "beyond", "data_sequence_number", "file_path"))
            except Damaged as error:
                yield error

    def _duplicates_of(self, group: pl.DataFrame) -> Iterator[DuplicateRows]:
        numbered = group.with_columns(first_version=pl.col("record_count").cum_sum() - pl.col("record_count"))
        foreign = numbered.filter(IS_FOREIGN)
        duplicates = self._find_superseded(numbered, by=numbered)
        replaced = self._find_superseded(numbered, by=foreign) if duplicates and foreign.height else {}
        for path, positions in duplicates.items():
            is_replaced = np.isin(positions, replaced.get(path, positions[:0]))
            if is_replaced.any():
                yield DuplicateRows(path=path, positions=positions[is_replaced], is_replaced=True)
            if not is_replaced.all():
                yield DuplicateRows(path=path, positions=positions[~is_replaced], is_replaced=False)

    def _find_superseded(self, group: pl.DataFrame, *, by: pl.DataFrame) -> dict[str, Positions]:
        """The live rows of a group that have a later row in the files `by`: file → positions, ascending."""
        files, version_files = (
            [_OrderedFile(self._reader, row, self._key) for row in frame.iter_rows(named=True)] for frame in (group, by)
        )
        with KeyVersions(self._memory_bytes, int(by["record_count"].sum())) as versions:
            resolve(files, version_files, versions)
            latest = files[0].latest
            if by is group and latest is not None and not latest.has_repeated_keys:
                return {}
            superseded = {
                file.path: np.setdiff1d(file.find_deleted_positions(), file.named_positions(), assume_unique=True)
                for file in files
            }
        return {path: positions for path, positions in superseded.items() if len(positions)}
