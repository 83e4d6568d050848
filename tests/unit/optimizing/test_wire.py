"""Plans, jobs, tasks and outcomes as documents: examples of every version are read, wrong ones are refused by name."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyarctic.errors import ProtocolError
from pyarctic.optimizing.plan.commit_plan import CommitPlan
from pyarctic.optimizing.protocol import Job, Task, TaskFailure, TaskResult
from pyarctic.optimizing.protocol.task import KeyedTask
from pyarctic.optimizing.protocol.wire import PROTOCOL_VERSION, pack, unpack

EXAMPLES = Path(__file__).parents[2] / "data" / "protocol"
NAMES = ("job", "task", "keyed-task", "result", "failure", "plan-native", "plan-keyed")
NOT_NEEDED = {
    "job": {"snapshot_id", "sequence_number", "verify"},
    "task": {"partition_key", "sort", "z_order", "ranges", "copy_least_rows", "files_out", "reasons", "keyed"},
    "result": {
        "rows_from_changes",
        "copied_rows",
        "files_with_rewritten_deletes",
        "shared_files",
        "hash_in",
        "hash_out",
        "row_map",
        "more_row_maps",
        "bytes_read",
        "cpu_seconds",
        "peak_bytes",
    },
    "failure": {"hint", "retryable", "partition", "job"},
    "plan": {"dangling_deletes", "ignores_writers", "marks_rollback"},
}
"""Fields that a document may lack."""
Parsed = Job | Task | TaskResult | TaskFailure | CommitPlan


def example(name: str, version: int = PROTOCOL_VERSION) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((EXAMPLES / f"v{version}" / f"{name}.json").read_text(encoding="utf-8"))
    return document


def parse(name: str, document: Any) -> Parsed:
    readers: dict[str, Callable[[Any], Parsed]] = {
        "job": Job.from_json,
        "task": Task.from_json,
        "keyed-task": Task.from_json,
        "result": lambda result: TaskResult.from_json(result, Job.from_json(example("job")).metadata),
        "failure": TaskFailure.from_json,
        "plan-native": CommitPlan.from_json,
        "plan-keyed": CommitPlan.from_json,
    }
    return readers[name](document)


def written(parsed: Parsed) -> Any:
    return json.loads(json.dumps(parsed.to_json()))


def test_every_version_has_examples() -> None:
    versions = {int(folder.name.removeprefix("v")) for folder in EXAMPLES.iterdir()}
    assert versions == set(range(1, PROTOCOL_VERSION + 1))


@pytest.mark.parametrize("version", range(1, PROTOCOL_VERSION + 1))
@pytest.mark.parametrize("name", NAMES)
def test_examples_are_read(name: str, version: int) -> None:
    parse(name, example(name, version))


@pytest.mark.parametrize("name", NAMES)
def test_documents_of_this_version_stay_as_they_are(name: str) -> None:
    """If this fails, the form has changed: raise the version, unless a field was only added."""
    assert written(parse(name, example(name))) == example(name)


def test_what_is_read() -> None:
    job, task, keyed = (
        parse("job", example("job")),
        parse("task", example("task")),
        parse("keyed-task", example("keyed-task")),
    )
    assert isinstance(job, Job)
    assert (job.snapshot_id, job.metadata.location, job.verify) == (8334958757184665229, "s3://lake/shop/orders", True)
    assert isinstance(task, Task)
    assert (task.data.height, task.deletes["equality_ids"].to_list(), task.files_out) == (2, [[1]], (1, 1, 1))
    assert isinstance(keyed, KeyedTask)
    assert (keyed.node_id, keyed.transaction_id, keyed.changes.height) == (5, 17, 1)
    result = parse("result", example("result"))
    assert isinstance(result, TaskResult)
    assert result.job == job.id
    assert result.add[0].partition == ("emea",)
    assert result.add[0].metrics.lower_bounds[2] == b"emea"


@pytest.mark.parametrize("name", NAMES)
def test_unknown_fields_are_ignored(name: str) -> None:
    document = example(name) | {"new": {"in": "a later release"}}
    for part in ("files", "add"):
        if isinstance(document.get(part), list):
            document |= {part: [entry | {"new": 1} for entry in document[part]]}
        elif part in document:
            document |= {part: document[part] | {"new": [1]}}
    assert written(parse(name, document)) == example(name)


@pytest.mark.parametrize("name", NAMES)
def test_missing_fields_are_named(name: str) -> None:
    document = example(name)
    type_ = document["type"]
    for field in document:
        without = {key: value for key, value in document.items() if key != field}
        if field in NOT_NEEDED[type_]:
            parse(name, without)
        else:
            with pytest.raises(ProtocolError, match=rf"has no field '{field}'$") as caught:
                parse(name, without)
            assert caught.value.facts["field"] == field


@pytest.mark.parametrize(
    ("name", "field", "value", "told"),
    [
        ("job", "memory_bytes", "a lot", "the field 'memory_bytes' of the job must be a whole number, not a text"),
        ("job", "memory_bytes", True, "must be a whole number, not true or false"),
        ("job", "snapshot_id", 8334958757184665229, "must be a text, not a whole number"),
        ("job", "snapshot_id", "newest", "must be a whole number as text, not a text"),
        ("job", "metadata", {"format-version": 2}, "the metadata of the job is not Iceberg's"),
        ("task", "files", {}, "the field 'files' of the task must be a list, not an object"),
        ("task", "files", [1], "the field 'files' of the task must be a list of objects, not a list"),
        ("task", "files", [{"content": 0}], "a file in 'files' of the task has no 'file_path'"),
        ("task", "kind", "tiny", "kind of the task must be one of minor, major, full, not 'tiny'"),
        ("task", "action", "drop", "action of the task must be one of merge, convert, not 'drop'"),
        ("task", "reasons", [1], "the field 'reasons' of the task must be a list of texts, not a list"),
        ("keyed-task", "keyed", [], "a task must be a JSON object, not a list"),
        ("keyed-task", "keyed", {"changes": []}, "the task has no field 'node_id'"),
        ("result", "add", [{"path": "x"}], "a file in 'add' of the result is wrong: no field 'metrics'"),
        ("result", "rows_out", None, "the field 'rows_out' of the result must be a whole number, not null"),
        ("plan-native", "files", [], "the field 'files' of the plan must have a list for each column"),
        ("plan-native", "files", {"content": 0}, "the field 'files' of the plan must have a list for each column"),
        ("plan-native", "files", {"content": [0]}, "the field 'files' of the plan has no columns of files"),
        ("plan-native", "files", {"file_path": ["x"]}, "a file in 'files' of the plan has no 'content'"),
        ("plan-native", "files", {"file_path": [1]}, "the field 'files' of the plan has no columns of files"),
        ("plan-native", "dangling_deletes", [99], "a number in 'dangling_deletes' is not that of a file of the plan"),
        ("plan-native", "dangling_deletes", [-1], "a number in 'dangling_deletes' is not that of a file of the plan"),
        ("plan-native", "tasks", [{"id": 1}], "the task has no field 'action'"),
        ("plan-native", "expected", {"tasks": "two"}, "the field 'tasks' of the plan must be a whole number, not a text"),
        ("plan-keyed", "keyed", {"merges": [1]}, "the field 'merges' of the plan must be a list of objects, not a list"),
        ("plan-keyed", "keyed", {"merges": []}, "the plan has no field 'change_sequence_number'"),
        ("failure", "retryable", "no", "the field 'retryable' of the failure must be true or false, not a text"),
    ],
)
def test_wrong_values_are_named(name: str, field: str, value: Any, told: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse(name, example(name) | {field: value})
    assert told in caught.value.message


@pytest.mark.parametrize("name", NAMES)
def test_newer_versions_and_other_types_are_refused(name: str) -> None:
    document = example(name)
    with pytest.raises(ProtocolError, match=f"version {PROTOCOL_VERSION + 1} of the protocol") as caught:
        parse(name, document | {"version": PROTOCOL_VERSION + 1})
    assert (caught.value.facts["version"], caught.value.facts["reason"]) == (PROTOCOL_VERSION + 1, "newer-version")
    with pytest.raises(ProtocolError, match=f"expected a {document['type']}, not a table"):
        parse(name, document | {"type": "table"})
    with pytest.raises(ProtocolError, match="must be a JSON object, not null"):
        parse(name, None)


@pytest.mark.parametrize("name", ["plan-native", "plan-keyed"])
def test_stored_plans_are_read(name: str) -> None:
    stored = (EXAMPLES / "v1" / f"{name}.json.gz").read_bytes()
    assert unpack(stored) == example(name)
    assert written(CommitPlan.from_bytes(stored)) == example(name)


def test_what_is_read_of_plans() -> None:
    native, keyed = parse("plan-native", example("plan-native")), parse("plan-keyed", example("plan-keyed"))
    assert isinstance(native, CommitPlan)
    merge, convert = native.tasks
    assert merge.deletes.equals(convert.deletes)
    assert merge.deletes["manifest_path"].to_list() == ["s3://lake/shop/orders/metadata/a-m0.avro"]
    assert merge.files["snapshot_id"].unique().to_list() == [8334958757184665229]
    assert (native.keyed, native.dangling_deletes.height, native.quiet_time.total_seconds()) == (None, 1, 30)
    assert isinstance(keyed, CommitPlan)
    assert keyed.keyed is not None
    assert keyed.keyed.change_snapshot_id == 1402385520113386772
    assert [merge.sequence for merge in keyed.keyed.merges.values()] == [17, 0]
    first, second = keyed.tasks
    assert isinstance(first, KeyedTask)
    assert isinstance(second, KeyedTask)
    assert first.shareable == tuple(first.changes["file_path"])
    assert second.kept == tuple(second.data["file_path"])


@pytest.mark.parametrize("name", NAMES)
def test_documents_are_stored_compressed(name: str) -> None:
    document = written(parse(name, example(name)))
    stored = pack(document)
    assert unpack(stored) == document
    assert json.loads(gzip.decompress(stored)) == document, "any program reads it"
    assert pack(document) == stored


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "truncated"),
        (b"{}", "not gzip"),
        (gzip.compress(b"{}")[:-3], "truncated"),
        (gzip.compress(b"{}") + b"more", "something follows it"),
        (gzip.compress(b"{"), "not JSON"),
        (gzip.compress(b"\xff"), "not JSON"),
        (gzip.compress(b"[" * 200_000), "not JSON"),
        (gzip.compress(b" " * 2_000_000), "more than 1000000 bytes"),
    ],
    ids=["empty", "text", "cut", "more", "open", "bytes", "deep", "large"],
)
def test_what_is_no_stored_document_is_refused(data: bytes, told: str) -> None:
    with pytest.raises(ProtocolError, match=told):
        unpack(data, max_bytes=1_000_000)
