"""Sorting rows within a memory budget.

Rows are collected until they no longer fit into memory. Then they are divided by ranges of the first key, chosen from a
sample of all input, and each range is spilled to a file of its own, which is later sorted in memory. Values that are so
frequent that they fill a range alone get one that is sorted by the remaining keys, or needs no sorting.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from pyarctic.config import spill_dir

Order = npt.NDArray[np.int64]
_OUTPUT_ROWS = 128 << 10
_MAX_RANGES = 128
_SAMPLE_STEP = 16
"""A sample has every sixteenth row, unless another step is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One column of the sorted batches, and its direction."""

    column: str
    descending: bool = False
    nulls_last: bool = False


class Sorter:
    """Sorts batches. Equal rows keep their order.

    with Sorter([Key(column="id")], memory_bytes=1 << 30, sample=sample_ids) as sorter:
        for batch in batches:
            sorter.add(batch)
        yield from sorter.batches()
    """

    def __init__(
        self,
        keys: Sequence[Key],
        memory_bytes: int,
        sample: Callable[[], pl.Series],
        folder: Path | None = None,
        sample_step: int | None = None,
    ) -> None:
        """`sample` returns values of the first key of all rows that will be added, one of `sample_step`; it is called only
        if they do not fit into memory."""
        self._keys = list(keys)
        self._memory = memory_bytes
        self._sample = sample
        self._sample_step = sample_step or _SAMPLE_STEP
        self._folder = folder
        self._own_folder: Path | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._ranges: _Ranges | None = None
        self.spilled_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if self._ranges is not None:
                with contextlib.suppress(*([OSError] if kind else [])):  # a full disk fails again here
                    self._ranges.close()
        finally:
            if self._own_folder is not None:
                shutil.rmtree(self._own_folder, ignore_errors=True)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        if not batch.num_rows:
            return
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes > self._memory:
            self._spill()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows in order. Call once, after the last `add`."""
        if self._ranges is None:
            yield from self._sort_in_memory(self._waiting)
            return
        self._spill()
        for path, has_one_value, size in self._ranges.files():
            keys = self._keys[1:] if has_one_value else self._keys
            if not keys:
                yield from _read_spilled(path)
            elif size <= 2 * self._memory or not (has_one_value or self._ranges.is_coarse):
                yield from self._sort_in_memory(list(_read_spilled(path)))
            else:
                yield from self._sort_spilled(keys, path)
            path.unlink()

    def _sort_spilled(self, keys: list[Key], path: Path) -> Iterator[pa.RecordBatch]:
        def sample() -> pl.Series:
            return pl.concat([_key_values(batch, keys[0]).gather_every(_SAMPLE_STEP) for batch in _read_spilled(path)])

        with Sorter(keys, self._memory, sample, self._folder) as sorter:
            for batch in _read_spilled(path):
                sorter.add(batch)
            yield from sorter.batches()

    def _sort_in_memory(self, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if not batches:
            return
        table = pa.Table.from_batches(batches).combine_chunks()
        batches.clear()
        order = pa.array(sort_order(table, self._keys))
        for start in range(0, len(order), _OUTPUT_ROWS):
            yield from table.take(order.slice(start, _OUTPUT_ROWS)).combine_chunks().to_batches()

    def _spill(self) -> None:
        if self._ranges is None:
            if self._folder is None:
                self._folder = self._own_folder = Path(tempfile.mkdtemp(dir=spill_dir(), prefix="arctic-sort-"))
            # A range must fit with room to spare, since the sample is not exact.
            self._ranges = _Ranges(self._keys[0], self._sample(), self._sample_step, self._folder, self._memory // 2)
        # All at once: each range gets one batch of them, and not a small one of each.
        self.spilled_bytes += self._waiting_bytes
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        table = pa.Table.from_batches(waiting).combine_chunks() if waiting else None
        waiting.clear()
        for batch in table.to_batches() if table is not None else ():
            self._ranges.add(batch)


def sort_order(table: pa.Table, keys: Sequence[Key]) -> Order:
    """The row numbers in sorted order."""
    columns = {str(number): pl.Series(pl.from_arrow(table.column(key.column))) for number, key in enumerate(keys)}
    order = pl.DataFrame(columns).select(
        pl.arg_sort_by(
            list(columns),
            descending=[key.descending for key in keys],
            nulls_last=[key.nulls_last for key in keys],
            maintain_order=True,
        )
    )
    return order.to_series().to_numpy().astype(np.int64)


class _Ranges:
    """Spilled files, by ranges of one key: values between two splitters, and values equal to one of them."""

    def __init__(self, key: Key, sample: pl.Series, sample_step: int, folder: Path, memory_bytes: int) -> None:
        self.is_coarse = False
        """Whether more ranges are needed than files can be open at a time: each is divided again."""
        self._key = key
        self._sample_step = sample_step
        self._folder = folder
        self._memory = memory_bytes
        self._sample = sample.drop_nulls().sort()
        self._splitters: pl.Series | None = None
        self._files: dict[int, tuple[Path, pa.ipc.RecordBatchStreamWriter, pa.OSFile]] = {}
        self._sizes: dict[int, int] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Spill rows."""
        numbers = self._range_numbers(_key_values(batch, self._key), self._choose_splitters(batch))
        order = np.argsort(numbers, kind="stable")
        rows = batch.take(pa.array(order))
        starts = np.flatnonzero(np.diff(numbers[order], prepend=np.iinfo(np.int64).min))
        for start, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
            self._write(int(numbers[order[start]]), rows.slice(start, end - start))

    def _range_numbers(self, values: pl.Series, splitters: pl.Series) -> npt.NDArray[np.int64]:
        """The range of each value. Odd numbers are ranges of values equal to a splitter."""
        numbers = 2 * splitters.search_sorted(values, side="left").to_numpy().astype(np.int64)
        if len(splitters):
            # Values equal to a splitter come after those below it: comparing is cheaper than searching again.
            nearest = splitters.gather(np.minimum(numbers // 2, len(splitters) - 1))
            numbers += (nearest == values).fill_null(value=False).to_numpy()
        # The order of ranges follows the direction; nulls come first or last whatever the direction.
        last = 2 * len(splitters)
        numbers = last - numbers if self._key.descending else numbers
        numbers[values.is_null().to_numpy()] = last + 1 if self._key.nulls_last else -1
        return numbers

    def _choose_splitters(self, batch: pa.RecordBatch) -> pl.Series:
        if self._splitters is None:
            expected_bytes = len(self._sample) * self._sample_step * batch.nbytes / batch.num_rows
            wanted = max(int(expected_bytes // self._memory) + 1, 2)
            ranges = min(wanted, _MAX_RANGES)
            self.is_coarse = ranges < wanted
            rows = len(self._sample)
            indexes = [rows * number // ranges for number in range(1, ranges)] if rows else []
            self._splitters = self._sample.gather(indexes).unique().sort()
            self._sample = self._sample.clear()
        return self._splitters

    def _write(self, number: int, rows: pa.RecordBatch) -> None:
        if number not in self._files:
            path = self._folder / f"{uuid4()}.arrows"
            sink = pa.OSFile(str(path), "wb")
            # Not compressed: it is read once, soon, and mostly from the page cache.
            self._files[number] = (path, pa.ipc.new_stream(sink, rows.schema), sink)
        self._files[number][1].write_batch(rows)
        self._sizes[number] = self._sizes.get(number, 0) + rows.nbytes

    def files(self) -> Iterator[tuple[Path, bool, int]]:
        """The files in order: path, whether all rows have one value of the key, size in memory."""
        self.close()
        last = 2 * len(self._splitters) if self._splitters is not None else 0
        for number in sorted(self._files):
            has_one_value = number in (-1, last + 1) or number % 2 == 1
            yield self._files[number][0], has_one_value, self._sizes[number]

    def close(self) -> None:
        """Close all files."""
        for _, writer, sink in self._files.values():
            if not sink.closed:
                writer.close()
                sink.close()


def _key_values(batch: pa.RecordBatch, key: Key) -> pl.Series:
    return pl.Series(pl.from_arrow(batch.column(key.column)))


def _read_spilled(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(str(path), "rb") as source, pa.ipc.open_stream(source) as reader:
        yield from reader
