"""The scan against Iceberg Java, on tables that Spark made: a fixed set of awkward ones."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from tests.oracle.compare import arctic_table, assert_same_history, assert_same_rows
from tests.oracle.java_writes import FileFormat, equality_delete
from tests.oracle.session import Oracle

pytestmark = pytest.mark.jvm

MERGE_ON_READ = "'write.delete.mode'='merge-on-read','write.update.mode'='merge-on-read','write.merge.mode'='merge-on-read'"
VERSIONS = pytest.mark.parametrize("version", [2, 3])


@pytest.fixture
def table(oracle: Oracle) -> str:
    return f"{oracle.namespace()}.t"


def create(oracle: Oracle, table: str, columns: str, version: int, *, by: str = "", more: str = "") -> None:
    partitioning = f"partitioned by ({by})" if by else ""
    properties = f"'format-version'='{version}',{MERGE_ON_READ}{',' + more if more else ''}"
    oracle.sql(f"create table {table} ({columns}) using iceberg {partitioning} tblproperties ({properties})")


def fill(oracle: Oracle, table: str, first: int, last: int, *columns: str) -> None:
    select = ", ".join(columns)
    oracle.sql(f"insert into {table} select {select} from range({first}, {last}) order by id")


@VERSIONS
def test_delete_update_merge(oracle: Oracle, table: str, version: int) -> None:
    create(oracle, table, "id bigint, part string, v int", version, by="part")
    for start in (0, 100, 200):
        fill(oracle, table, start, start + 100, "id", "concat('p', id % 3)", "cast(id as int)")
    oracle.sql(f"delete from {table} where id % 7 = 0")
    oracle.sql(f"delete from {table} where id % 5 = 0")
    oracle.sql(f"update {table} set v = -v where id % 11 = 0")
    oracle.sql(f"update {table} set part = 'p9' where id % 13 = 0")
    oracle.sql(
        f"merge into {table} t using "
        "(select * from (values (1, 'p1', 1000), (999, 'p0', 1), (2, null, 2)) as x(id, part, v)) s on t.id = s.id "
        "when matched and s.id = 1 then delete when matched then update set * when not matched then insert *"
    )
    assert_same_history(oracle, table)
    for where in (
        "v < 0",
        "part = 'p1' and id > 150",
        "part is null",
        "not (part = 'p2' or id < 290)",
        "id in (1, 2, 999)",
    ):
        assert_same_rows(oracle, table, where=where)


@VERSIONS
def test_partition_evolution(oracle: Oracle, table: str, version: int) -> None:
    columns = "id bigint, s string, ts timestamp, d decimal(9, 2), b boolean"
    create(oracle, table, columns, version)
    values = (
        "id",
        "if(id % 10 = 0, null, concat('name', id % 4))",
        "timestamp'2024-01-01 00:00:00' + make_interval(0, 0, 0, 0, cast(id as int))",
        "cast(id / 3 as decimal(9, 2))",
        "id % 2 = 0",
    )
    steps = ["s", "bucket(4, id)", "truncate(2, s)", "days(ts)", "d", "b", "hours(ts)", "months(ts)"]
    fill(oracle, table, 0, 12, *values)
    for number, field in enumerate(steps, start=1):  # every row is a file of its own in the end: few will do
        oracle.sql(f"alter table {table} add partition field {field}")
        fill(oracle, table, number * 12, number * 12 + 12, *values)
        oracle.sql(f"delete from {table} where id % {number + 5} = 1")
        if number % 3 == 0:
            oracle.sql(f"alter table {table} drop partition field {field}")
    assert_same_history(oracle, table)
    for where in (
        "s = 'name1'",
        "ts >= '2024-01-05T00:00:00+00:00'",
        "s is null",
        "s like 'name2%'",
        "d < 20",
        "b = true",
    ):
        assert_same_rows(oracle, table, where=where)


@VERSIONS
def test_schema_evolution(oracle: Oracle, table: str, version: int) -> None:
    create(oracle, table, "id int, old string, gone int, f float, d decimal(5, 2), n struct<a: int, b: string>", version)
    fill(oracle, table, 0, 30, "int(id)", "concat('o', id)", "int(id)", "float(id)", "cast(id as decimal(5,2))",
         "named_struct('a', int(id), 'b', if(id % 2 = 0, null, 'x'))")  # fmt: skip
    oracle.sql(f"delete from {table} where id = 3")
    for change in (
        "alter column id type bigint",
        "rename column old to new",
        "drop column gone",
        "alter column f type double",
        "alter column d type decimal(12, 2)",
        "add columns (extra string, l array<struct<x: int, y: string>>, m map<string, struct<q: int>>)",
        "add column n.c bigint",
        "rename column n.b to bb",
        "alter column n.a type bigint",
        "add column gone string",
        "alter column extra first",
    ):
        oracle.sql(f"alter table {table} {change}")
    oracle.sql(f"delete from {table} where id = 4")
    fill(oracle, table, 30, 60, "if(id % 3 = 0, null, 'e')", "id", "concat('n', id)", "double(id)",
         "cast(id as decimal(12,2))",
         "if(id % 5 = 0, null, named_struct('a', id, 'bb', 'y', 'c', id))",
         "if(id % 4 = 0, null, array(named_struct('x', int(id), 'y', 'z'), null))",
         "if(id % 7 = 0, null, map('k', named_struct('q', int(id))))", "'again'")  # fmt: skip
    for change in (
        "add column l.element.z int",
        "drop column l.element.x",
        "rename column m.value.q to qq",
        "add column m.value.r string",
        "drop column n.bb",
    ):
        oracle.sql(f"alter table {table} {change}")
    oracle.sql(f"delete from {table} where id in (5, 35)")
    oracle.sql(f"update {table} set new = 'changed' where id in (6, 36)")
    assert_same_history(oracle, table)
    for where in ("id > 25 and id < 35", "new = 'changed'", "gone is null", "extra = 'e'"):
        assert_same_rows(oracle, table, where=where)


@VERSIONS
def test_branches_and_tags(oracle: Oracle, table: str, version: int) -> None:
    create(oracle, table, "id bigint, v string", version)
    fill(oracle, table, 0, 10, "id", "'a'")
    oracle.sql(f"alter table {table} create tag first")
    oracle.sql(f"alter table {table} create branch side")
    oracle.sql(f"insert into {table}.branch_side select id, 'side' from range(100, 110)")
    oracle.sql(f"delete from {table}.branch_side where id % 2 = 0")
    oracle.sql(f"alter table {table} add column w int")
    oracle.sql(f"delete from {table} where id = 1")
    oracle.sql(f"insert into {table} values (50, 'main', 1)")
    assert_same_history(oracle, table)


@VERSIONS
@pytest.mark.parametrize("file_format", ["parquet", "avro", "orc"])
def test_equality_deletes_of_every_format(oracle: Oracle, table: str, version: int, file_format: FileFormat) -> None:
    create(oracle, table, "id bigint, name string, at timestamp, price decimal(9, 2), f double", version)
    values = ("id", "if(id % 4 = 0, null, concat('n', id % 10))", "timestamp'2024-01-01 00:00:00'",
              "cast(id % 5 as decimal(9, 2))", "if(id % 9 = 0, double('NaN'), double(id % 3))")  # fmt: skip
    fill(oracle, table, 0, 50, *values)
    equality_delete(oracle, table, [{"id": 3}, {"id": 4}], file_format=file_format)
    fill(oracle, table, 0, 20, *values)
    equality_delete(oracle, table, [{"name": None}, {"name": "n7"}], file_format=file_format)
    equality_delete(oracle, table, [{"price": 2, "name": "n2"}], file_format=file_format)
    equality_delete(oracle, table, [{"f": float("nan")}], file_format=file_format)
    oracle.sql(f"delete from {table} where id = 9")
    fill(oracle, table, 60, 80, *values)
    rows = assert_same_rows(oracle, table)
    assert 0 < rows.num_rows < 90
    assert_same_history(oracle, table)


def test_equality_deletes_through_evolution(oracle: Oracle, table: str) -> None:
    """Global and partitioned deletes, a renamed, a promoted, a dropped and a late column as keys."""
    create(oracle, table, "id int, name string, gone string", 2)
    fill(oracle, table, 0, 20, "int(id)", "concat('n', id % 5)", "concat('g', id % 4)")
    equality_delete(oracle, table, [{"id": 1}])
    equality_delete(oracle, table, [{"gone": "g3"}])
    assert_same_history(oracle, table)
    oracle.sql(f"alter table {table} alter column id type bigint")
    oracle.sql(f"alter table {table} rename column name to label")
    oracle.sql(f"alter table {table} drop column gone")
    oracle.sql(f"alter table {table} add column late string")
    oracle.sql(f"alter table {table} add partition field label")
    fill(oracle, table, 20, 40, "id", "concat('n', id % 5)", "if(id % 2 = 0, null, 'l')")
    assert_same_rows(oracle, table)
    equality_delete(oracle, table, [{"id": 21}, {"id": 22}], partition=["n1"])  # 22 lies in n2 and stays
    equality_delete(oracle, table, [{"late": None}], partition=["n2"])
    assert_same_rows(oracle, table)
    oracle.sql(f"alter table {table} drop partition field label")
    equality_delete(oracle, table, [{"id": 5}, {"id": 25}, {"id": 33}])  # global again
    equality_delete(oracle, table, [{"late": None, "label": "n3"}])
    fill(oracle, table, 5, 8, "id", "'n0'", "null")
    assert_same_history(oracle, table)


@VERSIONS
@pytest.mark.parametrize("file_format", ["avro", "orc"])
def test_data_files_of_other_formats(oracle: Oracle, table: str, version: int, file_format: str) -> None:
    columns = "id bigint, s string, d decimal(20, 3), day date, at timestamp, b binary"
    columns += ", l array<int>, m map<string, int>, n struct<a: int>"
    create(oracle, table, columns, version, more=f"'write.format.default'='{file_format}'")
    values = ("id", "if(id % 3 = 0, null, 'x')", "cast(id - 5 as decimal(20, 3)) / 2",
              "date_add(date'2024-01-01', int(id))",
              "timestamp'2024-01-01 00:00:00.123456'", "binary(string(id))",
              "if(id % 4 = 0, null, array(1, null, int(id)))",
              "map('k', int(id))", "if(id % 2 = 0, null, named_struct('a', int(id)))")  # fmt: skip
    fill(oracle, table, 0, 20, *values)
    oracle.sql(f"delete from {table} where id in (3, 4)")
    oracle.sql(f"alter table {table} rename column s to text")
    oracle.sql(f"alter table {table} add column late int")
    assert_same_history(oracle, table)


def test_first_format_version(oracle: Oracle, table: str) -> None:
    oracle.sql(
        f"create table {table} (id bigint, part string) using iceberg partitioned by (part) "
        "tblproperties ('format-version'='1')"
    )
    fill(oracle, table, 0, 10, "id", "concat('p', id % 2)")
    oracle.sql(f"delete from {table} where id = 3")
    assert_same_history(oracle, table)
    oracle.sql(f"alter table {table} set tblproperties ('format-version'='2', {MERGE_ON_READ})")
    oracle.sql(f"delete from {table} where id = 4")
    equality_delete(oracle, table, [{"id": 6}], partition=["p0"])
    oracle.sql(f"call system.rewrite_manifests('{table}')")
    assert_same_history(oracle, table)


def test_row_lineage(oracle: Oracle, table: str) -> None:
    create(oracle, table, "id bigint, v string", 3)
    fill(oracle, table, 0, 20, "id", "'a'")
    fill(oracle, table, 20, 40, "id", "'b'")
    oracle.sql(f"update {table} set v = 'changed' where id % 6 = 0")
    oracle.sql(f"delete from {table} where id % 5 = 0")
    columns = ["id", "_row_id", "_last_updated_sequence_number"]

    def both() -> tuple[list[dict[str, int]], list[dict[str, int]]]:
        java = oracle.rows(table, ", ".join(columns)).sort_by("id").to_pylist()
        return arctic_table(oracle, table).scan(columns).to_arrow().sort_by("id").to_pylist(), java

    ours, java = both()
    assert ours == java
    assert len({row["_row_id"] for row in ours}) == len(ours) > 0
    oracle.sql(f"call system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))")
    rewritten, java = both()
    assert rewritten == java == ours


def test_many_row_groups(oracle: Oracle, table: str) -> None:
    """Row groups are skipped by a condition; positions of the deleted rows must not shift with them."""
    checks = ("row-group-check-min-record-count", "row-group-check-max-record-count", "page-row-limit")
    small = ",".join(["'write.parquet.row-group-size-bytes'='2000'", *(f"'write.parquet.{name}'='50'" for name in checks)])
    create(oracle, table, "id bigint, s string", 2, more=small)
    oracle.sql(f"insert into {table} select id, repeat(sha2(string(id), 256), 2) from range(0, 3000, 1, 1)")
    oracle.sql(f"delete from {table} where id % 97 = 5")
    path = arctic_table(oracle, table).files(content="data")["file_path"][0]
    assert pq.read_metadata(path.removeprefix("file:")).num_row_groups > 10
    for where in ("id >= 2900", "id > 100 and id < 140 or id = 2500", "s like '0%'", "id <> 5"):
        assert_same_rows(oracle, table, where=where)
