"""Tables as frames: whoever wrote the files and whatever happened to the schema, Spark shows the rows that Arrow shows.

Files without deletes go through Spark's own reader, which finds columns by field id, but skips row groups by their names.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, FixedType, LongType, NestedField, StringType, StructType, TimeType, UUIDType

import pyarctic
import pyarctic.spark as arctic_spark
from pyarctic.errors import Unsupported
from pyarctic.iceberg.commit import Change
from pyarctic.iceberg.write import NewFile
from pyarctic.iceberg.write.parquet import file_schema
from pyarctic.iceberg.write.parquet.metrics import parquet_metrics
from pyarctic.spark.reading import OWN_READER
from tests.oracle.compare import share_catalog
from tests.oracle.java_writes import FileFormat, equality_delete, position_delete
from tests.oracle.session import Oracle
from tests.support.integrity import local
from tests.support.pipelines import assert_read_alike, files_read_by_spark, frame_rows, multiset, read_plan_of

pytestmark = [pytest.mark.jvm, pytest.mark.filterwarnings("ignore::pyarctic.tables.TableAdvice")]

MERGE_ON_READ = "'write.delete.mode'='merge-on-read','write.update.mode'='merge-on-read'"
VERSIONS = pytest.mark.parametrize("version", [2, 3])


@pytest.fixture
def table(oracle: Oracle) -> str:
    share_catalog(oracle)
    return f"{oracle.namespace()}.t"


@contextmanager
def setting(oracle: Oracle, name: str, value: str) -> Iterator[None]:
    before = oracle.spark.conf.get(name, None)
    oracle.spark.conf.set(name, value)
    try:
        yield
    finally:
        if before is None:
            oracle.spark.conf.unset(name)
        else:
            oracle.spark.conf.set(name, before)


def create(oracle: Oracle, table: str, columns: str, version: int = 2, *, by: str = "", more: str = "") -> None:
    partitioning = f"partitioned by ({by})" if by else ""
    properties = ", ".join(filter(None, [f"'format-version'='{version}'", MERGE_ON_READ, more]))
    oracle.sql(f"create table {table} ({columns}) using iceberg {partitioning} tblproperties ({properties})")


def insert(oracle: Oracle, table: str, select: str) -> None:
    oracle.sql(f"insert into {table} {select}")


def assert_like_java(oracle: Oracle, table: str) -> None:
    assert frame_rows(assert_read_alike(oracle, table)) == multiset(oracle.rows(table))


# --- which reader reads what


@VERSIONS
def test_only_files_without_deletes_are_read_by_spark_itself(oracle: Oracle, table: str, version: int) -> None:
    create(oracle, table, "id bigint, part string, v int", version, by="part")
    for start in (0, 10, 20):
        insert(oracle, table, f"select id, 'p{start}', int(id) from range({start}, {start + 10}, 1, 1)")
    paths = {local(path) for path in oracle.rows(f"{table}.data_files", "file_path")["file_path"].to_pylist()}
    assert len(paths) == 3
    frame = assert_read_alike(oracle, table)
    assert files_read_by_spark(frame) == paths
    assert not read_plan_of(oracle, table).splits

    oracle.sql(f"delete from {table} where id in (3, 4)")  # position deletes or a vector
    equality_delete(oracle, table, [{"id": 15}], partition=["p10"])
    frame = assert_read_alike(oracle, table)
    (clean,) = files_read_by_spark(frame)
    assert "part=p20" in clean
    assert frame.count() == 27
    assert_like_java(oracle, table)
    read_plan = read_plan_of(oracle, table)
    assert [local(path) for path in read_plan.plain_files] == [clean]
    assert read_plan.splits

    # A condition rules out files of both kinds, and rows of both kinds.
    frame = assert_read_alike(oracle, table, where="id >= 14 and id < 22", columns=["v"])
    assert frame.count() == 7
    assert files_read_by_spark(frame) == {clean}
    assert not files_read_by_spark(assert_read_alike(oracle, table, where="part = 'p0'"))
    assert files_read_by_spark(assert_read_alike(oracle, table, where="part = 'p20'")) == {clean}
    with setting(oracle, OWN_READER, "false"):
        assert not files_read_by_spark(assert_read_alike(oracle, table))


@pytest.mark.parametrize("file_format", ["parquet", "avro", "orc"])
def test_every_file_format(oracle: Oracle, table: str, file_format: FileFormat) -> None:
    columns = "id bigint, s string, d decimal(20, 3), day date, at timestamp, b binary, l array<int>, n struct<a: int>"
    create(oracle, table, columns, more=f"'write.format.default'='{file_format}'")
    select = (
        "select id, if(id % 3 = 0, null, 'x'), cast(id as decimal(20, 3)) / 2, date_add(date'2024-01-01', int(id)), "
        "timestamp'2024-01-01 00:00:00.123456', binary(string(id)), if(id % 4 = 0, null, array(1, null, int(id))), "
        "if(id % 2 = 0, null, named_struct('a', int(id)))"
    )
    insert(oracle, table, f"{select} from range(0, 10, 1, 1)")
    insert(oracle, table, f"{select} from range(10, 20, 1, 1)")
    path = oracle.rows(f"{table}.data_files", "file_path")["file_path"][0].as_py()
    position_delete(oracle, table, [(path, 2), (path, 3)], file_format=file_format)
    equality_delete(oracle, table, [{"s": None}], file_format=file_format)
    insert(oracle, table, f"{select} from range(20, 30, 1, 1)")
    oracle.sql(f"alter table {table} rename column s to text")
    assert_like_java(oracle, table)
    read = files_read_by_spark(assert_read_alike(oracle, table, columns=["id", "text", "d"], where="id > 12"))
    assert len(read) == (1 if file_format == "parquet" else 0)


def test_own_tables(oracle: Oracle, table: str) -> None:
    """Unkeyed, and keyed ones in all their states: empty, changes only, base only, both; every store."""
    schema = pa.schema([("id", pa.int64()), ("region", pa.string()), ("v", pa.string())])
    plain = pyarctic.create_table(f"{oracle.name}.{table}", schema, partition_by=["region"])
    assert assert_read_alike(oracle, table).count() == 0
    plain.write(pa.table([[1, 2, 3], ["a b", None, "%/="], ["x", "y", "z"]], schema=schema))
    assert len(files_read_by_spark(assert_read_alike(oracle, table))) == 3
    assert_like_java(oracle, table)

    name = f"{table}k"
    keyed = pyarctic.create_table(f"{oracle.name}.{name}", schema, primary_key=["id"], partition_by=["region"])
    assert assert_read_alike(oracle, name).count() == 0
    assert assert_read_alike(oracle, name, store="base").count() == 0
    assert assert_read_alike(oracle, name, store="change").count() == 0
    first = keyed.write(pa.table([[1, 2], ["a", "b"], ["one", "two"]], schema=schema), "upsert")
    moment = datetime.now().astimezone()
    keyed.write(pa.table([[1, 2, 3], ["a", None, "c"], ["1", "2", "3"]], schema=schema), "upsert")
    assert not files_read_by_spark(assert_read_alike(oracle, name))
    keyed.write(pa.table([[*range(9)], [*"aaabbbccc"], [*"012345678"]], schema=schema), "overwrite")
    assert len(files_read_by_spark(assert_read_alike(oracle, name))) > 3
    assert not read_plan_of(oracle, name).splits
    last = keyed.write(pa.table([[4], ["b"], ["new"]], schema=schema), "upsert")
    keyed.write(pa.table([[8, 9], ["c", "c"]], schema=pa.schema([schema.field(0), schema.field(1)])), "delete")
    frame = assert_read_alike(oracle, name)
    assert files_read_by_spark(frame)
    assert read_plan_of(oracle, name).splits
    assert frame.count() == 8
    for options in ({}, {"snapshot_id": first}, {"snapshot_id": last}, {"as_of": moment}):
        for store in ("merged", "change"):
            assert_read_alike(oracle, name, store=store, **options)
    assert assert_read_alike(oracle, name, as_of=moment).count() == 2
    assert assert_read_alike(oracle, name, snapshot_id=last).count() == 9
    assert_read_alike(oracle, name, store="change", columns=["id", "_change_action"], where="id > 3")
    assert assert_read_alike(oracle, name, store="base").count() == 9
    assert_read_alike(oracle, name, columns=["v"], where="region = 'b'")


def test_former_states(oracle: Oracle, table: str) -> None:
    create(oracle, table, "id bigint, v string", 3)
    assert assert_read_alike(oracle, table).count() == 0
    assert assert_read_alike(oracle, table, where="id > 1", columns=["v"]).columns == ["v"]
    insert(oracle, table, "select id, 'old' from range(0, 5, 1, 1)")
    oracle.sql(f"alter table {table} create tag first")
    oracle.sql(f"alter table {table} create branch side")
    oracle.sql(f"alter table {table} rename column v to w")
    oracle.sql(f"alter table {table} add column v int")
    insert(oracle, table, "select id, 'new', int(id) from range(5, 10, 1, 1)")
    oracle.sql(f"delete from {table} where id in (2, 7)")
    oracle.sql(f"insert into {table}.branch_side values (100, 'side', 1)")
    snapshots = pyarctic.table(f"{oracle.name}.{table}").snapshots()
    for snapshot_id in snapshots["snapshot_id"]:
        frame = assert_read_alike(oracle, table, snapshot_id=snapshot_id)
        assert frame_rows(frame) == multiset(oracle.rows(table, snapshot_id=snapshot_id))
    assert assert_read_alike(oracle, table, ref="first").columns == ["id", "v"]
    assert frame_rows(assert_read_alike(oracle, table, ref="side")) == multiset(oracle.rows(table, ref="side"))
    assert assert_read_alike(oracle, table, as_of=snapshots["committed_at"][0] + timedelta(milliseconds=1)).count() == 5
    # A frame stays what it was.
    frame = arctic_spark.read(oracle.spark, f"{oracle.name}.{table}")
    insert(oracle, table, "select id, 'late', 1 from range(50, 60, 1, 1)")
    oracle.sql(f"delete from {table} where id = 8")
    assert sorted(row["id"] for row in frame.collect()) == [0, 1, 3, 4, 5, 6, 8, 9]


# --- schemas that changed


def test_swapped_names(oracle: Oracle, table: str) -> None:
    """Row groups are skipped by names that had another meaning when the file was written."""
    create(oracle, table, "a bigint, b bigint, n struct<x: bigint, y: bigint>, `keep me` string")
    select = "select id, id + 1000, named_struct('x', id, 'y', id + 1000), string(id)"
    insert(oracle, table, f"{select} from range(0, 10, 1, 1)")
    for old, new in (("a", "c"), ("b", "a"), ("c", "b"), ("n.x", "z"), ("n.y", "x"), ("n.z", "y")):
        oracle.sql(f"alter table {table} rename column {old} to {new}")
    insert(oracle, table, f"{select.replace('id, id + 1000', 'id + 1000, id')} from range(20, 30, 1, 1)")
    assert not read_plan_of(oracle, table).names_are_stable
    for where in ("a >= 1000 and a < 1010", "b < 5", "n.x > 1005", "n.y = 3 or b = 25", "a > 5 and `keep me` = '4'"):
        frame = assert_read_alike(oracle, table, where=where.replace("`keep me`", '"keep me"'))
        java = oracle.sql(f"select * from {table} where {where}")
        assert frame_rows(frame) == frame_rows(java)
        assert frame.count() > 0, where
        # Spark pushes its own conditions, too, and leaves out fields of structs that it does not need.
        later = arctic_spark.read(oracle.spark, f"{oracle.name}.{table}").where(where)
        assert frame_rows(later) == frame_rows(java)
        assert later.count() == java.count()
    assert files_read_by_spark(assert_read_alike(oracle, table, columns=["a", "b"]))


def test_swapped_names_after_old_schemas_were_removed(oracle: Oracle, table: str) -> None:
    """Iceberg Java forgets schemas that no snapshot has, though files of them are alive."""
    create(oracle, table, "a bigint, b bigint")
    insert(oracle, table, "select id, id + 1000 from range(0, 10, 1, 1)")
    for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
        oracle.sql(f"alter table {table} rename column {old} to {new}")
    insert(oracle, table, "select id + 1000, id from range(20, 30, 1, 1)")
    java_table = oracle.java_table(table)
    java_table.expireSnapshots().cleanExpiredMetadata(True).expireOlderThan(1 << 60).retainLast(1).commit()
    assert oracle.java_table(table).schemas().size() == 1
    assert assert_read_alike(oracle, table, where="a = 1003").count() == 1
    assert assert_read_alike(oracle, table, where="b < 5").count() == 5
    frame = arctic_spark.read(oracle.spark, f"{oracle.name}.{table}")
    assert frame.where("a = 1003").count() == 1


def test_names_that_differ_in_case(oracle: Oracle, table: str) -> None:
    """Spark skips row groups by names without a look at their case."""
    create(oracle, table, "id bigint, a bigint")
    insert(oracle, table, "select id, id + 1000 from range(0, 10, 1, 1)")
    oracle.sql(f"alter table {table} drop column a")
    oracle.sql(f"alter table {table} add column A bigint")
    insert(oracle, table, "select id, id from range(20, 30, 1, 1)")
    assert assert_read_alike(oracle, table, where="A is null").count() == 10
    assert assert_read_alike(oracle, table, where="A = 25").count() == 1
    oracle.sql(f"alter table {table} rename column A to other")
    oracle.sql(f"alter table {table} rename column id to A")
    assert assert_read_alike(oracle, table, where="A < 5").count() == 5


def test_dropped_added_and_promoted_columns(oracle: Oracle, table: str) -> None:
    create(oracle, table, "id int, gone string, f float, d decimal(5, 2), n struct<a: int, b: string>, "
           "l array<struct<x: int, y: float>>, m map<string, struct<q: int>>")  # fmt: skip
    insert(
        oracle,
        table,
        """select int(id), 'g', float(id) / 10, cast(id as decimal(5, 2)),
        if(id = 4, null, named_struct('a', int(id), 'b', 'x')), array(named_struct('x', int(id), 'y', 0.5F), null),
        map('k', named_struct('q', int(id)), 'n', null) from range(0, 10, 1, 1)""",
    )
    for change in (
        "drop column gone",
        "add column gone int",
        "alter column id type bigint",
        "alter column f type double",
        "alter column d type decimal(12, 2)",
        "alter column n.a type bigint",
        "rename column n.b to c",
        "add column n.b bigint",
        "alter column l.element.y type double",
        "rename column l.element.x to z",
        "add column l.element.x string",
        "rename column m.value.q to r",
        "add columns (late string, deep struct<u: int>)",
        "alter column late first",
    ):
        oracle.sql(f"alter table {table} {change}")
    assert_like_java(oracle, table)
    insert(
        oracle,
        table,
        """select 'l', id + 3000000000, double(id) / 10, cast(id as decimal(12, 2)) + 999999,
        named_struct('a', id, 'c', 'y', 'b', id), array(named_struct('z', 1, 'y', 0.1D, 'x', 't')),
        map('k', named_struct('r', 2)), 7, named_struct('u', 1) from range(10, 20, 1, 1)""",
    )
    frame = assert_read_alike(oracle, table)
    assert_like_java(oracle, table)
    assert len(files_read_by_spark(assert_read_alike(oracle, table, columns=["id", "f", "d", "gone", "late"]))) == 2
    assert frame.where("n.b is null").count() == 10
    for where in (
        "id > 3000000000",
        "id = 4294967299",
        "id < 3000000010 and id > 7",
        "f = 0.5",
        "f > 0.3 and f < 1.5",
        "d = 5.00",
        "d > 999999.00",
        "gone is null",
        "gone = 7",
        "late is null",
        "n.a >= 9 and n.a < 12",
        "n.b is null",
        "n.c = 'x'",
        "deep.u = 1",
    ):
        scanned = pyarctic.table(f"{oracle.name}.{table}").scan(["id"], where).to_arrow()["id"].to_pylist()
        asked = arctic_spark.read(oracle.spark, f"{oracle.name}.{table}", ["id"], where)
        told = arctic_spark.read(oracle.spark, f"{oracle.name}.{table}").where(where).select("id")
        found = sorted(row["id"] for row in asked.unionAll(told).collect())
        assert found == sorted(scanned * 2), where


def test_structs_of_which_nothing_is_in_the_file(oracle: Oracle, table: str) -> None:
    create(oracle, table, "id bigint, n struct<a: int>, l array<struct<a: int>>")
    insert(oracle, table, "select id, if(id % 2 = 0, null, named_struct('a', int(id))), "
           "if(id % 3 = 0, null, array(named_struct('a', 1), null)) from range(0, 6, 1, 1)")  # fmt: skip
    for change in ("add column n.b string", "drop column n.a", "add column l.element.b int", "drop column l.element.a"):
        oracle.sql(f"alter table {table} {change}")
    frame = assert_read_alike(oracle, table)
    assert frame.where("n is null").count() == 3
    assert_like_java(oracle, table)


def test_defaults_of_columns_that_files_lack(oracle: Oracle, table: str) -> None:
    create(oracle, table, "id bigint, n struct<a: int>", 3)
    insert(oracle, table, "select id, if(id = 3, null, named_struct('a', int(id))) from range(0, 5, 1, 1)")
    literal, types = oracle.java.org.apache.iceberg.expressions.Expressions.lit, oracle.java.org.apache.iceberg.types.Types
    change = oracle.java_table(table).updateSchema()
    change.addColumn("flat", types.StringType.get(), literal("was not there")).commit()
    insert(oracle, table, "select id, null, 'there' from range(5, 8, 1, 1)")
    assert_like_java(oracle, table)
    assert assert_read_alike(oracle, table, columns=["id"], where="flat = 'was not there'").count() == 5
    change = oracle.java_table(table).updateSchema()
    change.addColumn("n", "b", types.IntegerType.get(), literal(7)).commit()
    oracle.sql(f"alter table {table} drop column flat")
    assert {row["n"]["b"] for row in assert_read_alike(oracle, table).collect() if row["n"]} == {7}
    assert assert_read_alike(oracle, table, where="n.b = 7").count() == 4


def test_files_without_field_ids(oracle: Oracle, table: str, tmp_path: Path) -> None:
    create(oracle, table, "id bigint, name string, n struct<a: int>")
    path = tmp_path / "strange file.parquet"
    column = pa.array([{"a": 1}, {"a": 2}, None], pa.struct([("a", pa.int32())]))
    pq.write_table(pa.table({"n": column, "id": [1, 2, 3], "name": ["x", "y", None]}), path)
    oracle.catalog.load_table(table).add_files([path.as_uri().replace("%20", " ")])
    oracle.sql(f"alter table {table} rename column name to title")
    insert(oracle, table, "select id, 'z', null from range(10, 13, 1, 1)")
    frame = assert_read_alike(oracle, table)
    assert frame.count() == 6
    assert_like_java(oracle, table)
    assert_read_alike(oracle, table, where="title = 'y'")


# --- names, places and values

ODD_NAMES = ("a.b", "a b", "ti`ck", "ü/%", "select", "_x", "A;,{}()=", "'q\"", "field 1")


def test_odd_column_names(oracle: Oracle, table: str) -> None:
    schema = pa.schema([("id", pa.int64()), *((name, pa.int64()) for name in ODD_NAMES)])
    made = pyarctic.create_table(f"{oracle.name}.{table}", schema)
    made.write(pa.table([[1, 2], *([number, 10 + number] for number in range(len(ODD_NAMES)))], schema=schema))
    assert files_read_by_spark(assert_read_alike(oracle, table))
    assert_read_alike(oracle, table, columns=["ti`ck", "a.b"], where='"a b" > 5')
    made.evolve(rename={"a.b": "a.c"})
    assert files_read_by_spark(assert_read_alike(oracle, table))
    frame = assert_read_alike(oracle, table, columns=["ti`ck", "a.c", "field 1"], where="id = 2")
    assert frame.count() == 1


def test_odd_names_within_structs(oracle: Oracle, table: str) -> None:
    """Writers of Iceberg files spell them otherwise."""
    create(oracle, table, "id bigint, n struct<`x y`: bigint, `ü`: bigint, `1`: string>")
    insert(oracle, table, "select id, named_struct('a', id, 'b', id + 1000, 'c', 'z') from range(0, 5, 1, 1)")
    frame = assert_read_alike(oracle, table)
    assert_like_java(oracle, table)
    for where in ("n.`x y` = 3", "n.`ü` = 1003", "n.`1` = 'z' and n.`x y` = 4"):
        assert frame.where(where).count() == 1, where
    assert sorted(row[0] for row in frame.select("n.`x y`").collect()) == [0, 1, 2, 3, 4]


def test_a_column_named_as_columns_are_named_for_spark(oracle: Oracle, table: str) -> None:
    create(oracle, table, "`field 2` bigint, b bigint")
    insert(oracle, table, "select id, id + 1000 from range(0, 10, 1, 1)")
    oracle.sql(f"alter table {table} rename column b to c")
    assert not read_plan_of(oracle, table).names_are_stable
    assert assert_read_alike(oracle, table, where="c >= 1005").count() == 5
    assert arctic_spark.read(oracle.spark, f"{oracle.name}.{table}").where("c >= 1005").count() == 5


@pytest.mark.parametrize("kind", ["keyed", "unkeyed"])
def test_strange_places(oracle: Oracle, table: str, kind: str, tmp_path: Path) -> None:
    values = [
        "a b",
        "50%",
        "%20",
        "[x]",
        "{y,z}",
        "*?",
        "k=v",
        "a/b",
        "ü",
        "",
        None,
        "_hidden",
        ".dot",
        "null",
        "a:b",
        "~'\"",
    ]
    schema = pa.schema([("id", pa.int64()), ("_p", pa.string()), ("q", pa.string())])
    folder = (tmp_path / "odd [x] %41 {a,b} k=v").as_uri().replace("%5B", "[").replace("%5D", "]").replace("%20", " ")
    folder = folder.replace("%25", "%").replace("%7B", "{").replace("%7D", "}")
    keys = ["id"] if kind == "keyed" else []
    made = pyarctic.create_table(
        f"{oracle.name}.{table}",
        schema,
        keys,
        ["_p"],
        {"write.data.path": f"{folder}/data", "write.target-file-size-bytes": "1"},
    )
    data = pa.table([[*range(len(values))], values, values], schema=schema)
    made.write(data, "overwrite")
    frame = assert_read_alike(oracle, table)
    assert frame.count() == len(values)
    assert len(files_read_by_spark(frame)) == len(values)
    assert_like_java(oracle, table)
    some = ["%20", "[x]", "~'\"", "", "null"]
    chosen = ", ".join("'" + value.replace("'", "''") + "'" for value in some)
    assert assert_read_alike(oracle, table, where=f"_p in ({chosen}) or _p is null").count() == 6
    if kind == "keyed":
        made.write(data, "upsert")
        assert frame_rows(assert_read_alike(oracle, table)) == frame_rows(frame)


def test_types_that_spark_does_not_have(oracle: Oracle, table: str) -> None:
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "u", UUIDType()),
        NestedField(3, "f", FixedType(3)),
        NestedField(4, "b", BinaryType()),
        NestedField(5, "clock", TimeType()),
        NestedField(6, "n", StructType(NestedField(7, "u", UUIDType()), NestedField(8, "s", StringType()))),
        NestedField(9, "deep", StructType(NestedField(10, "clock", TimeType()))),
    )
    made = pyarctic.create_table(f"{oracle.name}.{table}", schema)
    told = {"u": b"0123456789abcdef", "f": b"\x00\xff\x01", "b": b"\x00", "clock": time(1, 2)}
    nested = {"n": {"u": b"fedcba9876543210", "s": "x"}, "deep": {"clock": time(3)}}
    arrow = made.scan().schema
    made.write(pa.Table.from_pylist([{"id": 1} | told | nested, {"id": 2}], schema=arrow))
    columns = ["id", "u", "f", "b", "n"]
    frame = assert_read_alike(oracle, table, columns=columns)
    assert not files_read_by_spark(frame)
    assert files_read_by_spark(assert_read_alike(oracle, table, columns=["id", "b"]))
    assert assert_read_alike(oracle, table, columns=["id"], where="clock = '01:02:00'").count() == 1
    arctic_spark.register(oracle.spark)
    loaded = oracle.spark.read.format("arctic").option("columns", ",".join(columns)).load(f"{oracle.name}.{table}")
    assert frame_rows(loaded) == frame_rows(frame)
    for chosen in (None, ["id", "clock"], ["deep"]):
        with pytest.raises(Unsupported, match=r"clock|deep") as refusal:
            arctic_spark.read(oracle.spark, f"{oracle.name}.{table}", chosen)
        assert "time" in refusal.value.message
        assert refusal.value.facts["table"] == f"{oracle.name}.{table}"


MOMENTS = ["2024-03-10T02:30:00", "2024-11-03T01:30:00.000001", "1969-12-31T23:59:59.999999", "1582-10-04T00:00:00",
           "0001-01-01T00:00:00", "9999-12-31T23:59:59.999999"]  # fmt: skip


def test_instants_with_and_without_zone(oracle: Oracle, table: str) -> None:
    """Also those that do not exist in a zone, exist twice, or are older than today's calendar."""
    schema = pa.schema(
        [("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us")), ("day", pa.date32())]
    )
    moments = [datetime.fromisoformat(text) for text in MOMENTS]
    inner = moments[:-2]  # Python has no zones at the ends of time
    rows = [{"id": n, "at": at, "local": at, "day": at.date()} for n, at in enumerate(inner)]
    rows += [{"id": 10 + n, "at": None, "local": at, "day": at.date()} for n, at in enumerate(moments)]
    data = pa.Table.from_pylist(rows, schema=schema)
    plain = pyarctic.create_table(f"{oracle.name}.{table}", schema)
    keyed = pyarctic.create_table(f"{oracle.name}.{table}k", schema, ["id"], ["day(local)"])
    with setting(oracle, "spark.sql.session.timeZone", "America/New_York"):
        plain.write(data)
        keyed.write(data, "upsert")
        for name in (table, f"{table}k"):
            frame = assert_read_alike(oracle, name)
            assert dict(frame.dtypes) == {"id": "bigint", "at": "timestamp", "local": "timestamp_ntz", "day": "date"}
            assert assert_read_alike(oracle, name, where=f"local = '{MOMENTS[0]}'").count() == 2
            assert assert_read_alike(oracle, name, where=f"at = '{MOMENTS[1]}Z'").count() == 1
            assert assert_read_alike(oracle, name, where="at < '1970-01-01T00:00:00-05:00'").count() == 2
            assert assert_read_alike(oracle, name, where="day <= '1582-10-04'").count() == 3
            assert assert_read_alike(oracle, name, where="local > '2024-03-10T02:29:59.999999'").count() == 5


