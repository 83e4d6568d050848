"""Accepting outcomes of attempts that were made elsewhere: what does not belong to the task, or does not add up, is refused
before anybody relies on it.

A refusal is a `ProtocolError` with a `Refusal` as its fact `reason`. It changes nothing: the attempt can report again, and
the task can be tried again. A document that cannot be read at all is refused with the name of its field or its version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

from pyiceberg.table import TableProperties
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata

from pyarctic.errors import ProtocolError
from pyarctic.iceberg.commit import Proof
from pyarctic.iceberg.manifest import POSITION_DELETES
from pyarctic.optimizing.protocol.file_forms import faults_of
from pyarctic.optimizing.protocol.job import Job
from pyarctic.optimizing.protocol.result import TaskFailure, TaskOutcome, TaskResult
from pyarctic.optimizing.protocol.task import KeyedTask, Task

Refusal = Literal[
    "other-job",
    "other-task",
    "other-attempt",
    "content",
    "sequence",
    "location",
    "duplicate",
    "other-files",
    "rows",
    "hash",
]
"""Why an outcome is refused; docs/reference/protocol.md explains them."""
_DATA = 0


def accept_result(job: Job, task: Task, attempt: int, result: TaskResult | Mapping[str, Any]) -> TaskResult:
    """The result of a task, or of its document, if it can be committed. `attempt`: the number of the attempt in work."""
    if not isinstance(result, TaskResult):
        result = TaskResult.from_json(result, job.metadata)
    _check_attempt(job, task, attempt, result)
    _check_contents(task, result)
    _check_sequence_numbers(job, result)
    _check_paths(job, result)
    _check_forms(job, result)
    _check_inputs(task, result)
    _check_rows(task, result)
    _check_hashes(job, task, result)
    return result


def accept_failure(job: Job, task: Task, attempt: int, failure: TaskFailure | Mapping[str, Any]) -> TaskFailure:
    """The failure of a task, or of its document, if it is from the attempt in work."""
    if not isinstance(failure, TaskFailure):
        failure = TaskFailure.from_json(failure)
    _check_attempt(job, task, attempt, failure)
    return failure


def _check_attempt(job: Job, task: Task, attempt: int, outcome: TaskOutcome) -> None:
    type_ = "result" if isinstance(outcome, TaskResult) else "failure"
    # A failure may not tell its job: what failed before the job was read.
    if outcome.job != job.id and (type_ == "result" or outcome.job):
        raise _refusal("other-job", f"the {type_} is for job {outcome.job!r}, not {job.id}", "job", type_)
    if outcome.task != task.id:
        raise _refusal("other-task", f"the {type_} is for task {outcome.task}, not {task.id}", "task", type_)
    if outcome.attempt != attempt:
        message = f"attempt {outcome.attempt} at task {task.id} is not, or no longer, expected"
        raise _refusal("other-attempt", message, "attempt", type_)


def _check_contents(task: Task, result: TaskResult) -> None:
    """Merges write data files, and for kept files of keyed tables position deletes; conversions write position deletes."""
    expected = {POSITION_DELETES} if task.action == "convert" else {_DATA}
    expected |= {POSITION_DELETES} if isinstance(task, KeyedTask) else set()
    for file in result.add:
        if file.content not in expected:
            message = f"a task that is to {task.action} adds {file.path} with content {file.content}"
            raise _refusal("content", message, "add")


def _check_sequence_numbers(job: Job, result: TaskResult) -> None:
    """Deletes by key that others commit meanwhile apply to new data files only if these keep the number of the plan."""
    for file in result.add:
        expected = job.sequence_number if file.content == _DATA else None
        if file.data_sequence_number != expected:
            message = f"{file.path} has the data sequence number {file.data_sequence_number}, not {expected}"
            raise _refusal("sequence", message, "add")


def _check_paths(job: Job, result: TaskResult) -> None:
    """Refuse files that are not the job's own: those that are not committed will be removed."""
    folders = _folders(job.metadata)
    for path in sorted(result.paths):
        if ".." in path.split("/") or not path.startswith(folders):
            raise _refusal("location", f"{path} is not in the location of the table's data", "add")
        if job.id not in path.rpartition("/")[2]:
            raise _refusal("location", f"the name of {path} does not have the id of the job", "add")
    # Several deletion vectors are in one file.
    places = [(file.path, file.content_offset if file.is_vector else None) for file in result.add]
    places += [(path, None) for path in result.row_maps]
    for (path, _), count in Counter(places).items():
        if count > 1:
            raise _refusal("duplicate", f"the result has {path} {count} times", "add")


