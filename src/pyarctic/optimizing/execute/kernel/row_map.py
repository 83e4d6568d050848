"""Row maps: from the positions of rows in replaced files to their positions in new files.

Runs of adjacent rows are logged while they are written, and saved as a file when the outputs are known. A commit uses it to
move deletes that arrived during a rewrite over to the new files. A sorted task has about one run for each row, so runs are
kept on disk, twenty bytes each, and never as objects.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pyarctic.config import spill_dir
from pyarctic.iceberg import remove_if_incomplete
from pyarctic.iceberg.delete import Mask
from pyarctic.iceberg.write import FileTarget, NewFile

ROW_MAP_SUFFIX = "-rowmap.parquet"
_RUN = np.dtype([("position", np.int64), ("length", np.int64), ("source", np.int32)])
_CHUNK_RUNS = 1 << 20
NO_SOURCE = -1
"""The source number of rows that were in none of the replaced files."""
_PATH = pa.dictionary(pa.int32(), pa.string())
_SCHEMA = pa.schema(
    [
        ("source", _PATH),
        ("position", pa.int64()),
        ("length", pa.int64()),
        ("target", _PATH),
        ("target_position", pa.int64()),
    ]
)
_DICTIONARIES = ["source", "length", "target"]
Integers = npt.NDArray[np.int64]
Runs = npt.NDArray[Any]


class RowMapLog:
    """The rows of a task in the order in which they are written, as runs of adjacent rows of their source files."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(dir=spill_dir(), prefix="arctic-runs-")  # noqa: SIM115  # closed by __exit__
        self.rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def add_batch(self, source: int, position: int, rows: int, is_live: Mask | None) -> None:
        """Log adjacent rows of one file, without those that are not live."""
        if is_live is None:
            self._add(np.array([source]), np.array([position]), np.array([rows]))
            return
        edges = np.flatnonzero(np.diff(is_live.astype(np.int8), prepend=0, append=0))
        starts, ends = edges[::2], edges[1::2]
        self._add(np.full(len(starts), source), starts + position, ends - starts)

    def add_rows(self, sources: npt.NDArray[np.integer[Any]], positions: Integers) -> None:
        """Log rows in any order."""
        if not len(sources):
            return
        breaks = np.flatnonzero((np.diff(sources) != 0) | (np.diff(positions) != 1)) + 1
        starts = np.concatenate([[0], breaks])
        lengths = np.diff(np.concatenate([starts, [len(sources)]]))
        self._add(sources[starts], positions[starts], lengths)

    def _add(self, sources: Any, positions: Any, lengths: Any) -> None:
        runs = np.empty(len(sources), _RUN)
        runs["source"], runs["position"], runs["length"] = sources, positions, lengths
        self._file.write(runs.tobytes())
        self.rows += int(runs["length"].sum())

    def save(self, target: FileTarget, sources: Sequence[str], files: Sequence[NewFile]) -> str | None:
        """Write the row map of a task that replaced `sources` and wrote `files`, in this order, and return its path."""
        if not sources or not files:
            return None
        path = target.new_path(ROW_MAP_SUFFIX)
        ends = np.cumsum([file.record_count for file in files])
        paths = [pa.array(sources, pa.string()), pa.array([file.path for file in files], pa.string())]
        with (
            remove_if_incomplete(target.io, path),
            target.io.new_output(path).create() as stream,
            pq.ParquetWriter(
                stream,
                _SCHEMA,
                compression="zstd",
                compression_level=1,
                use_dictionary=_DICTIONARIES,
                store_schema=False,
                write_page_checksum=True,
            ) as writer,
        ):
            for table in self._tables(paths, ends):
                writer.write_table(table)
        return path

    def _tables(self, paths: list[pa.Array], ends: Integers) -> Iterator[pa.Table]:
        self._file.flush()
        self._file.seek(0)
        first_row = 0
        while data := self._file.read(_CHUNK_RUNS * _RUN.itemsize):
            runs = np.frombuffer(data, _RUN)
            yield _split_runs(runs, first_row, paths, ends)
            first_row += int(runs["length"].sum(dtype=np.int64))


def _split_runs(runs: Runs, first_row: int, paths: list[pa.Array], ends: Integers) -> pa.Table:
    """Runs that begin at an output row, split where an output file ends."""
    begins = first_row + np.concatenate([[0], np.cumsum(runs["length"], dtype=np.int64)])
    stop = begins[-1]
    cuts = ends[(ends > first_row) & (ends < stop)]
    cuts = cuts[begins[np.searchsorted(begins, cuts)] != cuts]  # not where a file ends with a run
    starts = np.insert(begins[:-1], np.searchsorted(begins[:-1], cuts), cuts)
    run = np.searchsorted(begins, starts, side="right") - 1
    file = np.searchsorted(ends, starts, side="right")
    file_begins = np.concatenate([[0], ends])[file]
    table = pa.Table.from_arrays(
        [
            pa.DictionaryArray.from_arrays(pa.array(np.maximum(runs["source"][run], 0)), paths[0]),
            pa.array(runs["position"][run] + starts - begins[run]),
            pa.array(np.diff(np.concatenate([starts, [stop]]))),
            pa.DictionaryArray.from_arrays(pa.array(file.astype(np.int32)), paths[1]),
            pa.array(starts - file_begins),
        ],
        schema=_SCHEMA,
    )
    has_no_source = runs["source"][run] == NO_SOURCE
    return table.filter(pa.array(~has_no_source)) if has_no_source.any() else table
