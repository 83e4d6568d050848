"""Rows of a table at a snapshot, as Arrow batches with every kind of delete applied.

    scan(table, columns=["id"], where="ts >= '2024-01-01T00:00:00'").to_arrow()

Planning works on frames; reading goes file by file and batch by batch, so memory follows neither the number of files
nor their size. A condition is applied as SQL does: rows for which it is unknown (null) are not returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.visitors import extract_field_ids
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import LongType, NestedField, StringType
from pyroaring import BitMap64

from pyarctic.errors import UsageError, about
from pyarctic.iceberg import conditions
from pyarctic.iceberg.datafiles import OpenFile, Pace, Piece, damage_told, read_pieces
from pyarctic.iceberg.deletefiles import DeletePortion, EqualityDeletes, Mask, PositionDeletes, refuse_encrypted
from pyarctic.iceberg.deletes import EQUALITY, GLOBAL_EQUALITY, DeleteMatches, match_deletes
from pyarctic.iceberg.filelist import IS_DATA, FileList
from pyarctic.iceberg.partitions import PartitionDecoder
from pyarctic.iceberg.projection import Projection, arrow_schema
from pyarctic.iceberg.pruning import prune_by_metrics, prune_partitions
from pyarctic.iceberg.vectors import Positions

DELETE_MEMORY_BYTES = 256 << 20
"""Budget of each kind of decoded deletes held during a scan."""

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

    @property
    def snapshot_id(self) -> int | None:
        """The current snapshot, on which a change would be planned."""
        current = self.metadata.current_snapshot()
        return current.snapshot_id if current else None


def scan(
    table: TableView,
    *,
    snapshot: Snapshot | None,
    schema: Schema,
    columns: Sequence[str] | None = None,
    where: str | BooleanExpression | None = None,
    files: FileList | None = None,
) -> Scan:
    """Prepare a scan of `snapshot` with the names of `schema`. `files`: what is known of the snapshot already."""
    wanted = _wanted_fields(schema, columns)
    return Scan(table, snapshot, schema, wanted, conditions.understood(schema, where), files)


class Scan:
    """A prepared scan; no row is read before it is asked for, and every call reads anew."""

    def __init__(
        self,
        table: TableView,
        snapshot: Snapshot | None,
        schema: Schema,
        wanted: tuple[NestedField, ...],
        condition: BooleanExpression,
        files: FileList | None,
    ) -> None:
        self._table = table
        self._snapshot = snapshot
        self._table_schema = schema
        self._wanted = wanted
        self._condition = condition
        self._files = files

    def __repr__(self) -> str:
        where = "" if self._condition == conditions.ALL else f" where {self._condition}"
        return f"<Scan of {self._table.name}: {', '.join(field.name for field in self._wanted)}{where}>"

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the batches."""
        return arrow_schema(self._wanted)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows; memory is bounded whatever the size of the table."""
        with about(table=self._table.name):
            for file in self._scan_files():
                yield from file.batches()

    def to_arrow(self) -> pa.Table:
        """All rows in memory."""
        return pa.Table.from_batches(self.batches(), schema=self.schema)

    def count(self) -> int:
        """The number of rows; files without deletes and conditions are counted by their metadata."""
        with about(table=self._table.name):
            return sum(file.count() for file in self._scan_files())

    @cached_property
    def plan(self) -> DeleteMatches:
        """The data files to read, with their deletes."""
        table, files = self._table, self._files
        if files is None:
            files = FileList.of(table.metadata, table.io, self._snapshot)
        everything = files.frame()
        data = everything.filter(IS_DATA)
        if self._condition != conditions.ALL:
            schema = conditions.with_null_parents(self._table_schema)
            data = prune_partitions(data, table.metadata, schema, self._condition)
            data = prune_by_metrics(data, files, table.io, schema, conditions.bound(schema, self._condition))
        unpartitioned = PartitionDecoder(table.metadata).unpartitioned_specs()
        return match_deletes(pl.concat([data, everything.filter(~IS_DATA)]), unpartitioned)

    def _scan_files(self) -> Iterator[_ScanFile]:
        reading = _Reading(self._table, self._table_schema, self._wanted, self._condition, self.plan)
        data = self.plan.data.with_row_index("row")
        # Partition by partition, so that what was decoded for one file serves its neighbours.
        for _, group in data.group_by("spec_id", "partition", maintain_order=True):
            portions = reading.equality_portions(group)
            files = (_ScanFile(reading, row, portions) for row in group.iter_rows(named=True))
            yield from files if reading.equality.fit_together(portions) else _buried(list(files), portions)


class _Reading:
    """What the files of one scan share."""

    def __init__(
        self,
        table: TableView,
        schema: Schema,
        wanted: tuple[NestedField, ...],
        condition: BooleanExpression,
        plan: DeleteMatches,
    ) -> None:
        self.io = table.io
        self.plan = plan
        self.wanted = wanted
        self.mapping = table.metadata.name_mapping()
        self.partitions = PartitionDecoder(table.metadata)
        self.positions = PositionDeletes(table.io, DELETE_MEMORY_BYTES)
        newest_first = sorted(table.metadata.schemas, key=lambda s: s.schema_id, reverse=True)
        self.equality = EqualityDeletes(table.io, [schema, *newest_first], DELETE_MEMORY_BYTES)
        self.pace, self.key_pace = Pace(), Pace()  # keys alone weigh less than rows
        self.bound: BooleanExpression | None = None
        self.row_condition: pc.Expression | None = None
        self.read_fields = wanted
        if condition != conditions.ALL:
            self.bound = conditions.bound(schema, condition)
            self.row_condition = conditions.row_condition(schema, self.bound)
            asked = extract_field_ids(self.bound)
            have = {field.field_id for field in wanted}
            # A nested field is asked for through its column; top-level fields are what files are read by.
            extra = [f for f in schema.fields if f.field_id not in have and asked & _ids_within(f)]
            self.read_fields = (*wanted, *extra)
        everywhere = plan.by_kind[GLOBAL_EQUALITY].slice(_least(plan.data, f"{GLOBAL_EQUALITY}_from"))
        self.global_portions = self.equality.portions(everywhere)

    def row_group_condition(self, file: OpenFile) -> pc.Expression | None:
        return None if self.bound is None else conditions.row_group_condition(file, self.bound)

    def equality_portions(self, group: pl.DataFrame) -> list[DeletePortion]:
        """The equality deletes of a partition's data files, as one superset for all of them: an index knows which key
        died when, so files of different age can share it."""
        start, end = _least(group, f"{EQUALITY}_from"), _most(group, f"{EQUALITY}_to")
        return self.equality.portions(self.plan.by_kind[EQUALITY].slice(start, max(end - start, 0))) + self.global_portions


class _ScanFile:
    """One data file of a scan."""

    def __init__(self, reading: _Reading, row: dict[str, Any], portions: list[DeletePortion]) -> None:
        self._reading = reading
        self._row = row
        self._sequence: int = row["data_sequence_number"]
        has_equality = any(row[f"{kind}_to"] > row[f"{kind}_from"] for kind in (EQUALITY, GLOBAL_EQUALITY))
        self._portions = portions if has_equality else []
        self._buried = BitMap64()
        self._constants = reading.partitions.constants(row["spec_id"], row["partition"])

    def bury(self, portion: DeletePortion) -> None:
        """Note the rows that one portion of equality deletes hits, by a reading of the key columns alone."""
        if not any(other is portion for other in self._portions):
            return
        index = self._reading.equality.index(portion)
        for piece in self._pieces(portion.keys.top_level_ids, self._reading.key_pace):
            dead = index.dead(portion.keys.frame(piece, self._constants), self._sequence)
            self._buried.update(np.flatnonzero(dead) + piece.position)
        self._portions = [other for other in self._portions if other is not portion]

    def batches(self) -> Iterator[pa.RecordBatch]:
        output = [field.name for field in self._reading.wanted]
        for piece, alive in self._living(self._reading.read_fields):
            with damage_told(piece.file.path):
                rows = self._project(piece)
            if alive is not None:
                rows = _kept(rows, alive)
            if self._reading.row_condition is not None:
                rows = rows.filter(self._reading.row_condition).select(output)
            if rows.num_rows:
                yield rows

    def count(self) -> int:
        if self._reading.row_condition is not None:
            return sum(batch.num_rows for batch in self.batches())
        row, deletes = self._row, self._reading.plan.of(self._row["row"])
        if not self._portions and not self._buried and not deletes.positions.height:
            vector_rows = deletes.vector["record_count"] if deletes.vector else 0
            return int(row["record_count"]) - int(vector_rows)
        living = self._living(())
        return sum(piece.batch.num_rows if alive is None else int(alive.sum()) for piece, alive in living)

    def _living(self, fields: Sequence[NestedField]) -> Iterator[tuple[Piece, Mask | None]]:
        """Pieces with the given columns and the mask of rows that no delete hits (None: all live)."""
        row, reading = self._row, self._reading
        refuse_encrypted(row["file_path"], row["key_metadata_bytes"])
        dead = reading.positions.of(row["file_path"], reading.plan.of(row["row"]))
        if self._buried:
            dead = np.union1d(dead, np.frombuffer(self._buried.to_array(), dtype=np.int64))
        keys = {field_id for portion in self._portions for field_id in portion.keys.top_level_ids}
        for piece in self._pieces({field.field_id for field in fields} | keys, reading.pace):
            alive = _alive(dead, piece)
            for portion in self._portions:
                index = reading.equality.index(portion)
                hit = index.dead(portion.keys.frame(piece, self._constants), self._sequence)
                if hit.any():
                    alive = ~hit if alive is None else alive & ~hit
            yield piece, alive

    def _pieces(self, field_ids: set[int], pace: Pace) -> Iterator[Piece]:
        row, reading = self._row, self._reading
        return read_pieces(
            reading.io,
            row["file_path"],
            row["file_format"],
            reading.mapping,
            field_ids,
            reading.row_group_condition,
            pace,
        )

    def _project(self, piece: Piece) -> pa.RecordBatch:
        # Before rows are taken out: Arrow cannot filter every type that a file may hold.
        fields = self._reading.read_fields
        rows = Projection.of(piece.batch.schema, piece.file.names, fields, self._constants).apply(piece.batch)
        asked = {index: field.field_id for index, field in enumerate(fields) if field.field_id in METADATA_IDS}
        for index, field_id in asked.items():
            # A rewritten file carries the lineage of its rows; only what it leaves null is computed.
            values = pc.coalesce(rows.column(index), self._metadata_values(field_id, piece))
            rows = rows.set_column(index, rows.schema.field(index), values)
        return rows

    def _metadata_values(self, field_id: int, piece: Piece) -> pa.Array | pa.Scalar:
        first_row_id = self._row["first_row_id"]
        positions = piece.position + np.arange(piece.batch.num_rows, dtype=np.int64)
        if field_id == FILE.field_id:
            return pa.scalar(self._row["file_path"])
        if field_id == POSITION.field_id:
            return pa.array(positions)
        if first_row_id is None:
            return pa.scalar(None, pa.int64())
        return pa.array(positions + first_row_id) if field_id == ROW_ID.field_id else pa.scalar(self._sequence, pa.int64())


def _buried(files: list[_ScanFile], portions: list[DeletePortion]) -> list[_ScanFile]:
    """For deletes beyond the memory budget: each portion is indexed once and asked about every file, and only the dead
    positions are kept."""
    for portion in portions:
        for file in files:
            file.bury(portion)
    return files


def _alive(dead: Positions, piece: Piece) -> Mask | None:
    first, last = np.searchsorted(dead, (piece.position, piece.position + piece.batch.num_rows))
    if first == last:
        return None
    alive = np.ones(piece.batch.num_rows, dtype=bool)
    alive[dead[first:last] - piece.position] = False
    return alive


def _kept(rows: pa.RecordBatch, alive: Mask) -> pa.RecordBatch:
    """The living rows. Of columns of fixed width Arrow takes rows by index twice as fast as by mask, of others slower."""
    mask, indices = pa.array(alive), pa.array(np.flatnonzero(alive))
    kept = [column.take(indices) if pa.types.is_primitive(column.type) else column.filter(mask) for column in rows.columns]
    return pa.RecordBatch.from_arrays(kept, schema=rows.schema)


def _least(frame: pl.DataFrame, column: str) -> int:
    return int(frame.select(pl.col(column).min().fill_null(0)).item())


def _most(frame: pl.DataFrame, column: str) -> int:
    return int(frame.select(pl.col(column).max().fill_null(0)).item())


def _ids_within(field: NestedField) -> set[int]:
    return set(Schema(field).field_ids)


def _wanted_fields(schema: Schema, columns: Sequence[str] | None) -> tuple[NestedField, ...]:
    if columns is None:
        return tuple(schema.fields)
    if isinstance(columns, str):
        raise UsageError(f"columns must be a list of names, not the text {columns!r}", hint=f"Write columns=[{columns!r}].")
    by_name = {field.name: field for field in schema.fields}
    by_name |= {name: field for name, field in METADATA_COLUMNS.items() if name not in by_name}
    unknown = [name for name in columns if name not in by_name]
    if unknown or not columns:
        near = get_close_matches(unknown[0], by_name, n=1) if unknown else []
        raise UsageError(
            f"no such column: {', '.join(unknown)}" if unknown else "no column was asked for",
            hint=(f"Did you mean {near[0]!r}? " if near else "") + f"There are: {', '.join(by_name)}.",
        )
    return tuple(by_name[name] for name in dict.fromkeys(columns))
