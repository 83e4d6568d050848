"""Changes in their order: by transaction, then by offset; a before-image comes before its after-image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import NestedField

from pyarctic.iceberg.predicate import (
    ALWAYS_TRUE,
    bind_condition,
    parse_condition,
    prune_partitions,
    restrict_condition,
    to_row_expression,
    with_optional_parents,
)
from pyarctic.iceberg.read import BatchSizer, RowScan, ScanColumns, TableReader, arrow_schema, select_fields
from pyarctic.tables.format.change_columns import (
    CHANGE_ACTION,
    CHANGE_COLUMNS,
    DELETE,
    FILE_OFFSET,
    INSERT,
    TRANSACTION_ID,
    UPDATE_AFTER,
    UPDATE_BEFORE,
    ChangeFile,
    read_change_files,
)
from pyarctic.tables.format.file_names import parse_change_file_names
from pyarctic.tables.format.primary_key import PrimaryKey
from pyarctic.tables.read.key_lookup import KeyLookup
from pyarctic.tables.read.merge_sorted import MAX_OPEN, concat_batches, merge_sorted
from pyarctic.tables.read.merged_scan import StoreState

MEMORY_BYTES = 8 << 20
"""For the rows of one transaction that are merged at a time. Sorting them needs as much again."""
_MIN_BATCH_BYTES = 64 << 10
_MIN_BUFFER_BYTES, _MAX_BUFFER_BYTES = 16 << 10, 1 << 20
_WRITER = "\0writer"
# Offsets of different writers are independent. DELETE sorts before INSERT: the before-image comes first.
_ORDER = (FILE_OFFSET.name, _WRITER, CHANGE_ACTION.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeSelection:
    """Which changes are wanted: their columns, a condition on them, and the sequence numbers of their commits."""

    columns: Sequence[str] | None = None
    where: str | BooleanExpression | None = None
    after: int = 0
    upto: int | None = None


def plan_change_log(change: StoreState, base: TableMetadata, schema: Schema, selection: ChangeSelection) -> ChangeLog:
    """Prepare a read of changes. `base`: the metadata of the base store; `schema`: the table's columns."""
    view, key = change.view, PrimaryKey.of(base, change.view.name)
    all_columns = Schema(*schema.fields, *CHANGE_COLUMNS.values())
    condition = parse_condition(all_columns, selection.where)
    columns = ScanColumns(all_columns, select_fields(all_columns, selection.columns, extra={}), condition)
    sequence = pl.col("data_sequence_number")
    in_range = sequence > selection.after
    if selection.upto is not None:
        in_range &= sequence <= selection.upto
    files = change.files.frame().filter(in_range)
    # A pair of images has one key and one transaction, so they are left out together. By other columns one of them might be
    # missing, and the other would be no update any more.
    lookup = KeyLookup.of(key, all_columns, condition)
    if lookup.condition != ALWAYS_TRUE:
        files = prune_partitions(files, view.metadata, with_optional_parents(all_columns), lookup.condition)
        files = lookup.select_nodes_of("change", files, view, change.files, (base, view.metadata))
        files = lookup.select_by_bounds(files, change.files, view.io)
    reader = read_change_files(view, _select_transactions(parse_change_file_names(files), all_columns, condition))
    read_ids = {field.field_id for field in (*columns.read_fields, *key.fields)}
    fields = [field for field in schema.fields if field.field_id in read_ids]
    return ChangeLog(reader, reader.numbered_files(), fields, [field.name for field in key.fields], columns)


def _select_transactions(files: pl.DataFrame, schema: Schema, condition: BooleanExpression) -> pl.DataFrame:
    """The files of transactions that may meet a condition."""
    of_transactions = restrict_condition(schema, condition, {TRANSACTION_ID.field_id})
    if of_transactions == ALWAYS_TRUE or files.is_empty():
        return files
    expression = to_row_expression(schema, bind_condition(schema, of_transactions))
    ids = pa.table({TRANSACTION_ID.name: files["transaction_id"].unique().to_arrow()}).filter(expression)
    return files.filter(pl.col("transaction_id").is_in(ids.column(0).to_pylist()))


