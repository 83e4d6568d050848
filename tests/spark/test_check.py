"""Tables that Iceberg Java made are sound, and so they stay when PyArctic optimizes them."""

from __future__ import annotations

import pytest

from pyarctic.tables.check import Finding, TableCheck
from tests.oracle.compare import arctic_table
from tests.oracle.java_writes import FileFormat, equality_delete
from tests.oracle.session import Oracle
from tests.spark.test_scan import create, fill
from tests.support.optimizing import optimize

pytestmark = pytest.mark.jvm

COLUMNS = (
    "id bigint, i int, s string, ts timestamp, day date, d decimal(20, 4), f float, x double, b boolean, raw binary, "
    "list array<int>, inner struct<a: int, b: string>"
)
VALUES = (
    "if(id % 9 = 0, null, id)",
    "cast(-id as int)",
    "repeat(concat('ä', id % 7), 20)",
    "timestamp'1969-12-31 23:00:00' + make_interval(0, 0, 0, 0, cast(id as int))",
    "date_add(date'1969-12-25', cast(id % 20 as int))",
    "cast(50 - id as decimal(20, 4)) / 3",
    "cast(if(id % 5 = 0, 'NaN', id / 3) as float)",
    "-id / 7",
    "id % 2 = 0",
    "cast(concat('x', id) as binary)",
    "array(cast(id as int), null)",
    "named_struct('a', cast(id as int), 'b', null)",
)


@pytest.fixture
def table(oracle: Oracle) -> str:
    return f"{oracle.namespace()}.t"


def damage(oracle: Oracle, table: str) -> list[Finding]:
    report = TableCheck(arctic_table(oracle, table), rows=True, all_snapshots=True).run()
    assert report.files_checked
    return [finding for finding in report.findings if finding.severity != "note"]


@pytest.mark.parametrize("format_", ["parquet", "orc", "avro"])
@pytest.mark.parametrize("version", [2, 3])
def test_tables_of_java_are_sound(oracle: Oracle, table: str, version: int, format_: FileFormat) -> None:
    create(oracle, table, COLUMNS, version, by="truncate(1, s)", more=f"'write.format.default'='{format_}'")
    for start in (0, 100):
        fill(oracle, table, start, start + 100, *VALUES)
    oracle.sql(f"delete from {table} where i % 7 = 0")
    oracle.sql(f"update {table} set x = 1 where i % 11 = 0")
    assert damage(oracle, table) == []
    oracle.sql(f"alter table {table} alter column i type bigint")
    oracle.sql(f"alter table {table} rename column s to text")
    oracle.sql(f"alter table {table} add partition field bucket(4, id)")
    fill(oracle, table, 200, 250, *VALUES)
    oracle.sql(f"delete from {table} where i % 13 = 0")
    assert damage(oracle, table) == []
    optimize(arctic_table(oracle, table), "full")
    assert damage(oracle, table) == []


def test_equality_deletes_of_java_are_sound(oracle: Oracle, table: str) -> None:
    create(oracle, table, "id bigint, s string", 2)
    fill(oracle, table, 0, 100, "id", "cast(id as string)")
    equality_delete(oracle, table, [{"id": 5}, {"id": 6}])
    assert damage(oracle, table) == []


def test_version_1_is_sound(oracle: Oracle, table: str) -> None:
    oracle.sql(f"create table {table} (id bigint, s string) using iceberg tblproperties ('format-version'='1')")
    fill(oracle, table, 0, 100, "id", "cast(id as string)")
    oracle.sql(f"delete from {table} where id = 7")
    assert damage(oracle, table) == []
    oracle.sql(f"alter table {table} set tblproperties ('format-version'='2')")
    fill(oracle, table, 100, 110, "id", "cast(id as string)")
    assert damage(oracle, table) == []
