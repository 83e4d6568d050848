"""The change store as it is: inserted and deleted rows with transaction, offset and action, in no particular order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import polars as pl
import pyarrow as pa
from pyiceberg.expressions import BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata

from pyarctic.errors import about
from pyarctic.iceberg.predicate import (
    ALWAYS_TRUE,
    bind_condition,
    parse_condition,
    prune_by_metrics,
    prune_partitions,
    restrict_condition,
    with_optional_parents,
)
from pyarctic.iceberg.read import RowScan, ScanColumns, TableReader, TableView, arrow_schema, select_fields
from pyarctic.tables.format.change_columns import ALL_COLUMNS, CHANGE_COLUMNS, ChangeFile, read_change_files
from pyarctic.tables.format.file_names import parse_change_file_names
from pyarctic.tables.format.primary_key import PrimaryKey
from pyarctic.tables.read.key_lookup import KeyLookup
from pyarctic.tables.read.merged_scan import StoreState


class ChangeScan(RowScan):
    """A prepared read of the change store."""

    def __init__(
        self,
        state: StoreState,
        *,
        schema: Schema,
        columns: Sequence[str] | None = None,
        where: str | BooleanExpression | None = None,
        base: TableMetadata | None = None,
    ) -> None:
        """`base`: the metadata of the base store; None: the files were already pruned by the condition."""
        self._state = state
        self._base = base
        self.table_schema = schema
        self._schema = Schema(*schema.fields, *CHANGE_COLUMNS.values())
        self.wanted = select_fields(self._schema, columns, extra=ALL_COLUMNS)
        self.condition = parse_condition(self._schema, where)

    def __repr__(self) -> str:
        where = "" if self.condition == ALWAYS_TRUE else f" where {self.condition}"
        return f"<ChangeScan of {self.table_name}: {', '.join(field.name for field in self.wanted)}{where}>"

    @property
    def view(self) -> TableView:
        return self._state.view

    @property
    def table_name(self) -> str:
        return self._state.view.name

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the batches."""
        return arrow_schema(self.wanted)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, file by file."""
        with about(table=self._state.view.name):
            for file in self._files():
                yield from self._columns.batches(file)

    def count(self) -> int:
        """The number of rows; without a condition it is taken from the metadata."""
        with about(table=self._state.view.name):
            return sum(self._columns.count(file, self._reader.matches) for file in self._files())

    @cached_property
    def _columns(self) -> ScanColumns:
        return ScanColumns(self._schema, self.wanted, self.condition)

    @cached_property
    def files(self) -> pl.DataFrame:
        """The files that may hold rows that meet the condition."""
        view, listed = self._state.view, self._state.files
        files = listed.frame()
        if self.condition == ALWAYS_TRUE or self._base is None:
            return files
        files = prune_partitions(files, view.metadata, with_optional_parents(self._schema), self.condition)
        lookup = KeyLookup.of(PrimaryKey.of(self._base, view.name), self._schema, self.condition)
        files = lookup.select_nodes_of("change", files, view, listed, (self._base, view.metadata))
        # Bounds of offsets do not cover rows of other engines, which have none.
        of_table = restrict_condition(self._schema, self.condition, self.table_schema.field_ids)
        schema = with_optional_parents(self._schema)
        return prune_by_metrics(files, listed, view.io, schema, bind_condition(schema, of_table))

    @cached_property
    def _reader(self) -> TableReader:
        return read_change_files(self._state.view, self.files)

    def _files(self) -> Iterator[ChangeFile]:
        files = parse_change_file_names(self._reader.numbered_files())
        return (ChangeFile(self._reader, row) for row in files.iter_rows(named=True))
