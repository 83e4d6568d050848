"""Living rows of many files into few: in the order they have, or sorted, or distributed by the current partition spec."""

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
from pyarctic.optimizing.execute.kernel.copy_row_groups import Copier
from pyarctic.optimizing.execute.kernel.external_sort import Key, Sorter
from pyarctic.optimizing.execute.kernel.inputs import SHARE, Attempt
from pyarctic.optimizing.execute.kernel.keyed_sources import KeyedFiles
from pyarctic.optimizing.execute.kernel.outputs import Outputs, dictionaries, hash_of, runs
from pyarctic.optimizing.execute.kernel.row_map import NOWHERE, RunLog
from pyarctic.optimizing.execute.kernel.row_order import (
    POSITION,
    SOURCE,
    Arrangement,
    arranged,
    count_parts,
    sample_step,
    sampled_rows,
    sources_of,
)
from pyarctic.optimizing.execute.kernel.sources import OwnFiles, RowCount, Sources
from pyarctic.optimizing.protocol.tasks import TaskResult

_PARTITION = "\0partition"
_LEAST_STEP = 16
"""Of rows that are sampled only to be sorted; a sample of more would tell no more."""


def merge(attempt: Attempt) -> TaskResult:
    """Write the living rows of a task's files into new ones."""
    keyed = attempt.task.keyed
    with OwnFiles(attempt) if keyed is None else KeyedFiles(attempt, keyed) as sources, _Merge(attempt, sources) as work:
        work.run()
        return work.result()


