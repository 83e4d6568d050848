"""The data files that a task writes, and the content hash of their rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.types import NestedField

from pyarctic.iceberg import remove_quietly
from pyarctic.iceberg.commit import ContentHash
from pyarctic.iceberg.manifest import PartitionDecoder
from pyarctic.iceberg.read import Projection, read_file_batches
from pyarctic.iceberg.write import FileTarget, NewFile, RollingPolicy
from pyarctic.iceberg.write.parquet import DataFileWriter
from pyarctic.optimizing.execute.kernel.inputs import MEMORY_SHARES, Attempt
from pyarctic.optimizing.execute.kernel.row_order import RowOrder

_ONE_FILE = 2
"""A part that should be one file is divided only beyond this many times the target size."""


class Outputs:
    """The data files of a task, one partition after the other, and one part of it after the other."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self.bloom_filters: set[int] = set()
        """Ids of the fields that have a bloom filter in files that are read."""
        self._files: list[NewFile] = []
        self._open: tuple[tuple[int, str, int], DataFileWriter] | None = None
        """The spec, the partition and the part that are being written, and their writer."""

    def write(
        self,
        rows: pa.RecordBatch,
        target: FileTarget,
        part: int = 0,
        *,
        expected_rows: int | None = None,
        one_file: bool = False,
    ) -> None:
        """Write rows of a part of a partition. All rows of one part are written consecutively. `expected_rows` are those of
        the complete part, which should make one file if `one_file`."""
        if not rows.num_rows:
            return
        # Partitions of different specs may have the same values.
        key = (target.spec_id, PartitionDecoder.key_of(target.partition), part)
        if self._open is None or self._open[0] != key:
            self._close()
            self._open = (key, self._new_writer(target, expected_rows, one_file=one_file))
        self._open[1].write(rows)

    def _new_writer(self, target: FileTarget, expected_rows: int | None, *, one_file: bool) -> DataFileWriter:
        task, job = self._attempt.task, self._attempt.job
        target_bytes = task.target_bytes * (_ONE_FILE if one_file else 1)
        return DataFileWriter(
            target,
            extra_fields=self._attempt.context.lineage,
            sort_order_id=job.metadata.default_sort_order_id if task.sort and not task.z_order else None,
            rolling=RollingPolicy(target_bytes=target_bytes, expected_rows=expected_rows),
            bloom_filters=self.bloom_filters,
            # Encoding them takes half as much again.
            memory_bytes=job.memory_bytes // (4 * MEMORY_SHARES),
        )

    def write_parts(
        self,
        batch: pa.RecordBatch,
        rows: pa.RecordBatch,
        target: FileTarget,
        order: RowOrder,
        part_rows: Mapping[int, int],
    ) -> None:
        """Write sorted rows of one partition; where parts are files, a file ends with its part. `batch` has the rows with
        their sort columns, `part_rows` the number of rows in each part."""
        if not order.parts_are_files:
            self.write(rows, target, expected_rows=sum(part_rows.values()))
            return
        parts = order.parts({key.column: batch.column(key.column) for key in order.keys})
        for start, end in find_runs(parts):
            part = int(parts[start])
            one_file = order.files_in(part) == 1
            self.write(rows.slice(start, end - start), target, part, expected_rows=part_rows[part], one_file=one_file)

    def add(self, files: list[NewFile]) -> None:
        """Take over files that were written elsewhere."""
        self._files += files

    def finish(self) -> list[NewFile]:
        """Close all files, and return them."""
        self._close()
        return self._files

    def _close(self) -> None:
        if self._open is not None:
            self._files += self._open[1].close()
            self._open = None

    def abort(self) -> None:
        """Remove all files."""
        if self._open is not None:
            self._open[1].abort()
        remove_quietly(self._attempt.context.io, [file.path for file in self._files])


def find_runs(codes: npt.NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Where runs of equal numbers start and end; none if there are no numbers."""
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    ends = np.append(starts, len(codes))[1:]
    return zip(starts.tolist(), ends.tolist(), strict=True)


def hash_files(attempt: Attempt, files: Iterable[NewFile], fields: Sequence[NestedField]) -> str:
    """The content hash of files, which are read again."""
    content, field_ids = ContentHash(), {field.field_id for field in fields}
    for file in files:
        for batch in read_file_batches(
            attempt.context.io, file.path, file.file_format, None, field_ids, size=file.file_size_bytes
        ):
            content.add(Projection.of(batch.batch.schema, batch.file.names, fields, {}).apply(batch.batch))
    return content.text()
