"""How documents hold the files of tasks. A task by itself lists them. A plan has each file once, in columns, and its tasks
have their numbers: files of upper nodes and delete files belong to many tasks."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, Self

import polars as pl

from pyarctic.errors import ProtocolError
from pyarctic.iceberg.manifest import FILE_SCHEMA
from pyarctic.optimizing.protocol.wire import Fields

_OMITTED_COLUMNS = ("snapshot_id", "file_sequence_number", "sort_order_id", "manifest_path")
"""Columns of a file list that executing a task does not need."""
_REQUIRED_COLUMNS = ("content", "file_path", "file_format", "spec_id", "partition", "record_count", "file_size_bytes")
_LISTED_SCHEMA = pl.Schema({name: dtype for name, dtype in FILE_SCHEMA.items() if name not in _OMITTED_COLUMNS})
_EQUALITY_IDS = FILE_SCHEMA.names().index("equality_ids")
_TEXT_COLUMNS = ("snapshot_id",)
"""Ids of 64 bits, which are texts in documents."""


class FileWriter(Protocol):
    """Writes files of a task, and paths of such files, into a document."""

    def write_files(self, files: pl.DataFrame) -> Any:
        """Files, as they are in the document."""
        ...

    def write_paths(self, paths: Iterable[str]) -> Any:
        """The paths of some files that were written before."""
        ...


class FileReader(Protocol):
    """Reads them again."""

    def read_files(self, given: Fields, name: str) -> pl.DataFrame:
        """The files of a field, as FILE_SCHEMA."""
        ...

    def read_paths(self, given: Fields, name: str) -> tuple[str, ...]:
        """The paths of a field."""
        ...


class ListedFiles:
    """Files as objects, with the columns that executing a task needs."""

    def write_files(self, files: pl.DataFrame) -> Any:
        """Files as a list of objects."""
        return json.loads(files.drop(_OMITTED_COLUMNS, strict=False).write_json())

    def write_paths(self, paths: Iterable[str]) -> list[str]:
        """Paths as they are."""
        return list(paths)

    def read_files(self, given: Fields, name: str) -> pl.DataFrame:
        """The files of a list of objects. Columns that an object lacks are null; unknown ones are ignored."""
        rows = given.objects(name)
        try:
            files = pl.read_json(io.BytesIO(json.dumps(rows).encode()), schema=_LISTED_SCHEMA)
        except (pl.exceptions.PolarsError, ValueError) as cause:
            reason = str(cause).splitlines()[0]
            message = f"the field {name!r} of the task is no list of files: {reason}"
            raise ProtocolError(message, type="task", field=name) from cause
        _require_columns(files, name, "task")
        omitted = [pl.lit(None, FILE_SCHEMA[column]).alias(column) for column in _OMITTED_COLUMNS]
        return files.with_columns(omitted).select(FILE_SCHEMA.names())

    def read_paths(self, given: Fields, name: str) -> tuple[str, ...]:
        """The paths of a list of texts."""
        return given.texts(name)


class FileNumbers:
    """Numbers files as they are written, equal ones once, and has all of them in the end."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._by_path: dict[str, int] = {}

    def write_files(self, files: pl.DataFrame) -> list[int]:
        """The numbers of files."""
        rows = map(_hashable, files.select(FILE_SCHEMA.names()).rows())
        numbers = [self._numbers.setdefault(row, len(self._numbers)) for row in rows]
        for path, number in zip(files["file_path"], numbers, strict=True):
            self._by_path.setdefault(path, number)
        return numbers

    def write_paths(self, paths: Iterable[str]) -> list[int]:
        """The numbers of files with these paths."""
        return [self._by_path[path] for path in paths]

    def to_json(self) -> dict[str, list[Any]]:
        """All columns that have values, by name, in the order of the numbers."""
        columns = dict(zip(FILE_SCHEMA, zip(*self._numbers, strict=True), strict=False))
        columns = {name: column for name, column in columns.items() if any(value is not None for value in column)}
        return {
            name: [None if value is None else str(value) for value in column] if name in _TEXT_COLUMNS else list(column)
            for name, column in columns.items()
        }


class NumberedFiles:
    """The files of a plan, by number."""

    def __init__(self, files: pl.DataFrame) -> None:
        self._files = files
        self._paths: list[str] = files["file_path"].to_list()

    @classmethod
    def from_json(cls, given: Fields, name: str) -> Self:
        """The files of a field that has columns by name. A missing column is null; unknown ones are ignored."""
        columns = given.value(name)
        if not isinstance(columns, Mapping) or not all(isinstance(column, list) for column in columns.values()):
            raise ProtocolError(f"the field {name!r} of the plan must have a list for each column", type="plan", field=name)
        height = len(columns.get("file_path", ()))
        try:
            series = [_column(column, dtype, columns.get(column), height) for column, dtype in FILE_SCHEMA.items()]
            files = pl.DataFrame(series)
        except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as cause:
            reason = str(cause).splitlines()[0]
            message = f"the field {name!r} of the plan has no columns of files: {reason}"
            raise ProtocolError(message, type="plan", field=name) from cause
        _require_columns(files, name, "plan")
        return cls(files)

    def read_files(self, given: Fields, name: str) -> pl.DataFrame:
        """The files of a list of numbers."""
        return self._files[pl.Series(self._checked(given, name), dtype=pl.UInt32)]

    def read_paths(self, given: Fields, name: str) -> tuple[str, ...]:
        """The paths of a list of numbers."""
        return tuple(self._paths[number] for number in self._checked(given, name))

    def _checked(self, given: Fields, name: str) -> Sequence[int]:
        numbers = given.numbers(name)
        if numbers and not 0 <= min(numbers) <= max(numbers) < len(self._paths):
            raise ProtocolError(f"a number in {name!r} is not that of a file of the plan", type="plan", field=name)
        return numbers


def _column(name: str, dtype: pl.DataType, values: list[Any] | None, height: int) -> pl.Series:
    if values is None:
        return pl.Series(name, [None], dtype).new_from_index(0, height)
    if name in _TEXT_COLUMNS:
        return pl.Series(name, values, pl.String).cast(dtype)
    return pl.Series(name, values, dtype)


def _hashable(row: tuple[Any, ...]) -> tuple[Any, ...]:
    ids = row[_EQUALITY_IDS]
    return row if ids is None else (*row[:_EQUALITY_IDS], tuple(ids), *row[_EQUALITY_IDS + 1 :])


def _require_columns(files: pl.DataFrame, name: str, type_: str) -> None:
    missing = [column for column in _REQUIRED_COLUMNS if files[column].null_count()]
    if missing:
        raise ProtocolError(f"a file in {name!r} of the {type_} has no {missing[0]!r}", type=type_, field=missing[0])
