"""Merging the live rows of many files into few: in their order, sorted, or distributed by the current partition spec."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
from numpy.typing import ArrayLike

from pyarctic.iceberg.commit import ContentHash
from pyarctic.iceberg.delete import Mask
from pyarctic.iceberg.read import DataFileReader, filter_rows, group_small_files, joined_live_batches
from pyarctic.iceberg.write import NewFile
from pyarctic.optimizing.execute.kernel.copy_row_groups import RowGroupCopier
from pyarctic.optimizing.execute.kernel.external_sort import Key, Sorter
from pyarctic.optimizing.execute.kernel.inputs import MEMORY_SHARES, Attempt, KeyedAttempt
from pyarctic.optimizing.execute.kernel.keyed_sources import KeyedFiles
from pyarctic.optimizing.execute.kernel.outputs import Outputs, find_runs, hash_files
from pyarctic.optimizing.execute.kernel.row_map import NO_SOURCE, Integers, RowMapLog
from pyarctic.optimizing.execute.kernel.row_order import (
    POSITION,
    SOURCE,
    RowOrder,
    count_parts,
    make_row_order,
    order_fields,
    sample_rows,
    sample_step,
)
from pyarctic.optimizing.execute.kernel.row_partitions import RowPartitions, TooManyFiles
from pyarctic.optimizing.execute.kernel.sources import RowCount, Sources, TaskFiles
from pyarctic.optimizing.protocol.result import TaskResult

_PARTITION = "\0partition"
_MIN_SAMPLE_STEP = 16
"""For rows that are sampled only to divide a sort; a larger sample would not divide it better."""


def merge(attempt: Attempt) -> TaskResult:
    """Write the live rows of a task's files into new files."""
    try:
        return _merge(attempt)
    except TooManyFiles:
        attempt.restart()
        return _merge(attempt, keeps_partitions=True)


