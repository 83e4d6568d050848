"""Outcomes of attempts elsewhere: those of the task are accepted, all others are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from pyarctic.errors import ProtocolError
from pyarctic.optimizing.protocol import Job, Task
from pyarctic.optimizing.protocol.acceptance import Refusal, accept_failure, accept_result

EXAMPLES = Path(__file__).parents[2] / "data" / "protocol" / "v1"
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "protocol.md"
ATTEMPT = 1


def example(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((EXAMPLES / f"{name}.json").read_text(encoding="utf-8"))
    return document


JOB = Job.from_json(example("job"))
TASK, KEYED = Task.from_json(example("task")), Task.from_json(example("keyed-task"))
RESULT, FAILURE = example("result"), example("failure")
[FILE] = RESULT["add"]
DATA = "s3://lake/shop/orders/data/region=emea"
CHANGE = KEYED.to_json()["keyed"]["changes"][0]["file_path"]
[_, _, DELETE] = TASK.files["file_path"]
POSITIONS = FILE | {
    "content": 1,
    "data_sequence_number": None,
    "path": f"{DATA}/00000-1-{JOB.id}-00001-deletes.parquet",
    "record_count": 3,
    "referenced_data_file": TASK.data["file_path"][0],
}
VECTOR = POSITIONS | {"file_format": "PUFFIN", "path": f"{DATA}/00000-1-{JOB.id}-00001-deletes.puffin"}
NO_HASHES: dict[str, Any] = {"hash_in": None, "hash_out": None, "row_map": None}


def keyed_result(**changes: Any) -> dict[str, Any]:
    """Of a task that shares the one insert file, and rewrites the base file of 1000 rows without 10 of them."""
    own = FILE | {"path": f"{DATA}/5-B-17-00003-1-{JOB.id}-00001.parquet", "record_count": 990}
    shared = FILE | {"path": CHANGE, "record_count": 1000}
    counts = {"task": 3, "rows_in": 2000, "rows_deleted": 10, "rows_out": 1990, "rows_from_changes": 1000}
    return RESULT | {"add": [own, shared], "shared_files": [CHANGE]} | counts | changes


def sharing_task() -> Task:
    document = example("keyed-task")
    return Task.from_json(document | {"keyed": document["keyed"] | {"shareable": [CHANGE]}})


def converting_task() -> Task:
    return Task.from_json(example("task") | {"action": "convert"})


def converted(*files: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return RESULT | NO_HASHES | {"add": list(files)} | changes


def test_what_fits_is_accepted() -> None:
    accepted = accept_result(JOB, TASK, ATTEMPT, RESULT)
    assert accepted.to_json() == accept_result(JOB, TASK, ATTEMPT, accepted).to_json()
    assert accept_result(JOB, sharing_task(), ATTEMPT, keyed_result()).shared_files == (CHANGE,)
    assert accept_result(JOB, converting_task(), ATTEMPT, converted(POSITIONS)).hash_in is None
    assert accept_failure(JOB, TASK, FAILURE["attempt"], FAILURE).code == "unavailable"
    assert accept_failure(JOB, TASK, FAILURE["attempt"], FAILURE | {"job": ""}).retryable


def test_vectors_share_a_file() -> None:
    second = VECTOR | {"content_offset": 104, "content_size_bytes": 40, "referenced_data_file": TASK.data["file_path"][1]}
    result = converted(VECTOR | {"content_offset": 4, "content_size_bytes": 40}, second)
    assert len(accept_result(JOB, converting_task(), ATTEMPT, result).add) == 2


def without_id(name: str) -> dict[str, Any]:
    return {"add": [FILE | {"path": f"{DATA}/{name}"}]}


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("other-job", {"job": "another"}),
        ("other-job", {"job": ""}),
        ("other-task", {"task": 1}),
        ("other-attempt", {"attempt": 0}),
        ("other-attempt", {"attempt": 3}),
        ("content", {"add": [FILE, POSITIONS]}),
        ("sequence", {"add": [FILE | {"data_sequence_number": None}]}),
        ("sequence", {"add": [FILE | {"data_sequence_number": 4}]}),
        ("location", {"add": [FILE | {"path": FILE["path"].replace("s3://lake/shop/orders/", "s3://lake/shop/orders2/")}]}),
        ("location", {"add": [FILE | {"path": FILE["path"].replace("/data/", "/data/../../other/")}]}),
        ("location", without_id("a0.parquet")),
        ("location", {"row_map": f"s3://elsewhere/{JOB.id}.parquet"}),
        ("location", {"more_row_maps": [DELETE]}),
        ("duplicate", {"add": [FILE, FILE]}),
        ("duplicate", {"add": [FILE, FILE | {"content_offset": 7}]}),
        ("duplicate", {"more_row_maps": [RESULT["row_map"]]}),
        ("duplicate", {"row_map": FILE["path"]}),
        ("other-files", {"files_with_rewritten_deletes": [f"{DATA}/a9.parquet"]}),
        ("other-files", {"shared_files": [FILE["path"]]}),
        ("rows", {"rows_deleted": 8}),
        ("rows", {"rows_in": 1999, "rows_deleted": 6}),
        ("rows", {"rows_out": 1992, "rows_deleted": 8}),
        ("rows", {"rows_in": 2001, "rows_from_changes": 1}),
        ("rows", {"rows_deleted": -7, "rows_in": 1986}),
        ("rows", {"add": [FILE | {"record_count": 1992}]}),
        ("rows", {"add": []}),
        ("hash", {"hash_out": "0"}),
        ("hash", {"hash_in": None, "hash_out": None}),
    ],
)
def test_results_that_do_not_fit_are_refused(reason: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError) as caught:
        accept_result(JOB, TASK, ATTEMPT, RESULT | changes)
    assert (caught.value.facts["reason"], caught.value.facts["type"]) == (reason, "result")


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("other-files", {"add": [keyed_result()["add"][0]], "rows_out": 990, "rows_in": 1000, "rows_from_changes": 0}),
        ("location", {"shared_files": []}),
        ("rows", {"rows_out": 1991, "rows_deleted": 9}),
    ],
)
def test_results_of_keyed_tables_that_do_not_fit_are_refused(reason: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError) as caught:
        accept_result(JOB, sharing_task(), ATTEMPT, keyed_result(**changes))
    assert caught.value.facts["reason"] == reason


def test_files_are_shared_only_if_the_task_allows_it() -> None:
    with pytest.raises(ProtocolError, match="is shared, which the task does not allow"):
        accept_result(JOB, KEYED, ATTEMPT, keyed_result())


@pytest.mark.parametrize(
    ("reason", "result"),
    [
        ("content", converted(FILE)),
        ("content", converted(POSITIONS | {"content": 2})),
        ("other-files", converted(POSITIONS | {"referenced_data_file": f"{DATA}/a9.parquet"})),
        ("duplicate", converted(VECTOR, VECTOR)),
        ("rows", converted(POSITIONS, rows_out=2000)),
        ("rows", converted(POSITIONS, rows_in=3000, rows_out=2993)),
    ],
)
def test_conversions_that_do_not_fit_are_refused(reason: str, result: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError) as caught:
        accept_result(JOB, converting_task(), ATTEMPT, result)
    assert caught.value.facts["reason"] == reason


@pytest.mark.parametrize(
    ("reason", "changes"), [("other-job", {"job": "x"}), ("other-task", {"task": 1}), ("other-attempt", {"attempt": 3})]
)
def test_failures_of_others_are_refused(reason: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError) as caught:
        accept_failure(JOB, TASK, FAILURE["attempt"], FAILURE | changes)
    assert (caught.value.facts["reason"], caught.value.facts["type"]) == (reason, "failure")


def test_newer_versions_are_refused() -> None:
    with pytest.raises(ProtocolError) as caught:
        accept_result(JOB, TASK, ATTEMPT, RESULT | {"version": 2})
    assert caught.value.facts["reason"] == "newer-version"
    with pytest.raises(ProtocolError) as caught:
        accept_failure(JOB, TASK, FAILURE["attempt"], FAILURE | {"version": 2})
    assert caught.value.facts["reason"] == "newer-version"


@pytest.mark.parametrize(
    ("properties", "path"),
    [
        ({"write.data.path": "s3://hot/orders"}, f"s3://hot/orders/region=emea/{JOB.id}.parquet"),
        ({"write.object-storage.enabled": "true"}, f"s3://lake/shop/orders/data/0101/{JOB.id}.parquet"),
        ({"write.py-location-provider.impl": "a.module.Provider"}, f"s3://spread/{JOB.id}.parquet"),
    ],
)
def test_files_are_where_the_properties_of_the_table_put_them(properties: dict[str, str], path: str) -> None:
    document = example("job")
    metadata = document["metadata"] | {"properties": properties}
    job = Job.from_json(document | {"metadata": metadata})
    result = RESULT | {"add": [FILE | {"path": path}]}
    assert accept_result(job, TASK, ATTEMPT, result).add[0].path == path


def test_every_reason_is_documented() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [reason for reason in (*get_args(Refusal), "newer-version") if f"| `{reason}` |" not in page] == []
