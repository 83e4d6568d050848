"""Equality deletes into positions: data files stay as they are, and only their key columns are read."""

from __future__ import annotations

import numpy as np

from pyarctic.iceberg import remove_quietly
from pyarctic.iceberg.delete import Positions
from pyarctic.iceberg.read import DataFileReader
from pyarctic.iceberg.write import NewFile, write_position_deletes, write_vectors
from pyarctic.optimizing.execute.kernel.inputs import Attempt
from pyarctic.optimizing.protocol.tasks import TaskResult

_MOST_POSITIONS = 8_000_000
"""Held at a time: then a Puffin file is written."""


def convert(attempt: Attempt) -> TaskResult:
    """Name the rows that equality deletes hit: in position delete files (v2), or in vectors (v3) that replace those which
    their data files have."""
    work = _Conversion(attempt)
    try:
        work.run()
    except BaseException:
        remove_quietly(attempt.bench.io, {file.path for file in work.written})
        raise
    return TaskResult(
        task=attempt.task.id,
        attempt=attempt.number,
        add=tuple(work.written),
        rows_in=int(attempt.task.data["record_count"].sum()),
        rows_deleted=work.found,
        rows_out=int(attempt.task.data["record_count"].sum()) - work.found,
    )


class _Conversion:
    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._waiting: dict[tuple[int, str], dict[str, Positions]] = {}
        self._held = 0
        self.written: list[NewFile] = []
        self.found = 0

    def run(self) -> None:
        for file in self._attempt.reading().files():
            everything = file.find_deleted_positions()
            # Not those found dead by their keys already: deletes beyond the memory are asked before a file comes up.
            new = np.setdiff1d(everything, file.named_positions(), assume_unique=True)
            self.found += len(new)
            self._attempt.progress(file.row["record_count"], file.row["file_size_bytes"])
            if not len(new):
                continue
            place = (file.row["spec_id"], file.row["partition"])
            whole = everything if self._with_vectors else new
            self._waiting.setdefault(place, {})[file.path] = whole
            self._held += len(whole)
            if self._held > _MOST_POSITIONS or not self._is_shared(file):
                self._flush()
        self._flush()

    @property
    def _with_vectors(self) -> bool:
        return self._attempt.job.metadata.format_version >= 3

    def _is_shared(self, file: DataFileReader) -> bool:
        """Whether one file tells of many data files. Vectors share a Puffin file anyway. A position delete file about one
        data file leaves the table together with it, so that is the default; small files will leave together."""
        granularity = self._attempt.job.metadata.properties.get("write.delete.granularity", "file")
        is_small = file.row["file_size_bytes"] < self._attempt.task.target_bytes / 8
        return self._with_vectors or is_small or granularity.lower() == "partition"

    def _flush(self) -> None:
        for (spec_id, key), dead in self._waiting.items():
            target = self._attempt.target(spec_id, key)
            if self._with_vectors:
                self.written += write_vectors(target, dead)
            else:
                self.written.append(write_position_deletes(target, dead))
        self._waiting, self._held = {}, 0
