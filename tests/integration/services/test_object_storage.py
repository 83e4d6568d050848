"""Tables in object storage (S3 as moto plays it): everything works, with few requests, and failures are clear."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import pyarctic
from pyarctic import config
from pyarctic.errors import Damaged, Unavailable
from pyarctic.optimizing.commit import roll_back
from pyarctic.tables import Table
from tests.services.s3 import Bucket, Request, count_methods, fresh_bucket
from tests.support.cli_library import Arctic

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
FILES, ROWS = 12, 50


@pytest.fixture
def bucket(glue_properties: dict[str, str], tmp_path: Path) -> Iterator[Bucket]:
    """The bucket of the catalog `lake`; the server of Glue is also one of S3."""
    config.reset()
    with fresh_bucket(glue_properties["glue.endpoint"]) as fresh:
        _declare(tmp_path, fresh)
        yield fresh
    config.reset()


def _declare(folder: Path, bucket: Bucket, **changes: str) -> None:
    properties = {**bucket.properties, **changes}
    pyarctic.catalog("lake", type="sql", uri=f"sqlite:///{folder}/catalog.db", **properties)


def _rows(*ids: int, text: str = "a") -> pa.Table:
    return pa.table({"id": list(ids), "text": [text] * len(ids)}, schema=SCHEMA)


def _ids(name: str = "lake.db.t") -> list[int]:
    found: list[int] = pyarctic.table(name).scan().to_arrow()["id"].to_pylist()
    return sorted(found)


def _table_of_small_files(**properties: str) -> Table:
    table = pyarctic.create_table("lake.db.t", SCHEMA, properties=properties)
    for number in range(FILES):
        table.write(_rows(*range(number * ROWS, (number + 1) * ROWS)), "insert")
    return table


def _of_data(requests: list[Request]) -> list[Request]:
    return [request for request in requests if "/data/" in request.key]


def test_every_small_file_is_read_with_one_request(bucket: Bucket) -> None:
    _table_of_small_files()
    bucket.take_requests()
    table = pyarctic.table("lake.db.t")
    assert count_methods(bucket.take_requests()) == {"GET": 1}
    inputs = set(map(bucket.key_of, table.files()["file_path"]))
    bucket.take_requests()

    assert _ids() == list(range(FILES * ROWS))
    requests = bucket.take_requests()
    assert count_methods(_of_data(requests)) == {"GET": FILES}
    assert count_methods(requests) == {"GET": 2 * FILES + 2}  # manifests, their list, the metadata

    report = pyarctic.optimize("lake.db.t", kind="major", engine="local")
    assert report.after.data_files == 1
    requests = bucket.take_requests()
    reads = [request for request in requests if request.key in inputs]
    assert count_methods(reads) == {"GET": FILES}
    written = [request for request in requests if request.method == "PUT"]
    assert len(written) == len({request.key for request in written}) + 1  # each with one; the state of the process twice
    assert not [request for request in requests if request.method == "POST"]
    assert _ids() == list(range(FILES * ROWS))
    assert not [key for key in bucket.object_keys() if key.endswith("/")]


def test_deleted_rows_take_one_request_a_file(bucket: Bucket) -> None:
    table = pyarctic.create_table("lake.db.t", SCHEMA, ["id"])
    table.write(_rows(*range(100)), "overwrite")
    for start in range(0, 40, 10):
        table.write(_rows(*range(start, start + 10), text="b"), "upsert")
    table.write(_rows(99), "delete")
    bucket.take_requests()
    found = pyarctic.table("lake.db.t").scan().to_arrow().sort_by("id")
    assert found["text"].to_pylist() == ["b"] * 40 + ["a"] * 59
    requests = _of_data(bucket.take_requests())
    assert {request.method for request in requests} == {"GET"}
    assert len(requests) <= 2 * len(set(requests))  # of changes the keys first, then the rows

    pyarctic.optimize("lake.db.t", kind="major", engine="local")
    assert pyarctic.table("lake.db.t").scan().to_arrow().sort_by("id") == found
    assert not [key for key in bucket.object_keys() if key.endswith("/")]


def test_large_files_are_read_in_parts(bucket: Bucket) -> None:
    table = pyarctic.create_table("lake.db.t", pa.schema([("id", pa.int64()), ("noise", pa.int64())]))
    noise = np.random.default_rng(7).integers(0, 1 << 62, 1_200_000)
    table.write(pa.table({"id": np.arange(len(noise)), "noise": noise}), "insert")
    size = table.refresh().files()["file_size_bytes"].item()
    assert size > 8 << 20
    found = pyarctic.table("lake.db.t").scan(columns=["id"], where="id >= 1199999").to_arrow()
    assert found["id"].to_pylist() == [1_199_999]
    total = pyarctic.table("lake.db.t").scan(columns=["noise"]).to_arrow()["noise"].to_numpy()
    assert (total == noise).all()


def test_rollback_and_drop(bucket: Bucket) -> None:
    table = _table_of_small_files()
    before = table.refresh().files()["file_path"].to_list()
    pyarctic.optimize("lake.db.t", kind="major", engine="local")
    roll_back(table.refresh())
    assert table.refresh().files()["file_path"].to_list() == before
    assert _ids() == list(range(FILES * ROWS))
    pyarctic.drop_table("lake.db.t", purge=True)
    assert bucket.object_keys() == []


def test_a_size_that_is_not_that_of_the_file(bucket: Bucket) -> None:
    table = _table_of_small_files()
    path = table.refresh().files()["file_path"][0]
    key = bucket.key_of(path)
    content = bucket.client.get_object(Bucket=bucket.name, Key=key)["Body"].read()
    for changed in (content[:-1], content + b"\0"):
        bucket.client.put_object(Bucket=bucket.name, Key=key, Body=changed)
        with pytest.raises(Damaged, match=f"its manifest says {len(content)}: {path}"):
            _ids()
        report = pyarctic.optimize("lake.db.t", kind="major", engine="local")
        assert {failure.code for failure in report.failures} == {"damaged"}
    bucket.client.delete_object(Bucket=bucket.name, Key=key)
    with pytest.raises(Damaged, match=f"file is missing: {path}"):
        _ids()


def test_wrong_keys(bucket: Bucket, arctic: Arctic, tmp_path: Path) -> None:
    _declare(tmp_path, bucket)
    _table_of_small_files()
    config.reset()
    _declare(tmp_path, bucket, **{"s3.access-key-id": "unknown"})
    with pytest.raises(Unavailable) as failure:
        pyarctic.optimize("lake.db.t", engine="local")
    assert "permission" in str(failure.value)
    assert "credentials" in str(failure.value.hint)
    with pytest.raises(Unavailable) as failure:
        pyarctic.create_table("lake.db.u", SCHEMA)
    assert "permission" in str(failure.value)
    ran = arctic("table", "optimize", "lake.db.t", "--json")
    assert ran.code == 3
    assert "no permission" in ran.err + ran.out
    assert "Traceback" not in ran.err + ran.out


def test_a_storage_that_is_away(bucket: Bucket, tmp_path: Path) -> None:
    _table_of_small_files()
    config.reset()
    _declare(tmp_path, bucket, **{"s3.endpoint": "http://127.0.0.1:9"})
    started = time.monotonic()
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9"):
        pyarctic.optimize("lake.db.t", engine="local")
    assert time.monotonic() - started < 30


def test_a_storage_that_does_not_answer(bucket: Bucket, tmp_path: Path) -> None:
    _table_of_small_files()
    config.reset()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        _declare(tmp_path, bucket, **{"s3.endpoint": endpoint, "s3.connect-timeout": "0.5", "s3.request-timeout": "1"})
        started = time.monotonic()
        with pytest.raises(Unavailable, match="Timeout"):
            pyarctic.table("lake.db.t")
        assert time.monotonic() - started < 30