class ChangeLog(RowScan):
    """Rows of the change store, in order. It is lazy: every call of `batches` reads the files again."""

    def __init__(
        self,
        reader: TableReader,
        files: pl.DataFrame,
        fields: Sequence[NestedField],
        keys: Sequence[str],
        columns: ScanColumns | None = None,
    ) -> None:
        """`files`: those to read, with the facts of their names. `fields`: the table's columns to read, with those of the
        key. `columns`: those that are wanted and the condition on rows; None: all columns that are read, and all rows."""
        self._reader = reader
        self._files = files
        self._fields = (*fields, *CHANGE_COLUMNS.values())
        self._keys = list(keys)
        self._columns = columns

    def __repr__(self) -> str:
        return f"<ChangeLog: {', '.join(self.schema.names)}>"

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the batches: the wanted ones of the table's columns, `_transaction_id`, `_file_offset` and
        `_change_action`."""
        return arrow_schema(self._fields if self._columns is None else self._columns.wanted)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The changes, oldest first. Memory is bounded, whatever the size of a transaction and the number of its files."""
        for _, files in self._files.sort("transaction_id", maintain_order=True).group_by(
            "transaction_id", maintain_order=True
        ):
            for batch in self._name_updates(self._merge(files)):
                rows = self._select(batch)
                if rows.num_rows:
                    yield rows

    def count(self) -> int:
        """The number of changes; without a condition it is taken from the metadata."""
        if self._columns is not None and self._columns.row_condition is not None:
            return sum(batch.num_rows for batch in self.batches())
        return int(self._files["record_count"].sum())

    def _select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = self._columns
        if columns is None:
            return batch
        return (batch if columns.row_condition is None else batch.filter(columns.row_condition)).select(columns.names)

    def _merge(self, files: pl.DataFrame) -> Iterator[pa.RecordBatch]:
        """The rows of a transaction, by offset."""
        # By name, whatever the order of the files in manifests.
        numbers = {writer: number for number, writer in enumerate(files["writer"].unique().sort())}
        open_files = min(files.height, MAX_OPEN)
        sizer = BatchSizer(max(MEMORY_BYTES // (2 * open_files), _MIN_BATCH_BYTES))
        buffer_bytes = None
        if int(files["file_size_bytes"].sum()) > MEMORY_BYTES:  # row groups are not read as a whole
            per_column = MEMORY_BYTES // (open_files * len(self._fields))
            buffer_bytes = min(max(per_column, _MIN_BUFFER_BYTES), _MAX_BUFFER_BYTES)
        streams = [self._rows(row, numbers[row["writer"]], sizer, buffer_bytes) for row in files.iter_rows(named=True)]
        for rows in merge_sorted(streams, _ORDER, MEMORY_BYTES):
            yield rows.select([name for name in rows.schema.names if name != _WRITER])

    def _rows(
        self, row: dict[str, object], writer: int, sizer: BatchSizer, buffer_bytes: int | None
    ) -> Iterator[pa.RecordBatch]:
        file = ChangeFile(self._reader, row)
        for file_batch in file.all_batches(self._fields, sizer, buffer_bytes):
            batch = file.project(file_batch, self._fields)
            offsets = batch.column(FILE_OFFSET.name)
            if len(offsets) > 1 and not pc.all(pc.less_equal(offsets[:-1], offsets[1:])).as_py():
                batch = batch.take(pc.sort_indices(batch, [(FILE_OFFSET.name, "ascending")]))
            yield batch.append_column(_WRITER, pa.array(np.full(batch.num_rows, writer, np.int32)))

    def _name_updates(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Set the actions of updates: pairs of a deleted and an inserted row with the same offset and key."""
        held: pa.RecordBatch | None = None
        for batch in batches:
            named = self._name_pairs(batch if held is None else concat_batches([held, batch]))
            # The last row may be the first of a pair.
            held = named.slice(named.num_rows - 1)
            if named.num_rows > 1:
                yield named.slice(0, named.num_rows - 1)
        if held is not None and held.num_rows:
            yield held

    def _name_pairs(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows < 2:
            return batch
        before, after = batch.slice(0, batch.num_rows - 1), batch.slice(1)
        is_pair = _to_mask(pc.equal(before.column(FILE_OFFSET.name), after.column(FILE_OFFSET.name)))
        is_pair &= _to_mask(pc.equal(before.column(CHANGE_ACTION.name), DELETE))
        is_pair &= _to_mask(pc.equal(after.column(CHANGE_ACTION.name), INSERT))
        for name in self._keys:
            is_pair &= _to_mask(pc.fill_null(pc.equal(before.column(name), after.column(name)), True))
        if not is_pair.any():
            return batch
        is_before, is_after = np.append(is_pair, False), np.insert(is_pair, 0, False)
        actions = batch.column(CHANGE_ACTION.name)
        actions = pc.if_else(pa.array(is_before), UPDATE_BEFORE, pc.if_else(pa.array(is_after), UPDATE_AFTER, actions))
        index = batch.schema.get_field_index(CHANGE_ACTION.name)
        return batch.set_column(index, batch.schema.field(index), actions)


def _to_mask(array: pa.Array) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = array.to_numpy(zero_copy_only=False)
    return mask
