"""Sorting rows within a memory budget.

Rows are collected until they no longer fit. Then they are divided by ranges of the first key, chosen from a sample of all
input, and each range goes to a file of its own; a range is later sorted in memory. Values so frequent that they fill a
range alone get one that is divided by the remaining keys, or needs no sorting.
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
_EMIT_ROWS = 128 << 10
_MOST_RANGES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One column of the batches that are sorted, and its direction."""

    column: str
    descending: bool = False
    nulls_last: bool = False


class Sorter:
    """Takes batches, gives them back as one sorted sequence. Equal rows stay in the order they came in."""

    def __init__(
        self,
        keys: Sequence[Key],
        memory_bytes: int,
        sample: Callable[[], pl.Series],
        folder: Path | None = None,
        sample_step: int | None = None,
    ) -> None:
        """`sample` gives some values of the first key over all rows that will come, one of `sample_step`; it is asked only
        when they do not fit."""
        self._keys = list(keys)
        self._memory = memory_bytes
        self._sample = sample
        self._sample_step = sample_step or _SAMPLE_EVERY
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
                with contextlib.suppress(*([OSError] if kind else [])):  # a full disk is full also for the rest
                    self._ranges.close()
        finally:
            if self._own_folder is not None:
                shutil.rmtree(self._own_folder, ignore_errors=True)

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes > self._memory:
            self._spill()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows in order. Call once, after the last `add`."""
        if self._ranges is None:
            yield from self._sorted(self._waiting)
            return
        self._spill()
        for path, constant, size in self._ranges.finished():
            rest = self._keys[1:] if constant else self._keys
            if not rest:
                yield from _stored(path)
            elif size <= 2 * self._memory or not (constant or self._ranges.is_coarse):
                yield from self._sorted(list(_stored(path)))
            else:
                yield from self._sorted_by(rest, path)
            path.unlink()

    def _sorted_by(self, keys: list[Key], path: Path) -> Iterator[pa.RecordBatch]:
        def sample() -> pl.Series:
            parts = [_column(batch, keys[0]).gather_every(_SAMPLE_EVERY) for batch in _stored(path)]
            return pl.concat(parts)

        with Sorter(keys, self._memory, sample, self._folder) as inner:
            for batch in _stored(path):
                inner.add(batch)
            yield from inner.batches()

    def _sorted(self, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if not batches:
            return
        table = pa.Table.from_batches(batches).combine_chunks()
        batches.clear()
        order = pa.array(sort_order(table, self._keys))
        for start in range(0, len(order), _EMIT_ROWS):
            yield from table.take(order.slice(start, _EMIT_ROWS)).combine_chunks().to_batches()

    def _spill(self) -> None:
        if self._ranges is None:
            if self._folder is None:
                self._folder = self._own_folder = Path(tempfile.mkdtemp(dir=spill_dir(), prefix="arctic-sort-"))
            # A range must fit with room to spare, whatever the sample missed.
            self._ranges = _Ranges(self._keys[0], self._sample(), self._sample_step, self._folder, self._memory // 2)
        # All at once: a range gets one piece of them, and not a sliver of each.
        self.spilled_bytes += self._waiting_bytes
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        together = pa.Table.from_batches(waiting).combine_chunks() if waiting else None
        waiting.clear()
        for batch in together.to_batches() if together is not None else ():
            self._ranges.add(batch)


def sort_order(table: pa.Table, keys: Sequence[Key]) -> Order:
    """Row numbers in sorted order."""
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
    """Files of rows by ranges of one key: between two splitting values, and equal to one of them."""

    def __init__(self, key: Key, sample: pl.Series, sample_step: int, folder: Path, memory_bytes: int) -> None:
        self.is_coarse = False
        """Whether there would have to be more ranges than files can be open at a time: each is divided again."""
        self._key = key
        self._sample_step = sample_step
        self._folder = folder
        self._memory = memory_bytes
        self._sample = sample.drop_nulls().sort()
        self._splitters: pl.Series | None = None
        self._files: dict[int, tuple[Path, pa.ipc.RecordBatchStreamWriter, pa.OSFile]] = {}
        self._sizes: dict[int, int] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        values = _column(batch, self._key)
        splitters = self._chosen(batch)
        places = 2 * splitters.search_sorted(values, side="left").to_numpy().astype(np.int64)
        if len(splitters):
            # Those equal to a splitting value come behind those below it: cheaper to compare than to search again.
            nearest = splitters.gather(np.minimum(places // 2, len(splitters) - 1))
            places += (nearest == values).fill_null(value=False).to_numpy()
        nulls = values.is_null().to_numpy()
        # The order of ranges follows the direction; nulls stand where they are wanted, whatever the direction.
        most = 2 * len(splitters)
        places = most - places if self._key.descending else places
        places[nulls] = most + 1 if self._key.nulls_last else -1
        order = np.argsort(places, kind="stable")
        taken = batch.take(pa.array(order))
        bounds = np.flatnonzero(np.diff(places[order], prepend=np.iinfo(np.int64).min))
        for start, end in zip(bounds, [*bounds[1:], batch.num_rows], strict=True):
            self._write(int(places[order[start]]), taken.slice(start, end - start))

    def _chosen(self, batch: pa.RecordBatch) -> pl.Series:
        if self._splitters is None:
            expected = len(self._sample) * self._sample_step * batch.nbytes / batch.num_rows
            wanted = max(int(expected // self._memory) + 1, 2)
            parts = min(wanted, _MOST_RANGES)
            self.is_coarse = parts < wanted
            at = [len(self._sample) * part // parts for part in range(1, parts)] if len(self._sample) else []
            self._splitters = self._sample.gather(at).unique().sort()
            self._sample = self._sample.clear()
        return self._splitters

    def _write(self, place: int, rows: pa.RecordBatch) -> None:
        if place not in self._files:
            path = self._folder / f"{uuid4()}.arrows"
            sink = pa.OSFile(str(path), "wb")
            # Not compressed: it is read once, soon, and mostly from memory that is free anyway.
            self._files[place] = (path, pa.ipc.new_stream(sink, rows.schema), sink)
        self._files[place][1].write_batch(rows)
        self._sizes[place] = self._sizes.get(place, 0) + rows.nbytes

    def finished(self) -> Iterator[tuple[Path, bool, int]]:
        """The files in order: path, whether all rows have one value of the key, bytes in memory."""
        self.close()
        most = 2 * len(self._splitters) if self._splitters is not None else 0
        for place in sorted(self._files):
            constant = place in (-1, most + 1) or place % 2 == 1
            yield self._files[place][0], constant, self._sizes[place]

    def close(self) -> None:
        for _, writer, sink in self._files.values():
            if not sink.closed:
                writer.close()
                sink.close()


_SAMPLE_EVERY = 16
"""A sample holds every sixteenth row, unless it is told otherwise."""


def _column(batch: pa.RecordBatch, key: Key) -> pl.Series:
    return pl.Series(pl.from_arrow(batch.column(key.column)))


def _stored(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(str(path), "rb") as source, pa.ipc.open_stream(source) as reader:
        yield from reader