def _merge(attempt: Attempt, *, keeps_partitions: bool = False) -> TaskResult:
    sources = KeyedFiles(attempt) if isinstance(attempt, KeyedAttempt) else TaskFiles(attempt)
    with sources, _Merge(attempt, sources, keeps_partitions=keeps_partitions) as running:
        running.run()
        return running.result()


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRows:
    """The live rows of a batch, which has consecutive rows of one file, or of several small ones."""

    rows: pa.RecordBatch
    is_live: Mask | None
    """Which rows of the batch these are; None: all."""
    sources: Integers
    """The numbers of the files."""
    positions: Integers
    """The positions of their first rows in the batch."""
    heights: Integers
    """The numbers of their rows in the batch."""

    @classmethod
    def of(
        cls, rows: pa.RecordBatch, is_live: Mask | None, sources: ArrayLike, positions: ArrayLike, heights: ArrayLike
    ) -> Self:
        """The live ones of all rows of a batch."""
        return cls(
            rows=rows if is_live is None else filter_rows(rows, is_live),
            is_live=is_live,
            sources=np.asarray(sources, np.int64),
            positions=np.asarray(positions, np.int64),
            heights=np.asarray(heights, np.int64),
        )

    def row_sources(self) -> npt.NDArray[np.int32]:
        """For each live row the number of its file."""
        return self._live(np.repeat(self.sources.astype(np.int32), self.heights))

    def row_positions(self) -> Integers:
        """For each live row its position in its file."""
        starts = np.cumsum(self.heights) - self.heights
        return self._live(np.arange(self.heights.sum()) + np.repeat(self.positions - starts, self.heights))

    def _live(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return values if self.is_live is None else values[self.is_live]


class _Merge:
    def __init__(self, attempt: Attempt, sources: Sources, *, keeps_partitions: bool) -> None:
        self._attempt = attempt
        self._sources = sources
        self._fields = attempt.context.output_fields
        self._names = [field.name for field in self._fields]
        self._source_numbers = {path: number for number, path in enumerate(sources.replaced_paths)}
        self._order: RowOrder | None = None
        self._part_rows: dict[int, int] = {}
        self._log = RowMapLog()
        self._outputs = Outputs(attempt)
        self._hash_in = ContentHash() if attempt.job.verify else None
        self._count = RowCount()
        self._copied_rows = 0
        self._partitions: RowPartitions | None = None
        if attempt.task.partition_key is None:
            self._partitions = RowPartitions(attempt, sources.file_list, keep=keeps_partitions)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._log.__exit__(kind, error, trace)
        if kind is not None:
            self._outputs.abort()

    @property
    def _must_sort(self) -> bool:
        return self._attempt.task.sort or self._partitions is not None

    def run(self) -> None:
        if self._must_sort:
            self._merge_sorted()
        elif not self._merge_by_copying():
            self._merge_in_order()

    def _merge_by_copying(self) -> bool:
        """Copy row groups as is, if that is possible for most of them."""
        with RowGroupCopier(self._attempt, self._sources, self._log, self._source_numbers) as copier:
            if not copier.is_worthwhile():
                return False
            self._outputs.add(copier.run())
        if self._hash_in is not None:
            for _ in self._live_rows():
                pass
        self._count, self._copied_rows = copier.count, copier.copied_rows
        return True

    def _merge_in_order(self) -> None:
        target, expected_rows = self._attempt.target(), self._attempt.task.expected_rows
        for batch in self._live_rows():
            if len(batch.sources) == 1:
                source, position, height = (int(part[0]) for part in (batch.sources, batch.positions, batch.heights))
                self._log.add_batch(source, position, height, batch.is_live)
            else:
                self._log.add_rows(batch.row_sources(), batch.row_positions())
            self._outputs.write(batch.rows, target, expected_rows=expected_rows)

    def _merge_sorted(self) -> None:
        task, metadata = self._attempt.task, self._attempt.job.metadata
        if task.sort:
            sample = None
            if task.z_order:
                fields = order_fields(metadata, task)
                sample = sample_rows(self._sources.files(), fields, sample_step(task), live_only=True)
            self._order = make_row_order(metadata, task, sample)
        keys = self._order.keys if self._order is not None else []
        if self._partitions is not None:
            keys = [Key(column=_PARTITION), *keys]
        memory = self._attempt.job.memory_bytes // (2 * MEMORY_SHARES)
        with Sorter(keys, memory, self._sample_first_key, sample_step=self._sample_step) as sorter:
            for live in self._live_rows():
                sorter.add(self._with_sort_columns(live))
            if self._partitions is not None:
                self._partitions.check()
            for batch in sorter.batches():
                self._log.add_rows(batch.column(SOURCE).to_numpy(), batch.column(POSITION).to_numpy())
                self._write_sorted(batch)

    def _live_rows(self) -> Iterator[LiveRows]:
        for files in group_small_files(self._sources.files()):
            yield from self._rows_of_file(files[0]) if len(files) == 1 else self._rows_of_small_files(files)

    def _rows_of_file(self, file: DataFileReader) -> Iterator[LiveRows]:
        dictionaries = not self._must_sort and self._hash_in is None
        source = self._source_numbers.get(file.path, NO_SOURCE)
        row_bytes = file.row["file_size_bytes"] / max(file.row["record_count"], 1)
        rows_read = 0
        for batch, is_live in file.live_batches(self._fields, dictionaries=dictionaries):
            height = batch.batch.num_rows
            live = LiveRows.of(file.project(batch, self._fields), is_live, [source], [batch.position], [height])
            rows_read += height
            self._outputs.bloom_filters |= batch.file.bloom_filter_ids
            self._note_read(live, height, int(row_bytes * height))
            yield live
        self._count.add(file, rows_read, is_replaced=source != NO_SOURCE)

    def _rows_of_small_files(self, files: list[DataFileReader]) -> Iterator[LiveRows]:
        size = sum(file.row["file_size_bytes"] for file in files)
        row_bytes = size / max(sum(file.row["record_count"] for file in files), 1)
        for batch, rows, is_live in joined_live_batches(files, self._fields):
            sources = [self._source_numbers.get(file.path, NO_SOURCE) for file in batch.owners]
            self._outputs.bloom_filters |= batch.joined.file.bloom_filter_ids
            live = LiveRows.of(rows, is_live, sources, batch.positions, batch.heights)
            self._note_read(live, rows.num_rows, int(row_bytes * rows.num_rows))
            for file, source, height in zip(batch.owners, sources, batch.heights.tolist(), strict=True):
                self._count.add(file, height, is_replaced=source != NO_SOURCE)
            yield live

    def _note_read(self, live: LiveRows, rows: int, size: int) -> None:
        if self._hash_in is not None:
            self._hash_in.add(live.rows)
        self._attempt.progress(rows, size)

    def _with_sort_columns(self, live: LiveRows) -> pa.RecordBatch:
        rows, sources = live.rows, live.row_sources()
        columns: dict[str, Any] = {SOURCE: pa.array(sources), POSITION: pa.array(live.row_positions())}
        if self._partitions is not None:
            numbers = self._partitions.of_rows(rows, sources)
            self._partitions.count(numbers)
            columns[_PARTITION] = pa.array(numbers)
        if self._order is not None:
            columns |= self._order.columns(rows)
            count_parts(self._part_rows, self._order.parts(columns))
        for name, column in columns.items():
            rows = rows.append_column(name, column)
        return rows

    @property
    def _sample_step(self) -> int:
        return max(sample_step(self._attempt.task), _MIN_SAMPLE_STEP)

    def _sample_first_key(self) -> pl.Series:
        """Some values of the first key of all rows."""
        step, metadata = self._sample_step, self._attempt.job.metadata
        fields = order_fields(metadata, self._attempt.task) if self._partitions is None else self._partitions.sources()
        rows = sample_rows(self._sources.files_without_equality_deletes(), fields, step, live_only=False)
        if self._partitions is not None:
            return pl.Series(self._partitions.of_sample(rows, step))
        columns = self._order.columns(rows) if self._order is not None else {}
        return pl.Series(pl.from_arrow(next(iter(columns.values()))))

    def _write_sorted(self, batch: pa.RecordBatch) -> None:
        rows = batch.select(self._names)
        if self._partitions is not None:
            self._write_partitions(batch.column(_PARTITION).to_numpy(), rows, self._partitions)
        elif self._order is not None:
            self._outputs.write_parts(batch, rows, self._attempt.target(), self._order, self._part_rows)

    def _write_partitions(self, numbers: npt.NDArray[np.int32], rows: pa.RecordBatch, partitions: RowPartitions) -> None:
        for start, end in find_runs(numbers):
            number = int(numbers[start])
            self._outputs.write(
                rows.slice(start, end - start),
                partitions.target(number),
                expected_rows=partitions.rows(number),
                one_file=partitions.is_one_file(number),
            )

    def result(self) -> TaskResult:
        files = list(self._outputs.finish())
        if self._partitions is not None:
            self._partitions.check_written(len(files))
        deletes: list[NewFile] = []
        for delete in self._sources.write_deletes():
            deletes.append(delete)
            self._outputs.add([delete])  # removed with them if the task fails
        row_map = self._log.save(self._attempt.target(), self._sources.replaced_paths, files)
        shared = self._sources.shared_files
        shared_rows = sum(file.record_count for file in shared)
        sequence_number = self._attempt.job.sequence_number
        numbered = [replace(file, data_sequence_number=sequence_number) for file in (*files, *shared)]
        return TaskResult(
            task=self._attempt.task.id,
            attempt=self._attempt.number,
            add=(*numbered, *deletes),
            rows_in=self._count.rows + shared_rows,
            rows_deleted=self._count.rows - self._log.rows,
            rows_out=sum(file.record_count for file in files) + shared_rows,
            rows_from_changes=self._count.from_changes + shared_rows,
            shared_files=tuple(file.path for file in shared),
            files_with_rewritten_deletes=tuple(self._sources.files_with_rewritten_deletes),
            copied_rows=self._copied_rows,
            hash_in=self._hash_in.text() if self._hash_in else None,
            hash_out=hash_files(self._attempt, files, self._fields) if self._hash_in else None,
            row_map=row_map,
        )
