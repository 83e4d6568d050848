"""A plan's tasks and what becomes of them, as data. As JSON they can be read in any language, and hold no secrets."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self

import polars as pl
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil

from pyarctic.errors import ArcticError
from pyarctic.iceberg import file_from_json, file_to_json, trim_metadata
from pyarctic.iceberg.manifest import FILE_SCHEMA, IS_DATA, PartitionDecoder
from pyarctic.iceberg.write import NewFile

OptimizingKind = Literal["minor", "major", "full"]
OPTIMIZING_KINDS: tuple[OptimizingKind, ...] = ("minor", "major", "full")
Action = Literal["merge", "convert"]

_LEFT_OUT = ("snapshot_id", "file_sequence_number", "sort_order_id", "manifest_path")
"""Of a file list; a task does not need them."""
KEY_SHARE = 0.1
"""About the part of a file that its key columns are: what it costs to ask a file that stays."""
_KEPT_PROPERTIES = ("write.", "schema.name-mapping.", "mixed-format.")


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """A unit of rewriting: data files, and the delete files that hit them."""

    id: int
    action: Action
    """`merge` writes the living rows into new files. `convert` leaves data files as they are, finds the rows that equality
    deletes hit, and writes their positions."""
    kind: OptimizingKind
    partition: str
    """As people write it."""
    files: pl.DataFrame
    """Rows of a file list, data and deletes."""
    spec_id: int
    partition_key: str | None
    """Where the rows go. None: each row where the spec puts it."""
    target_bytes: int
    expected_rows: int
    expected_bytes: int
    sort: bool = False
    """Whether rows are sorted: by `z_order` if it is there, else by the table's sort order."""
    z_order: tuple[int, ...] = ()
    """Ids of the columns by which rows are clustered."""
    ranges: int = 1
    """Into how many ranges of keys an engine may divide the work. Outputs have no key in common either way."""
    copy_least_rows: int | None = None
    """Row groups of at least so many rows are copied undecoded if nothing in them changes; None: all are encoded anew."""
    reasons: tuple[str, ...] = ()
    keyed: KeyedTask | None = None
    """What is more to it in a keyed table."""

    @property
    def data(self) -> pl.DataFrame:
        return self.files.filter(IS_DATA)

    @property
    def deletes(self) -> pl.DataFrame:
        return self.files.filter(~IS_DATA)

    @property
    def replaced(self) -> pl.DataFrame:
        """The data files whose rows are written anew."""
        if self.action != "merge":
            return self.data.clear()
        return self.data if self.keyed is None else self.data.filter(~pl.col("file_path").is_in(list(self.keyed.kept)))

    @property
    def input_bytes(self) -> int:
        """Of all rows that are read."""
        inserted = 0 if self.keyed is None else int(self.keyed.changes["file_size_bytes"].sum())
        return int(self.data["file_size_bytes"].sum()) + inserted

    @property
    def work_bytes(self) -> int:
        """What it costs, in bytes of rows that are written anew: of files that stay only the keys are looked at."""
        everything, written = self.input_bytes, int(self.replaced["file_size_bytes"].sum())
        if self.keyed is not None:
            written += int(self.keyed.changes["file_size_bytes"].sum())
        return written + int((everything - written) * KEY_SHARE)

    def to_json(self) -> dict[str, Any]:
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        keyed = None if self.keyed is None else self.keyed.to_json()
        return values | {
            "reasons": list(self.reasons),
            "z_order": list(self.z_order),
            "files": _listed(self.files),
            "keyed": keyed,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        keyed = document["keyed"]
        return cls(
            **{
                **document,
                "files": _read(document["files"]),
                "reasons": tuple(document["reasons"]),
                "z_order": tuple(document["z_order"]),
                "keyed": None if keyed is None else KeyedTask.from_json(keyed),
            },
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class KeyedTask:
    """Changes of a keyed table that are merged into one node of its tree. The task's data files are those of Base that may
    share keys with them, or are to be written anew."""

    node_id: int
    """Rows of this node are written. Of files that hold others as well, the others are skipped."""
    changes: pl.DataFrame
    """Rows of the file list of the change store."""
    kept: tuple[str, ...]
    """Data files that stay: of their rows that are dead by now the positions are written."""
    transaction_id: int
    """That of the new files: no row in them comes later."""
    shareable: tuple[str, ...] = ()
    """Files of inserts that become part of Base as they are, if none of their rows is dead."""

    def to_json(self) -> dict[str, Any]:
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return values | {"changes": _listed(self.changes), "kept": list(self.kept), "shareable": list(self.shareable)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        paths = {name: tuple(document[name]) for name in ("kept", "shareable")}
        return cls(**{**document, **paths, "changes": _read(document["changes"])})


def _listed(files: pl.DataFrame) -> Any:
    return json.loads(files.drop(_LEFT_OUT, strict=False).write_json())


def _read(listed: Any) -> pl.DataFrame:
    files = pl.read_json(io.BytesIO(json.dumps(listed).encode()), schema=_WIRE_FILES)
    missing = [pl.lit(None, FILE_SCHEMA[name]).alias(name) for name in _LEFT_OUT]
    return files.with_columns(missing).select(FILE_SCHEMA.names())


_WIRE_FILES = pl.Schema({name: kind for name, kind in FILE_SCHEMA.items() if name not in _LEFT_OUT})


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """What the tasks of one run share: the table as it was when they were planned, and how to work."""

    id: str
    table: str
    metadata: TableMetadata
    """Without snapshots, and of the properties only those that say how files are written and read."""
    snapshot_id: int | None
    sequence_number: int | None
    """The one that rewritten files take; without one they take that of their commit."""
    memory_bytes: int
    verify: bool = False
    """Compare the content of what is read with what was written, by hash."""

    @property
    def keeps_lineage(self) -> bool:
        """Whether rows have ids that a rewrite must carry along."""
        return self.metadata.format_version >= 3

    def to_json(self) -> dict[str, Any]:
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return values | {"metadata": json.loads(self.metadata.model_dump_json())}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        metadata = TableMetadataUtil.parse_raw(json.dumps(document["metadata"]))
        return cls(**{**document, "metadata": metadata})


def job_metadata(metadata: TableMetadata) -> TableMetadata:
    """As much of a table's metadata as tasks need."""
    return trim_metadata(metadata, lambda key: key.startswith(_KEPT_PROPERTIES))


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """What an attempt made: files that are part of no table yet, and the count of rows that proves them."""

    task: int
    attempt: int
    add: tuple[NewFile, ...]
    rows_in: int
    rows_deleted: int
    rows_out: int
    rows_from_changes: int = 0
    """Of the rows in: those that came from the change store."""
    copied_rows: int = 0
    """Of the rows out: those that were copied undecoded."""
    restated: tuple[str, ...] = ()
    """Data files that stay, and of which all dead rows are named by new position deletes."""
    shared: tuple[str, ...] = ()
    """Of the files to add: those that were there already, in the change store, and stay there."""
    hash_in: str | None = None
    hash_out: str | None = None
    row_map: str | None = None
    """A Parquet file as ROW_MAP_SCHEMA, to be removed after the commit."""
    more_row_maps: tuple[str, ...] = ()
    """Of an attempt that was divided: those of the other parts."""
    bytes_read: int = 0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    """Most memory that the attempt's process has had so far."""

    @property
    def bytes_written(self) -> int:
        """Several vectors share one file."""
        return sum({file.path: file.file_size_bytes for file in self.add if file.path not in self.shared}.values())

    @property
    def row_maps(self) -> tuple[str, ...]:
        return ((self.row_map,) if self.row_map else ()) + self.more_row_maps

    @property
    def written(self) -> set[str]:
        """The files that the attempt wrote for the table."""
        return {file.path for file in self.add}.difference(self.shared)

    @property
    def paths(self) -> set[str]:
        """Everything the attempt wrote."""
        return self.written.union(self.row_maps)

    def to_json(self) -> dict[str, Any]:
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return values | {"add": [file_to_json(file) for file in self.add]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any], metadata: TableMetadata) -> Self:
        decoder = PartitionDecoder(metadata)
        add = tuple(file_from_json(file, decoder) for file in document["add"])
        more = {name: tuple(document[name]) for name in ("restated", "shared", "more_row_maps")}
        return cls(**{**document, "add": add, **more})


@dataclass(frozen=True, kw_only=True)
class TaskFailure:
    """Why an attempt came to nothing."""

    task: int
    attempt: int
    code: str
    detail: str
    hint: str | None = None
    retryable: bool = False
    partition: str | None = None

    @classmethod
    def of(cls, task: int, attempt: int, error: BaseException) -> Self:
        if isinstance(error, ArcticError):
            return cls(
                task=task,
                attempt=attempt,
                code=error.code,
                detail=str(error),
                hint=error.hint,
                retryable=error.retryable,
            )
        detail = f"{type(error).__name__}: {error}".splitlines()[0]
        if isinstance(error, OSError):
            hint = "Check the storage, the free space on it and on $ARCTIC_SPILL_DIR, and try again."
            return cls(task=task, attempt=attempt, code="unavailable", detail=detail, hint=hint, retryable=True)
        return cls(task=task, attempt=attempt, code="internal", detail=detail)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


TaskOutcome = TaskResult | TaskFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far an attempt is."""

    task: int
    rows: int = field(default=0)
    bytes: int = field(default=0)


ProgressListener = Callable[[Progress], None]
