"""Reading data files with their deletes, batch by batch: which rows are live, projected to the schema of the table.

Scans and rewrites share this code, so that a rewrite never changes the result of a scan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.types import LongType, NestedField, StringType
from pyroaring import BitMap64

from pyarctic.iceberg.catalog.pyiceberg_patches import apply_patches
from pyarctic.iceberg.delete.delete_files import (
    NO_POSITIONS,
    DeleteBatch,
    EqualityDeletes,
    PositionDeletes,
    check_not_encrypted,
)
from pyarctic.iceberg.delete.deletion_vectors import Positions, merge_positions, to_bitmap
from pyarctic.iceberg.delete.key_index import Mask
from pyarctic.iceberg.delete.matching import EQUALITY, FILE_SCOPED, GLOBAL_EQUALITY, PARTITION_SCOPED, DeleteMatches
from pyarctic.iceberg.manifest.partition_keys import PARTITION_KEY, PartitionDecoder
from pyarctic.iceberg.read.data_files import (
    BatchSizer,
    FileBatch,
    MakeFilter,
    OpenFile,
    read_file_batches,
    translate_damage,
)
from pyarctic.iceberg.read.projection import Projection
from pyarctic.iceberg.storage import storage_properties
from pyarctic.iceberg.wire import trim_metadata

ROW_ID = NestedField(2147483540, "_row_id", LongType())
LAST_UPDATED = NestedField(2147483539, "_last_updated_sequence_number", LongType())
FILE = NestedField(2147483646, "_file", StringType())
POSITION = NestedField(2147483645, "_pos", LongType())
METADATA_COLUMNS = {field.name: field for field in (ROW_ID, LAST_UPDATED, FILE, POSITION)}
"""Columns that may be selected by name in addition to those of the schema."""
_SMALL_FILE_ROWS = 4_096
_SMALL_FILE_BYTES = 1 << 20
METADATA_IDS = {field.field_id for field in METADATA_COLUMNS.values()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableView:
    """A table at one version of its metadata: all that reading needs."""

    name: str
    metadata: TableMetadata
    io: FileIO
    metadata_location: str | None = None
    """If it is known."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled without the table's history: small, and enough to read and write files of the table elsewhere."""
        return _unpickle_view, (self.name, trim_metadata(self.metadata).model_dump_json(), storage_properties(self.io))

    @property
    def snapshot_id(self) -> int | None:
        """The id of the current snapshot."""
        current = self.metadata.current_snapshot()
        return current.snapshot_id if current else None


def _unpickle_view(name: str, metadata_json: str, io_properties: dict[str, str]) -> TableView:
    apply_patches()  # before metadata of format version 3 is parsed
    metadata = TableMetadataUtil.parse_raw(metadata_json)
    return TableView(name=name, metadata=metadata, io=load_file_io(io_properties, metadata.location))


def newest_first(metadata: TableMetadata) -> list[Schema]:
    """All schemas the table has had, newest first: a delete may refer to a column that was dropped since."""
    return sorted(metadata.schemas, key=lambda schema: schema.schema_id, reverse=True)


def no_filter(_: OpenFile) -> None:
    """Read all row groups."""
    return


class TableReader:
    """Reads the data files of one scan or rewrite, which share decoded deletes and batch sizes."""

    def __init__(
        self,
        metadata: TableMetadata,
        io: FileIO,
        matches: DeleteMatches,
        positions: PositionDeletes,
        equality: EqualityDeletes,
        make_filter: MakeFilter = no_filter,
    ) -> None:
        """`make_filter` returns the condition by which row groups of a file are skipped."""
        self.io = io
        self.matches = matches
        self.mapping = metadata.name_mapping()
        self.partitions = PartitionDecoder(metadata)
        self.positions = positions
        self.equality = equality
        self.make_filter = make_filter
        self.row_sizer, self.key_sizer = BatchSizer(), BatchSizer()  # keys alone are smaller than rows
        global_deletes = matches.by_kind[GLOBAL_EQUALITY].slice(_min_of(matches.data, f"{GLOBAL_EQUALITY}_from"))
        self._global_delete_batches = self.equality.batches(global_deletes)

    def files(self) -> Iterator[DataFileReader]:
        """The data files, partition by partition, so that decoded deletes are shared by the files of a partition."""
        for _, partition in self.numbered_files().group_by(PARTITION_KEY, maintain_order=True):
            delete_batches = self._delete_batches(partition)
            files = (DataFileReader(self, row, delete_batches) for row in partition.iter_rows(named=True))
            if self.equality.fit_in_memory(delete_batches):
                yield from files
            else:
                yield from _apply_delete_batches(list(files), delete_batches)

    def files_without_equality_deletes(self) -> Iterator[DataFileReader]:
        """The data files without their equality deletes, for reading all rows, deleted ones too."""
        return (DataFileReader(self, row, []) for row in self.numbered_files().iter_rows(named=True))

    def numbered_files(self) -> pl.DataFrame:
        """The data files; `row` is their row number in `matches`."""
        return self.matches.data.with_row_index("row")

    def _delete_batches(self, partition: pl.DataFrame) -> list[DeleteBatch]:
        """The equality deletes of all data files of a partition: an index knows when a key was deleted, so that files of
        different age can share it."""
        start, end = _min_of(partition, f"{EQUALITY}_from"), _max_of(partition, f"{EQUALITY}_to")
        partition_deletes = self.matches.by_kind[EQUALITY].slice(start, max(end - start, 0))
        return self.equality.batches(partition_deletes) + self._global_delete_batches


