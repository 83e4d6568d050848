"""The catalogs that need Java, with Spark and PyIceberg as clients; and what PyIceberg makes of a faulty network."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from requests import ConnectionError as ConnectionBroken

import pyarctic
from tests.oracle.session import Oracle
from tests.services.catalogs import FreshCatalog, kinds
from tests.services.faulty import FaultyProxy, lost, refused, repeated, reset

pytestmark = pytest.mark.jvm

SCHEMA = Schema(NestedField(1, "id", LongType()))


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


@pytest.mark.parametrize("any_catalog", kinds("rest", "hive"), indirect=True)
def test_spark_and_pyiceberg_share_a_table(oracle: Oracle, any_catalog: FreshCatalog) -> None:
    name, table = any_catalog.name, f"{any_catalog.namespace}.t"
    settings = {"": "org.apache.iceberg.spark.SparkCatalog", ".cache-enabled": "false"}
    settings |= {f".{key}": value for key, value in any_catalog.properties.items()}
    for key, value in settings.items():
        oracle.spark.conf.set(f"spark.sql.catalog.{name}{key}", value)
    ours = any_catalog.catalog.create_table(table, SCHEMA, properties={"format-version": "2"})
    ours.append(rows(1, 2))
    oracle.sql(f"insert into {name}.{table} values (3)")
    assert sorted(oracle.sql(f"select id from {name}.{table}").toArrow()["id"].to_pylist()) == [1, 2, 3]
    assert sorted(ours.refresh().scan().to_arrow()["id"].to_pylist()) == [1, 2, 3]


def test_a_native_table_is_optimized_on_executors(oracle: Oracle, any_catalog: FreshCatalog) -> None:
    table = any_catalog.catalog.create_table(f"{any_catalog.namespace}.t", SCHEMA, properties={"format-version": "2"})
    for number in range(3):
        table.append(rows(number, number + 10))
    pyarctic.catalog(any_catalog.name, **any_catalog.properties)
    report = pyarctic.optimize(f"{any_catalog.name}.{any_catalog.namespace}.t", "full", oracle.spark)
    assert (report.engine, report.failures, report.tasks_committed) == ("spark", (), 1)
    assert len(table.refresh().inspect.data_files()) == 1
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [0, 1, 2, 10, 11, 12]


def test_a_keyed_table_is_optimized_on_executors(oracle: Oracle, any_catalog: FreshCatalog) -> None:
    pyarctic.catalog(any_catalog.name, **any_catalog.properties)
    table = pyarctic.create_table(f"{any_catalog.name}.{any_catalog.namespace}.t", rows().schema, ["id"])
    table.write(rows(1, 2, 3), mode="upsert")
    table.write(rows(2), mode="delete")
    report = pyarctic.optimize(table.name, "full", oracle.spark)
    assert (report.engine, report.failures, report.after.change_files) == ("spark", (), 0)
    assert sorted(pyarctic.table(table.name).scan(store="base").to_arrow()["id"].to_pylist()) == [1, 3]


@pytest.mark.parametrize("any_catalog", kinds("rest"), indirect=True)
def test_faults(faulty_rest: FaultyProxy, any_catalog: FreshCatalog) -> None:
    name, properties = f"{any_catalog.namespace}.t", {"format-version": "2", "commit.retry.num-retries": "0"}
    table = any_catalog.catalog.create_table(name, SCHEMA, properties=properties)
    with load_catalog("faulty", type="rest", uri=faulty_rest.uri) as catalog:

        def append(number: int) -> None:
            catalog.load_table(name).append(rows(number))

        faulty_rest.plan([refused(409), lost(500), reset()])
        with pytest.raises(CommitFailedException):
            append(1)
        with pytest.raises(CommitStateUnknownException):
            append(2)
        with pytest.raises(ConnectionBroken):
            append(3)
        append(4)
        assert sorted(table.refresh().scan().to_arrow()["id"].to_pylist()) == [2, 3, 4]
        # PyIceberg believes the refusal of the second and deletes files of the first: the table cannot be read any more.
        faulty_rest.plan([repeated()])
        with pytest.raises(CommitFailedException):
            append(5)
    assert len(table.refresh().snapshots()) == 4
    assert [commit.catalog_said for commit in faulty_rest.commits] == [(), (200,), (200,), (200,), (200, 409)]
