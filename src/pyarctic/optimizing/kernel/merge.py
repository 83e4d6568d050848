"""Living rows of many files into few: in the order they have, or sorted, or distributed by the current partition spec."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField
from pyiceberg.transforms import IdentityTransform

from pyarctic.iceberg.contenthash import ContentHash
from pyarctic.iceberg.deletefiles import Mask
from pyarctic.iceberg.partitions import PartitionDecoder
from pyarctic.iceberg.projection import arrow_schema
from pyarctic.iceberg.reading import ReadFile, kept
from pyarctic.iceberg.storage import opened, remove_quietly
from pyarctic.iceberg.transforms import apply_transform, partition_values, source_column
from pyarctic.iceberg.writing import DataFileWriter, NewFile, Rolling, Target, file_schema
from pyarctic.optimizing.kernel.copying import Copier
from pyarctic.optimizing.kernel.encoding import worthy_columns
from pyarctic.optimizing.kernel.inputs import SHARE, Attempt
from pyarctic.optimizing.kernel.keyed import KeyedFiles
from pyarctic.optimizing.kernel.ordering import Key, Sorter, sampled
from pyarctic.optimizing.kernel.rowmap import NOWHERE, RunLog
from pyarctic.optimizing.kernel.sources import OwnFiles, RowCount, Sources
from pyarctic.optimizing.tasks import TaskResult
from pyarctic.tables import layout

_SOURCE, _POSITION, _PARTITION = "\0source", "\0position", "\0partition"
"""Columns that travel with rows that are sorted; no column of a table has such a name."""


def merge(attempt: Attempt) -> TaskResult:
    """Write the living rows of a task's files into new ones."""
    keyed = attempt.task.keyed
    with OwnFiles(attempt) if keyed is None else KeyedFiles(attempt, keyed) as sources, _Merge(attempt, sources) as work:
        work.run()
        return work.result()


