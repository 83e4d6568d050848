"""Rows of a table at a snapshot, as Arrow batches with every kind of delete applied.

    scan(table, columns=["id"], where="ts >= '2024-01-01T00:00:00'").to_arrow()

Planning works on frames; reading goes file by file and batch by batch, so memory follows neither the number of files
nor their size. A condition is applied as SQL does: rows for which it is unknown (null) are not returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import bind, extract_field_ids, rewrite_not
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import LongType, NestedField, StringType

from pyarctic.errors import UsageError, about
from pyarctic.iceberg.datafiles import OpenFile, Piece, read_pieces
from pyarctic.iceberg.deletefiles import DeletePortion, EqualityDeletes, PositionDeletes, refuse_encrypted
from pyarctic.iceberg.deletes import EQUALITY, GLOBAL_EQUALITY, DeleteMatches, match_deletes
from pyarctic.iceberg.filelist import IS_DATA, FileList
from pyarctic.iceberg.partitions import PartitionDecoder
from pyarctic.iceberg.projection import Projection, arrow_schema
from pyarctic.iceberg.pruning import prune_by_metrics, prune_partitions
from pyarctic.iceberg.rowgroups import row_condition, row_group_condition
from pyarctic.iceberg.vectors import Positions

DELETE_MEMORY_BYTES = 256 << 20
"""Budget of each kind of decoded deletes held during a scan."""

ROW_ID = NestedField(2147483540, "_row_id", LongType())
LAST_UPDATED = NestedField(2147483539, "_last_updated_sequence_number", LongType())
FILE = NestedField(2147483646, "_file", StringType())
POSITION = NestedField(2147483645, "_pos", LongType())
METADATA_COLUMNS = {field.name: field for field in (ROW_ID, LAST_UPDATED, FILE, POSITION)}
"""Columns that may be asked for by name beside those of the schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableView:
    """A table as its metadata shows it at one moment: all that reading needs."""

    name: str
    metadata: TableMetadata
    io: FileIO


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
    return Scan(table, snapshot, schema, wanted, _condition(schema, where), files)


class Scan:
    """A prepared scan; nothing is read before the rows are asked for, and every call reads anew."""

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
        if not isinstance(self._condition, AlwaysTrue):
            data = prune_partitions(data, table.metadata, self._table_schema, self._condition)
            bound = rewrite_not(bind(self._table_schema, self._condition, case_sensitive=True))
            data = prune_by_metrics(data, files, table.io, bound)
        # All of the deletes take part, also in checks about files that were pruned.
        decoder = PartitionDecoder(table.metadata)
        return match_deletes(pl.concat([data, everything.filter(~IS_DATA)]), decoder.unpartitioned_specs())

    def _scan_files(self) -> Iterator[_ScanFile]:
        reading = _Reading(self._table, self._table_schema, self._wanted, self._condition, self.plan)
        data = self.plan.data.with_row_index("row")
        # Partition by partition, so that what was decoded for one file serves its neighbours.
        for _, group in data.group_by("spec_id", "partition", maintain_order=True):
            portions = reading.equality_portions(group)
            for row in group.iter_rows(named=True):
                yield _ScanFile(reading, row, portions)


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
        self.bound: BooleanExpression | None = None
        self.row_condition: pc.Expression | None = None
        self.read_fields = wanted
        if not isinstance(condition, AlwaysTrue):
            self.bound = rewrite_not(bind(schema, condition, case_sensitive=True))
            self.row_condition = row_condition(self.bound, schema)
            asked = extract_field_ids(self.bound)
            have = {field.field_id for field in wanted}
            # A nested field is asked for through its column; top-level fields are what files are read by.
            extra = [f for f in schema.fields if f.field_id not in have and asked & _ids_within(f)]
            self.read_fields = (*wanted, *extra)
        self._global_from = _first(plan.data, f"{GLOBAL_EQUALITY}_from")

    def row_group_condition(self, file: OpenFile) -> pc.Expression | None:
        return None if self.bound is None else row_group_condition(file, self.bound)

    def equality_portions(self, group: pl.DataFrame) -> list[DeletePortion]:
        """The equality deletes of a partition's data files, as one superset for all of them: an index knows which key
        died when, so files of different age can share it."""
        here = self.plan.by_kind[EQUALITY]
        start, end = _first(group, f"{EQUALITY}_from"), group[f"{EQUALITY}_to"].max() or 0
        everywhere = self.plan.by_kind[GLOBAL_EQUALITY]
        files = pl.concat([here.slice(start, max(int(end) - start, 0)), everywhere.slice(self._global_from)])  # type: ignore[arg-type]
        return self.equality.portions(files) if files.height else []


