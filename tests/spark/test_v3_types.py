"""Columns of version 3 that PyArctic cannot decode, in tables of Iceberg Java: what PyArctic commits, Java still reads."""

from __future__ import annotations

from typing import Any

import pytest

from pyarctic.errors import Unsupported
from tests.oracle.compare import arctic_table
from tests.oracle.session import Oracle
from tests.support.optimizing import optimize

pytestmark = pytest.mark.jvm

PROPERTIES = "'format-version'='3', 'write.parquet.compression-codec'='zstd', 'self-optimizing.writers-first'='false'"
DOCUMENT = """parse_json(concat('{"a":', id % 10, ',"b":"x', id, '"}'))"""
VALUES = f"id, {DOCUMENT}, concat('n', id)"
COLUMNS = "id, to_json(v) as v, name, _row_id, _last_updated_sequence_number"


def made(oracle: Oracle, columns: str, values: str, properties: str = PROPERTIES) -> str:
    """A table of three inserts of Spark."""
    table = f"{oracle.namespace()}.t"
    oracle.sql(f"create table {table} ({columns}) using iceberg tblproperties ({properties})")
    for first in (0, 100, 200):
        oracle.sql(f"insert into {table} select {values} from range({first}, {first + 100}, 1, 1)")
    return table


def read(oracle: Oracle, table: str, columns: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = oracle.rows(table, columns).sort_by("id").to_pylist()
    return rows


@pytest.mark.parametrize("shredded", ["false", "true"])
def test_variants(oracle: Oracle, shredded: str) -> None:
    # The vectorized reader of Iceberg 1.12 does not read shredded variants.
    properties = f"{PROPERTIES}, 'write.parquet.shred-variants'='{shredded}', 'read.parquet.vectorization.enabled'='false'"
    properties += ", 'write.delete.mode'='merge-on-read'"
    table = made(oracle, "id bigint, v variant, name string", VALUES, properties)
    before = read(oracle, table, COLUMNS)
    assert before[8] | {"id": 8, "v": '{"a":8,"b":"x8"}', "name": "n8", "_row_id": 8} == before[8]
    ours = arctic_table(oracle, table)
    assert str(ours.schema.find_type("v")) == "variant"
    assert ours.scan(["id", "name"], where="id > 3").to_arrow().num_rows == 296
    with pytest.raises(Unsupported, match="column 'v' of type variant"):
        ours.scan().to_arrow()
    ours.set({"comment": "by pyarctic"})
    arctic_table(oracle, table).rewrite_manifests()
    assert read(oracle, table, COLUMNS) == before

    report = optimize(arctic_table(oracle, table), "full", verify=False)
    assert (report.failures, report.rows_copied, report.added.data_files) == ((), 300, 1)
    assert read(oracle, table, COLUMNS) == before
    oracle.sql(f"insert into {table} select {VALUES} from range(300, 400, 1, 1)")
    before = read(oracle, table, COLUMNS)
    report = optimize(arctic_table(oracle, table), "full", verify=False)
    assert (report.failures, report.rows_copied, report.added.data_files) == ((), 400, 1)
    assert read(oracle, table, COLUMNS) == before
    assert oracle.rows(table, "count(*) as n").to_pylist() == [{"n": 400}]
    found = oracle.sql(f"select id from {table} where variant_get(v, '$.b', 'string') = 'x333'").toArrow().to_pylist()
    assert found == [{"id": 333}]

    oracle.sql(f"delete from {table} where id = 5")
    before = read(oracle, table, COLUMNS)
    report = optimize(arctic_table(oracle, table), "full", verify=False)
    assert (report.failures, report.changed) == ((), False)  # its rows would have to be decoded: it stays as it is
    assert read(oracle, table, COLUMNS) == before


def test_variants_that_are_shredded_differently(oracle: Oracle) -> None:
    """Their row groups have different columns, and cannot be in one file."""
    properties = f"{PROPERTIES}, 'write.parquet.shred-variants'='true', 'read.parquet.vectorization.enabled'='false'"
    table = made(oracle, "id bigint, v variant", "id, parse_json(concat('{\"a\":', id, '}'))", properties)
    before = read(oracle, table, "id, to_json(v) as v")
    report = optimize(arctic_table(oracle, table), "full", verify=False)
    assert [failure.code for failure in report.failures] == ["unsupported"]
    assert not report.changed
    assert read(oracle, table, "id, to_json(v) as v") == before


def test_nested_variants(oracle: Oracle) -> None:
    document = f"named_struct('x', id, 'v', {DOCUMENT}), array({DOCUMENT})"
    table = made(oracle, "id bigint, s struct<x: bigint, v: variant>, l array<variant>", f"id, {document}")
    ours = arctic_table(oracle, table)
    assert ours.scan(["id"]).to_arrow().num_rows == 300
    with pytest.raises(Unsupported, match=r"column 's\.v' of type variant"):
        ours.scan(["s"]).to_arrow()
    with pytest.raises(Unsupported, match=r"column 'l\.element' of type variant"):
        ours.scan(["l"]).to_arrow()


@pytest.mark.parametrize(
    "columns",
    [("id bigint, u void", "id, null"), ("id bigint, s struct<x: bigint, u: void>", "id, named_struct('x', id, 'u', null)")],
)
def test_unknown_columns(oracle: Oracle, columns: tuple[str, str]) -> None:
    table = made(oracle, *columns)
    before = read(oracle, table, "*")
    assert arctic_table(oracle, table).scan().to_arrow().sort_by("id").to_pylist() == before
    report = optimize(arctic_table(oracle, table), "full")
    assert not report.failures
    assert report.changed
    assert read(oracle, table, "*") == before
    assert arctic_table(oracle, table).scan().to_arrow().sort_by("id").to_pylist() == before


@pytest.mark.parametrize("type_", ["geometry(srid:4326)", "geography(srid:4326, karney)", "geometry(OGC:CRS84)"])
def test_geometries_stay_what_java_called_them(oracle: Oracle, type_: str) -> None:
    table = made(oracle, "id bigint, name string", "id, 'a'")
    types = oracle.java.org.apache.iceberg.types.Types
    loaded = oracle.java_table(table)
    loaded.updateSchema().addColumn("g", types.fromPrimitiveString(type_)).commit()
    ours = arctic_table(oracle, table)
    assert str(ours.schema.find_type("g")) == type_.replace("(OGC:CRS84)", "")
    assert ours.scan(["id"]).to_arrow().num_rows == 300
    ours.set({"comment": "by pyarctic"})
    assert oracle.java_table(table).schema().findType("g").toString() == type_