class _Merge:
    def __init__(self, attempt: Attempt, sources: Sources) -> None:
        job, task = attempt.job, attempt.task
        self._attempt = attempt
        self._sources = sources
        self._fields = (*job.metadata.schema().fields, *attempt.bench.lineage)
        self._names = [field.name for field in self._fields]
        self._number = {path: number for number, path in enumerate(sources.paths)}
        self._sort_fields = _sort_fields(job.metadata) if task.sort else []
        self._log = RunLog()
        self._outputs = _Outputs(attempt)
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
        return bool(self._sort_fields) or self._attempt.task.partition_key is None

    def _dictionaries(self) -> list[str] | None:
        parquet = self._sources.listed.filter(pl.col("file_format") == "PARQUET")["file_path"].to_list()
        mapping = self._attempt.job.metadata.name_mapping()
        return worthy_columns(self._attempt.bench.io, parquet, mapping, file_schema(self._fields))

    def run(self) -> None:
        if self._must_sort:
            self._outputs.dictionaries = self._dictionaries()
            self._run_sorted()
            return
        if self._run_copying():
            return
        self._outputs.dictionaries = self._dictionaries()
        self._outputs.begin(self._attempt.target())
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
            for piece, alive in file.living(self._fields, dictionaries=encoded):
                rows = file.projected(piece, self._fields)
                if alive is not None:
                    rows = kept(rows, alive)
                read += piece.batch.num_rows
                if self._hash_in is not None:
                    self._hash_in.add(rows)
                self._attempt.progress(piece.batch.num_rows, int(share * piece.batch.num_rows))
                yield number, piece.position, rows, alive
            self._count.add(file, read, is_replaced=number != NOWHERE)

    def _run_sorted(self) -> None:
        keys = [_key(number, field) for number, field in enumerate(self._sort_fields)]
        if self._attempt.task.partition_key is None:
            keys = [Key(column=_PARTITION), *keys]
        else:
            self._outputs.begin(self._attempt.target())
        with Sorter(keys, self._attempt.job.memory_bytes // (2 * SHARE), self._sample) as sorter:
            for number, position, rows, alive in self._living():
                sorter.add(self._with_keys(rows, number, position, alive))
            for batch in sorter.batches():
                self._log.add_rows(batch.column(_SOURCE).to_numpy(), batch.column(_POSITION).to_numpy())
                self._write_by_partition(batch)

    def _with_keys(self, rows: pa.RecordBatch, number: int, position: int, alive: Mask | None) -> pa.RecordBatch:
        at = np.arange(rows.num_rows) if alive is None else np.flatnonzero(alive)
        columns: dict[str, Any] = {
            _SOURCE: pa.array(np.full(rows.num_rows, number, np.int32)),
            _POSITION: pa.array(at.astype(np.int64) + position),
        }
        columns |= self._keys(rows)
        for name, column in columns.items():
            rows = rows.append_column(name, column)
        return rows

    def _keys(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        """The columns to sort by, by name; the first one first."""
        columns: dict[str, pa.Array] = {}
        metadata = self._attempt.job.metadata
        schema = metadata.schema()
        if self._attempt.task.partition_key is None:
            codes, tuples = partition_values(metadata.specs()[self._attempt.task.spec_id], schema, rows)
            known = np.array([self._partition_number(values) for values in tuples], np.int32)
            columns[_PARTITION] = pa.array(known[codes])
        for number, field in enumerate(self._sort_fields):
            source = source_column(schema, field.source_id, rows)
            type_ = schema.find_type(field.source_id)
            columns[_key_name(number)] = _sortable(apply_transform(field.transform, type_, source))
        return columns

    def _partition_number(self, values: tuple[Any, ...]) -> int:
        return self._partitions.setdefault(PartitionDecoder.key_of(values), (len(self._partitions), values))[0]

    def _sample(self) -> pl.Series:
        """Some values of the first key, of all rows to come: those of deleted rows do no harm."""
        metadata = self._attempt.job.metadata
        schema = metadata.schema()
        if self._attempt.task.partition_key is None:
            asked = {field.source_id for field in metadata.specs()[self._attempt.task.spec_id].fields}
        else:
            asked = {self._sort_fields[0].source_id}
        fields = [field for field in schema.fields if asked & set(type(schema)(field).field_ids)]
        parts = [self._sampled(file, fields) for file in self._sources.bare_files()]
        return pl.concat([part for part in parts if part is not None])

    def _sampled(self, file: ReadFile, fields: list[Any]) -> pl.Series | None:
        parts = []
        for piece in file.pieces(fields):
            rows = file.projected(piece, fields)
            missing = [field for field in arrow_schema(self._fields) if field.name not in rows.schema.names]
            for field in missing:  # keys are found by the table's schema
                rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
            first = next(iter(self._keys(rows.select(self._names)).values()))
            parts.append(sampled(pl.Series(pl.from_arrow(first))))
        return pl.concat(parts) if parts else None

    def _write_by_partition(self, batch: pa.RecordBatch) -> None:
        rows = batch.select(self._names)
        if self._attempt.task.partition_key is not None:
            self._outputs.write(rows)
            return
        codes = batch.column(_PARTITION).to_numpy()
        starts = np.flatnonzero(np.diff(codes, prepend=-1))
        tuples = [values for _, values in self._partitions.values()]
        for start, end in zip(starts, [*starts[1:], len(codes)], strict=True):
            place = replace(self._attempt.target(), partition=tuples[codes[start]])
            self._outputs.begin(place)
            self._outputs.write(rows.slice(start, end - start))

    def result(self) -> TaskResult:
        files = list(self._outputs.finish())
        deletes: list[NewFile] = []
        for delete in self._sources.deletes():
            deletes.append(delete)
            self._outputs.take([delete])  # to be removed with them, if the task fails
        row_map = self._log.save(self._attempt.target(), self._sources.paths, files)
        rows_out = sum(file.record_count for file in files)
        return TaskResult(
            task=self._attempt.task.id,
            attempt=self._attempt.number,
            add=(*(replace(file, data_sequence_number=self._attempt.job.sequence_number) for file in files), *deletes),
            rows_in=self._count.rows,
            rows_deleted=self._count.rows - self._log.rows,
            rows_out=rows_out,
            rows_brought=self._count.brought,
            restated=tuple(self._sources.restated),
            copied_rows=self._copied_rows,
            hash_in=self._hash_in.text() if self._hash_in else None,
            hash_out=self._hash_of(files) if self._hash_in else None,
            row_map=row_map,
        )

    def _hash_of(self, files: list[NewFile]) -> str:
        """Of what is in the files now, read again."""
        found = ContentHash()
        for file in files:
            with opened(self._attempt.bench.io, file.path) as stream:
                for batch in pq.ParquetFile(stream).iter_batches(use_threads=False):
                    fitted = batch.select(self._names).cast(arrow_schema(self._fields))
                    found.add(fitted)
        return found.text()


class _Outputs:
    """The data files of a task, one partition after the other."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self.dictionaries: list[str] | None = None
        self._done: list[NewFile] = []
        self._place: Target | None = None
        self._writer: DataFileWriter | None = None

    def begin(self, place: Target) -> None:
        """The rows that follow go to this partition."""
        if self._place is not None and _key_of(self._place) == _key_of(place):
            return
        self._close()
        task, job = self._attempt.task, self._attempt.job
        whole = task.partition_key is not None
        self._place = place
        self._writer = DataFileWriter(
            place,
            extra_fields=self._attempt.bench.lineage,
            sort_order_id=job.metadata.default_sort_order_id if task.sort else None,
            rolling=Rolling(
                target_bytes=task.target_bytes,
                expected_rows=task.expected_rows if whole else None,
            ),
            dictionaries=self.dictionaries,
            memory_bytes=job.memory_bytes // SHARE,
        )

    def write(self, rows: pa.RecordBatch) -> None:
        assert self._writer is not None  # noqa: S101  # `begin` comes first
        if rows.num_rows:
            self._writer.write(rows)

    def take(self, files: list[NewFile]) -> None:
        """Files that somebody else has written."""
        self._done += files

    def finish(self) -> list[NewFile]:
        self._close()
        return self._done

    def _close(self) -> None:
        if self._writer is not None:
            self._done += self._writer.close()
            self._writer = None

    def abort(self) -> None:
        if self._writer is not None:
            self._writer.abort()
        remove_quietly(self._attempt.bench.io, [file.path for file in self._done])


def _sort_fields(metadata: TableMetadata) -> list[SortField]:
    """The table's sort order; a table with a key and without one is sorted by its key."""
    keys = [SortField(source_id=field_id, transform=IdentityTransform()) for field_id in layout.key_ids(metadata)]
    return list(metadata.sort_order().fields) or keys


def _key_of(place: Target) -> str:
    return PartitionDecoder.key_of(place.partition)


def _key_name(number: int) -> str:
    return f"\0key{number}"


def _key(number: int, field: SortField) -> Key:
    return Key(
        column=_key_name(number),
        descending=field.direction == SortDirection.DESC,
        nulls_last=field.null_order == NullOrder.NULLS_LAST,
    )


def _sortable(values: pa.Array) -> pa.Array:
    """In a type that Polars orders as Iceberg does."""
    return values.cast(pa.binary()) if pa.types.is_fixed_size_binary(values.type) else values
