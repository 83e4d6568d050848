"""An optimizer of strangers: it has docs/openapi.json, docs/reference/protocol.md and PyArrow, and nothing of PyArctic.

It executes merges of native tables without delete files, on storage of this machine:

    python foreign_optimizer.py URL TOKEN
"""

from __future__ import annotations

import base64
import json
import struct
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

TYPES = {"int": (pa.int32(), "<i"), "long": (pa.int64(), "<q")}
"""Iceberg's types in Arrow, and how a bound is written."""


class Service:
    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/api/v1{path}", data, self.headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            content = answer.read()
        return json.loads(content) if content else None


def main(url: str, token: str) -> None:
    service = Service(url, token)
    me = service.call("POST", "/optimizers", {"parallelism": 1, "version": "foreign 1", "protocol_version": 1})
    service.headers["Arctic-Optimizer-Secret"] = me["secret"]
    while answer := service.call("POST", f"/optimizers/{me['id']}/poll", {"slots": 1, "wait_seconds": 1}):
        for handed in answer["tasks"]:
            path = f"/tasks/{handed['task_id']}/attempts/{handed['attempt']}"
            service.call("POST", f"{path}/ack")
            service.call("GET", f"{path}/storage")  # the storage of this machine needs no credentials
            result = execute(handed["job"], handed["task"], handed["attempt"])
            service.call("POST", f"{path}/complete", result)
        service.call("POST", f"/optimizers/{me['id']}/heartbeat", {"attempts": []})
    service.call("POST", f"/optimizers/{me['id']}/stop")


def execute(job: dict[str, Any], task: dict[str, Any], attempt: int) -> dict[str, Any]:
    if task["action"] != "merge" or task["keyed"] or any(file["content"] for file in task["files"]):
        raise NotImplementedError("only merges of native tables without delete files")
    schema = arrow_schema(job["metadata"])
    tables = [pq.ParquetFile(local(file["file_path"])).read(columns=schema.names) for file in task["files"]]
    rows = pa.concat_tables([table.select(schema.names).cast(schema) for table in tables])
    file = write(job, task, attempt, rows)
    return {
        "type": "result",
        "version": 1,
        "job": job["id"],
        "task": task["id"],
        "attempt": attempt,
        "add": [file],
        "rows_in": sum(each["record_count"] for each in task["files"]),
        "rows_deleted": 0,
        "rows_out": rows.num_rows,
    }


def arrow_schema(metadata: dict[str, Any]) -> pa.Schema:
    """The current schema of the table. Columns of Parquet files are found by field ids."""
    [current] = [each for each in metadata["schemas"] if each["schema-id"] == metadata["current-schema-id"]]
    return pa.schema(
        pa.field(field["name"], TYPES[field["type"]][0], metadata={"PARQUET:field_id": str(field["id"])})
        for field in current["fields"]
    )


def write(job: dict[str, Any], task: dict[str, Any], attempt: int, rows: pa.Table) -> dict[str, Any]:
    metadata = job["metadata"]
    folder = metadata["properties"].get("write.data.path") or f"{metadata['location']}/data"
    if task["partition_key"] is not None and task["partition"]:
        folder = f"{folder}/{task['partition']}"
    path = f"{folder}/{task['id']:05}-{attempt}-{job['id']}-00001.parquet"
    Path(local(path)).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, local(path))
    return {
        "content": 0,
        "path": path,
        "file_format": "PARQUET",
        "spec_id": task["spec_id"],
        "partition": task["partition_key"],
        "record_count": rows.num_rows,
        "file_size_bytes": Path(local(path)).stat().st_size,
        "metrics": metrics(rows),
        "data_sequence_number": job["sequence_number"],
    }


def metrics(rows: pa.Table) -> dict[str, Any]:
    found: dict[str, dict[str, Any]] = {name: {} for name in ("value_counts", "null_counts", "lower_bounds", "upper_bounds")}
    forms = dict(TYPES.values())
    for field, column in zip(rows.schema, rows.columns, strict=True):
        field_id = field.metadata[b"PARQUET:field_id"].decode()
        found["value_counts"][field_id] = len(column)
        found["null_counts"][field_id] = column.null_count
        bounds = pc.min_max(column).as_py()
        for name, value in (("lower_bounds", bounds["min"]), ("upper_bounds", bounds["max"])):
            if value is not None:
                found[name][field_id] = base64.b64encode(struct.pack(forms[field.type], value)).decode()
    return found


def local(path: str) -> str:
    return path.removeprefix("file://")


if __name__ == "__main__":
    main(*sys.argv[1:])
    assert not any(name.partition(".")[0] in ("pyarctic", "pyiceberg") for name in sys.modules)
