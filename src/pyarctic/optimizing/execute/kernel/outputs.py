"""The data files that a task writes, and the content hash of what is in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.types import NestedField

from pyarctic.iceberg import open_input, remove_quietly
from pyarctic.iceberg.commit import ContentHash
from pyarctic.iceberg.manifest import PartitionDecoder
from pyarctic.iceberg.read import arrow_schema
from pyarctic.iceberg.write import FileTarget, NewFile, RollingPolicy
from pyarctic.iceberg.write.parquet import DataFileWriter, file_schema
from pyarctic.optimizing.execute.kernel.dictionaries import worthy_columns
from pyarctic.optimizing.execute.kernel.inputs import SHARE, Attempt
from pyarctic.optimizing.execute.kernel.row_order import Arrangement

_ONE_FILE = 2
"""A file that must not be divided becomes so many times as large as others before it is."""


class Outputs:
    """The data files of a task, one partition after the other, and one part of it after the other."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self.dictionaries: list[str] | None = None
        self._done: list[NewFile] = []
        self._place: tuple[str, int] | None = None
        self._writer: DataFileWriter | None = None

    def begin(self, place: FileTarget, part: int = 0, *, rows: int | None = None, one_file: bool = False) -> None:
        """The rows that follow go to a part of this partition; `rows` of them are expected, and maybe all in one file."""
        if self._place == (PartitionDecoder.key_of(place.partition), part):
            return
        self._close()
        task, job = self._attempt.task, self._attempt.job
        self._place = (PartitionDecoder.key_of(place.partition), part)
        self._writer = DataFileWriter(
            place,
            extra_fields=self._attempt.bench.lineage,
            sort_order_id=job.metadata.default_sort_order_id if task.sort and not task.z_order else None,
            rolling=RollingPolicy(target_bytes=task.target_bytes * (_ONE_FILE if one_file else 1), expected_rows=rows),
            dictionaries=self.dictionaries,
            memory_bytes=job.memory_bytes // SHARE,
        )

    def write(self, rows: pa.RecordBatch) -> None:
        assert self._writer is not None  # noqa: S101  # `begin` comes first
        if rows.num_rows:
            self._writer.write(rows)

    def write_parts(
        self,
        place: FileTarget,
        arrangement: Arrangement,
        batch: pa.RecordBatch,
        rows: pa.RecordBatch,
        counts: Mapping[int, int],
    ) -> None:
        """Write sorted rows of one partition; where parts are files, a file ends with its part. `batch` has the rows with
        what they are sorted by, `counts` tells how many there are in each part."""
        if not arrangement.parts_are_files:
            self.begin(place, rows=sum(counts.values()))
            self.write(rows)
            return
        parts = arrangement.parts({name: batch.column(name) for name in (key.column for key in arrangement.keys)})
        for start, end in runs(parts):
            part = int(parts[start])
            self.begin(place, part, rows=counts[part], one_file=arrangement.files(part) == 1)
            self.write(rows.slice(start, end - start))

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


def runs(codes: npt.NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Where runs of equal numbers begin and end."""
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    return zip(starts.tolist(), [*starts[1:].tolist(), len(codes)], strict=True)


def dictionaries(attempt: Attempt, files: pl.DataFrame, fields: Sequence[NestedField]) -> list[str] | None:
    """The columns that are worth a dictionary, as the files that are read tell."""
    parquet = files.filter(pl.col("file_format") == "PARQUET")["file_path"].to_list()
    return worthy_columns(attempt.bench.io, parquet, attempt.job.metadata.name_mapping(), file_schema(fields))


def hash_of(attempt: Attempt, files: Iterable[NewFile], fields: Sequence[NestedField]) -> str:
    """Of what is in the files now, read again."""
    found, names = ContentHash(), [field.name for field in fields]
    for file in files:
        with open_input(attempt.bench.io, file.path) as stream:
            for batch in pq.ParquetFile(stream).iter_batches(use_threads=False):
                found.add(batch.select(names).cast(arrow_schema(fields)))
    return found.text()
