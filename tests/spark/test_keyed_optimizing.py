"""Keyed tables optimized on Spark's executors and by SQL; Iceberg Java reads in Base what was merged."""

from __future__ import annotations

from collections import Counter
from random import Random

import pyarrow as pa
import pytest

import pyarctic
import pyarctic.spark as arctic_spark
from pyarctic.spark import SparkEngine
from tests.oracle.compare import share_catalog
from tests.oracle.session import Oracle

pytestmark = [pytest.mark.jvm, pytest.mark.filterwarnings("ignore::pyarctic.tables.TableAdvice")]

SMALL = {"self-optimizing.target-size": "2KB", "self-optimizing.fragment-size": "400"}
"""So that some files of Base stay and others are written anew."""


def counted(rows: pa.Table) -> Counter[tuple[object, ...]]:
    return Counter(tuple(row.values()) for row in rows.to_pylist())


class Orders:
    """A partitioned keyed table, and what must be in it."""

    def __init__(self, name: str) -> None:
        self.schema = pa.schema([("id", pa.int64()), ("region", pa.string()), ("v", pa.string())])
        self.table = pyarctic.create_table(name, self.schema, primary_key=["id"], partition_by=["region"], properties=SMALL)
        self.rows: dict[tuple[str, int], str] = {}
        self._random = Random(5)

    def change(self, count: int) -> None:
        keys = self._random.sample(range(400), count)
        rows = [(key, "ab"[key % 2], f"{self._random.random():.9f}") for key in keys]
        columns = [pa.array(column) for column in zip(*rows, strict=True)]
        self.table.write(pa.table(columns, schema=self.schema), mode="upsert")
        self.rows |= {(region, key): value for key, region, value in rows}
        gone = rows[: count // 5]
        self.table.write(pa.table([pa.array(c) for c in zip(*gone, strict=True)], schema=self.schema), mode="delete")
        for key, region, _ in gone:
            del self.rows[region, key]

    @property
    def expected(self) -> Counter[tuple[object, ...]]:
        return Counter((key, region, value) for (region, key), value in self.rows.items())


def test_rounds_on_executors(oracle: Oracle) -> None:
    share_catalog(oracle)
    name = f"{oracle.namespace()}.t"
    full_name = f"{oracle.name}.{name}"
    orders = Orders(full_name)
    for kind, changes in (("minor", 300), ("minor", 60), ("major", 60), ("full", 30)):
        orders.change(changes)
        before = arctic_spark.read(oracle.spark, full_name).toArrow()
        report = pyarctic.optimize(full_name, kind=kind, engine=SparkEngine(oracle.spark))  # type: ignore[arg-type]
        assert (report.engine, report.tasks_committed, report.failures) == ("spark", report.tasks_planned, ())
        base = counted(oracle.rows(name))
        merged = counted(arctic_spark.read(oracle.spark, full_name).toArrow())
        assert base == merged == orders.expected == counted(before)
        deletes = oracle.rows(f"{name}.delete_files", "count(*) n").to_pylist()[0]["n"]
        assert bool(deletes) == (kind == "minor" and changes == 60) or kind == "major"


def test_sql_functions(oracle: Oracle) -> None:
    share_catalog(oracle)
    full_name = f"{oracle.name}.{oracle.namespace()}.t"
    orders = Orders(full_name)
    orders.change(50)
    arctic_spark.register(oracle.spark)
    rules = oracle.spark.sql(f"SELECT * FROM arctic_explain('{full_name}') WHERE rule = 'small-files'").collect()
    assert {(row["partition"], row["threshold"]) for row in rules} == {("region=a", 48.0), ("region=b", 48.0)}
    [done] = oracle.spark.sql(f"SELECT * FROM arctic_optimize('{full_name}', kind => 'minor')").collect()
    assert (done["changed"], done["tasks_failed"], done["health_after"]) == (True, 0, 100.0)
    assert counted(orders.table.refresh().scan(store="base").to_arrow()) == orders.expected


def test_java_goes_on_after_a_merge(oracle: Oracle) -> None:
    """It compacts Base and appends to it, and what was merged stays merged."""
    share_catalog(oracle)
    name = f"{oracle.namespace()}.t"
    full_name = f"{oracle.name}.{name}"
    orders = Orders(full_name)
    orders.change(300)
    pyarctic.optimize(full_name, kind="minor")
    orders.change(60)
    oracle.sql(f"call {oracle.name}.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))")
    oracle.sql(f"insert into {name} values (1000, 'a', 'java')")
    orders.rows["a", 1000] = "java"
    table = orders.table.refresh()
    found = counted(table.scan().to_arrow())
    assert found == orders.expected
    pyarctic.optimize(full_name, kind="minor")
    base = counted(oracle.rows(name))
    assert base == orders.expected
