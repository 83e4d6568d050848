"""Rolling files: when a file is full and the next one begins."""

from __future__ import annotations

from dataclasses import dataclass

_MAX_FILES_FOR_ONE = 1.25
_MAX_FILES_FOR_SMALL_REST = 1.5
ROLL_TOLERANCE = 0.95
"""A file is closed at this share of its target: sizes are estimates, and a tiny row group is worse than a small error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollingPolicy:
    """Files near the target size. If the number of rows is known, they are divided evenly, so that no file is much smaller
    than the others; only rows for more than one and less than two files end with a smaller file."""

    target_bytes: int
    expected_rows: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether the number of rows is not known."""
        return self.expected_rows is None

    def goal(self, file_bytes: int, rows_done: int, row_bytes: float) -> float:
        """The size at which the current file is full. It has `file_bytes` now; `rows_done` rows are in it or in earlier
        files, and the remaining rows are expected to take `row_bytes` each."""
        if self.expected_rows is None:
            return self.target_bytes
        remaining_bytes = file_bytes + max(self.expected_rows - rows_done, 0) * row_bytes
        remaining_files = remaining_bytes / self.target_bytes
        if remaining_files < _MAX_FILES_FOR_ONE:
            return float("inf")
        return self.target_bytes if remaining_files < _MAX_FILES_FOR_SMALL_REST else remaining_bytes / round(remaining_files)
