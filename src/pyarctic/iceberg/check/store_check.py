"""The check of one Iceberg table: its metadata, its files and, if wanted, its rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import polars as pl
from pyiceberg.io import FileIO

from pyarctic.errors import Damaged
from pyarctic.iceberg.check.contents import InspectBatch, NamedPositions, RowReader, check_positions
from pyarctic.iceberg.check.manifests import METRICS, CheckedManifests, SnapshotFiles
from pyarctic.iceberg.check.problems import Problem, join_problems, problem_frame
from pyarctic.iceberg.check.snapshots import check_history, check_snapshot
from pyarctic.iceberg.check.stored_files import StoredFileCheck, stored_size
from pyarctic.iceberg.manifest.file_list import FILE_IDENTITY, IS_DATA, IS_VECTOR
from pyarctic.iceberg.manifest.reader import EQUALITY_DELETES, FILE_SCHEMA
from pyarctic.iceberg.read.live_rows import TableView
from pyarctic.iceberg.storage import open_input

_REQUESTS = 16
"""Files that are opened at the same time: most of the time is spent waiting for storage."""
_READERS = min(os.cpu_count() or 1, 8)
"""Files whose rows are read at the same time: each holds a row group in memory."""
_FILES_AT_A_TIME = 4096
_NOT_READ = ("missing-file", "wrong-size", "unreadable-file", "unknown-spec", "dangling-deletes")
_STORED = [*FILE_IDENTITY, "record_count", "file_size_bytes"]


class CheckListener(Protocol):
    """Is notified of the progress of a check."""

    def started(self, what: str, files: int) -> None:
        """A step of the check begins, over this many files."""

    def advanced(self, files: int) -> None:
        """So many files more are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedStore:
    """The problems of a table, and the files of its current snapshot, if it has one."""

    problems: pl.DataFrame
    current: SnapshotFiles | None
    files_checked: int


