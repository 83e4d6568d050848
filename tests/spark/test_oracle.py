"""The oracle itself: both sides see each other's commits, and Java's delete files count."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import DateType, DecimalType, LongType, NestedField, StringType, TimestamptzType

from tests.oracle.java_writes import FileFormat, append, equality_delete, position_delete
from tests.oracle.session import Oracle

pytestmark = pytest.mark.jvm

SCHEMA = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "region", StringType()), NestedField(3, "value", StringType())
)
BY_REGION = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))


def data(*ids: int, region: str = "eu") -> pa.Table:
    columns = {"id": pa.array(ids, pa.int64()), "region": [region] * len(ids), "value": [f"v{i}" for i in ids]}
    return pa.table(columns)


def ids(table: pa.Table) -> list[int]:
    return sorted(table["id"].to_pylist())


@pytest.fixture
def namespace(oracle: Oracle) -> str:
    return oracle.namespace()


def test_java_reads_what_pyiceberg_writes(oracle: Oracle, namespace: str) -> None:
    table = oracle.catalog.create_table(f"{namespace}.t", SCHEMA)
    table.append(data(1, 2, 3))
    first = table.metadata.current_snapshot_id
    assert oracle.rows(f"{namespace}.t").sort_by("id").to_pylist() == data(1, 2, 3).to_pylist()
    table.append(data(4))
    assert first is not None
    table.manage_snapshots().create_branch(first, "early").commit()
    assert ids(oracle.rows(f"{namespace}.t", "id")) == [1, 2, 3, 4]
    assert ids(oracle.rows(f"{namespace}.t", "id", snapshot_id=first)) == [1, 2, 3]
    assert ids(oracle.rows(f"{namespace}.t", "id", ref="early")) == [1, 2, 3]


def test_pyiceberg_reads_what_java_writes(oracle: Oracle, namespace: str) -> None:
    oracle.sql(f"create table {namespace}.t (id bigint, region string, value string) using iceberg partitioned by (region)")
    oracle.sql(f"insert into {namespace}.t values (1, 'eu', 'v1'), (2, 'us', 'v2')")
    append(oracle, f"{namespace}.t", [{"id": 3, "region": "us"}])
    rows = oracle.catalog.load_table(f"{namespace}.t").scan().to_arrow().sort_by("id")
    assert [tuple(row.values()) for row in rows.to_pylist()] == [(1, "eu", "v1"), (2, "us", "v2"), (3, "us", None)]


@pytest.mark.parametrize("version", ["2", "3"])
@pytest.mark.parametrize("file_format", ["parquet", "avro", "orc"])
def test_equality_delete(oracle: Oracle, namespace: str, file_format: FileFormat, version: str) -> None:
    columns = "id bigint, region string, value string"
    oracle.sql(f"create table {namespace}.t ({columns}) using iceberg tblproperties ('format-version' = '{version}')")
    append(oracle, f"{namespace}.t", data(1, 2, 3).to_pylist())
    path = equality_delete(oracle, f"{namespace}.t", [{"id": 2}, {"id": 7}], file_format=file_format)
    assert path.endswith(f".{file_format}")
    assert ids(oracle.rows(f"{namespace}.t")) == [1, 3]
    append(oracle, f"{namespace}.t", data(2).to_pylist())
    assert ids(oracle.rows(f"{namespace}.t")) == [1, 2, 3], "an equality delete must not reach later rows"


def test_equality_delete_in_a_partition(oracle: Oracle, namespace: str) -> None:
    table = oracle.catalog.create_table(
        f"{namespace}.t", SCHEMA, partition_spec=BY_REGION, properties={"format-version": "2"}
    )
    table.append(pa.concat_tables([data(1, 2, region="eu"), data(1, 2, region="us")]))
    equality_delete(oracle, f"{namespace}.t", [{"id": 1, "value": "v1"}], partition=["us"])
    rows = oracle.rows(f"{namespace}.t", "id, region").sort_by([("id", "ascending"), ("region", "ascending")])
    assert [tuple(row.values()) for row in rows.to_pylist()] == [(1, "eu"), (2, "eu"), (2, "us")]
    with pytest.raises(ValueError, match="one partition value"):
        equality_delete(oracle, f"{namespace}.t", [{"id": 1}])


def test_equality_delete_keeps_the_types(oracle: Oracle, namespace: str) -> None:
    schema = Schema(
        NestedField(1, "at", TimestamptzType()),
        NestedField(2, "day", DateType()),
        NestedField(3, "price", DecimalType(9, 2)),
    )
    spec = PartitionSpec(PartitionField(1, 1000, DayTransform(), "at_day"))
    oracle.catalog.create_table(f"{namespace}.t", schema, partition_spec=spec, properties={"format-version": "2"})
    gone = {"at": datetime(2026, 1, 2, 3, 4, 5, 678901, UTC), "day": date(2026, 1, 2), "price": Decimal("1.25")}
    kept = gone | {"price": Decimal("1.26")}
    append(oracle, f"{namespace}.t", [gone, kept])
    equality_delete(oracle, f"{namespace}.t", [gone], partition=[date(2026, 1, 2)])
    assert oracle.rows(f"{namespace}.t", "price").to_pylist() == [{"price": Decimal("1.26")}]


def test_position_delete(oracle: Oracle, namespace: str) -> None:
    table = oracle.catalog.create_table(
        f"{namespace}.t", SCHEMA, partition_spec=BY_REGION, properties={"format-version": "2"}
    )
    table.append(data(1, 2, 3))
    [task] = table.scan().plan_files()
    position_delete(oracle, f"{namespace}.t", [(task.file.file_path, 2), (task.file.file_path, 0)], partition=["eu"])
    assert ids(oracle.rows(f"{namespace}.t")) == [2]
    assert ids(oracle.catalog.load_table(f"{namespace}.t").scan().to_arrow()) == [2]


def test_java_table(oracle: Oracle, namespace: str) -> None:
    table = oracle.catalog.create_table(f"{namespace}.t", SCHEMA, partition_spec=BY_REGION)
    table.append(data(1))
    java_table = oracle.java_table(f"{namespace}.t")
    assert java_table.currentSnapshot().snapshotId() == table.metadata.current_snapshot_id
    assert java_table.spec().fields().get(0).name() == "region"
