"""The files whose rows a task writes anew, of a table without a key."""

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
    """Used within a `with` block."""

    paths: list[str]
    """Those that the task replaces, so that it must be known where their rows went."""
    restated: list[str]
    """Files that stay, and of which all dead rows are named by what `deletes` has written."""

    shared: list[NewFile]
    """Files that become part of the table as they are."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    def listed(self) -> pl.DataFrame:
        """Their rows of a file list."""
        ...

    def files(self) -> Iterator[DataFileReader]:
        """In the order in which their rows are written."""
        ...

    def files_without_equality_deletes(self) -> Iterator[DataFileReader]:
        """For a look at their rows that need not know which are dead."""
        ...

    def untouched(self) -> pl.DataFrame:
        """Those of which no row is known to be dead."""
        ...

    def deletes(self) -> Iterator[NewFile]:
        """Write delete files for files that stay."""
        ...


@dataclass(kw_only=True)
class RowCount:
    """Rows that were read, for the proof."""

    rows: int = 0
    brought: int = 0
    """Of files that are not replaced."""

    def add(self, file: DataFileReader, rows: int, *, is_replaced: bool) -> None:
        """All that was read of a file."""
        own = rows - file.skipped
        self.rows += own
        self.brought += 0 if is_replaced else own


class OwnFiles:
    """The task's data files, with the deletes that hit them. Files that stay are tasks of their own."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self.listed = attempt.task.data
        self.paths: list[str] = self.listed["file_path"].to_list()
        self.restated: list[str] = []
        self.shared: list[NewFile] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass

    def files(self) -> Iterator[DataFileReader]:
        return self._attempt.reading().files()

    def files_without_equality_deletes(self) -> Iterator[DataFileReader]:
        return self._attempt.reading().files_without_equality_deletes()

    def untouched(self) -> pl.DataFrame:
        matches = self._attempt.matches
        return matches.data.filter(~matches.has_deletes)

    def deletes(self) -> Iterator[NewFile]:
        return iter(())
