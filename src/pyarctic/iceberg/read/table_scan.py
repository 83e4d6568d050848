"""Rows of a table at a snapshot, as Arrow batches with every kind of delete applied.

    scan(table, columns=["id"], where="ts >= '2024-01-01T00:00:00'").to_arrow()

Planning works on frames; reading goes file by file and batch by batch, so memory follows neither the number of files
nor their size. A condition is applied as SQL does: rows for which it is unknown (null) are not returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.visitors import extract_field_ids
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import NestedField

from pyarctic.errors import UsageError, about
from pyarctic.iceberg.delete.delete_files import EqualityDeletes, PositionDeletes
from pyarctic.iceberg.delete.matching import DeleteMatches, match_deletes
from pyarctic.iceberg.manifest.file_list import IS_DATA, FileList
from pyarctic.iceberg.manifest.partition_keys import PartitionDecoder
from pyarctic.iceberg.predicate.conditions import (
    ALWAYS_TRUE,
    bind_condition,
    parse_condition,
    to_row_expression,
    to_row_group_expression,
    with_optional_parents,
)
from pyarctic.iceberg.predicate.pruning import prune_by_metrics, prune_partitions
from pyarctic.iceberg.read.data_files import OpenFile
from pyarctic.iceberg.read.live_rows import (
    METADATA_COLUMNS,
    DataFileReader,
    TableReader,
    TableView,
    filter_rows,
    newest_first,
)
from pyarctic.iceberg.read.projection import arrow_schema

DELETE_MEMORY_BYTES = 256 << 20
"""Budget of each kind of decoded deletes held during a scan."""


def plan_scan(
    table: TableView,
    *,
    snapshot: Snapshot | None,
    schema: Schema,
    columns: Sequence[str] | None = None,
    where: str | BooleanExpression | None = None,
    files: FileList | None = None,
) -> Scan:
    """Prepare a scan of `snapshot` with the names of `schema`. `files`: what is known of the snapshot already."""
    wanted = select_fields(schema, columns)
    return Scan(table, snapshot, schema, wanted, parse_condition(schema, where), files)


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
        *,
        is_pruned: bool = False,
    ) -> None:
        """`is_pruned`: the files are those that the condition leaves."""
        self.table = table
        self._snapshot = snapshot
        self.table_schema = schema
        self.wanted = wanted
        self.condition = condition
        self._files = files
        self._is_pruned = is_pruned

    def __repr__(self) -> str:
        where = "" if self.condition == ALWAYS_TRUE else f" where {self.condition}"
        return f"<Scan of {self.table.name}: {', '.join(field.name for field in self.wanted)}{where}>"

    @property
    def table_name(self) -> str:
        return self.table.name

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the batches."""
        return arrow_schema(self.wanted)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows; memory is bounded whatever the size of the table."""
        with about(table=self.table.name):
            asked, reading = self._reading()
            for file in reading.files():
                yield from asked.batches(file)

    def to_arrow(self) -> pa.Table:
        """All rows in memory."""
        return pa.Table.from_batches(self.batches(), schema=self.schema)

    def count(self) -> int:
        """The number of rows; files without deletes and conditions are counted by their metadata."""
        with about(table=self.table.name):
            asked, reading = self._reading()
            return sum(asked.count(file, self.plan) for file in reading.files())

    @cached_property
    def listed(self) -> FileList:
        """All files of the snapshot."""
        return self._files or FileList.of(self.table.metadata, self.table.io, self._snapshot)

    @cached_property
    def plan(self) -> DeleteMatches:
        """The data files to read, with their deletes."""
        table, files = self.table, self.listed
        everything = files.frame()
        data = everything.filter(IS_DATA)
        if self.condition != ALWAYS_TRUE and not self._is_pruned:
            schema = with_optional_parents(self.table_schema)
            data = prune_partitions(data, table.metadata, schema, self.condition)
            data = prune_by_metrics(data, files, table.io, schema, bind_condition(schema, self.condition))
        unpartitioned = PartitionDecoder(table.metadata).unpartitioned_specs()
        return match_deletes(pl.concat([data, everything.filter(~IS_DATA)]), unpartitioned)

    def restricted_to(self, paths: pl.Series) -> Scan:
        """The same of some of its data files."""
        files = self.listed
        filter_rows = files.frame().filter(~IS_DATA | pl.col("file_path").is_in(paths.implode()))
        some = FileList(files.table_uuid, {("", None): filter_rows})
        return Scan(self.table, None, self.table_schema, self.wanted, self.condition, some, is_pruned=True)

    def _reading(self) -> tuple[ScanColumns, TableReader]:
        asked = ScanColumns(self.table_schema, self.wanted, self.condition)
        io, metadata = self.table.io, self.table.metadata
        positions = PositionDeletes(io, DELETE_MEMORY_BYTES)
        equality = EqualityDeletes(io, [self.table_schema, *newest_first(metadata)], DELETE_MEMORY_BYTES)
        return asked, TableReader(metadata, io, self.plan, positions, equality, asked.row_groups)


class ScanColumns:
    """What a scan wants of every row: columns, and a condition."""

    def __init__(self, schema: Schema, wanted: tuple[NestedField, ...], condition: BooleanExpression) -> None:
        self.wanted = wanted
        self.names = [field.name for field in wanted]
        self.read_fields = wanted
        self.row_condition: pc.Expression | None = None
        self._bound: BooleanExpression | None = None
        if condition != ALWAYS_TRUE:
            self._bound = bind_condition(schema, condition)
            self.row_condition = to_row_expression(schema, self._bound)
            asked = extract_field_ids(self._bound)
            have = {field.field_id for field in wanted}
            # A nested field is asked for through its column; top-level fields are what files are read by.
            extra = [f for f in schema.fields if f.field_id not in have and asked & _ids_within(f)]
            self.read_fields = (*wanted, *extra)

    def row_groups(self, file: OpenFile) -> pc.Expression | None:
        """Rules out row groups without any row of interest."""
        return None if self._bound is None else to_row_group_expression(file, self._bound)

    def batches(self, file: DataFileReader) -> Iterator[pa.RecordBatch]:
        for piece, alive in file.live_batches(self.read_fields):
            # Projected before rows are taken out: Arrow cannot filter every type that a file may hold.
            rows = file.project(piece, self.read_fields)
            if alive is not None:
                rows = filter_rows(rows, alive)
            if self.row_condition is not None:
                rows = rows.filter(self.row_condition).select(self.names)
            if rows.num_rows:
                yield rows

    def count(self, file: DataFileReader, matches: DeleteMatches) -> int:
        if self.row_condition is not None:
            return sum(batch.num_rows for batch in self.batches(file))
        deletes = matches.of(file.row["row"])
        if not file.needs_keys and not file.has_deleted_rows and not deletes.positions.height:
            vector_rows = deletes.vector["record_count"] if deletes.vector else 0
            return int(file.row["record_count"]) - int(vector_rows)
        return sum(piece.batch.num_rows if alive is None else int(alive.sum()) for piece, alive in file.live_batches(()))


def _ids_within(field: NestedField) -> set[int]:
    return set(Schema(field).field_ids)


def select_fields(
    schema: Schema, columns: Sequence[str] | None, extra: Mapping[str, NestedField] = METADATA_COLUMNS
) -> tuple[NestedField, ...]:
    """The fields of the columns that are asked for. `extra`: columns beside those of the schema."""
    if columns is None:
        return tuple(schema.fields)
    if isinstance(columns, str):
        raise UsageError(f"columns must be a list of names, not the text {columns!r}", hint=f"Write columns=[{columns!r}].")
    by_name = {field.name: field for field in schema.fields}
    by_name |= {name: field for name, field in extra.items() if name not in by_name}
    unknown = [name for name in columns if name not in by_name]
    if unknown or not columns:
        near = get_close_matches(unknown[0], by_name, n=1) if unknown else []
        raise UsageError(
            f"no such column: {', '.join(unknown)}" if unknown else "no column was asked for",
            hint=(f"Did you mean {near[0]!r}? " if near else "") + f"There are: {', '.join(by_name)}.",
        )
    return tuple(by_name[name] for name in dict.fromkeys(columns))