class _ScanFile:
    """One data file of a scan."""

    def __init__(self, reading: _Reading, row: dict[str, Any], portions: list[DeletePortion]) -> None:
        self._reading = reading
        self._row = row
        self._sequence: int = row["data_sequence_number"]
        has_equality = any(row[f"{kind}_to"] > row[f"{kind}_from"] for kind in (EQUALITY, GLOBAL_EQUALITY))
        self._portions = portions if has_equality else []
        self._constants = reading.partitions.constants(row["spec_id"], row["partition"])

    def batches(self) -> Iterator[pa.RecordBatch]:
        output = [field.name for field in self._reading.wanted]
        for piece, alive in self._living(self._reading.read_fields):
            batch = piece.batch if alive is None else piece.batch.filter(pa.array(alive))
            if not batch.num_rows:
                continue
            rows = self._project(piece, batch, alive)
            if self._reading.row_condition is not None:
                rows = rows.filter(self._reading.row_condition).select(output)
            if rows.num_rows:
                yield rows

    def count(self) -> int:
        if self._reading.row_condition is not None:
            return sum(batch.num_rows for batch in self.batches())
        row, deletes = self._row, self._reading.plan.of(self._row["row"])
        if not self._portions and not deletes.positions.height:
            vector_rows = deletes.vector["record_count"] if deletes.vector else 0
            return int(row["record_count"]) - int(vector_rows)
        living = self._living(())
        return sum(piece.batch.num_rows if alive is None else int(alive.sum()) for piece, alive in living)

    def _living(self, fields: Sequence[NestedField]) -> Iterator[tuple[Piece, Any]]:
        """Pieces with the given columns and the mask of rows that no delete hits (None: all live)."""
        row, reading = self._row, self._reading
        refuse_encrypted(row["file_path"], row["key_metadata_bytes"])
        dead = reading.positions.of(row["file_path"], reading.plan.of(row["row"]))
        portions = self._portions
        if not reading.equality.fit_together(portions):
            dead = np.unique(np.concatenate([dead, *(self._dead_by(portion) for portion in portions)]))
            portions = []
        keys = {field.field_id for portion in portions for field in portion.keys.top_level}
        for piece in self._pieces({field.field_id for field in fields} | keys, prune=True):
            alive = _alive(dead, piece)
            for portion in portions:
                index = reading.equality.index(portion)
                hit = index.dead(portion.keys.frame(piece, self._constants), self._sequence)
                if hit.any():
                    alive = ~hit if alive is None else alive & ~hit
            yield piece, alive

    def _dead_by(self, portion: DeletePortion) -> Positions:
        """Positions that one portion of equality deletes hits, by a reading of the key columns alone."""
        index = self._reading.equality.index(portion)
        found = [
            np.flatnonzero(index.dead(portion.keys.frame(piece, self._constants), self._sequence)) + piece.position
            for piece in self._pieces({field.field_id for field in portion.keys.top_level}, prune=True)
        ]
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def _pieces(self, field_ids: set[int], *, prune: bool) -> Iterator[Piece]:
        row, reading = self._row, self._reading
        make_filter = reading.row_group_condition if prune else (lambda _: None)
        return read_pieces(reading.io, row["file_path"], row["file_format"], reading.mapping, field_ids, make_filter)

    def _project(self, piece: Piece, batch: pa.RecordBatch, alive: Any) -> pa.RecordBatch:
        fields = self._reading.read_fields
        rows = Projection.of(batch.schema, piece.file.names, fields, self._constants).apply(batch)
        if not any(field.name in METADATA_COLUMNS for field in fields):
            return rows
        within = np.arange(piece.batch.num_rows) if alive is None else np.flatnonzero(alive)
        return self._with_metadata(rows, within + piece.position)

    def _with_metadata(self, rows: pa.RecordBatch, positions: Positions) -> pa.RecordBatch:
        first_row_id = self._row["first_row_id"]
        number = rows.num_rows
        computed = {
            ROW_ID.name: pa.nulls(number, pa.int64()) if first_row_id is None else pa.array(positions + first_row_id),
            LAST_UPDATED.name: pa.nulls(number, pa.int64())
            if first_row_id is None
            else pa.repeat(pa.scalar(self._sequence, pa.int64()), number),
            FILE.name: pa.repeat(pa.scalar(self._row["file_path"]), number),
            POSITION.name: pa.array(positions),
        }
        for index, name in enumerate(rows.schema.names):
            if name in computed:
                # A rewritten file carries the lineage of its rows; only what it leaves null is computed.
                rows = rows.set_column(index, rows.schema.field(index), pc.coalesce(rows.column(index), computed[name]))
        return rows


def _alive(dead: Positions, piece: Piece) -> Any:
    first, last = np.searchsorted(dead, (piece.position, piece.position + piece.batch.num_rows))
    if first == last:
        return None
    alive = np.ones(piece.batch.num_rows, dtype=bool)
    alive[dead[first:last] - piece.position] = False
    return alive


def _first(frame: pl.DataFrame, column: str) -> int:
    least = frame[column].min()
    return 0 if least is None else int(least)  # type: ignore[arg-type]


def _ids_within(field: NestedField) -> set[int]:
    return set(Schema(field).field_ids)


def _wanted_fields(schema: Schema, columns: Sequence[str] | None) -> tuple[NestedField, ...]:
    if columns is None:
        return tuple(schema.fields)
    by_name = {field.name: field for field in schema.fields} | METADATA_COLUMNS
    unknown = [name for name in columns if name not in by_name]
    if unknown or not columns:
        raise UsageError(
            f"no such column: {', '.join(unknown)}" if unknown else "no column was asked for",
            hint=f"There are: {', '.join(by_name)}.",
        )
    return tuple(by_name[name] for name in dict.fromkeys(columns))


def _condition(schema: Schema, where: str | BooleanExpression | None) -> BooleanExpression:
    if where is None:
        return AlwaysTrue()
    try:
        condition = parse(where) if isinstance(where, str) else where
        bind(schema, condition, case_sensitive=True)
    except Exception as cause:  # PyIceberg's parser and binder raise half a dozen unrelated types
        raise UsageError(
            f"condition is not understood: {where} ({str(cause).splitlines()[0]})",
            hint="Write it like: id >= 10 and (name = 'a' or name is null). Instants look like '2024-01-31T12:00:00'. "
            f"Columns: {', '.join(field.name for field in schema.fields)}.",
        ) from cause
    return condition
