"""Tables in object storage (S3 as moto plays it) with a Spark that has no filesystem for it: PyArctic reads and writes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import pyarctic
import pyarctic.spark as arctic_spark
from pyarctic import config
from pyarctic.spark.reading import OWN_READER
from pyarctic.spark.registering import SessionAdvice
from tests.oracle.session import Oracle
from tests.services.s3 import Bucket, count_methods, fresh_bucket

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.jvm

NAME = "lake.shop.orders"
SCHEMA = pa.schema({"id": pa.int64(), "text": pa.string()})
COLUMNS = "id long, text string"


@pytest.fixture
def bucket(glue_properties: dict[str, str], tmp_path: Path) -> Iterator[Bucket]:
    config.reset()
    with fresh_bucket(glue_properties["glue.endpoint"]) as fresh:
        catalog = pyarctic.catalog("lake", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", **fresh.properties)
        yield fresh
        catalog.close()
    config.reset()


@pytest.fixture
def spark(oracle: Oracle, bucket: Bucket) -> SparkSession:
    arctic_spark.register(oracle.spark)
    return oracle.spark


def rows(*ids: int, text: str = "a") -> pa.Table:
    return pa.table({"id": list(ids), "text": [text] * len(ids)}, schema=SCHEMA)


def shown(spark: SparkSession) -> list[tuple[int, str]]:
    with pytest.warns(SessionAdvice, match=r"no filesystem for s3://.*spark\.hadoop\.fs\.s3\.impl"):
        frame = arctic_spark.read(spark, NAME)
    return sorted((row.id, row.text) for row in frame.collect())


def test_files_that_spark_cannot_reach_are_read_by_pyarctic(spark: SparkSession, bucket: Bucket) -> None:
    table = pyarctic.create_table(NAME, SCHEMA)
    for number in range(3):
        table.write(rows(number), "insert")
    assert shown(spark) == [(0, "a"), (1, "a"), (2, "a")]
    spark.conf.set(OWN_READER, "false")  # without a warning
    try:
        assert arctic_spark.read(spark, NAME, where="id > 1").count() == 1
    finally:
        spark.conf.unset(OWN_READER)
    assert spark.read.format("arctic").load(NAME).count() == 3


def test_optimizing_on_executors(spark: SparkSession, bucket: Bucket) -> None:
    table = pyarctic.create_table(NAME, SCHEMA)
    for number in range(8):
        table.write(rows(number), "insert")
    inputs = set(map(bucket.key_of, table.refresh().files()["file_path"]))
    bucket.take_requests()
    report = pyarctic.optimize(NAME, kind="major", engine=spark)
    assert (report.failures, report.after.data_files) == ((), 1)
    assert count_methods(request for request in bucket.take_requests() if request.key in inputs) == {"GET": 8}
    assert pyarctic.table(NAME).scan().to_arrow()["id"].to_pylist() == list(range(8))


def test_a_stream_in_and_a_stream_out(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    pyarctic.create_table(NAME, SCHEMA, ["id"])
    source = tmp_path / "in"
    source.mkdir()
    for number, lines in enumerate(['{"id": 1, "text": "a"}\n{"id": 2, "text": "a"}', '{"id": 1, "text": "b"}']):
        (source / f"{number}.json").write_text(lines)
        os.utime(source / f"{number}.json", (1_700_000_000 + number,) * 2)  # by which Spark orders files
    events = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", "1").json(str(source))
    checkpoint = (tmp_path / "checkpoint").as_uri()
    query = arctic_spark.write_stream(events, NAME, "upsert", ["text"], checkpoint, trigger="available-now")
    assert query.awaitTermination(120)
    assert pyarctic.table(NAME).scan().to_arrow().sort_by("id").to_pylist() == [
        {"id": 1, "text": "b"},
        {"id": 2, "text": "a"},
    ]

    changes = spark.readStream.format("arctic").option("from", "earliest").load(NAME)
    copied = changes.writeStream.format("memory").queryName("changes_of_orders")
    read = copied.option("checkpointLocation", (tmp_path / "read").as_uri()).trigger(availableNow=True).start()
    assert read.awaitTermination(120)
    found = spark.sql("SELECT id, text FROM changes_of_orders WHERE _change_action LIKE '%INSERT%' OR text = 'b'")
    assert {(row.id, row.text) for row in found.collect()} >= {(2, "a"), (1, "b")}
    assert not [key for key in bucket.object_keys() if key.endswith("/")]
