"""The partitions that a task for several partitions writes its rows to, and how many rows each of them gets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from pyarctic.iceberg import partition_values
from pyarctic.iceberg.delete import PARTITION_KEY
from pyarctic.iceberg.manifest import PartitionDecoder
from pyarctic.iceberg.write import FileTarget
from pyarctic.optimizing.execute.kernel.inputs import Attempt

_ONE_FILE = 1.5
"""Rows of less than this many times the target size make one file."""


class TooManyFiles(Exception):
    """Rows would make more files under the current partition spec than they are in: they stay where they are."""


class RowPartitions:
    """The partitions of rows, numbered: by the current spec, or with `keep` those of the files that rows are in."""

    def __init__(self, attempt: Attempt, files: pl.DataFrame, *, keep: bool) -> None:
        """`files`: the files of the task, in the order of their numbers."""
        self._attempt = attempt
        self._files = files
        self._keep = keep
        self._may_stay = attempt.context.decoder.lost_partitions(files).is_empty()
        """Whether rows can be written to the partitions of their files."""
        self._numbers: dict[tuple[int, str], int] = {}
        """By the key as text: 0.0 and -0.0 are equal, but not the same partition."""
        self._targets: list[FileTarget] = []
        self._rows = np.zeros(0, np.int64)
        if keep:
            self._of_file = np.array([self._number(*key) for key in files.select(PARTITION_KEY).iter_rows()], np.int32)

    def of_rows(self, rows: pa.RecordBatch, sources: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """The partition of each row; `sources` are the numbers of their files."""
        if self._keep:
            return self._of_file[sources]
        metadata, spec_id = self._attempt.job.metadata, self._attempt.task.spec_id
        codes, partitions = partition_values(metadata.specs()[spec_id], metadata.schema(), rows)
        numbers = [self._number(spec_id, PartitionDecoder.key_of(values), values) for values in partitions]
        return np.array(numbers, np.int32)[codes]

    def of_sample(self, rows: pa.RecordBatch, step: int) -> npt.NDArray[np.int32]:
        """The partitions of a sample of all rows, in any order."""
        if self._keep:
            return np.repeat(self._of_file, self._files["record_count"].to_numpy() // step + 1)
        return self.of_rows(rows, np.zeros(rows.num_rows, np.int32))

    def sources(self) -> list[NestedField]:
        """The columns that partitions are made of."""
        metadata = self._attempt.job.metadata
        ids = {field.source_id for field in metadata.specs()[self._attempt.task.spec_id].fields}
        return [field for field in metadata.schema().fields if ids & set(Schema(field).field_ids)]

    def count(self, numbers: npt.NDArray[np.int32]) -> None:
        """Count rows; raises TooManyFiles as soon as there are more partitions than files."""
        counts = np.bincount(numbers, minlength=len(self._rows)).astype(np.int64)
        counts[: len(self._rows)] += self._rows
        self._rows = counts
        self._check(int(np.count_nonzero(counts)))

    def check(self) -> None:
        """Raise TooManyFiles if the rows that were counted make more files than there are."""
        self._check(int(np.maximum(np.round(self._files_of(self._rows)), self._rows > 0).sum()))

    def check_written(self, files: int) -> None:
        """Raise TooManyFiles if more files were written than there are."""
        self._check(files)

    def target(self, number: int) -> FileTarget:
        """Where rows of a partition are written."""
        return self._targets[number]

    def rows(self, number: int) -> int:
        """The number of rows of a partition."""
        return int(self._rows[number])

    def is_one_file(self, number: int) -> bool:
        """Whether the rows of a partition should make one file."""
        return bool(self._files_of(self._rows[number]) < _ONE_FILE)

    def _files_of(self, rows: Any) -> Any:
        task = self._attempt.task
        return rows * (task.expected_bytes / max(task.expected_rows, 1) / task.target_bytes)

    def _check(self, files: int) -> None:
        if not self._keep and self._may_stay and files > self._files.height:
            raise TooManyFiles

    def _number(self, spec_id: int, key: str, values: tuple[Any, ...] | None = None) -> int:
        number = self._numbers.setdefault((spec_id, key), len(self._numbers))
        if number == len(self._targets):
            target = self._attempt.target(spec_id, key)
            self._targets.append(target if values is None else replace(target, partition=values))
        return number
