"""In which order a task's rows are written: by the table's sort order, or in z-order.

Both say by which columns rows are sorted, and divide them into parts that lie one behind the other, so that parts can be
sorted apart.
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
from pyarctic.optimizing.execute.kernel.z_order import Clusters, expected_files
from pyarctic.optimizing.order.ranks import Ranks, ranks
from pyarctic.optimizing.order.sort_order import Dimension, z_dimensions
from pyarctic.optimizing.protocol.tasks import Task
from pyarctic.tables.format import key_ids

SOURCE, POSITION, PART = "\0source", "\0position", "\0part"
"""Columns that travel with rows that are sorted; no column of a table has such a name."""
_SAMPLED_ROWS = 256 << 10
Parts = npt.NDArray[np.int32]


class Arrangement(Protocol):
    """An order of rows. Batches have the table's columns, or at least those of `sources_of`."""

    @property
    def keys(self) -> list[Key]:
        """What rows are sorted by."""
        ...

    @property
    def count(self) -> int:
        """How many parts there are."""
        ...

    @property
    def sample(self) -> dict[str, pa.Array]:
        """The columns of the rows that were sampled."""
        ...

    def columns(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        """The columns that `keys` names; the first one first."""
        ...

    def parts(self, columns: dict[str, pa.Array]) -> Parts:
        """The part that each row belongs to."""
        ...

    @property
    def parts_are_files(self) -> bool:
        """Whether every part begins a file."""
        ...

    def files(self, part: int) -> int:
        """How many files such a part is expected to make."""
        ...


def sort_fields(metadata: TableMetadata) -> list[SortField]:
    """The table's sort order; a table with a primary key and without an order is sorted by its key."""
    keys = [SortField(source_id=field_id, transform=IdentityTransform()) for field_id in key_ids(metadata)]
    return list(metadata.sort_order().fields) or keys


def sources_of(metadata: TableMetadata, task: Task) -> list[NestedField]:
    """The columns that a task is sorted by."""
    schema = metadata.schema()
    asked = set(task.z_order) or {field.source_id for field in sort_fields(metadata)}
    return [field for field in schema.fields if asked & set(Schema(field).field_ids)]


def sample_step(task: Task) -> int:
    """A sample has one row of so many."""
    return max(task.expected_rows // _SAMPLED_ROWS, 1)


def sampled_rows(files: Iterable[DataFileReader], fields: list[NestedField], step: int, *, living: bool) -> pa.RecordBatch:
    """Some rows of files: of those that live, or of all, where dead ones do no harm."""
    parts = [pa.RecordBatch.from_pylist([], schema=arrow_schema(fields))]
    for file in files:
        pieces = file.live_batches(fields) if living else ((piece, None) for piece in file.pieces(fields))
        for piece, alive in pieces:
            rows = file.project(piece, fields)
            chosen = np.arange(rows.num_rows) if alive is None else np.flatnonzero(alive)
            parts.append(rows.take(pa.array(chosen[::step])))
    return pa.concat_batches(parts)


def count_parts(counts: dict[int, int], parts: Parts) -> None:
    """Note how many more rows each part has."""
    for part, rows in zip(*np.unique(parts, return_counts=True), strict=True):
        counts[int(part)] = counts.get(int(part), 0) + int(rows)


def arranged(metadata: TableMetadata, task: Task, sample: pa.RecordBatch | None) -> Arrangement:
    """The order that a task wants. `sample` has some of the living rows, which tell how many there are, as nobody could
    when the task was planned; without it there is one part, and z-order cannot be."""
    if sample is None:
        return ByOrder(metadata=metadata, splitters=pl.Series([], dtype=pl.Null), sample={})
    size = sample.num_rows * sample_step(task) * _row_bytes(task)
    if task.z_order:
        dimensions = z_dimensions(metadata, task.z_order)
        found = _ranks(metadata, dimensions, sample)
        clusters = Clusters.of(found, expected_files(size, task.target_bytes))
        return ByCurve(metadata=metadata, dimensions=dimensions, clusters=clusters, sampled=found)
    columns = arranged(metadata, task, None).columns(sample)
    first = pl.Series(pl.from_arrow(next(iter(columns.values())))).drop_nulls().sort()
    ranges = max(round(task.ranges * size / max(task.expected_bytes, 1)), 1)
    at = [len(first) * part // ranges for part in range(1, ranges)] if len(first) else []
    return ByOrder(metadata=metadata, splitters=first.gather(at).unique().sort(), sample=columns)


def _row_bytes(task: Task) -> float:
    """What a row is expected to weigh. What was planned knows the weight of footers; but if nearly all rows were thought to
    be dead, it is made of nothing else."""
    planned = task.expected_bytes / max(task.expected_rows, 1)
    return min(planned, task.input_bytes / max(int(task.data["record_count"].sum()), 1))


@dataclass(frozen=True, kw_only=True, eq=False)
class ByOrder:
    """By the table's sort order. Parts are ranges of the first key."""

    metadata: TableMetadata
    splitters: pl.Series
    """The greatest keys of all parts but the last."""
    sample: dict[str, pa.Array]

    @cached_property
    def keys(self) -> list[Key]:
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
        return len(self.splitters) + 1

    def columns(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        schema = self.metadata.schema()
        found = {}
        for key, field in zip(self.keys, sort_fields(self.metadata), strict=True):
            source = source_column(schema, field.source_id, rows)
            found[key.column] = _sortable(apply_transform(field.transform, schema.find_type(field.source_id), source))
        return found

    def parts(self, columns: dict[str, pa.Array]) -> Parts:
        first = self.keys[0]
        values = pl.Series(pl.from_arrow(columns[first.column]))
        if not len(self.splitters):
            return np.zeros(len(values), np.int32)
        found = self.splitters.search_sorted(values, side="left").to_numpy().astype(np.int32)
        last = len(self.splitters)
        found = last - found if first.descending else found
        found[values.is_null().to_numpy()] = last if first.nulls_last else 0
        return found

    parts_are_files = False

    def files(self, part: int) -> int:  # noqa: ARG002  # as any number of them
        return 0


@dataclass(frozen=True, kw_only=True, eq=False)
class ByCurve:
    """In z-order. Parts are the leaves of the tree."""

    metadata: TableMetadata
    dimensions: tuple[Dimension, ...]
    clusters: Clusters
    sampled: Ranks

    @property
    def keys(self) -> list[Key]:
        return [Key(column=PART), Key(column="\0key0")]

    @property
    def count(self) -> int:
        return len(self.clusters.files)

    @property
    def sample(self) -> dict[str, pa.Array]:
        return self._columns(self.sampled)

    def columns(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        return self._columns(_ranks(self.metadata, self.dimensions, rows))

    def _columns(self, found: Ranks) -> dict[str, pa.Array]:
        leaves = self.clusters.leaves(found)
        return {PART: pa.array(leaves), "\0key0": self.clusters.keys(found, leaves).cast(pa.binary())}

    def parts(self, columns: dict[str, pa.Array]) -> Parts:
        return np.asarray(columns[PART].to_numpy(), np.int32)

    parts_are_files = True

    def files(self, part: int) -> int:
        return int(self.clusters.files[part])


def _ranks(metadata: TableMetadata, dimensions: Sequence[Dimension], rows: pa.RecordBatch) -> Ranks:
    schema = metadata.schema()
    found = [
        ranks(dimension.type, source_column(schema, dimension.field_id, rows), dimension.prefix_bytes)
        for dimension in dimensions
    ]
    return np.column_stack(found)


def _sortable(values: pa.Array) -> pa.Array:
    """In a type that Polars orders as Iceberg does."""
    return values.cast(pa.binary()) if pa.types.is_fixed_size_binary(values.type) else values
