"""Converting equality deletes to positions: data files are kept, and only their key columns are read."""

from __future__ import annotations

import numpy as np

from pyarctic.iceberg import remove_quietly
from pyarctic.iceberg.delete import Positions
from pyarctic.iceberg.read import DataFileReader
from pyarctic.iceberg.write import NewFile, write_position_deletes, write_vectors
from pyarctic.optimizing.execute.kernel.inputs import Attempt
from pyarctic.optimizing.protocol.result import TaskResult

_MAX_POSITIONS = 8_000_000
"""Held in memory at a time: then a Puffin file is written."""


def convert(attempt: Attempt) -> TaskResult:
    """Write the positions of rows that equality deletes apply to: in position delete files (v2), or in deletion vectors (v3)
    that replace the existing ones of their data files."""
    conversion = _Conversion(attempt)
    try:
        conversion.run()
    except BaseException:
        remove_quietly(attempt.context.io, {file.path for file in conversion.written})
        raise
    rows = int(attempt.task.data["record_count"].sum())
    return TaskResult(
        task=attempt.task.id,
        attempt=attempt.number,
        add=tuple(conversion.written),
        rows_in=rows,
        rows_deleted=conversion.deleted_rows,
        rows_out=rows - conversion.deleted_rows,
    )


class _Conversion:
    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._pending: dict[tuple[int, str], dict[str, Positions]] = {}
        """For each partition the positions of each data file that are not written yet."""
        self._pending_positions = 0
        self.written: list[NewFile] = []
        self.deleted_rows = 0

    def run(self) -> None:
        for file in self._attempt.reader().files():
            all_positions = file.find_deleted_positions()
            # Compared with the position deletes only: keys beyond the memory limit are probed before a file's turn comes.
            new_positions = np.setdiff1d(all_positions, file.named_positions(), assume_unique=True)
            self.deleted_rows += len(new_positions)
            self._attempt.progress(file.row["record_count"], file.row["file_size_bytes"])
            if not len(new_positions):
                continue
            partition = (file.row["spec_id"], file.row["partition"])
            positions = all_positions if self._writes_vectors else new_positions
            self._pending.setdefault(partition, {})[file.path] = positions
            self._pending_positions += len(positions)
            if self._pending_positions > _MAX_POSITIONS or not self._shares_delete_file(file):
                self._flush()
        self._flush()

    @property
    def _writes_vectors(self) -> bool:
        return self._attempt.job.metadata.format_version >= 3

    def _shares_delete_file(self, file: DataFileReader) -> bool:
        """Whether one delete file covers many data files. Vectors share a Puffin file anyway. A position delete file for one
        data file is removed together with it, so that is the default; small files will be removed together."""
        granularity = self._attempt.job.metadata.properties.get("write.delete.granularity", "file")
        is_small = file.row["file_size_bytes"] < self._attempt.task.target_bytes / 8
        return self._writes_vectors or is_small or granularity.lower() == "partition"

    def _flush(self) -> None:
        for (spec_id, partition_key), positions in self._pending.items():
            target = self._attempt.target(spec_id, partition_key)
            if self._writes_vectors:
                self.written += write_vectors(target, positions)
            else:
                self.written.append(write_position_deletes(target, positions))
        self._pending, self._pending_positions = {}, 0
