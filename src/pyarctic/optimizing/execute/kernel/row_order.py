"""The order in which a task's rows are written: by the table's sort order, or in z-order.

Both define the columns that rows are sorted by, and divide rows into consecutive parts, so that parts can be sorted
separately.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import NestedField

from pyarctic.iceberg import apply_transform, source_column
from pyarctic.iceberg.read import DataFileReader, arrow_schema
from pyarctic.optimizing.execute.kernel.external_sort import Key
from pyarctic.optimizing.execute.kernel.z_order import ClusterTree, expected_files
from pyarctic.optimizing.order.ranks import Ranks, ranks
from pyarctic.optimizing.order.sort_order import Dimension, z_dimensions
from pyarctic.optimizing.protocol.task import Task
from pyarctic.tables.format import key_ids

SOURCE, POSITION, PART = "\0source", "\0position", "\0part"
"""Extra columns of rows that are sorted; no column of a table has such a name."""
_CURVE_KEY = "\0key0"
_SAMPLED_ROWS = 256 << 10
Parts = npt.NDArray[np.int32]


class RowOrder(Protocol):
    """An order of rows. Batches have the table's columns, or at least those of `order_fields`."""

    @property
    def keys(self) -> list[Key]:
        """The columns that rows are sorted by."""
        ...

    @property
    def count(self) -> int:
        """The number of parts."""
        ...

    @property
    def sample(self) -> dict[str, pa.Array]:
        """The columns of the sampled rows."""
        ...

    def columns(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        """The columns that `keys` names, in this order."""
        ...

    def parts(self, columns: dict[str, pa.Array]) -> Parts:
        """The part that each row belongs to."""
        ...

    @property
    def parts_are_files(self) -> bool:
        """Whether every part begins a new file."""
        ...

    def files_in(self, part: int) -> int:
        """The expected number of files of such a part."""
        ...


def sort_fields(metadata: TableMetadata) -> list[SortField]:
    """The table's sort order; a table with a primary key and without a sort order is sorted by its key."""
    keys = [SortField(source_id=field_id, transform=IdentityTransform()) for field_id in key_ids(metadata)]
    return list(metadata.sort_order().fields) or keys


def order_fields(metadata: TableMetadata, task: Task) -> list[NestedField]:
    """The columns of the table that the rows of a task are sorted by."""
    source_ids = set(task.z_order) or {field.source_id for field in sort_fields(metadata)}
    return [field for field in metadata.schema().fields if source_ids & set(Schema(field).field_ids)]


def sample_step(task: Task) -> int:
    """A sample has one of this many rows."""
    return max(task.expected_rows // _SAMPLED_ROWS, 1)


def sample_rows(files: Iterable[DataFileReader], fields: list[NestedField], step: int, *, live_only: bool) -> pa.RecordBatch:
    """Some rows of files: only live ones, or any, where deleted ones do no harm."""
    samples = [pa.RecordBatch.from_pylist([], schema=arrow_schema(fields))]
    for file in files:
        batches = file.live_batches(fields) if live_only else ((batch, None) for batch in file.all_batches(fields))
        for batch, is_live in batches:
            rows = file.project(batch, fields)
            row_numbers = np.arange(rows.num_rows) if is_live is None else np.flatnonzero(is_live)
            samples.append(rows.take(pa.array(row_numbers[::step])))
    return pa.concat_batches(samples)


def count_parts(part_rows: dict[int, int], parts: Parts) -> None:
    """Add the number of rows in each part."""
    for part, rows in zip(*np.unique(parts, return_counts=True), strict=True):
        part_rows[int(part)] = part_rows.get(int(part), 0) + int(rows)


def make_row_order(metadata: TableMetadata, task: Task, sample: pa.RecordBatch | None) -> RowOrder:
    """The order of a task's rows. `sample` has some of the live rows, from which their number is known, which was only
    estimated when the task was planned. Without it there is one part, and z-order is impossible."""
    if sample is None:
        return BySortOrder(metadata=metadata, splitters=pl.Series([], dtype=pl.Null), sample={})
    size = sample.num_rows * sample_step(task) * _row_bytes(task)
    if task.z_order:
        dimensions = z_dimensions(metadata, task.z_order)
        sample_ranks = _column_ranks(metadata, dimensions, sample)
        tree = ClusterTree.of(sample_ranks, expected_files(size, task.target_bytes))
        return ByZOrder(metadata=metadata, dimensions=dimensions, tree=tree, sample_ranks=sample_ranks)
    columns = make_row_order(metadata, task, None).columns(sample)
    first_key = pl.Series(pl.from_arrow(next(iter(columns.values())))).drop_nulls().sort()
    ranges = max(round(task.ranges * size / max(task.expected_bytes, 1)), 1)
    indexes = [len(first_key) * part // ranges for part in range(1, ranges)] if len(first_key) else []
    return BySortOrder(metadata=metadata, splitters=first_key.gather(indexes).unique().sort(), sample=columns)


def _row_bytes(task: Task) -> float:
    """The expected size of a row. The planned size accounts for footers; but if nearly all rows were expected to be deleted,
    it consists of nothing else."""
    planned = task.expected_bytes / max(task.expected_rows, 1)
    return min(planned, task.input_bytes / max(int(task.data["record_count"].sum()), 1))


@dataclass(frozen=True, kw_only=True, eq=False)
class BySortOrder:
    """The table's sort order. Parts are ranges of the first key."""

    metadata: TableMetadata
    splitters: pl.Series
    """The greatest keys of all parts but the last."""
    sample: dict[str, pa.Array]
    parts_are_files = False

    @cached_property
    def keys(self) -> list[Key]:
        """The columns that rows are sorted by."""
        return [
            Key(
                column=f"\0key{number}",
                descending=field.direction == SortDirection.DESC,
                nulls_last=field.null_order == NullOrder.NULLS_LAST,
            )
            for number, field in enumerate(sort_fields(self.metadata))
        ]

    @property
    def count(self) -> int:
        """The number of parts."""
        return len(self.splitters) + 1

    def columns(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        """The columns that `keys` names, in this order."""
        schema = self.metadata.schema()
        columns = {}
        for key, field in zip(self.keys, sort_fields(self.metadata), strict=True):
            source = source_column(schema, field.source_id, rows)
            values = apply_transform(field.transform, schema.find_type(field.source_id), source)
            columns[key.column] = _as_sortable(values)
        return columns

    def parts(self, columns: dict[str, pa.Array]) -> Parts:
        """The part that each row belongs to."""
        first_key = self.keys[0]
        values = pl.Series(pl.from_arrow(columns[first_key.column]))
        if not len(self.splitters):
            return np.zeros(len(values), np.int32)
        parts = self.splitters.search_sorted(values, side="left").to_numpy().astype(np.int32)
        last = len(self.splitters)
        parts = last - parts if first_key.descending else parts
        parts[values.is_null().to_numpy()] = last if first_key.nulls_last else 0
        return parts

    def files_in(self, part: int) -> int:  # noqa: ARG002  # part of the protocol
        """Any number."""
        return 0


@dataclass(frozen=True, kw_only=True, eq=False)
class ByZOrder:
    """Z-order. Parts are the leaves of a tree."""

    metadata: TableMetadata
    dimensions: tuple[Dimension, ...]
    tree: ClusterTree
    sample_ranks: Ranks
    parts_are_files = True

    @property
    def keys(self) -> list[Key]:
        """The columns that rows are sorted by."""
        return [Key(column=PART), Key(column=_CURVE_KEY)]

    @property
    def count(self) -> int:
        """The number of parts."""
        return len(self.tree.files)

    @property
    def sample(self) -> dict[str, pa.Array]:
        """The columns of the sampled rows."""
        return self._columns(self.sample_ranks)

    def columns(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        """The columns that `keys` names, in this order."""
        return self._columns(_column_ranks(self.metadata, self.dimensions, rows))

    def _columns(self, row_ranks: Ranks) -> dict[str, pa.Array]:
        leaves = self.tree.leaves(row_ranks)
        return {PART: pa.array(leaves), _CURVE_KEY: self.tree.keys(row_ranks, leaves).cast(pa.binary())}

    def parts(self, columns: dict[str, pa.Array]) -> Parts:
        """The part that each row belongs to."""
        return np.asarray(columns[PART].to_numpy(), np.int32)

    def files_in(self, part: int) -> int:
        """The expected number of files of a part."""
        return int(self.tree.files[part])


def _column_ranks(metadata: TableMetadata, dimensions: Sequence[Dimension], rows: pa.RecordBatch) -> Ranks:
    """A row for each row, a column for each dimension."""
    schema = metadata.schema()
    columns = [
        ranks(dimension.type, source_column(schema, dimension.field_id, rows), dimension.prefix_bytes)
        for dimension in dimensions
    ]
    return np.column_stack(columns)


def _as_sortable(values: pa.Array) -> pa.Array:
    """In a type that Polars orders as Iceberg does."""
    return values.cast(pa.binary()) if pa.types.is_fixed_size_binary(values.type) else values
