"""Tasks of a plan, as data. Their JSON holds no secrets and can be read in any language."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, cast, get_args

import polars as pl

from pyarctic.errors import ProtocolError
from pyarctic.iceberg.manifest import FILE_SCHEMA, IS_DATA
from pyarctic.optimizing.protocol.wire import Fields, id_to_text, to_document

OptimizingKind = Literal["minor", "major", "full"]
OPTIMIZING_KINDS: tuple[OptimizingKind, ...] = ("minor", "major", "full")
Action = Literal["merge", "convert"]

KEY_SHARE = 0.1
"""Roughly the share of a file that its key columns take: the cost of probing a file that is kept."""
_OMITTED_COLUMNS = ("snapshot_id", "file_sequence_number", "sort_order_id", "manifest_path")
"""Columns of a file list that a task does not need."""
_REQUIRED_COLUMNS = ("content", "file_path", "file_format", "spec_id", "partition", "record_count", "file_size_bytes")
_WIRE_SCHEMA = pl.Schema({name: dtype for name, dtype in FILE_SCHEMA.items() if name not in _OMITTED_COLUMNS})


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

    @property
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
        """This task as a JSON document. `keyed` has what only tasks of keyed tables have."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(Task)}
        values |= {
            "reasons": list(self.reasons),
            "z_order": list(self.z_order),
            "files_out": None if self.files_out is None else list(self.files_out),
            "files": _files_to_json(self.files),
            "keyed": None,
        }
        return to_document("task", values)

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Task:
        """The task of a JSON document: a `KeyedTask` if it is one."""
        given = Fields.of(document, "task")
        values: dict[str, Any] = {
            "id": given.number("id"),
            "action": _one_of(given, "action", get_args(Action)),
            "kind": _one_of(given, "kind", OPTIMIZING_KINDS),
            "partition": given.text("partition"),
            "files": _files_from_json(given, "files"),
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
            changes=_files_from_json(keyed, "changes"),
            kept=keyed.texts("kept"),
            transaction_id=keyed.id("transaction_id"),
            shareable=keyed.texts("shareable"),
            foreign=keyed.texts("foreign"),
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

    def to_json(self) -> dict[str, Any]:
        """This task as a JSON document."""
        keyed = {
            "node_id": id_to_text(self.node_id),
            "changes": _files_to_json(self.changes),
            "kept": list(self.kept),
            "transaction_id": id_to_text(self.transaction_id),
            "shareable": list(self.shareable),
            "foreign": list(self.foreign),
        }
        return super().to_json() | {"keyed": keyed}


def _size(files: pl.DataFrame) -> int:
    return int(files["file_size_bytes"].sum())


def _files_to_json(files: pl.DataFrame) -> Any:
    return json.loads(files.drop(_OMITTED_COLUMNS, strict=False).write_json())


def _files_from_json(given: Fields, name: str) -> pl.DataFrame:
    # Columns that a row lacks are null; columns that the schema lacks are ignored.
    rows = given.objects(name)
    try:
        files = pl.read_json(io.BytesIO(json.dumps(rows).encode()), schema=_WIRE_SCHEMA)
    except (pl.exceptions.PolarsError, ValueError) as cause:
        raise ProtocolError(
            f"the field {name!r} of the task is no list of files: {str(cause).splitlines()[0]}", type="task", field=name
        ) from cause
    missing = [column for column in _REQUIRED_COLUMNS if files[column].null_count()]
    if missing:
        raise ProtocolError(f"a file in {name!r} of the task has no {missing[0]!r}", type="task", field=missing[0])
    omitted = [pl.lit(None, FILE_SCHEMA[column]).alias(column) for column in _OMITTED_COLUMNS]
    return files.with_columns(omitted).select(FILE_SCHEMA.names())


def _has(given: Fields, name: str) -> bool:
    return name in given and given.value(name) is not None


def _one_of(given: Fields, name: str, values: tuple[str, ...]) -> str:
    value = given.text(name)
    if value not in values:
        raise ProtocolError(f"{name} of the task must be one of {', '.join(values)}, not {value!r}", type="task", field=name)
    return value
