"""Tasks of a plan, as data. Their JSON holds no secrets and can be read in any language."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, cast, get_args

import polars as pl

from pyarctic.iceberg.manifest import IS_DATA
from pyarctic.optimizing.protocol.task_files import FileReader, FileWriter, ListedFiles
from pyarctic.optimizing.protocol.wire import Fields, id_to_text, to_document

OptimizingKind = Literal["minor", "major", "full"]
OPTIMIZING_KINDS: tuple[OptimizingKind, ...] = ("minor", "major", "full")
Action = Literal["merge", "convert"]

KEY_SHARE = 0.1
"""Roughly the share of a file that its key columns take: the cost of probing a file that is kept."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """A unit of rewriting: data files, and the delete files that apply to them.

    A task survives a round trip through JSON: `Task.from_json(task.to_json())`."""

    id: int
    action: Action
    """`merge` writes the live rows into new files. `convert` keeps the data files, finds the rows that equality deletes
    apply to, and writes their positions."""
    kind: OptimizingKind
    partition: str
    """The partition path, for people."""
    files: pl.DataFrame
    """Rows of a file list, data files and delete files."""
    spec_id: int
    partition_key: str | None
    """The partition that rows are written to. None: the spec decides for each row, unless that would make more files than
    the task replaces. Then rows stay in the partitions that they are in."""
    target_bytes: int
    expected_rows: int
    expected_bytes: int
    sort: bool = False
    """Whether rows are sorted: by `z_order` if it is given, else by the table's sort order."""
    z_order: tuple[int, ...] = ()
    """Ids of the columns that rows are clustered by."""
    ranges: int = 1
    """The number of key ranges that an engine may divide the work into. Outputs have no key in common either way."""
    copy_least_rows: int | None = None
    """Row groups with at least this many rows are copied as is if nothing in them changes; None: all are encoded again."""
    files_out: tuple[int, int, int] | None = None
    """The number of files that the task writes: at least, probably, and at most. None: it follows from the expected size."""
    reasons: tuple[str, ...] = ()

    @cached_property
    def data(self) -> pl.DataFrame:
        """The data files."""
        return self.files.filter(IS_DATA)

    @property
    def deletes(self) -> pl.DataFrame:
        """The delete files."""
        return self.files.filter(~IS_DATA)

    @property
    def replaced(self) -> pl.DataFrame:
        """The data files whose rows are rewritten."""
        return self.data if self.action == "merge" else self.data.clear()

    @property
    def input_bytes(self) -> int:
        """The size of all files whose rows are read."""
        return _size(self.data)

    @property
    def rewritten_bytes(self) -> int:
        """The size of the files whose rows are rewritten."""
        return _size(self.replaced)

    @property
    def work_bytes(self) -> int:
        """The cost in bytes of rewritten rows: only the key columns of kept files are read."""
        rewritten = self.rewritten_bytes
        return rewritten + int((self.input_bytes - rewritten) * KEY_SHARE)

    def to_json(self) -> dict[str, Any]:
        """This task as a JSON document."""
        return to_document("task", self.to_fields(ListedFiles()))

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Task:
        """The task of a JSON document: a `KeyedTask` if it is one."""
        return Task.from_fields(Fields.of(document, "task"), ListedFiles())

    def to_fields(self, writer: FileWriter) -> dict[str, Any]:
        """The fields of its document. `keyed` has what only tasks of keyed tables have."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(Task)}
        return values | {
            "reasons": list(self.reasons),
            "z_order": list(self.z_order),
            "files_out": None if self.files_out is None else list(self.files_out),
            "files": writer.write_files(self.files),
            "keyed": None,
        }

    @staticmethod
    def from_fields(given: Fields, reader: FileReader) -> Task:
        """The task with these fields."""
        values: dict[str, Any] = {
            "id": given.number("id"),
            "action": given.one_of("action", get_args(Action)),
            "kind": given.one_of("kind", OPTIMIZING_KINDS),
            "partition": given.text("partition"),
            "files": reader.read_files(given, "files"),
            "spec_id": given.number("spec_id"),
            "partition_key": given.optional_text("partition_key"),
            "target_bytes": given.number("target_bytes"),
            "expected_rows": given.number("expected_rows"),
            "expected_bytes": given.number("expected_bytes"),
            "sort": given.flag("sort"),
            "z_order": given.numbers("z_order"),
            "ranges": given.number("ranges") if "ranges" in given else 1,
            "copy_least_rows": given.optional_number("copy_least_rows"),
            "files_out": cast(
                "tuple[int, int, int] | None", given.numbers("files_out") if _has(given, "files_out") else None
            ),
            "reasons": given.texts("reasons"),
        }
        if not _has(given, "keyed"):
            return Task(**values)
        keyed = Fields(given.value("keyed"), "task")
        return KeyedTask(
            **values,
            node_id=keyed.id("node_id"),
            changes=reader.read_files(keyed, "changes"),
            kept=reader.read_paths(keyed, "kept"),
            transaction_id=keyed.id("transaction_id"),
            shareable=reader.read_paths(keyed, "shareable"),
            foreign=reader.read_paths(keyed, "foreign"),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class KeyedTask(Task):
    """A task that merges changes of a keyed table into one node of its tree. Its data files are those of the base store that
    may share keys with the changes, or that are rewritten."""

    partition_key: str
    node_id: int
    """The node whose rows are written. Rows of other nodes in the same files are skipped."""
    changes: pl.DataFrame
    """Rows of the file list of the change store."""
    kept: tuple[str, ...]
    """Data files that are kept: the positions of their deleted and superseded rows are written."""
    transaction_id: int
    """The transaction id of the new files: no row in them has a later one."""
    shareable: tuple[str, ...] = ()
    """Insert files that become part of the base store as they are, if none of their rows is superseded."""
    foreign: tuple[str, ...] = ()
    """Data files that other engines have put into the base store, the oldest first. Their rows supersede those of other data
    files."""

    @property
    def replaced(self) -> pl.DataFrame:
        """The data files whose rows are rewritten."""
        return self.data.filter(~pl.col("file_path").is_in(list(self.kept)))

    @property
    def input_bytes(self) -> int:
        """The size of all files whose rows are read, changes included."""
        return _size(self.data) + _size(self.changes)

    @property
    def rewritten_bytes(self) -> int:
        """The size of the files whose rows are rewritten, changes included."""
        return _size(self.replaced) + _size(self.changes)

    def to_fields(self, writer: FileWriter) -> dict[str, Any]:
        """The fields of its document."""
        values = super().to_fields(writer)
        keyed = {
            "node_id": id_to_text(self.node_id),
            "changes": writer.write_files(self.changes),
            "kept": writer.write_paths(self.kept),
            "transaction_id": id_to_text(self.transaction_id),
            "shareable": writer.write_paths(self.shareable),
            "foreign": writer.write_paths(self.foreign),
        }
        return values | {"keyed": keyed}


def _size(files: pl.DataFrame) -> int:
    return int(files["file_size_bytes"].sum())


def _has(given: Fields, name: str) -> bool:
    return name in given and given.value(name) is not None