class StoreCheck:
    """Checks one Iceberg table: `StoreCheck(view, listener=…).run()`."""

    def __init__(
        self, view: TableView, listener: CheckListener, *, all_snapshots: bool, inspect: InspectBatch | None
    ) -> None:
        """`inspect` looks at the rows of all data files; None: rows are not read."""
        self._view = view
        self._listener = listener
        self._inspect = inspect
        current = view.metadata.current_snapshot()
        # The current one first: manifests that older ones share with it are read with it.
        others = [each for each in view.metadata.snapshots if current is None or each.snapshot_id != current.snapshot_id]
        self._snapshots = ([current] if current else []) + (others if all_snapshots else [])
        self._manifests = CheckedManifests(view)

    def run(self) -> CheckedStore:
        """Check everything."""
        with _pool(_REQUESTS) as pool:
            stored, files = self._check_stored_files(pool)
            parts = [stored, self._check_statistics(), check_history(self._view.metadata)]
            states = [self._manifests.snapshot_files(snapshot) for snapshot in self._snapshots]
            parts += [check_snapshot(self._view.metadata, state) for state in states if state.is_complete]
            # What is reported already need not be read.
            readable = files.filter(~pl.col("file_path").is_in(_paths(join_problems(parts), _NOT_READ)))
            parts.append(self._check_named_positions(pool, readable, files))
        current = states[0] if self._view.metadata.current_snapshot() is not None else None
        if self._inspect is not None:
            reader = RowReader(self._view, self._inspect)
            with _pool(_READERS) as pool:
                parts.append(self._check_rows(pool, readable, reader))
            parts.append(problem_frame(reader.row_partitions.problems(current)))
        problems = join_problems([problem_frame(self._manifests.problems), *parts])
        return CheckedStore(problems=problems.unique(maintain_order=True), current=current, files_checked=files.height)

    def _check_stored_files(self, pool: Executor) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The problems of all files, and the files themselves, each once."""
        manifests = self._manifests.manifests(self._snapshots)
        self._listener.started("files", sum((m.added_files or 0) + (m.existing_files or 0) for m in manifests))
        check = StoredFileCheck(self._view).check
        seen: set[int] = set()
        problems, kept = [], [pl.DataFrame(schema=FILE_SCHEMA)]
        for files in self._manifests.read(manifests, pool):
            new = files.filter(_are_new(files.select(_STORED).hash_rows(), seen))
            self._listener.advanced(files.height - new.height)
            problems.append(self._map(pool, check, new))
            kept.append(new.drop(METRICS))
        return join_problems(problems), pl.concat(kept)

    def _check_named_positions(self, pool: Executor, readable: pl.DataFrame, files: pl.DataFrame) -> pl.DataFrame:
        """Deletion vectors and, if rows are read, position delete files."""
        deletes = readable.filter(~IS_DATA & (pl.col("content") != EQUALITY_DELETES) & _IS_PLAIN)
        if self._inspect is None:
            deletes = deletes.filter(IS_VECTOR)
        if deletes.is_empty():
            return problem_frame([])
        self._listener.started("deletes", deletes.height)
        named: list[pl.DataFrame] = []
        problems: list[Problem] = []
        read = NamedPositions(self._view.io).read
        for ranges, file_problems in self._each(pool, read, deletes):
            named.append(ranges)
            problems += file_problems
        return join_problems([problem_frame(problems), check_positions(named, files)])

    def _check_rows(self, pool: Executor, readable: pl.DataFrame, reader: RowReader) -> pl.DataFrame:
        files = readable.filter((IS_DATA | (pl.col("content") == EQUALITY_DELETES)) & _IS_PLAIN)
        self._listener.started("rows", files.height)
        return self._map(pool, reader.check, files)

    def _map(self, pool: Executor, check: Callable[[Mapping[str, Any]], list[Problem]], files: pl.DataFrame) -> pl.DataFrame:
        return problem_frame(chain.from_iterable(self._each(pool, check, files)))

    def _each(self, pool: Executor, check: Callable[[Mapping[str, Any]], Any], files: pl.DataFrame) -> Iterator[Any]:
        for part in files.iter_slices(_FILES_AT_A_TIME):
            for result in pool.map(check, part.iter_rows(named=True)):
                self._listener.advanced(1)
                yield result

    def _check_statistics(self) -> pl.DataFrame:
        """Statistics files of the snapshots: present and of the right size."""
        metadata, checked = self._view.metadata, {snapshot.snapshot_id for snapshot in self._snapshots}
        sizes = {
            file.statistics_path: file.file_size_in_bytes
            for file in (*metadata.statistics, *metadata.partition_statistics)
            if file.snapshot_id in checked
        }
        problems = (_check_statistics_file(self._view.io, path, size) for path, size in sizes.items())
        return problem_frame(problem for problem in problems if problem is not None)


_IS_PLAIN = pl.col("key_metadata_bytes").is_null()
"""Not encrypted."""


def _check_statistics_file(io: FileIO, path: str, expected: int) -> Problem | None:
    try:
        with open_input(io, path) as stream:
            size = stored_size(stream)
    except Damaged as error:
        return Problem("missing-statistics", error.message, path)
    return None if size == expected else Problem("missing-statistics", f"{size} bytes instead of {expected}", path)


def _are_new(hashes: pl.Series, seen: set[int]) -> pl.Series:
    """Which files were not seen before: rewritten manifests list the same files again. Hashes take less than paths."""
    are_new = []
    for number in hashes.to_list():
        are_new.append(number not in seen)
        seen.add(number)
    return pl.Series(are_new, dtype=pl.Boolean)


def _paths(problems: pl.DataFrame, codes: Sequence[str]) -> Sequence[str]:
    """The files with problems of some kinds."""
    return problems.filter(pl.col("code").is_in(codes))["file_path"].drop_nulls().to_list()


@contextmanager
def _pool(workers: int) -> Iterator[Executor]:
    """Threads that stop when the check is interrupted."""
    pool = ThreadPoolExecutor(workers, thread_name_prefix="arctic-check")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
