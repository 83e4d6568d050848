"""Checks of tables in object storage: S3 as moto plays it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

import pyarctic
from pyarctic import config
from tests.services.s3 import Bucket, fresh_bucket


@pytest.fixture
def bucket(glue_properties: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    """The bucket of the catalog `lake`; the server of Glue is also one of S3."""
    config.reset()
    folder = tmp_path_factory.mktemp("catalog")
    with fresh_bucket(glue_properties["glue.endpoint"]) as fresh:
        pyarctic.catalog("lake", type="sql", uri=f"sqlite:///{folder}/catalog.db", **fresh.properties)
        yield fresh
    config.reset()


def test_objects_that_are_missing_or_cut(bucket: Bucket) -> None:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    table = pyarctic.create_table("lake.db.t", schema, ["id"])
    table.write(pa.table({"id": list(range(100)), "text": ["a"] * 100}, schema=schema), "overwrite")
    table.write(pa.table({"id": [1, 2, 3], "text": ["b"] * 3}, schema=schema), "upsert")
    assert pyarctic.check("lake.db.t", rows=True, all_snapshots=True).findings == ()

    first, second = (bucket.key_of(path) for path in sorted(table.refresh().files()["file_path"])[:2])
    bucket.client.delete_object(Bucket=bucket.name, Key=first)
    content = bucket.client.get_object(Bucket=bucket.name, Key=second)["Body"].read()
    bucket.client.put_object(Bucket=bucket.name, Key=second, Body=content[:-1])
    report = pyarctic.check("lake.db.t", rows=True)
    assert [(finding.code, finding.problems["file_path"].to_list()) for finding in report.findings] == [
        ("missing-file", [f"s3://{bucket.name}/{first}"]),
        ("wrong-size", [f"s3://{bucket.name}/{second}"]),
    ]