class DataFileReader:
    """Reads one data file with its deletes."""

    skipped = 0
    """Rows that `live_batches` has read but that are not part of this read, live or deleted."""

    def __init__(self, reader: TableReader, row: dict[str, Any], delete_batches: list[DeleteBatch]) -> None:
        self.row = row
        self.path: str = row["file_path"]
        self.partition: tuple[int, str] = (row["spec_id"], row["partition"])
        self.constants = reader.partitions.constants(*self.partition)
        self.reader = reader
        self.sequence: int = row["data_sequence_number"]
        self.delete_batches = delete_batches if _has_deletes(row, EQUALITY, GLOBAL_EQUALITY) else []
        self._deleted_by_key = BitMap64()

    @property
    def is_joinable(self) -> bool:
        """Whether the file is so small that it should be read together with others."""
        return bool(self.row["record_count"] <= _SMALL_FILE_ROWS and self.row["file_size_bytes"] <= _SMALL_FILE_BYTES)

    @property
    def needs_keys(self) -> bool:
        """Whether key columns must be read to know which rows are live."""
        return bool(self.delete_batches)

    @property
    def has_deleted_rows(self) -> bool:
        """Whether rows were marked as deleted by their keys."""
        return bool(self._deleted_by_key)

    def mark_deleted_by(self, delete_batch: DeleteBatch) -> None:
        """Mark the rows that a batch of equality deletes applies to, by reading the key columns alone."""
        if not any(other is delete_batch for other in self.delete_batches):
            return
        index = self.reader.equality.index(delete_batch)
        for file_batch in self._read(delete_batch.keys.top_level_ids, self.reader.key_sizer):
            deleted = index.is_deleted(delete_batch.keys.frame(file_batch, self.constants), self.sequence)
            self.mark_deleted(np.flatnonzero(deleted) + file_batch.position)
        self.delete_batches = [other for other in self.delete_batches if other is not delete_batch]

    def mark_deleted(self, positions: Positions) -> None:
        """Mark rows as deleted by their keys."""
        self._deleted_by_key |= to_bitmap(positions)

    def named_positions(self) -> Positions:
        """Positions that position delete files or the deletion vector name, ascending."""
        if self.row["vector"] is None and not _has_deletes(self.row, FILE_SCOPED, PARTITION_SCOPED):
            return NO_POSITIONS
        return self.reader.positions.of(self.path, self.reader.matches.of(self.row["row"]))

    def deleted_positions(self) -> Positions:
        """The named positions and those of rows marked as deleted by their keys so far, ascending."""
        deleted = self.named_positions()
        if self._deleted_by_key:
            deleted = merge_positions(deleted, np.frombuffer(self._deleted_by_key.to_array(), dtype=np.int64))
        return deleted

    def find_deleted_positions(self) -> Positions:
        """Positions of all deleted rows, ascending; only key columns of the rows are read."""
        for delete_batch in self.delete_batches:
            self.mark_deleted_by(delete_batch)
        return self.deleted_positions()

    def live_batches(
        self, fields: Sequence[NestedField], *, dictionaries: bool = False, row_groups: Collection[int] | None = None
    ) -> Iterator[tuple[FileBatch, Mask | None]]:
        """Batches with the given columns, each with a mask of its live rows (None: all are live). With `dictionaries`
        repetitive strings of Parquet files stay dictionary-encoded; `row_groups` restricts reading to these row groups."""
        deleted = self.deleted_positions()
        key_ids = {field_id for delete_batch in self.delete_batches for field_id in delete_batch.keys.top_level_ids}
        field_ids = {field.field_id for field in fields} | key_ids
        for file_batch in self._read(field_ids, self.reader.row_sizer, dictionaries, row_groups):
            live = _live_mask(deleted, file_batch)
            for delete_batch in self.delete_batches:
                index = self.reader.equality.index(delete_batch)
                is_deleted = index.is_deleted(delete_batch.keys.frame(file_batch, self.constants), self.sequence)
                if is_deleted.any():
                    live = ~is_deleted if live is None else live & ~is_deleted
            yield file_batch, live

    def all_batches(
        self, fields: Sequence[NestedField], batch_sizer: BatchSizer | None = None, buffer_bytes: int | None = None
    ) -> Iterator[FileBatch]:
        """Batches with the given columns, deleted rows included; with `buffer_bytes` columns are read in pieces."""
        field_ids = {field.field_id for field in fields}
        return self._read(field_ids, batch_sizer or self.reader.key_sizer, buffer_bytes=buffer_bytes)

    def project(self, file_batch: FileBatch, fields: Sequence[NestedField]) -> pa.RecordBatch:
        """The rows of a batch with the given columns of the table, metadata columns filled in."""
        with translate_damage(self.path):
            projection = Projection.of(file_batch.batch.schema, file_batch.file.names, fields, self.constants)
            rows = projection.apply(file_batch.batch)
            metadata_fields = {index: field.field_id for index, field in enumerate(fields) if field.field_id in METADATA_IDS}
            for index, field_id in metadata_fields.items():
                # A rewritten file contains the lineage of its rows; only nulls are computed.
                values = self.metadata_values(field_id, file_batch.position, file_batch.batch.num_rows)
                rows = rows.set_column(index, rows.schema.field(index), pc.coalesce(rows.column(index), values))
            return rows

    def read_all(self, field_ids: set[int]) -> Iterator[FileBatch]:
        """Batches with the columns of these fields, deleted rows included."""
        return self._read(field_ids, self.reader.row_sizer)

    def _read(
        self,
        field_ids: set[int],
        batch_sizer: BatchSizer,
        dictionaries: bool = False,
        row_groups: Collection[int] | None = None,
        buffer_bytes: int | None = None,
    ) -> Iterator[FileBatch]:
        reader = self.reader
        check_not_encrypted(self.path, self.row["key_metadata_bytes"])
        return read_file_batches(
            reader.io,
            self.path,
            self.row["file_format"],
            reader.mapping,
            field_ids,
            reader.make_filter,
            batch_sizer,
            size=self.row["file_size_bytes"],
            dictionaries=dictionaries,
            row_groups=row_groups,
            buffer_bytes=buffer_bytes,
        )

    def metadata_values(self, field_id: int, position: int, rows: int) -> pa.Array:
        """A metadata column of consecutive rows."""
        first_row_id = self.row["first_row_id"]
        if field_id == FILE.field_id:
            return pa.repeat(self.path, rows)
        if field_id == POSITION.field_id:
            return pa.array(np.arange(position, position + rows, dtype=np.int64))
        if first_row_id is None:
            return pa.nulls(rows, pa.int64())
        if field_id == ROW_ID.field_id:
            return pa.array(np.arange(first_row_id + position, first_row_id + position + rows, dtype=np.int64))
        return pa.repeat(pa.scalar(self.sequence, pa.int64()), rows)