EVERY: list[tuple[str, pa.DataType, list[Any]]] = [
    ("flag", pa.bool_(), [True, False]),
    ("i", pa.int32(), [-(1 << 31), (1 << 31) - 1]),
    ("f", pa.float32(), [0.1, float("nan")]),
    ("d", pa.float64(), [float("-inf"), -0.0]),
    ("small", pa.decimal128(9, 2), [Decimal("-9999999.99"), Decimal("0.01")]),
    ("mid", pa.decimal128(18, 4), [Decimal("99999999999999.9999"), Decimal("-0.0001")]),
    ("large", pa.decimal128(38, 10), [Decimal("1234567890123456789012345678.0123456789"), Decimal("-1E-10")]),
    ("day", pa.date32(), [date(1, 1, 1), date(2024, 2, 29)]),
    ("s", pa.string(), ["", "ü😀\\'\"\n"]),
    ("b", pa.binary(), [b"", b"\x00\xff"]),
    ("l", pa.list_(pa.list_(pa.int32())), [[[1, None], None, []], []]),
    ("m", pa.map_(pa.int64(), pa.struct([("x", pa.list_(pa.string()))])), [[(1, {"x": ["a", None]})], []]),
]


@pytest.mark.parametrize("keys", [[], ["id"]])
def test_every_type_on_both_ways(oracle: Oracle, table: str, keys: list[str]) -> None:
    schema = pa.schema([("id", pa.int32()), *((name, type_) for name, type_, _ in EVERY)])
    rows = [{"id": 0}, *({"id": n + 1} | {name: values[n] for name, _, values in EVERY} for n in range(2))]
    name = f"{oracle.name}.{table}"
    made = pyarctic.create_table(name, schema, keys)
    made.write(pa.Table.from_pylist(rows, schema=schema), "overwrite")
    frame = assert_read_alike(oracle, table)
    assert files_read_by_spark(frame)
    assert_like_java(oracle, table)
    with setting(oracle, OWN_READER, "false"):
        again = assert_read_alike(oracle, table)
    assert frame.dtypes == again.dtypes
    assert frame_rows(frame) == frame_rows(again)
    # And out again.
    copy = arctic_spark.create_table(f"{name}_copy", frame.schema, primary_key=["id"])
    arctic_spark.write(frame, f"{name}_copy", "upsert")
    assert multiset(copy.refresh().scan().to_arrow()) == frame_rows(frame)


