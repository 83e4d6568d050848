"""A set of files sorted by many workers: some read, each of the others sorts and writes one range of keys.

    sample   ─►  some keys of each file            ─►  the arrangement: which row belongs to which part
    read     ─►  living rows of each file, by part  ─►  shuffle by part  ─►  sort, write

Between readers and writers rows travel as Arrow's own bytes, so whatever a table holds can travel, and whoever carries them
need not understand them. Which part a row belongs to depends on the row alone: read again, it comes to the same part. Every
file is accounted for by its reader, and what was read and written is counted apart.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import polars as pl
import pyarrow as pa

from pyarctic.iceberg import file_from_json, file_to_json
from pyarctic.iceberg.commit import ContentHash
from pyarctic.iceberg.manifest import IS_DATA
from pyarctic.iceberg.read import filter_rows
from pyarctic.optimizing.execute.kernel.external_sort import Sorter
from pyarctic.optimizing.execute.kernel.inputs import SHARE, Attempt, JobContext, peak_bytes
from pyarctic.optimizing.execute.kernel.outputs import Outputs, dictionaries, hash_of
from pyarctic.optimizing.execute.kernel.row_map import RunLog
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
from pyarctic.optimizing.protocol.tasks import Task, TaskFailure, TaskResult

PARCELS = pa.schema([("part", pa.int32()), ("account", pa.string()), ("rows", pa.binary())])
"""What readers send: rows for a part, or the account of a file, which goes with any part."""
_PARCEL_BYTES = 4 << 20


def sample_keys(bench: JobContext, task: Task, sources: Iterable[int]) -> bytes:
    """Some keys of the data files with these numbers, as Arrow's bytes."""
    fields, step = sources_of(bench.job.metadata, task), sample_step(task)
    parts = [sampled_rows(_attempt(bench, task, source).reading().files(), fields, step, living=True) for source in sources]
    return _packed(pa.concat_batches(parts))


class RangePartitioner:
    """A task with the parts that it is divided into: on one worker, for one bench."""

    def __init__(self, bench: JobContext, task: Task, sample: bytes) -> None:
        """The parts are the same wherever this is made: they depend on the sample alone."""
        self._bench = bench
        self._task = task
        self._arrangement = arranged(bench.job.metadata, task, unpacked(sample))

    @property
    def parts(self) -> int:
        """How many there are."""
        return self._arrangement.count

    def parcels(self, source: int) -> Iterator[pa.RecordBatch]:
        """The living rows of a data file, as PARCELS."""
        return _Reader(self._task, self._bench, self._arrangement, source).parcels()

    def written(self, parcels: Iterable[pa.RecordBatch], attempt: int) -> RangeResult:
        """Sort and write all rows that came. Names of files tell the attempt; what it wrote is removed if it fails."""
        with _Writer(self._task, self._bench, self._arrangement, attempt) as writer:
            for batch in parcels:
                for account, rows in zip(batch.column("account"), batch.column("rows"), strict=True):
                    writer.take(account.as_py(), rows.as_py())
            return writer.finish()


def combine_samples(samples: Iterable[bytes]) -> bytes:
    """One sample of several."""
    return _packed(pa.concat_batches([unpacked(sample) for sample in samples]))


def _attempt(bench: JobContext, task: Task, source: int) -> Attempt:
    """For reading one data file, with the deletes that may hit it."""
    path = task.data["file_path"][source]
    about = pl.col("referenced_data_file")
    wanted = pl.when(IS_DATA).then(pl.col("file_path") == path).otherwise(about.is_null() | (about == path))
    alone = replace(task, files=task.files.filter(wanted))
    return Attempt(bench=bench, task=alone, number=0, listen=lambda _: None)


class _Reader:
    """Reads one data file."""

    def __init__(self, task: Task, bench: JobContext, arrangement: Arrangement, source: int) -> None:
        self._attempt = _attempt(bench, task, source)
        self._arrangement = arrangement
        self._source = source
        self._fields = (*bench.job.metadata.schema().fields, *bench.lineage)
        self._hash = ContentHash() if bench.job.verify else None
        self._rows_in = self._living = 0

    def parcels(self) -> Iterator[pa.RecordBatch]:
        started = time.process_time()
        for file in self._attempt.reading().files():
            for piece, alive in file.live_batches(self._fields):
                rows = file.project(piece, self._fields)
                at = np.arange(rows.num_rows) if alive is None else np.flatnonzero(alive)
                rows = rows if alive is None else filter_rows(rows, alive)
                self._rows_in += piece.batch.num_rows
                self._living += rows.num_rows
                if self._hash is not None:
                    self._hash.add(rows)
                yield from self._by_part(rows, at + piece.position)
        account = {
            "source": self._source,
            "rows_in": self._rows_in,
            "living": self._living,
            "hash": self._hash.text() if self._hash else None,
            "cpu_seconds": time.process_time() - started,
        }
        yield _parcel(self._source % self._arrangement.count, account=account)

    def _by_part(self, rows: pa.RecordBatch, positions: np.ndarray[Any, np.dtype[np.int64]]) -> Iterator[pa.RecordBatch]:
        parts = self._arrangement.parts(self._arrangement.columns(rows))
        rows = rows.append_column(SOURCE, pa.array(np.full(rows.num_rows, self._source, np.int32)))
        rows = rows.append_column(POSITION, pa.array(positions))
        order = np.argsort(parts, kind="stable")
        taken, parts = rows.take(pa.array(order)), parts[order]
        step = max(int(_PARCEL_BYTES * rows.num_rows / max(rows.nbytes, 1)), 1)
        for start, end in _pieces(parts, step):
            yield _parcel(int(parts[start]), rows=_packed(taken.slice(start, end - start)))


