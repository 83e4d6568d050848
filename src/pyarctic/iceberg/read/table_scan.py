"""Rows of a table at a snapshot, as Arrow batches with all deletes applied.

    plan_scan(table, snapshot=snapshot, schema=schema, columns=["id"], where="id >= 10").to_arrow()

Planning works on frames; reading goes file by file and batch by batch, so that memory grows neither with the number of
files nor with their size. Conditions have SQL semantics: rows for which they are unknown (null) are not returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from pyarctic.iceberg.read.row_scan import RowScan

DELETE_MEMORY_BYTES = 256 << 20
"""Memory budget of a scan for each kind of decoded deletes."""
SelectFiles = Callable[[pl.DataFrame], pl.DataFrame]
"""The files of a frame that are wanted."""


def plan_scan(
    table: TableView,
    *,
    snapshot: Snapshot | None,
    schema: Schema,
    columns: Sequence[str] | None = None,
    where: str | BooleanExpression | None = None,
    files: FileList | None = None,
) -> Scan:
    """Prepare a scan of `snapshot` with the columns of `schema`. `files`: the file list of the snapshot, if already read."""
    wanted = select_fields(schema, columns)
    return Scan(table, snapshot, schema, wanted, parse_condition(schema, where), files)


class Scan(RowScan):
    """A prepared scan. Rows are read when they are requested, and every call reads them again."""

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
        select_data: SelectFiles | None = None,
    ) -> None:
        """`is_pruned`: the files were already pruned by the condition. `select_data` leaves out more data files."""
        self.table = table
        self._snapshot = snapshot
        self.table_schema = schema
        self.wanted = wanted
        self.condition = condition
        self._files = files
        self._is_pruned = is_pruned
        self._select_data = select_data

    def __repr__(self) -> str:
        where = "" if self.condition == ALWAYS_TRUE else f" where {self.condition}"
        return f"<Scan of {self.table.name}: {', '.join(field.name for field in self.wanted)}{where}>"

    @property
    def table_name(self) -> str:
        """The name of the scanned table."""
        return self.table.name

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the batches."""
        with about(table=self.table.name):
            return arrow_schema(self.wanted)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows. Memory is bounded, regardless of the size of the table."""
        with about(table=self.table.name):
            columns, reader = self._open()
            for file in reader.files():
                yield from columns.batches(file)

    def count(self) -> int:
        """The number of rows. Without a condition, files without deletes are counted by their metadata."""
        with about(table=self.table.name):
            columns, reader = self._open()
            return sum(columns.count(file, self.plan) for file in reader.files())

    @cached_property
    def listed(self) -> FileList:
        """All files of the snapshot."""
        return self._files or FileList.of(self.table.metadata, self.table.io, self._snapshot)

    @cached_property
    def plan(self) -> DeleteMatches:
        """The data files to read, pruned by the condition, with their deletes."""
        table, files = self.table, self.listed
        all_files = files.frame()
        data = all_files.filter(IS_DATA)
        if self.condition != ALWAYS_TRUE and not self._is_pruned:
            schema = with_optional_parents(self.table_schema)
            data = prune_partitions(data, table.metadata, schema, self.condition)
            data = prune_by_metrics(data, files, table.io, schema, bind_condition(schema, self.condition))
        if self._select_data is not None:
            data = self._select_data(data)
        unpartitioned = PartitionDecoder(table.metadata).unpartitioned_specs()
        return match_deletes(pl.concat([data, all_files.filter(~IS_DATA)]), unpartitioned)

    def selecting(self, select_data: SelectFiles) -> Scan:
        """The same scan without the data files that `select_data` leaves out, because no row of them is wanted."""
        return Scan(
            self.table,
            self._snapshot,
            self.table_schema,
            self.wanted,
            self.condition,
            self._files,
            is_pruned=self._is_pruned,
            select_data=select_data,
        )

    def restrict_to(self, paths: pl.Series) -> Scan:
        """The same scan of some of its data files."""
        files = self.listed
        kept = files.frame().filter(~IS_DATA | pl.col("file_path").is_in(paths.implode()))
        kept_files = FileList.of_frame(files.table_uuid, kept)
        return Scan(self.table, None, self.table_schema, self.wanted, self.condition, kept_files, is_pruned=True)

    def _open(self) -> tuple[ScanColumns, TableReader]:
        columns = ScanColumns(self.table_schema, self.wanted, self.condition)
        io, metadata = self.table.io, self.table.metadata
        positions = PositionDeletes(io, DELETE_MEMORY_BYTES)
        equality = EqualityDeletes(io, [self.table_schema, *newest_first(metadata)], DELETE_MEMORY_BYTES)
        return columns, TableReader(metadata, io, self.plan, positions, equality, columns.row_groups)


class ScanColumns:
    """The columns and the condition of a scan, applied to single files."""

    def __init__(self, schema: Schema, wanted: tuple[NestedField, ...], condition: BooleanExpression) -> None:
        self.wanted = wanted
        self.names = [field.name for field in wanted]
        self.read_fields = wanted
        self.row_condition: pc.Expression | None = None
        self._bound: BooleanExpression | None = None
        if condition != ALWAYS_TRUE:
            self._bound = bind_condition(schema, condition)
            self.row_condition = to_row_expression(schema, self._bound)
            condition_ids = extract_field_ids(self._bound)
            wanted_ids = {field.field_id for field in wanted}
            # Files are read by top-level columns, also for conditions on nested fields.
            extra = [f for f in schema.fields if f.field_id not in wanted_ids and condition_ids & _ids_within(f)]
            self.read_fields = (*wanted, *extra)

    def row_groups(self, file: OpenFile) -> pc.Expression | None:
        """The condition for the row group statistics of a file, if there is a condition."""
        return None if self._bound is None else to_row_group_expression(file, self._bound)

    def batches(self, file: DataFileReader) -> Iterator[pa.RecordBatch]:
        """The live rows of a file that satisfy the condition."""
        for file_batch, live in file.live_batches(self.read_fields):
            # Projected before filtering: Arrow cannot filter every type that a file may have.
            rows = file.project(file_batch, self.read_fields)
            if live is not None:
                rows = filter_rows(rows, live)
            if self.row_condition is not None:
                rows = rows.filter(self.row_condition).select(self.names)
            if rows.num_rows:
                yield rows

    def count(self, file: DataFileReader, matches: DeleteMatches) -> int:
        """The number of live rows of a file that satisfy the condition."""
        if self.row_condition is not None:
            return sum(batch.num_rows for batch in self.batches(file))
        deletes = matches.of(file.row["row"])
        if not file.needs_keys and not file.has_deleted_rows and not deletes.positions.height:
            vector_rows = deletes.vector["record_count"] if deletes.vector else 0
            return int(file.row["record_count"]) - int(vector_rows)
        batches = file.live_batches(())
        return sum(file_batch.batch.num_rows if live is None else int(live.sum()) for file_batch, live in batches)


def _ids_within(field: NestedField) -> set[int]:
    return set(Schema(field).field_ids)


def select_fields(
    schema: Schema, columns: Sequence[str] | None, extra: Mapping[str, NestedField] = METADATA_COLUMNS
) -> tuple[NestedField, ...]:
    """The fields of the selected columns; None selects all of the schema. `extra`: columns beside those of the schema."""
    if columns is None:
        return tuple(schema.fields)
    if isinstance(columns, str):
        raise UsageError(f"columns must be a list of names, not the text {columns!r}", hint=f"Write columns=[{columns!r}].")
    by_name = {field.name: field for field in schema.fields}
    by_name |= {name: field for name, field in extra.items() if name not in by_name}
    unknown = [name for name in columns if name not in by_name]
    if unknown or not columns:
        similar = get_close_matches(unknown[0], by_name, n=1) if unknown else []
        raise UsageError(
            f"no such column: {', '.join(unknown)}" if unknown else "no column was selected",
            hint=(f"Did you mean {similar[0]!r}? " if similar else "") + f"There are: {', '.join(by_name)}.",
        )
    return tuple(by_name[name] for name in dict.fromkeys(columns))
