"""Merging the live rows of many files into few: in their order, sorted, or distributed by the current partition spec."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import numpy as np
import polars as pl
import pyarrow as pa
from pyiceberg.schema import Schema

from pyarctic.iceberg import partition_values
from pyarctic.iceberg.commit import ContentHash
from pyarctic.iceberg.delete import Mask
from pyarctic.iceberg.manifest import PartitionDecoder
from pyarctic.iceberg.read import filter_rows
from pyarctic.iceberg.write import NewFile
from pyarctic.optimizing.execute.kernel.copy_row_groups import RowGroupCopier
from pyarctic.optimizing.execute.kernel.external_sort import Key, Sorter
from pyarctic.optimizing.execute.kernel.inputs import MEMORY_SHARES, Attempt, KeyedAttempt
from pyarctic.optimizing.execute.kernel.keyed_sources import KeyedFiles
from pyarctic.optimizing.execute.kernel.outputs import Outputs, dictionary_columns, find_runs, hash_files
from pyarctic.optimizing.execute.kernel.row_map import NO_SOURCE, RowMapLog
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
from pyarctic.optimizing.execute.kernel.sources import RowCount, Sources, TaskFiles
from pyarctic.optimizing.protocol.result import TaskResult

_PARTITION = "\0partition"
_MIN_SAMPLE_STEP = 16
"""For rows that are sampled only to divide a sort; a larger sample would not divide it better."""


def merge(attempt: Attempt) -> TaskResult:
    """Write the live rows of a task's files into new files."""
    sources = KeyedFiles(attempt) if isinstance(attempt, KeyedAttempt) else TaskFiles(attempt)
    with sources, _Merge(attempt, sources) as running:
        running.run()
        return running.result()


class _Merge:
    def __init__(self, attempt: Attempt, sources: Sources) -> None:
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
        self._partitions: dict[str, tuple[int, tuple[Any, ...]]] = {}
        """Partitions in order of appearance. By their key as text: 0.0 and -0.0 are equal, but not the same partition."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._log.__exit__(kind, error, trace)
        if kind is not None:
            self._outputs.abort()

    @property
    def _must_sort(self) -> bool:
        return self._attempt.task.sort or self._attempt.task.partition_key is None

    def run(self) -> None:
        if self._must_sort:
            self._choose_dictionaries()
            self._merge_sorted()
        elif not self._merge_by_copying():
            self._choose_dictionaries()
            self._merge_in_order()

    def _choose_dictionaries(self) -> None:
        self._outputs.dictionaries = dictionary_columns(self._attempt, self._sources.file_list, self._fields)

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
        for source, position, rows, is_live in self._live_rows():
            self._log.add_batch(source, position, rows.num_rows if is_live is None else len(is_live), is_live)
            self._outputs.write(rows, target, expected_rows=expected_rows)

    def _merge_sorted(self) -> None:
        task, metadata = self._attempt.task, self._attempt.job.metadata
        if task.sort:
            sample = None
            if task.z_order:
                fields = order_fields(metadata, task)
                sample = sample_rows(self._sources.files(), fields, sample_step(task), live_only=True)
            self._order = make_row_order(metadata, task, sample)
        keys = self._order.keys if self._order is not None else []
        if task.partition_key is None:
            keys = [Key(column=_PARTITION), *keys]
        memory = self._attempt.job.memory_bytes // (2 * MEMORY_SHARES)
        with Sorter(keys, memory, self._sample_first_key, sample_step=self._sample_step) as sorter:
            for source, position, rows, is_live in self._live_rows():
                sorter.add(self._with_sort_columns(rows, source, position, is_live))
            for batch in sorter.batches():
                self._log.add_rows(batch.column(SOURCE).to_numpy(), batch.column(POSITION).to_numpy())
                self._write_sorted(batch)

    def _live_rows(self) -> Iterator[tuple[int, int, pa.RecordBatch, Mask | None]]:
        """Number of the file, position of the batch, its live rows, and which of its rows are live."""
        dictionaries = not self._must_sort and self._hash_in is None
        for file in self._sources.files():
            source = self._source_numbers.get(file.path, NO_SOURCE)
            row_bytes = file.row["file_size_bytes"] / max(file.row["record_count"], 1)
            rows_read = 0
            for batch, is_live in file.live_batches(self._fields, dictionaries=dictionaries):
                rows = file.project(batch, self._fields)
                if is_live is not None:
                    rows = filter_rows(rows, is_live)
                batch_rows = batch.batch.num_rows
                rows_read += batch_rows
                if self._hash_in is not None:
                    self._hash_in.add(rows)
                self._attempt.progress(batch_rows, int(row_bytes * batch_rows))
                yield source, batch.position, rows, is_live
            self._count.add(file, rows_read, is_replaced=source != NO_SOURCE)

    def _with_sort_columns(self, rows: pa.RecordBatch, source: int, position: int, is_live: Mask | None) -> pa.RecordBatch:
        row_numbers = np.arange(rows.num_rows) if is_live is None else np.flatnonzero(is_live)
        columns: dict[str, Any] = {
            SOURCE: pa.array(np.full(rows.num_rows, source, np.int32)),
            POSITION: pa.array(row_numbers.astype(np.int64) + position),
        }
        columns |= self._key_columns(rows)
        if self._order is not None:
            count_parts(self._part_rows, self._order.parts(columns))
        for name, column in columns.items():
            rows = rows.append_column(name, column)
        return rows

    def _key_columns(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        """The columns to sort by, in this order."""
        columns: dict[str, pa.Array] = {}
        metadata = self._attempt.job.metadata
        if self._attempt.task.partition_key is None:
            spec = metadata.specs()[self._attempt.task.spec_id]
            codes, partitions = partition_values(spec, metadata.schema(), rows)
            numbers = np.array([self._partition_number(values) for values in partitions], np.int32)
            columns[_PARTITION] = pa.array(numbers[codes])
        return columns | (self._order.columns(rows) if self._order is not None else {})

    def _partition_number(self, values: tuple[Any, ...]) -> int:
        return self._partitions.setdefault(PartitionDecoder.key_of(values), (len(self._partitions), values))[0]

    @property
    def _sample_step(self) -> int:
        return max(sample_step(self._attempt.task), _MIN_SAMPLE_STEP)

    def _sample_first_key(self) -> pl.Series:
        """Some values of the first key of all rows."""
        task, metadata = self._attempt.task, self._attempt.job.metadata
        fields = order_fields(metadata, task) if task.sort else []
        if task.partition_key is None:
            source_ids = {field.source_id for field in metadata.specs()[task.spec_id].fields}
            fields += [
                field
                for field in metadata.schema().fields
                if field not in fields and source_ids & set(Schema(field).field_ids)
            ]
        files = self._sources.files_without_equality_deletes()
        rows = sample_rows(files, fields, self._sample_step, live_only=False)
        return pl.Series(pl.from_arrow(next(iter(self._key_columns(rows).values()))))

    def _write_sorted(self, batch: pa.RecordBatch) -> None:
        rows, target = batch.select(self._names), self._attempt.target()
        if self._attempt.task.partition_key is not None and self._order is not None:
            self._outputs.write_parts(batch, rows, target, self._order, self._part_rows)
            return
        codes = batch.column(_PARTITION).to_numpy()
        partitions = [values for _, values in self._partitions.values()]
        for start, end in find_runs(codes):
            self._outputs.write(rows.slice(start, end - start), replace(target, partition=partitions[codes[start]]))

    def result(self) -> TaskResult:
        files = list(self._outputs.finish())
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