def _check_forms(job: Job, result: TaskResult) -> None:
    for file in result.add:
        if fault := next(faults_of(file, job.metadata), None):
            raise _refusal("content", f"{file.path} cannot be added: {fault}", "add")


def _folders(metadata: TableMetadata) -> tuple[str, ...]:
    """The beginnings of all paths that files of a table may have."""
    if TableProperties.WRITE_PY_LOCATION_PROVIDER_IMPL in metadata.properties:
        return ("",)  # only the provider knows; names still have the id of the job
    provider = load_location_provider(metadata.location, metadata.properties)
    return tuple(f"{folder.rstrip('/')}/" for folder in (metadata.location, provider.data_path))


def _check_inputs(task: Task, result: TaskResult) -> None:
    """Refuse a result that names files as inputs which the task does not have."""
    data = set(task.data["file_path"])
    shareable = set(task.shareable) if isinstance(task, KeyedTask) else set()
    referenced = {file.referenced_data_file for file in result.add if file.referenced_data_file is not None}
    strangers = (
        ("add", referenced - data, "a new delete file is for {}, which is no data file of the task"),
        (
            "files_with_rewritten_deletes",
            set(result.files_with_rewritten_deletes) - data,
            "deletes of {} were rewritten, which is no data file of the task",
        ),
        (
            "shared_files",
            set(result.shared_files) - (shareable & {file.path for file in result.add}),
            "{} is shared, which the task does not allow, or the result does not add",
        ),
    )
    for field, paths, message in strangers:
        if paths:
            raise _refusal("other-files", message.format(min(paths)), field)


def _check_rows(task: Task, result: TaskResult) -> None:
    """Refuse numbers of rows that do not prove that no row was lost. Several tasks of a keyed table may read the same files,
    each the rows of its node: there, what was read is compared when they are committed."""
    counts = (result.rows_in, result.rows_deleted, result.rows_out, result.rows_from_changes)
    if min(counts) < 0 or any(file.record_count < 0 or file.file_size_bytes < 0 for file in result.add):
        raise _refusal("rows", "a number of rows or bytes is negative", "rows_in")
    proof = Proof(
        rows_in=result.rows_in,
        rows_deleted=result.rows_deleted,
        rows_out=result.rows_out,
        rows_from_changes=result.rows_from_changes,
    )
    read = result.rows_in - result.rows_from_changes
    expected = read if isinstance(task, KeyedTask) else int(task.data["record_count"].sum())
    written = sum(file.record_count for file in result.add if file.content == _DATA)
    fault = proof.fault(expected, result.rows_out if task.action == "convert" else written)
    if fault is not None:
        raise _refusal("rows", f"the rows do not balance: {fault}", "rows_out")


def _check_hashes(job: Job, task: Task, result: TaskResult) -> None:
    """Conversions write no rows, and have no hashes."""
    is_missing = job.verify and task.action == "merge" and result.hash_in is None
    if is_missing or result.hash_in != result.hash_out:
        message = f"the content hash of the rows read is {result.hash_in}, that of the rows written {result.hash_out}"
        raise _refusal("hash", message, "hash_out")


def _refusal(reason: Refusal, message: str, field: str, type_: str = "result") -> ProtocolError:
    return ProtocolError(message, reason=reason, type=type_, field=field)