def _pieces(parts: np.ndarray[Any, np.dtype[np.int32]], step: int) -> Iterator[tuple[int, int]]:
    """Runs of one part, of `step` rows at most."""
    starts = np.flatnonzero(np.diff(parts, prepend=-1)).tolist()
    for start, end in zip(starts, [*starts[1:], len(parts)], strict=True):
        for at in range(start, end, step):
            yield at, min(at + step, end)


def _parcel(part: int, *, account: dict[str, Any] | None = None, rows: bytes | None = None) -> pa.RecordBatch:
    told = None if account is None else json.dumps(account)
    return pa.RecordBatch.from_pylist([{"part": part, "account": told, "rows": rows}], schema=PARCELS)


def failure_parcel(failure: dict[str, Any]) -> pa.RecordBatch:
    """What a reader sends that failed, instead of an account."""
    return _parcel(0, account={"failure": failure})


@dataclass(frozen=True, kw_only=True)
class RangeResult:
    """What a writer has to tell: its files, and the accounts that came with its rows."""

    attempt: int
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
        return {file["path"] for file in self.files} | ({self.row_map} if self.row_map else set())

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        return cls(**document | {"files": tuple(document["files"]), "accounts": tuple(document["accounts"])})


class _Writer:
    """Writes the rows of one part, or of several."""

    def __init__(self, task: Task, bench: JobContext, arrangement: Arrangement, attempt: int) -> None:
        self._attempt = Attempt(bench=bench, task=task, number=attempt, listen=lambda _: None)
        self._arrangement = arrangement
        self._fields = (*bench.job.metadata.schema().fields, *bench.lineage)
        self._log = RunLog()
        self._outputs = Outputs(self._attempt)
        self._counts: dict[int, int] = {}
        self._accounts: list[dict[str, Any]] = []
        self._started = time.process_time()
        memory = bench.job.memory_bytes // (2 * SHARE)
        self._sorter = Sorter(arrangement.keys, memory, self._sample, sample_step=sample_step(task))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._sorter.__exit__(kind, error, trace)
        self._log.__exit__(kind, error, trace)
        if kind is not None:
            self._outputs.abort()

    def take(self, account: str | None, rows: bytes | None) -> None:
        if account is not None:
            self._accounts.append(json.loads(account))
        if rows is None:
            return
        batch = unpacked(rows)
        columns = self._arrangement.columns(batch)
        count_parts(self._counts, self._arrangement.parts(columns))
        for name, column in columns.items():
            batch = batch.append_column(name, column)
        self._sorter.add(batch)

    def _sample(self) -> pl.Series:
        """Keys of the parts that came."""
        values = self._arrangement.sample
        first = pl.Series(pl.from_arrow(next(iter(values.values()))))
        return first.filter(pl.Series(np.isin(self._arrangement.parts(values), list(self._counts))))

    def finish(self) -> RangeResult:
        target, names = self._attempt.target(), [field.name for field in self._fields]
        # Files of a set that is not whole would never be asked for.
        failed = any("failure" in account for account in self._accounts)
        if self._counts and not failed:
            self._outputs.dictionaries = dictionaries(self._attempt, self._attempt.task.data, self._fields)
            for batch in self._sorter.batches():
                self._log.add_rows(batch.column(SOURCE).to_numpy(), batch.column(POSITION).to_numpy())
                self._outputs.write_parts(target, self._arrangement, batch, batch.select(names), self._counts)
        files = self._outputs.finish()
        verify = self._attempt.job.verify
        return RangeResult(
            attempt=self._attempt.number,
            files=tuple(file_to_json(file) for file in files),
            accounts=tuple(self._accounts),
            rows_out=sum(file.record_count for file in files),
            row_map=self._log.save(target, self._attempt.task.data["file_path"].to_list(), files),
            hash_out=hash_of(self._attempt, files, self._fields) if verify else None,
            cpu_seconds=time.process_time() - self._started,
            peak_bytes=peak_bytes(),
        )


def combine_results(bench: JobContext, task: Task, attempt: int, written: Iterable[RangeResult]) -> TaskResult | TaskFailure:
    """The outcome of a task, of what its writers tell."""
    told = list(written)
    accounts = [account for one in told for account in one.accounts]
    failures = [account["failure"] for account in accounts if "failure" in account]
    if failures:
        return TaskFailure(**failures[0])
    if sorted(account["source"] for account in accounts) != list(range(task.data.height)):
        return TaskFailure(
            task=task.id,
            attempt=attempt,
            code="internal",
            detail=f"{task.data.height} files were to be read, and {len(accounts)} accounts of them came",
        )
    job = bench.job
    add = [file_from_json(file, bench.decoder) for one in told for file in one.files]
    maps = [one.row_map for one in told if one.row_map is not None]
    rows_in = sum(account["rows_in"] for account in accounts)
    return TaskResult(
        task=task.id,
        attempt=attempt,
        add=tuple(replace(file, data_sequence_number=job.sequence_number) for file in add),
        rows_in=rows_in,
        rows_deleted=rows_in - sum(account["living"] for account in accounts),
        rows_out=sum(one.rows_out for one in told),
        hash_in=ContentHash.sum_of([account["hash"] for account in accounts]) if job.verify else None,
        hash_out=ContentHash.sum_of([one.hash_out for one in told if one.hash_out]) if job.verify else None,
        row_map=maps[0] if maps else None,
        more_row_maps=tuple(maps[1:]),
        bytes_read=int(task.files["file_size_bytes"].sum()),
        cpu_seconds=sum(one.cpu_seconds for one in told) + sum(account["cpu_seconds"] for account in accounts),
        peak_bytes=max((one.peak_bytes for one in told), default=0),
    )


def _packed(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def unpacked(data: bytes) -> pa.RecordBatch:
    """One batch, as it was packed."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()
