"""A table over HTTP, from its discovery to the end of its process."""

from __future__ import annotations

import json
from pathlib import Path

from pyiceberg.catalog import Catalog

import pyarctic
from pyarctic.ams import Ams
from pyarctic.client import Address, Client, OptimizerClient
from pyarctic.optimizing.execute.kernel import JobContext, execute
from pyarctic.optimizing.protocol import Task
from pyarctic.server.optimizers import PollAnswer
from pyarctic.server.task_documents import Result
from tests.server.folders import files_in, live_files
from tests.support import changes


def test_a_table_is_optimized(ams: Ams, client: Client, address: Address, lake: Catalog, table: str, tmp_path: Path) -> None:
    rows_before = changes.rows(lake.load_table("db.orders")).sort_by("id")
    ams.looks.discover()
    [watched] = client.tables("lake.*")
    assert (watched["name"], watched["state"], watched["health"]) == (table, "active", None)

    ams.looks.look(watched["uuid"])
    [process] = client.processes(table=table)
    assert (process["state"], process["tasks"]) == ("running", 3)
    assert client.table(table).get()["health"] < 100
    explained = client.table(table).explain()
    assert [each["code"] for each in explained["service"]["hindrances"]] == ["in-work", "no-optimizer"]

    optimizer = OptimizerClient(address)
    optimizer.register(parallelism=3)
    handed = optimizer.poll(slots=3, wait_seconds=5)
    assert len(handed) == 3
    PollAnswer.model_validate_json(json.dumps({"tasks": handed}), extra="forbid")
    for each in handed:
        task_id, attempt = each["task_id"], each["attempt"]
        optimizer.acknowledge(task_id, attempt)
        context = JobContext.open(each["job"], optimizer.storage(task_id, attempt))
        result = execute(context, Task.from_json(each["task"]), attempt=attempt)
        optimizer.progress(task_id, attempt, result.rows_in, result.bytes_read)
        document = result.to_json()
        Result.model_validate_json(json.dumps(document), extra="forbid")  # the description is complete
        optimizer.complete(task_id, attempt, document)
        optimizer.complete(task_id, attempt, document)  # the answer may have been lost
    assert optimizer.heartbeat([])["state"] == "active"

    ams.commits.commit(watched["uuid"])
    done = client.process(process["id"])
    assert (done["state"], done["task_states"]) == ("succeeded", {"committed": 3})
    assert done["commits"][-1]["state"] == "landed"
    ams.keeper.keep()
    ams.cleaning.clean(watched["uuid"])

    after = lake.load_table("db.orders")
    assert changes.rows(after).sort_by("id").equals(rows_before)
    assert files_in(tmp_path) == live_files(after)
    assert client.table(table).optimize(wait=True, timeout=5) is None
    moves = [(event["kind"], event["after"]) for event in client.events() if event["table"] == table]
    assert moves[0] == ("table", "active")
    assert ("process", "succeeded") in moves
    optimizer.stop()
    assert [each["state"] for each in client.optimizers()] == ["stopped"]
    optimizer.close()


def test_results_that_cannot_be_committed_say_why(ams: Ams, client: Client, address: Address, table: str) -> None:
    ams.looks.discover()
    process = client.table(table).optimize("full")
    assert process is not None
    optimizer = OptimizerClient(address)
    optimizer.register(parallelism=3)
    for each in optimizer.poll(slots=3):
        context = JobContext.open(each["job"], optimizer.storage(each["task_id"], 0))
        optimizer.complete(each["task_id"], 0, execute(context, Task.from_json(each["task"]), attempt=0).to_json())
    optimizer.close()
    overwritten = pyarctic.table(table)
    overwritten.write(overwritten.arrow_schema.empty_table(), mode="overwrite")
    ams.commits.commit(process["table_uuid"])
    done = client.process(process["id"])
    assert done["state"] == "failed"
    assert [(each["unit"], bool(each["reason"])) for each in done["dropped"]] == [(0, True), (1, True), (2, True)]