# --- what neither a writer nor a session may change


def test_files_without_a_column_that_their_partition_tells(oracle: Oracle, table: str) -> None:
    create(oracle, f"{oracle.name}.{table}", "id bigint, region string", by="region")
    opened = pyarctic.table(f"{oracle.name}.{table}")
    path = Path(local(opened.location)) / "data" / "short.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    field = opened.schema.fields[0]
    pq.write_table(pa.table([pa.array([1, 2])], schema=file_schema([field])), path)
    metrics, offsets = parquet_metrics(pq.read_metadata(path), [field], {}, {})
    new = NewFile(
        content=0,
        path=path.as_uri(),
        file_format="PARQUET",
        spec_id=opened.view.metadata.default_spec_id,
        partition=("Oslo",),
        record_count=2,
        file_size_bytes=path.stat().st_size,
        metrics=metrics,
        split_offsets=offsets,
    )
    opened.commit(Change(start=None, add=(new,)))
    insert(oracle, f"{oracle.name}.{table}", "values (3, 'Oslo'), (4, 'Rome')")
    assert_like_java(oracle, table)
    assert_read_alike(oracle, table, where="region = 'Oslo'")
    assert len(read_plan_of(oracle, table).plain_files) == 2
    assert len(read_plan_of(oracle, table, columns=["id"]).plain_files) == 3


def test_a_missing_file_is_noticed_whatever_the_session_says(oracle: Oracle, table: str) -> None:

    create(oracle, f"{oracle.name}.{table}", "id bigint")
    insert(oracle, f"{oracle.name}.{table}", "values (1)")
    frame = arctic_spark.read(oracle.spark, f"{oracle.name}.{table}")
    [path] = read_plan_of(oracle, table).plain_files
    Path(local(path)).unlink()
    with (
        setting(oracle, "spark.sql.files.ignoreMissingFiles", "true"),
        pytest.raises(Exception, match=r"FILE_NOT_EXIST|not exist"),
    ):
        frame.collect()
