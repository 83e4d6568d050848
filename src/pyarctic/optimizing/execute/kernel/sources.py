"""The files whose rows a task writes. Tables without a key read the task's data files as they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

import polars as pl

from pyarctic.iceberg.read import DataFileReader
from pyarctic.iceberg.write import NewFile
from pyarctic.optimizing.execute.kernel.inputs import Attempt


class Sources(Protocol):
    """The inputs of a merge, to be used within a `with` block."""

    replaced_paths: list[str]
    """The files that the task replaces, so that the new positions of their rows must be known."""
    files_with_rewritten_deletes: list[str]
    """Kept files whose deleted rows are all listed by the files that `write_deletes` has written."""
    shared_files: list[NewFile]
    """Files that become part of the table as they are."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    def file_list(self) -> pl.DataFrame:
        """The files as rows of a file list."""
        ...

    def files(self) -> Iterator[DataFileReader]:
        """The files in the order in which their rows are written."""
        ...

    def files_without_equality_deletes(self) -> Iterator[DataFileReader]:
        """The files, for a sample of rows of which some may be deleted."""
        ...

    def files_without_deletes(self) -> pl.DataFrame:
        """The files of which no row is known to be deleted."""
        ...

    def write_deletes(self) -> Iterator[NewFile]:
        """Write delete files for files that are kept."""
        ...


@dataclass(kw_only=True)
class RowCount:
    """The number of rows that were read, for the proof."""

    rows: int = 0
    from_changes: int = 0
    """Rows of files that are not replaced."""

    def add(self, file: DataFileReader, rows: int, *, is_replaced: bool) -> None:
        """Count the rows that were read of a file."""
        own_rows = rows - file.skipped
        self.rows += own_rows
        self.from_changes += 0 if is_replaced else own_rows


class TaskFiles:
    """The task's data files, with the deletes that apply to them. Files that are kept have tasks of their own."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self.file_list = attempt.task.data
        self.replaced_paths: list[str] = self.file_list["file_path"].to_list()
        self.files_with_rewritten_deletes: list[str] = []
        self.shared_files: list[NewFile] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass

    def files(self) -> Iterator[DataFileReader]:
        """The files in the order in which their rows are written."""
        return self._attempt.reader().files()

    def files_without_equality_deletes(self) -> Iterator[DataFileReader]:
        """The files, for a sample of rows of which some may be deleted."""
        return self._attempt.reader().files_without_equality_deletes()

    def files_without_deletes(self) -> pl.DataFrame:
        """The files of which no row is known to be deleted."""
        matches = self._attempt.matches
        return matches.data.filter(~matches.has_deletes)

    def write_deletes(self) -> Iterator[NewFile]:
        """No files are kept."""
        return iter(())
