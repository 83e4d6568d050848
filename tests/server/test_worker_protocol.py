"""The worker protocol, in the hands of an optimizer that executes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from pyarctic.ams import Ams
from pyarctic.optimizing.protocol import TaskFailure
from tests.server.requests import Api, Worker


@pytest.fixture
def worker(ams: Ams, table: str, api: Api) -> Worker:
    """One for whom three tasks wait."""
    ams.looks.discover()
    ams.looks.look(api.get("/tables")["items"][0]["uuid"])
    return api.register()


def _failure(task: dict[str, Any], **changes: Any) -> dict[str, Any]:
    _, _, number = task["task_id"].rpartition(".")
    error = OSError("the disk is full")
    return TaskFailure.of(int(number), task["attempt"], error, task["job"]["id"]).to_json() | changes


def test_registration(api: Api) -> None:
    answer = api.post("/optimizers", {"parallelism": 4, "heartbeat_seconds": 30, "group": "night"}, 201)
    assert (answer["heartbeat_timeout_seconds"], answer["protocol_version"]) == (90, 1)
    shown = api.get(f"/optimizers/{answer['id']}")
    assert (shown["group"], shown["state"], shown["attempts"]) == ("night", "active", [])
    assert answer["secret"] not in str(shown)
    assert "hash" not in str(shown)
    assert [each["id"] for each in api.get("/optimizers", group="night", state="active")["items"]] == [answer["id"]]
    assert api.get("/optimizers", group="day")["items"] == []
    for wrong in ({"parallelism": 0}, {}, {"parallelism": 1, "memory_bytes": 1 << 80}):
        assert api.post("/optimizers", wrong, 422)["code"] == "invalid-request"
    for field, value in (("heartbeat_seconds", 0.1), ("protocol_version", 2)):
        assert api.post("/optimizers", {"parallelism": 1, field: value}, 400)["hint"]


def test_secrets(worker: Worker, api: Api) -> None:
    other = api.register()
    [task] = worker.poll()
    stranger = Worker(other.api, worker.id)
    for what, body in (("heartbeat", {}), ("poll", {"wait_seconds": 0}), ("stop", None)):
        assert stranger.api.post(f"/optimizers/{worker.id}/{what}", body, 401)["code"] == "unauthorized"
        assert api.post(f"/optimizers/{worker.id}/{what}", body, 401)["hint"]
    for what, body in (("ack", None), ("progress", {}), ("complete", {}), ("fail", _failure(task))):
        assert stranger.report(task, what, body, 401)["code"] == "unauthorized"
    path = f"/tasks/{task['task_id']}/attempts/{task['attempt']}/storage"
    assert stranger.api.get(path, 401)["code"] == "unauthorized"
    assert "properties" in worker.api.get(path)


def test_attempts(worker: Worker, api: Api) -> None:
    [first, second] = worker.poll(slots=2)
    assert (first["attempt"], first["table"], first["job"]["table"]) == (0, "lake.db.orders", "lake.db.orders")
    worker.report(first, "ack")
    worker.report(first, "ack")
    worker.report(first, "progress", {"rows": 5, "bytes": 700})
    shown = api.get(f"/tasks/{first['task_id']}")
    assert (shown["rows_done"], shown["bytes_done"], shown["optimizer_id"]) == (5, 700, worker.id)
    assert worker.report(first, "progress", {"rows": -1}, 422)["errors"][0]["field"] == "body.rows"
    assert api.get(f"/optimizers/{worker.id}")["attempts"] == [
        {"task_id": each["task_id"], "attempt": 0} for each in (first, second)
    ]
    for what, body in (("ack", None), ("progress", {})):
        problem = worker.report(first, what, body, 409, attempt=1)
        assert (problem["code"], problem["facts"]["attempt"]) == ("stale-attempt", 1)
    storage = worker.api.get(f"/tasks/{first['task_id']}/attempts/7/storage", 409)
    assert storage["code"] == "stale-attempt"
    executed = [{"task_id": first["task_id"], "attempt": 0}, {"task_id": "gone.1", "attempt": 3}]
    answer = worker.api.post(f"/optimizers/{worker.id}/heartbeat", {"attempts": executed})
    assert answer == {"state": "active", "stop": [{"task_id": "gone.1", "attempt": 3}]}


def test_failures(worker: Worker, api: Api) -> None:
    [task] = worker.poll()
    assert worker.report(task, "fail", _failure(task, job="other"), 422)["facts"]["reason"] == "other-job"
    for _ in range(2):
        worker.report(task, "fail", _failure(task), 200)
    shown = api.get(f"/tasks/{task['task_id']}")
    assert (shown["state"], shown["retries"], len(shown["failures"])) == ("failed", 1, 1)
    assert shown["failures"][0]["detail"] == "OSError: the disk is full"
    assert worker.report(task, "ack", None, 409)["code"] == "stale-attempt"


def test_results_that_are_refused(worker: Worker) -> None:
    [task] = worker.poll()
    result = {
        "type": "result",
        "version": 1,
        "job": task["job"]["id"],
        "task": task["task"]["id"],
        "attempt": 0,
        "add": [],
        "rows_in": 0,
        "rows_deleted": 0,
        "rows_out": 0,
    }
    assert worker.report(task, "complete", {}, 422)["facts"]["field"] == "type"
    assert worker.report(task, "complete", result | {"version": 2}, 422)["facts"]["reason"] == "newer-version"
    assert worker.report(task, "complete", result | {"rows_in": "5"}, 422)["facts"]["field"] == "rows_in"
    problem = worker.report(task, "complete", result, 422)
    assert (problem["code"], problem["facts"]["reason"], problem["facts"]["field"]) == ("protocol", "rows", "rows_out")
    file = {"content": 0, "path": "a", "file_format": "PARQUET", "spec_id": 0, "partition": "[0]", "record_count": 1}
    file |= {"file_size_bytes": 1, "metrics": {}}
    wrong = {
        "path": 5,
        "record_count": "1",
        "file_size_bytes": 1 << 70,
        "metrics": [],
        "split_offsets": [-1],
        "sort_order_id": 1.5,
    }
    for field, value in wrong.items():
        problem = worker.report(task, "complete", result | {"add": [file | {field: value}]}, 422)
        assert problem["facts"]["field"].startswith(f"add.0.{field}")
    for fault in ({"spec_id": 9}, {"partition": "x"}, {"metrics": {"lower_bounds": {"1": "é"}}}):
        assert worker.report(task, "complete", result | {"add": [file | fault]}, 422)["facts"]["field"] == "add"
    assert worker.report(task, "complete", result | {"add": [file]}, 422)["facts"]["reason"] == "sequence"
    file |= {"data_sequence_number": task["job"]["sequence_number"]}
    assert worker.report(task, "complete", result | {"add": [file]}, 422)["facts"]["reason"] == "location"
    worker.report(task, "ack")  # the attempt still counts


def test_draining_and_stopping(worker: Worker, api: Api) -> None:
    [task] = worker.poll()
    assert api.post(f"/optimizers/{worker.id}/drain")["state"] == "draining"
    assert worker.poll() == []
    assert worker.api.post(f"/optimizers/{worker.id}/heartbeat", {})["state"] == "draining"
    worker.api.post(f"/optimizers/{worker.id}/stop", None, 204)
    shown = api.get(f"/tasks/{task['task_id']}")
    assert (shown["state"], shown["optimizer_id"], shown["retries"]) == ("pending", None, 0)
    for what in ("complete", "progress"):
        assert worker.report(task, what, {}, 409)["code"] == "stale-attempt"
    for what in ("heartbeat", "poll"):
        assert worker.api.post(f"/optimizers/{worker.id}/{what}", {}, 410)["code"] == "unknown-optimizer"
    worker.api.post(f"/optimizers/{worker.id}/stop", None, 204)  # its first answer may have been lost
    assert api.post(f"/optimizers/{worker.id}/drain", None, 409)["code"] == "invalid-transition"
