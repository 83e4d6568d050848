"""Data files with the deletes that hit them, piece by piece: which rows live, and what the table's schema makes of them.

Scans and rewrites read by the same rules, so that a rewrite never changes an answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
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
from pyarctic.iceberg.delete.delete_files import DeleteBatch, EqualityDeletes, Mask, PositionDeletes, check_not_encrypted
from pyarctic.iceberg.delete.deletion_vectors import Positions, bitmap, united
from pyarctic.iceberg.delete.matching import EQUALITY, GLOBAL_EQUALITY, DeleteMatches
from pyarctic.iceberg.manifest.partition_keys import PartitionDecoder
from pyarctic.iceberg.read.data_files import FileBatch, MakeFilter, OpenFile, Pace, read_file_batches, translate_damage
from pyarctic.iceberg.read.projection import Projection
from pyarctic.iceberg.wire import trim_metadata

ROW_ID = NestedField(2147483540, "_row_id", LongType())
LAST_UPDATED = NestedField(2147483539, "_last_updated_sequence_number", LongType())
FILE = NestedField(2147483646, "_file", StringType())
POSITION = NestedField(2147483645, "_pos", LongType())
METADATA_COLUMNS = {field.name: field for field in (ROW_ID, LAST_UPDATED, FILE, POSITION)}
"""Columns that may be asked for by name beside those of the schema."""
METADATA_IDS = {field.field_id for field in METADATA_COLUMNS.values()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableView:
    """A table as its metadata shows it at one moment: all that reading needs."""

    name: str
    metadata: TableMetadata
    io: FileIO

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent elsewhere it is a table without a history: enough to read and write files of it, and little to send."""
        return _view, (self.name, trim_metadata(self.metadata).model_dump_json(), dict(self.io.properties))

    @property
    def snapshot_id(self) -> int | None:
        """The current snapshot, on which a change would be planned."""
        current = self.metadata.current_snapshot()
        return current.snapshot_id if current else None


def _view(name: str, metadata: str, io_properties: dict[str, str]) -> TableView:
    apply_patches()  # before metadata of version 3 is read
    understood = TableMetadataUtil.parse_raw(metadata)
    return TableView(name=name, metadata=understood, io=load_file_io(io_properties, understood.location))


def newest_first(metadata: TableMetadata) -> list[Schema]:
    """All schemas the table has had: a delete may name a column that was dropped since."""
    return sorted(metadata.schemas, key=lambda schema: schema.schema_id, reverse=True)


def no_filter(_: OpenFile) -> None:
    return None


class TableReader:
    """What the data files of one reading share: decoded deletes, and how fast to go."""

    def __init__(
        self,
        metadata: TableMetadata,
        io: FileIO,
        matches: DeleteMatches,
        positions: PositionDeletes,
        equality: EqualityDeletes,
        make_filter: MakeFilter = no_filter,
    ) -> None:
        """`make_filter` rules out row groups of a file that are not of interest."""
        self.io = io
        self.matches = matches
        self.mapping = metadata.name_mapping()
        self.partitions = PartitionDecoder(metadata)
        self.positions = positions
        self.equality = equality
        self.make_filter = make_filter
        self.pace, self.key_pace = Pace(), Pace()  # keys alone weigh less than rows
        everywhere = matches.by_kind[GLOBAL_EQUALITY].slice(_least(matches.data, f"{GLOBAL_EQUALITY}_from"))
        self._global_portions = self.equality.portions(everywhere)

    def files(self) -> Iterator[DataFileReader]:
        """The data files, partition by partition, so that what was decoded for one serves its neighbours."""
        data = self.numbered()
        for _, group in data.group_by("spec_id", "partition", maintain_order=True):
            portions = self._equality_portions(group)
            files = (DataFileReader(self, row, portions) for row in group.iter_rows(named=True))
            yield from files if self.equality.fit_together(portions) else _buried(list(files), portions)

    def files_without_equality_deletes(self) -> Iterator[DataFileReader]:
        """The data files without their equality deletes: for a look that takes all rows, dead ones too."""
        return (DataFileReader(self, row, []) for row in self.numbered().iter_rows(named=True))

    def numbered(self) -> pl.DataFrame:
        """The data files; `row` is the number by which their deletes are found."""
        return self.matches.data.with_row_index("row")

    def _equality_portions(self, group: pl.DataFrame) -> list[DeleteBatch]:
        """The equality deletes of a partition's data files, as one superset for all of them: an index knows which key
        died when, so files of different age can share it."""
        start, end = _least(group, f"{EQUALITY}_from"), _most(group, f"{EQUALITY}_to")
        own = self.matches.by_kind[EQUALITY].slice(start, max(end - start, 0))
        return self.equality.portions(own) + self._global_portions


