"""When a file is full and the next one begins."""

from __future__ import annotations

from dataclasses import dataclass

_ONE_FILE = 1.25
_TWO_FILES = 1.5
ROLL_TOLERANCE = 0.95
"""A file is closed at this share of its goal: sizes are estimates, and a sliver of a row group is worse than a small
error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollingPolicy:
    """Files near the target size. When it is known how many rows will come, they are divided evenly, so that no file is
    much smaller than the others; only what makes more than one file and less than two ends with a smaller one."""

    target_bytes: int
    expected_rows: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether it is not known how many rows will come."""
        return self.expected_rows is None

    def goal(self, file_bytes: int, rows_done: int, row_bytes: float) -> float:
        """Bytes at which the current file is full. It has `file_bytes` now; of all rows `rows_done` are in it or in files
        before it, and the others are expected to take `row_bytes` each."""
        if self.expected_rows is None:
            return self.target_bytes
        left = file_bytes + max(self.expected_rows - rows_done, 0) * row_bytes
        files = left / self.target_bytes
        if files < _ONE_FILE:
            return float("inf")
        return self.target_bytes if files < _TWO_FILES else left / round(files)
