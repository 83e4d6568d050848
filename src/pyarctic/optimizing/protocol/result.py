"""Outcomes and progress of tasks, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from pyiceberg.table.metadata import TableMetadata

from pyarctic.errors import ArcticError, ProtocolError
from pyarctic.iceberg import file_from_json, file_to_json
from pyarctic.iceberg.manifest import PartitionDecoder
from pyarctic.iceberg.write import NewFile
from pyarctic.optimizing.protocol.wire import Fields, to_document


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """What an attempt produced: files that are not part of a table yet, and the row counts that prove them."""

    job: str = ""
    """The id of the job; empty until the attempt has ended."""
    task: int
    attempt: int
    add: tuple[NewFile, ...]
    rows_in: int
    rows_deleted: int
    rows_out: int
    rows_from_changes: int = 0
    """Those of `rows_in` that came from the change store."""
    copied_rows: int = 0
    """Those of `rows_out` that were copied without decoding them."""
    files_with_rewritten_deletes: tuple[str, ...] = ()
    """Kept data files whose deleted rows are all listed by new position deletes."""
    shared_files: tuple[str, ...] = ()
    """Those of the files to add that already exist in the change store, and stay there."""
    hash_in: str | None = None
    hash_out: str | None = None
    row_map: str | None = None
    """A Parquet file as ROW_MAP_SCHEMA, to be removed after the commit."""
    more_row_maps: tuple[str, ...] = ()
    """The row maps of the other ranges, if the attempt was divided."""
    bytes_read: int = 0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    """The peak memory of the attempt's process so far."""

    @property
    def row_maps(self) -> tuple[str, ...]:
        """All row maps."""
        return ((self.row_map,) if self.row_map else ()) + self.more_row_maps

    @property
    def written(self) -> set[str]:
        """The files that the attempt wrote for the table."""
        return {file.path for file in self.add}.difference(self.shared_files)

    @property
    def paths(self) -> set[str]:
        """All files that the attempt wrote."""
        return self.written.union(self.row_maps)

    def to_json(self) -> dict[str, Any]:
        """This result as a JSON document."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return to_document("result", values | {"add": [file_to_json(file) for file in self.add]})

    @classmethod
    def from_json(cls, document: Mapping[str, Any], metadata: TableMetadata) -> Self:
        """The result of a JSON document."""
        given = Fields.of(document, "result")
        return cls(
            job=given.text("job"),
            task=given.number("task"),
            attempt=given.number("attempt"),
            add=_parse_files(given.objects("add"), metadata),
            rows_in=given.number("rows_in"),
            rows_deleted=given.number("rows_deleted"),
            rows_out=given.number("rows_out"),
            rows_from_changes=given.optional_number("rows_from_changes") or 0,
            copied_rows=given.optional_number("copied_rows") or 0,
            files_with_rewritten_deletes=given.texts("files_with_rewritten_deletes"),
            shared_files=given.texts("shared_files"),
            hash_in=given.optional_text("hash_in"),
            hash_out=given.optional_text("hash_out"),
            row_map=given.optional_text("row_map"),
            more_row_maps=given.texts("more_row_maps"),
            bytes_read=given.optional_number("bytes_read") or 0,
            cpu_seconds=given.decimal("cpu_seconds") if "cpu_seconds" in given else 0.0,
            peak_bytes=given.optional_number("peak_bytes") or 0,
        )


def _parse_files(documents: Sequence[Mapping[str, Any]], metadata: TableMetadata) -> tuple[NewFile, ...]:
    decoder = PartitionDecoder(metadata)
    try:
        return tuple(file_from_json(file, decoder) for file in documents)
    except (KeyError, TypeError, ValueError, ArcticError) as cause:
        reason = f"no field {cause}" if isinstance(cause, KeyError) else str(cause)
        raise ProtocolError(f"a file in 'add' of the result is wrong: {reason}", type="result", field="add") from cause


@dataclass(frozen=True, kw_only=True)
class TaskFailure:
    """Why an attempt failed."""

    task: int
    attempt: int
    code: str
    detail: str
    hint: str | None = None
    retryable: bool = False
    partition: str | None = None
    job: str = ""
    """The id of the job; empty if it is not told."""

    @classmethod
    def of(cls, task: int, attempt: int, error: BaseException, job: str = "") -> Self:
        """The failure that an exception stands for."""
        if isinstance(error, ArcticError):
            return cls(
                job=job,
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
            return cls(job=job, task=task, attempt=attempt, code="unavailable", detail=detail, hint=hint, retryable=True)
        return cls(job=job, task=task, attempt=attempt, code="internal", detail=detail)

    def to_json(self) -> dict[str, Any]:
        """This failure as a JSON document."""
        return to_document("failure", asdict(self))

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The failure of a JSON document."""
        given = Fields.of(document, "failure")
        return cls(
            task=given.number("task"),
            attempt=given.number("attempt"),
            code=given.text("code"),
            detail=given.text("detail"),
            hint=given.optional_text("hint"),
            retryable=given.flag("retryable"),
            partition=given.optional_text("partition"),
            job=given.optional_text("job") or "",
        )


TaskOutcome = TaskResult | TaskFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far an attempt is."""

    task: int
    rows: int = 0
    bytes: int = 0


ProgressListener = Callable[[Progress], None]