class DataFileReader:
    """One data file, to be read with its deletes."""

    skipped = 0
    """Rows that `live_batches` has read and that are nobody's business here, dead or alive."""

    def __init__(self, reading: TableReader, row: dict[str, Any], portions: list[DeleteBatch]) -> None:
        self.row = row
        self.path: str = row["file_path"]
        self.constants = reading.partitions.constants(row["spec_id"], row["partition"])
        self._reading = reading
        self._sequence: int = row["data_sequence_number"]
        has_equality = any(row[f"{kind}_to"] > row[f"{kind}_from"] for kind in (EQUALITY, GLOBAL_EQUALITY))
        self._portions = portions if has_equality else []
        self._buried = BitMap64()

    @property
    def needs_keys(self) -> bool:
        """Whether rows must be looked at to know which are of interest."""
        return bool(self._portions)

    @property
    def has_deleted_rows(self) -> bool:
        """Whether rows were found dead by their keys."""
        return bool(self._buried)

    def mark_deleted_by(self, portion: DeleteBatch) -> None:
        """Note the rows that one portion of equality deletes hits, by a reading of the key columns alone."""
        if not any(other is portion for other in self._portions):
            return
        index = self._reading.equality.index(portion)
        for piece in self._pieces(portion.keys.top_level_ids, self._reading.key_pace):
            dead = index.dead(portion.keys.frame(piece, self.constants), self._sequence)
            self.mark_deleted(np.flatnonzero(dead) + piece.position)
        self._portions = [other for other in self._portions if other is not portion]

    def mark_deleted(self, positions: Positions) -> None:
        """Note rows that were found dead by somebody else."""
        self._buried |= bitmap(positions)

    def named_positions(self) -> Positions:
        """Ascending positions of rows that position deletes and vectors name."""
        return self._reading.positions.of(self.path, self._reading.matches.of(self.row["row"]))

    def deleted_positions(self) -> Positions:
        """The same, and those of rows that were found dead by their keys so far."""
        dead = self.named_positions()
        if self._buried:
            dead = united(dead, np.frombuffer(self._buried.to_array(), dtype=np.int64))
        return dead

    def find_deleted_positions(self) -> Positions:
        """Ascending positions of all dead rows; of the rows themselves only key columns are read."""
        for portion in self._portions:
            self.mark_deleted_by(portion)
        return self.deleted_positions()

    def live_batches(
        self, fields: Sequence[NestedField], *, dictionaries: bool = False, row_groups: Collection[int] | None = None
    ) -> Iterator[tuple[FileBatch, Mask | None]]:
        """Pieces with the given columns and the mask of rows that no delete hits (None: all live). With `dictionaries`
        repetitive texts come as the file has them, dictionary-encoded; of a Parquet file some row groups may be chosen."""
        dead = self.deleted_positions()
        keys = {field_id for portion in self._portions for field_id in portion.keys.top_level_ids}
        wanted = {field.field_id for field in fields} | keys
        for piece in self._pieces(wanted, self._reading.pace, dictionaries, row_groups):
            alive = _alive(dead, piece)
            for portion in self._portions:
                index = self._reading.equality.index(portion)
                hit = index.dead(portion.keys.frame(piece, self.constants), self._sequence)
                if hit.any():
                    alive = ~hit if alive is None else alive & ~hit
            yield piece, alive

    def pieces(self, fields: Sequence[NestedField]) -> Iterator[FileBatch]:
        """Pieces with the given columns, dead rows included."""
        return self._pieces({field.field_id for field in fields}, self._reading.key_pace)

    def project(self, piece: FileBatch, fields: Sequence[NestedField]) -> pa.RecordBatch:
        """The rows of a piece with the columns as the table has them, metadata columns filled in."""
        with translate_damage(self.path):
            rows = Projection.of(piece.batch.schema, piece.file.names, fields, self.constants).apply(piece.batch)
            asked = {index: field.field_id for index, field in enumerate(fields) if field.field_id in METADATA_IDS}
            for index, field_id in asked.items():
                # A rewritten file carries the lineage of its rows; only what it leaves null is computed.
                values = pc.coalesce(rows.column(index), self._metadata_values(field_id, piece))
                rows = rows.set_column(index, rows.schema.field(index), values)
            return rows

    def _pieces(
        self, field_ids: set[int], pace: Pace, dictionaries: bool = False, row_groups: Collection[int] | None = None
    ) -> Iterator[FileBatch]:
        reading = self._reading
        check_not_encrypted(self.path, self.row["key_metadata_bytes"])
        return read_file_batches(
            reading.io,
            self.path,
            self.row["file_format"],
            reading.mapping,
            field_ids,
            reading.make_filter,
            pace,
            dictionaries=dictionaries,
            row_groups=row_groups,
        )

    def _metadata_values(self, field_id: int, piece: FileBatch) -> pa.Array | pa.Scalar:
        first_row_id = self.row["first_row_id"]
        positions = piece.position + np.arange(piece.batch.num_rows, dtype=np.int64)
        if field_id == FILE.field_id:
            return pa.scalar(self.path)
        if field_id == POSITION.field_id:
            return pa.array(positions)
        if first_row_id is None:
            return pa.scalar(None, pa.int64())
        return pa.array(positions + first_row_id) if field_id == ROW_ID.field_id else pa.scalar(self._sequence, pa.int64())


def filter_rows(rows: pa.RecordBatch, alive: Mask) -> pa.RecordBatch:
    """The living rows. Of columns of fixed width Arrow takes rows by index twice as fast as by mask, of others slower."""
    mask, indices = pa.array(alive), pa.array(np.flatnonzero(alive))
    columns = [column.take(indices) if _is_narrow(column.type) else column.filter(mask) for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _is_narrow(type_: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(type_) or pa.types.is_dictionary(type_) or pa.types.is_decimal(type_))


def _buried(files: list[DataFileReader], portions: list[DeleteBatch]) -> list[DataFileReader]:
    """For deletes beyond the memory budget: each portion is indexed once and asked about every file, and only the dead
    positions are kept."""
    for portion in portions:
        for file in files:
            file.mark_deleted_by(portion)
    return files


def _alive(dead: Positions, piece: FileBatch) -> Mask | None:
    first, last = np.searchsorted(dead, (piece.position, piece.position + piece.batch.num_rows))
    if first == last:
        return None
    alive = np.ones(piece.batch.num_rows, dtype=bool)
    alive[dead[first:last] - piece.position] = False
    return alive


def _least(frame: pl.DataFrame, column: str) -> int:
    return int(frame.select(pl.col(column).min().fill_null(0)).item())


def _most(frame: pl.DataFrame, column: str) -> int:
    return int(frame.select(pl.col(column).max().fill_null(0)).item())
