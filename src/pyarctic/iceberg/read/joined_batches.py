"""Batches of small files joined into larger ones. What is done with a batch costs the same for twenty rows as for thousands,
and a stream of commits leaves thousands of files with a few rows each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyarctic.iceberg.read.data_files import FileBatch

_JOINED_ROWS = 1 << 14
_JOINED_BYTES = 8 << 20
Owner = TypeVar("Owner")
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedBatch(Generic[Owner]):
    """Consecutive batches of files with the same schema as one batch."""

    owners: list[Owner]
    """What each batch belongs to, such as its file."""
    positions: Integers
    """For each batch the position of its first row in its file."""
    heights: Integers
    """The number of rows of each batch."""
    joined: FileBatch
    """All rows; its position has no meaning."""

    def of_rows(self, values: npt.NDArray[np.integer]) -> Integers:
        """For each row the value of its batch."""
        return np.repeat(values, self.heights)


def join_batches(batches: Iterable[tuple[Owner, FileBatch]]) -> Iterator[JoinedBatch[Owner]]:
    """Join consecutive batches that have the same schema, up to a size; rows stay in their order."""
    waiting: list[tuple[Owner, FileBatch]] = []
    rows = size = 0
    for owner, batch in batches:
        is_full = rows + batch.batch.num_rows > _JOINED_ROWS or size + batch.batch.nbytes > _JOINED_BYTES
        if waiting and (is_full or not _have_same_schema(waiting[0][1], batch)):
            yield _join(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append((owner, batch))
        rows, size = rows + batch.batch.num_rows, size + batch.batch.nbytes
    if waiting:
        yield _join(waiting)


def _have_same_schema(one: FileBatch, other: FileBatch) -> bool:
    """Whether columns of both files have the same names, types, ids and bloom filters."""
    return bool(
        one.batch.schema.equals(other.batch.schema, check_metadata=True)
        and one.file.schema.equals(other.file.schema, check_metadata=True)
        and one.file.names == other.file.names
        and one.file.bloom_filters == other.file.bloom_filters
    )


def _join(batches: list[tuple[Owner, FileBatch]]) -> JoinedBatch[Owner]:
    first = batches[0][1]
    joined = first
    if len(batches) > 1:
        joined = replace(first, position=0, batch=pa.concat_batches([batch.batch for _, batch in batches]))
    return JoinedBatch(
        owners=[owner for owner, _ in batches],
        positions=np.array([batch.position for _, batch in batches], np.int64),
        heights=np.array([batch.batch.num_rows for _, batch in batches], np.int64),
        joined=joined,
    )