def filter_rows(rows: pa.RecordBatch, live: Mask) -> pa.RecordBatch:
    """The live rows. Arrow takes rows of fixed-width columns twice as fast by index as by mask; for others it is slower."""
    mask, indices = pa.array(live), pa.array(np.flatnonzero(live))
    columns = [column.take(indices) if _is_fixed_width(column.type) else column.filter(mask) for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _is_fixed_width(type_: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(type_) or pa.types.is_dictionary(type_) or pa.types.is_decimal(type_))


def _apply_delete_batches(files: list[DataFileReader], delete_batches: list[DeleteBatch]) -> list[DataFileReader]:
    """For deletes beyond the memory budget: each batch is indexed once and applied to every file, and only the deleted
    positions are kept."""
    for delete_batch in delete_batches:
        for file in files:
            file.mark_deleted_by(delete_batch)
    return files


def _live_mask(deleted: Positions, file_batch: FileBatch) -> Mask | None:
    row_count = file_batch.batch.num_rows
    first, last = np.searchsorted(deleted, (file_batch.position, file_batch.position + row_count))
    if first == last:
        return None
    live = np.ones(row_count, dtype=bool)
    live[deleted[first:last] - file_batch.position] = False
    return live


def _has_deletes(row: Mapping[str, Any], *kinds: str) -> bool:
    return any(row[f"{kind}_to"] > row[f"{kind}_from"] for kind in kinds)


def _min_of(frame: pl.DataFrame, column: str) -> int:
    return int(frame.select(pl.col(column).min().fill_null(0)).item())


def _max_of(frame: pl.DataFrame, column: str) -> int:
    return int(frame.select(pl.col(column).max().fill_null(0)).item())
