"""Sorting a set of files with many workers: some read, each of the others sorts and writes one range of keys.

    sample   ─►  some keys of each file           ─►  the row order: which row belongs to which part
    read     ─►  live rows of each file, by part  ─►  shuffle by part  ─►  sort, write

Rows travel from readers to writers as Arrow IPC bytes, so any column type can travel, and the engine that carries them need
not understand them. The part of a row depends on the row alone: read again, it belongs to the same part. Every file is
accounted for by its reader, and rows are counted both when they are read and when they are written.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from pyarctic.iceberg import file_from_json, file_to_json
from pyarctic.iceberg.commit import ContentHash
from pyarctic.iceberg.manifest import IS_DATA
from pyarctic.iceberg.read import filter_rows
from pyarctic.iceberg.write import NewFile
from pyarctic.optimizing.execute.kernel.external_sort import Sorter
from pyarctic.optimizing.execute.kernel.inputs import MEMORY_SHARES, Attempt, JobContext, peak_bytes
from pyarctic.optimizing.execute.kernel.outputs import Outputs, find_runs, hash_files
from pyarctic.optimizing.execute.kernel.row_map import RowMapLog
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
from pyarctic.optimizing.protocol.job import Job
from pyarctic.optimizing.protocol.result import TaskFailure, TaskResult
from pyarctic.optimizing.protocol.task import Task

PACKET_SCHEMA = pa.schema([("part", pa.int32()), ("account", pa.string()), ("rows", pa.binary())])
"""What readers send: rows of a part, or the account of a file, which is sent with any part."""
_BLOOM_FILTERS = b"bloom_filters"
"""In the metadata of rows: the fields that have a bloom filter in their file."""
_PACKET_BYTES = 4 << 20


def sample_keys(context: JobContext, task: Task, sources: Iterable[int]) -> bytes:
    """Some keys of the data files with these numbers, as Arrow IPC bytes."""
    fields, step = order_fields(context.job.metadata, task), sample_step(task)
    samples = [  # one reader at a time: each has caches of its own
        sample_rows(_attempt_for_file(context, task, source).reader().files(), fields, step, live_only=True)
        for source in sources
    ]
    return _to_ipc(pa.concat_batches(samples))


def combine_samples(samples: Iterable[bytes]) -> bytes:
    """Concatenate samples."""
    return _to_ipc(pa.concat_batches([_from_ipc(sample) for sample in samples]))


class RangePartitioner:
    """Divides the rows of a task into parts, on one worker:

    partitioner = RangePartitioner(context, task, sample)
    packets = [packet for source in range(task.data.height) for packet in partitioner.read(source)]
    result = partitioner.write(packets, attempt=0, execution=3)  # on another worker, with the packets of one part
    """

    def __init__(self, context: JobContext, task: Task, sample: bytes) -> None:
        """The parts are the same on all workers: they depend on the sample alone."""
        self._context = context
        self._task = task
        self._order = make_row_order(context.job.metadata, task, _from_ipc(sample))

    @property
    def parts(self) -> int:
        """The number of parts."""
        return self._order.count

    def read(self, source: int) -> Iterator[pa.RecordBatch]:
        """The live rows of a data file, as packets (PACKET_SCHEMA)."""
        return _FileReader(self._task, self._context, self._order, source).packets()

    def write(self, packets: Iterable[pa.RecordBatch], attempt: int, execution: int) -> RangeResult:
        """Sort and write the rows of packets. All files are removed if it fails. `execution`: another one for each part, and
        each time it is written; names of files have it."""
        running = Attempt(context=self._context, task=self._task, number=attempt, execution=execution)
        with _RangeWriter(running, self._order) as writer:
            for batch in packets:
                for account, rows in zip(batch.column("account"), batch.column("rows"), strict=True):
                    writer.add(account.as_py(), rows.as_py())
            return writer.finish()


def _attempt_for_file(context: JobContext, task: Task, source: int) -> Attempt:
    """An attempt that reads one data file, with the deletes that may apply to it."""
    path = task.data["file_path"][source]
    referenced = pl.col("referenced_data_file")
    is_needed = pl.when(IS_DATA).then(pl.col("file_path") == path).otherwise(referenced.is_null() | (referenced == path))
    return Attempt(context=context, task=replace(task, files=task.files.filter(is_needed)))


class _FileReader:
    """Reads one data file."""

    def __init__(self, task: Task, context: JobContext, order: RowOrder, source: int) -> None:
        self._attempt = _attempt_for_file(context, task, source)
        self._order = order
        self._source = source
        self._fields = context.output_fields
        self._hash = ContentHash() if context.job.verify else None
        self._rows_in = self._live_rows = 0

    def packets(self) -> Iterator[pa.RecordBatch]:
        started = time.process_time()
        for file in self._attempt.reader().files():
            for batch, is_live in file.live_batches(self._fields):
                rows = file.project(batch, self._fields)
                row_numbers = np.arange(rows.num_rows) if is_live is None else np.flatnonzero(is_live)
                rows = rows if is_live is None else filter_rows(rows, is_live)
                self._rows_in += batch.batch.num_rows
                self._live_rows += rows.num_rows
                if self._hash is not None:
                    self._hash.add(rows)
                bloom_filters = json.dumps(sorted(batch.file.bloom_filter_ids))
                rows = rows.replace_schema_metadata({_BLOOM_FILTERS: bloom_filters})
                yield from self._packets_by_part(rows, row_numbers + batch.position)
        account = {
            "source": self._source,
            "rows_in": self._rows_in,
            "live_rows": self._live_rows,
            "hash": self._hash.text() if self._hash else None,
            "cpu_seconds": time.process_time() - started,
        }
        yield _packet(self._source % self._order.count, account=account)

    def _packets_by_part(self, rows: pa.RecordBatch, positions: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        parts = self._order.parts(self._order.columns(rows))
        rows = rows.append_column(SOURCE, pa.array(np.full(rows.num_rows, self._source, np.int32)))
        rows = rows.append_column(POSITION, pa.array(positions))
        by_part = np.argsort(parts, kind="stable")
        rows, parts = rows.take(pa.array(by_part)), parts[by_part]
        packet_rows = max(int(_PACKET_BYTES * rows.num_rows / max(rows.nbytes, 1)), 1)
        for run_start, run_end in find_runs(parts):
            for start in range(run_start, run_end, packet_rows):
                length = min(packet_rows, run_end - start)
                yield _packet(int(parts[start]), rows=_to_ipc(rows.slice(start, length)))


def _packet(part: int, *, account: dict[str, Any] | None = None, rows: bytes | None = None) -> pa.RecordBatch:
    account_json = None if account is None else json.dumps(account)
    return pa.RecordBatch.from_pylist([{"part": part, "account": account_json, "rows": rows}], schema=PACKET_SCHEMA)


def failure_packet(failure: dict[str, Any]) -> pa.RecordBatch:
    """What a reader that failed sends instead of an account."""
    return _packet(0, account={"failure": failure})


@dataclass(frozen=True, kw_only=True)
class RangeResult:
    """What a writer produced: its files, and the accounts that came with its rows."""

    execution: int
    files: tuple[dict[str, Any], ...]
    """As JSON."""
    accounts: tuple[dict[str, Any], ...]
    rows_out: int
    row_map: str | None
    hash_out: str | None
    cpu_seconds: float
    peak_bytes: int

    @property
    def paths(self) -> set[str]:
        """All files that were written."""
        return {file["path"] for file in self.files} | ({self.row_map} if self.row_map else set())

    def to_json(self) -> dict[str, Any]:
        """This result as a JSON document."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """The result of a JSON document."""
        return cls(**document | {"files": tuple(document["files"]), "accounts": tuple(document["accounts"])})


class _RangeWriter:
    """Writes the rows of one part, or of several."""

    def __init__(self, attempt: Attempt, order: RowOrder) -> None:
        task, context = attempt.task, attempt.context
        self._attempt = attempt
        self._order = order
        self._fields = context.output_fields
        self._log = RowMapLog()
        self._outputs = Outputs(self._attempt)
        self._part_rows: dict[int, int] = {}
        self._accounts: list[dict[str, Any]] = []
        self._started = time.process_time()
        memory = context.job.memory_bytes // (2 * MEMORY_SHARES)
        self._sorter = Sorter(order.keys, memory, self._sample_first_key, sample_step=sample_step(task))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._sorter.__exit__(kind, error, trace)
        self._log.__exit__(kind, error, trace)
        if kind is not None:
            self._outputs.abort()

    def add(self, account: str | None, rows: bytes | None) -> None:
        if account is not None:
            self._accounts.append(json.loads(account))
        if rows is None:
            return
        batch = _from_ipc(rows)
        self._outputs.bloom_filters.update(json.loads(batch.schema.metadata[_BLOOM_FILTERS]))
        columns = self._order.columns(batch)
        count_parts(self._part_rows, self._order.parts(columns))
        for name, column in columns.items():
            batch = batch.append_column(name, column)
        self._sorter.add(batch)

    def _sample_first_key(self) -> pl.Series:
        """Some values of the first key of all rows, as far as they belong to parts that came."""
        columns = self._order.sample
        first_key = pl.Series(pl.from_arrow(next(iter(columns.values()))))
        return first_key.filter(pl.Series(np.isin(self._order.parts(columns), list(self._part_rows))))

    def finish(self) -> RangeResult:
        target, names = self._attempt.target(), [field.name for field in self._fields]
        # Files of an incomplete set would never be used.
        has_failure = any("failure" in account for account in self._accounts)
        if self._part_rows and not has_failure:
            for batch in self._sorter.batches():
                self._log.add_rows(batch.column(SOURCE).to_numpy(), batch.column(POSITION).to_numpy())
                self._outputs.write_parts(batch, batch.select(names), target, self._order, self._part_rows)
        files = self._outputs.finish()
        verify = self._attempt.job.verify
        return RangeResult(
            execution=self._attempt.execution,
            files=tuple(file_to_json(file) for file in files),
            accounts=tuple(self._accounts),
            rows_out=sum(file.record_count for file in files),
            row_map=self._log.save(target, self._attempt.task.data["file_path"].to_list(), files),
            hash_out=hash_files(self._attempt, files, self._fields) if verify else None,
            cpu_seconds=time.process_time() - self._started,
            peak_bytes=peak_bytes(),
        )


def combine_results(
    context: JobContext, task: Task, attempt: int, results: Iterable[RangeResult]
) -> TaskResult | TaskFailure:
    """The outcome of a task, from the results of its writers."""
    results = list(results)
    accounts = [account for result in results for account in result.accounts]
    failure = _find_failure(task, attempt, accounts)
    if failure is not None:
        return failure
    row_maps = [result.row_map for result in results if result.row_map is not None]
    read = {name: sum(account[name] for account in accounts) for name in ("rows_in", "live_rows", "cpu_seconds")}
    return TaskResult(
        job=context.job.id,
        task=task.id,
        attempt=attempt,
        add=tuple(file for result in results for file in _parse_files(context, result)),
        rows_in=read["rows_in"],
        rows_deleted=read["rows_in"] - read["live_rows"],
        rows_out=sum(result.rows_out for result in results),
        hash_in=_sum_hashes(context.job, [account["hash"] for account in accounts]),
        hash_out=_sum_hashes(context.job, [result.hash_out for result in results]),
        row_map=next(iter(row_maps), None),
        more_row_maps=tuple(row_maps[1:]),
        bytes_read=int(task.files["file_size_bytes"].sum()),
        cpu_seconds=read["cpu_seconds"] + sum(result.cpu_seconds for result in results),
        peak_bytes=max((result.peak_bytes for result in results), default=0),
    )


def _find_failure(task: Task, attempt: int, accounts: list[dict[str, Any]]) -> TaskFailure | None:
    """Why a task failed: a reader failed, or files are not accounted for exactly once."""
    for account in accounts:
        if "failure" in account:
            return TaskFailure.from_json(account["failure"])
    if sorted(account["source"] for account in accounts) == list(range(task.data.height)):
        return None
    return TaskFailure(
        task=task.id,
        attempt=attempt,
        code="internal",
        detail=f"{task.data.height} files were to be read, and {len(accounts)} accounts of them came",
    )


def _parse_files(context: JobContext, result: RangeResult) -> Iterator[NewFile]:
    for file in result.files:
        yield replace(file_from_json(file, context.decoder), data_sequence_number=context.job.sequence_number)


def _sum_hashes(job: Job, hashes: Iterable[str | None]) -> str | None:
    """The hash of all rows, if the job verifies them."""
    return ContentHash.sum_of([text for text in hashes if text]) if job.verify else None


def _to_ipc(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _from_ipc(data: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()