class _Merge:
    def __init__(self, attempt: Attempt, sources: Sources) -> None:
        job = attempt.job
        self._attempt = attempt
        self._sources = sources
        self._fields = (*job.metadata.schema().fields, *attempt.bench.lineage)
        self._names = [field.name for field in self._fields]
        self._number = {path: number for number, path in enumerate(sources.paths)}
        self._arrangement: Arrangement | None = None
        self._part_rows: dict[int, int] = {}
        self._log = RunLog()
        self._outputs = Outputs(attempt)
        self._hash_in = ContentHash() if job.verify else None
        self._count = RowCount()
        self._copied_rows = 0
        self._partitions: dict[str, tuple[int, tuple[Any, ...]]] = {}
        """Partitions in order of appearance. By their key as text: 0.0 and -0.0 are equal, and not the same partition."""

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
            self._outputs.dictionaries = dictionaries(self._attempt, self._sources.listed, self._fields)
            self._run_sorted()
            return
        if self._run_copying():
            return
        self._outputs.dictionaries = dictionaries(self._attempt, self._sources.listed, self._fields)
        self._outputs.begin(self._attempt.target(), rows=self._attempt.task.expected_rows)
        for number, position, rows, alive in self._living():
            self._log.add_piece(number, position, rows.num_rows if alive is None else len(alive), alive)
            self._outputs.write(rows)

    def _run_copying(self) -> bool:
        """Copy what need not be decoded, if that is most of it."""
        with Copier(self._attempt, self._sources, self._log, self._fields, self._number) as copier:
            if not copier.is_worthwhile():
                return False
            self._outputs.take(copier.run())
        if self._hash_in is not None:
            for _ in self._living():
                pass
        self._count, self._copied_rows = copier.count, copier.copied_rows
        return True

    def _living(self) -> Iterator[tuple[int, int, pa.RecordBatch, Mask | None]]:
        """Number of the file, position of the piece, its living rows, and which of its rows live."""
        encoded = not self._must_sort and self._hash_in is None
        for file in self._sources.files():
            number = self._number.get(file.path, NOWHERE)
            share = file.row["file_size_bytes"] / max(file.row["record_count"], 1)
            read = 0
            for piece, alive in file.live_batches(self._fields, dictionaries=encoded):
                rows = file.project(piece, self._fields)
                if alive is not None:
                    rows = filter_rows(rows, alive)
                read += piece.batch.num_rows
                if self._hash_in is not None:
                    self._hash_in.add(rows)
                self._attempt.progress(piece.batch.num_rows, int(share * piece.batch.num_rows))
                yield number, piece.position, rows, alive
            self._count.add(file, read, is_replaced=number != NOWHERE)

    def _run_sorted(self) -> None:
        task, metadata = self._attempt.task, self._attempt.job.metadata
        if task.sort:
            sources = sources_of(metadata, task)
            files = self._sources.files()
            sample = sampled_rows(files, sources, sample_step(task), living=True) if task.z_order else None
            self._arrangement = arranged(metadata, task, sample)
        keys = self._arrangement.keys if self._arrangement is not None else []
        if task.partition_key is None:
            keys = [Key(column=_PARTITION), *keys]
        memory = self._attempt.job.memory_bytes // (2 * SHARE)
        with Sorter(keys, memory, self._sample, sample_step=self._step) as sorter:
            for number, position, rows, alive in self._living():
                sorter.add(self._with_keys(rows, number, position, alive))
            for batch in sorter.batches():
                self._log.add_rows(batch.column(SOURCE).to_numpy(), batch.column(POSITION).to_numpy())
                self._write_sorted(batch)

    def _with_keys(self, rows: pa.RecordBatch, number: int, position: int, alive: Mask | None) -> pa.RecordBatch:
        at = np.arange(rows.num_rows) if alive is None else np.flatnonzero(alive)
        columns: dict[str, Any] = {
            SOURCE: pa.array(np.full(rows.num_rows, number, np.int32)),
            POSITION: pa.array(at.astype(np.int64) + position),
        }
        columns |= self._keys(rows)
        if self._arrangement is not None:
            count_parts(self._part_rows, self._arrangement.parts(columns))
        for name, column in columns.items():
            rows = rows.append_column(name, column)
        return rows

    def _keys(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        """The columns to sort by, by name; the first one first."""
        columns: dict[str, pa.Array] = {}
        metadata = self._attempt.job.metadata
        if self._attempt.task.partition_key is None:
            codes, tuples = partition_values(metadata.specs()[self._attempt.task.spec_id], metadata.schema(), rows)
            known = np.array([self._partition_number(values) for values in tuples], np.int32)
            columns[_PARTITION] = pa.array(known[codes])
        return columns | (self._arrangement.columns(rows) if self._arrangement is not None else {})

    def _partition_number(self, values: tuple[Any, ...]) -> int:
        return self._partitions.setdefault(PartitionDecoder.key_of(values), (len(self._partitions), values))[0]

    @property
    def _step(self) -> int:
        return max(sample_step(self._attempt.task), _LEAST_STEP)

    def _sample(self) -> pl.Series:
        """Some values of the first key, of all rows to come."""
        task, metadata = self._attempt.task, self._attempt.job.metadata
        fields = sources_of(metadata, task) if task.sort else []
        if task.partition_key is None:
            asked = {field.source_id for field in metadata.specs()[task.spec_id].fields}
            fields += [f for f in metadata.schema().fields if f not in fields and asked & set(Schema(f).field_ids)]
        rows = sampled_rows(self._sources.files_without_equality_deletes(), fields, self._step, living=False)
        return pl.Series(pl.from_arrow(next(iter(self._keys(rows).values()))))

    def _write_sorted(self, batch: pa.RecordBatch) -> None:
        rows, target = batch.select(self._names), self._attempt.target()
        if self._attempt.task.partition_key is not None:
            assert self._arrangement is not None  # noqa: S101  # why it was sorted
            self._outputs.write_parts(target, self._arrangement, batch, rows, self._part_rows)
            return
        codes = batch.column(_PARTITION).to_numpy()
        tuples = [values for _, values in self._partitions.values()]
        for start, end in runs(codes):
            self._outputs.begin(replace(target, partition=tuples[codes[start]]))
            self._outputs.write(rows.slice(start, end - start))

    def result(self) -> TaskResult:
        files = list(self._outputs.finish())
        deletes: list[NewFile] = []
        for delete in self._sources.deletes():
            deletes.append(delete)
            self._outputs.take([delete])  # to be removed with them, if the task fails
        row_map = self._log.save(self._attempt.target(), self._sources.paths, files)
        shared = self._sources.shared
        shared_rows = sum(file.record_count for file in shared)
        numbered = [replace(file, data_sequence_number=self._attempt.job.sequence_number) for file in (*files, *shared)]
        return TaskResult(
            task=self._attempt.task.id,
            attempt=self._attempt.number,
            add=(*numbered, *deletes),
            rows_in=self._count.rows + shared_rows,
            rows_deleted=self._count.rows - self._log.rows,
            rows_out=sum(file.record_count for file in files) + shared_rows,
            rows_from_changes=self._count.brought + shared_rows,
            shared=tuple(file.path for file in shared),
            restated=tuple(self._sources.restated),
            copied_rows=self._copied_rows,
            hash_in=self._hash_in.text() if self._hash_in else None,
            hash_out=hash_of(self._attempt, files, self._fields) if self._hash_in else None,
            row_map=row_map,
        )
