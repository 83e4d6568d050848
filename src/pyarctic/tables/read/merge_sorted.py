"""Merging sorted streams of batches: within bounded memory, and with a bounded number of open files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from heapq import heappop, heappush
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyarctic.config import spill_dir

MAX_OPEN = 64
"""So many streams are merged at a time. The results of merging more are spilled, and merged again."""
_BATCH_ROWS = 128 << 10
_NOT_READ = int(np.iinfo(np.int64).min)

Batches = Iterator[pa.RecordBatch]


def merge_sorted(streams: Sequence[Batches], order: Sequence[str], memory_bytes: int) -> Batches:
    """The rows of all streams, sorted by the columns `order`. The streams are sorted by the first of them, an integer; their
    files are opened by the first batch. About `memory_bytes` of rows are held, and as much again while they are sorted."""
    if len(streams) <= MAX_OPEN:
        yield from _merge(streams, order, memory_bytes)
        return
    with tempfile.TemporaryDirectory(dir=spill_dir(), prefix="arctic-merge-") as folder:
        parts = [streams[start : start + MAX_OPEN] for start in range(0, len(streams), MAX_OPEN)]
        batch_bytes = max(memory_bytes // (2 * len(parts)), 1)
        runs = [
            _spill(_merge(part, order, memory_bytes), Path(folder) / f"{number}.arrows", batch_bytes)
            for number, part in enumerate(parts)
        ]
        yield from merge_sorted([_read_spilled(run) for run in runs], order, memory_bytes)


def _merge(streams: Sequence[Batches], order: Sequence[str], memory_bytes: int) -> Batches:
    """Below the least value that a stream has reached, all rows are there and can be sorted; rows with that value may
    follow. The stream that has come least far is read on, until the memory is used."""
    readers = [_Stream(batches, order[0]) for batches in streams]
    # The value that a stream has reached, and its number; streams that have ended are not there.
    reached = [(_NOT_READ, number) for number in range(len(readers))]
    merged, held_bytes = _NOT_READ, 0
    while reached:
        while reached and (reached[0][0] <= merged or held_bytes < memory_bytes):
            value, number = heappop(reached)
            batch = readers[number].read()
            if batch is not None:
                held_bytes += batch.nbytes
                heappush(reached, (max(value, readers[number].last_value), number))
        merged = reached[0][0] if reached else merged
        taken = [part for reader in readers for part in reader.take(merged if reached else None)]
        held_bytes = sum(reader.nbytes for reader in readers)
        if taken:
            rows = concat_batches(taken)
            taken.clear()
            yield from _sort(rows, order)


class _Stream:
    """A sorted stream, and the batches of it that are held."""

    def __init__(self, batches: Batches, column: str) -> None:
        self._batches, self._column = batches, column
        self._held: list[pa.RecordBatch] = []
        self.last_value = _NOT_READ

    @property
    def nbytes(self) -> int:
        return sum(batch.nbytes for batch in self._held)

    def read(self) -> pa.RecordBatch | None:
        """Hold one batch more; None at the end."""
        batch = next(self._batches, None)
        if batch is not None and batch.num_rows:
            self._held.append(batch)
            self.last_value = batch.column(self._column)[-1].as_py()
        return batch

    def take(self, below: int | None) -> Batches:
        """Remove the rows below a value, or all, from those that are held."""
        while self._held:
            batch = self._held[0]
            end = batch.num_rows
            if below is not None:
                end = int(np.searchsorted(batch.column(self._column).to_numpy(), below, side="left"))
            if end:
                yield batch.slice(0, end)
            if end < batch.num_rows:
                self._held[0] = batch.slice(end)
                return
            del self._held[0]


def _sort(rows: pa.RecordBatch, order: Sequence[str]) -> Batches:
    indices = pc.sort_indices(rows, [(name, "ascending") for name in order])
    for start in range(0, len(indices), _BATCH_ROWS):
        yield rows.take(indices.slice(start, _BATCH_ROWS))


def concat_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch of several."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _spill(batches: Batches, path: Path, batch_bytes: int) -> Path:
    """Write a stream to disk, in batches of about this size."""
    with pa.OSFile(str(path), "wb") as sink, ExitStack() as stack:
        writer: pa.ipc.RecordBatchStreamWriter | None = None
        for batch in batches:
            writer = writer or stack.enter_context(pa.ipc.new_stream(sink, batch.schema))
            rows = max(batch.num_rows * batch_bytes // max(batch.nbytes, 1), 1)
            writer.write_table(pa.Table.from_batches([batch]), max_chunksize=rows)
    return path


def _read_spilled(path: Path) -> Batches:
    if path.stat().st_size:  # otherwise there were no rows
        with pa.OSFile(str(path), "rb") as source, pa.ipc.open_stream(source) as reader:
            yield from reader
