"""Places where a scan could go wrong quietly: dropped partition columns, nulls below structs, literals out of range."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField, StringType, StructType

from tests.integration.iceberg.conftest import Lake, rows
from tests.models.spec import SpecTable

BY_PART = (("part", "identity"),)


def read(lake: Lake, **options: Any) -> list[dict[str, Any]]:
    scan = lake.open().scan(**options)
    found: list[dict[str, Any]] = scan.to_arrow().to_pylist()
    assert scan.count() == len(found)
    return found


def drop_part(table: SpecTable) -> None:
    table.partition_by()
    table.set_fields([field for field in table.fields if field["name"] != "part"])


def test_deletes_stay_in_their_partition_after_its_column_was_dropped(lake: Lake) -> None:
    """Manifests that nobody rewrote still tell the partitions, and Java 1.12 compares them."""
    table = lake.make(partition=BY_PART)
    table.commit(table.data(rows(1, part="p"), ("p",)), table.data(rows(1, part="q"), ("q",)))
    deleted = table.commit(table.equality_deletes([{"id": 1}], ("p",)), operation="delete")
    assert read(lake) == rows(1, part="q")
    drop_part(table)
    assert read(lake, snapshot_id=deleted) == rows(1, part="q")
    assert read(lake) == [{"id": 1, "name": "n"}]


def test_partition_values_are_not_forgotten_after_their_column_was_dropped(lake: Lake) -> None:
    """A file need not hold its identity partition columns: what is shown and compared comes from the manifest."""
    table = lake.make(partition=BY_PART)
    first = table.commit(table.data(rows(1, 2, part="p"), ("p",), without=["part"]))
    second = table.commit(table.equality_deletes([{"id": 1, "part": "p"}], ("p",)), operation="delete")
    assert read(lake, snapshot_id=first) == rows(1, 2, part="p")
    drop_part(table)
    assert read(lake, snapshot_id=first) == rows(1, 2, part="p")
    assert read(lake, snapshot_id=second) == rows(2, part="p")
    assert read(lake, snapshot_id=second, where="part = 'p'") == rows(2, part="p")


@pytest.mark.parametrize("where", ["s.a is null", "not (s.a is not null)", "s.a is null and p = 'x'"])
def test_required_field_of_a_null_struct_is_null_in_partitioned_tables(lake: Lake, where: str) -> None:
    struct = StructType(NestedField(3, "a", IntegerType(), required=True))
    schema = Schema(NestedField(1, "p", StringType(), required=False), NestedField(2, "s", struct, required=False))
    table = lake.catalog.create_table("db.t", schema)
    with table.update_spec() as update:
        update.add_identity("p")
    arrow = pa.schema([("p", pa.string()), ("s", pa.struct([pa.field("a", pa.int32(), nullable=False)]))])
    table.append(pa.Table.from_pylist([{"p": "x", "s": None}, {"p": "x", "s": {"a": 5}}], schema=arrow))
    assert read(lake, where=where) == [{"p": "x", "s": None}]


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("id < 3000000000", [1, 2147483647]),
        ("id > -3000000000", [1, 2147483647]),
        ("id <> 3000000000", [1, 2147483647]),
        ("not (id = 3000000000)", [1, 2147483647]),
        ("not (id > 3000000000)", [1, 2147483647]),
        ("id not in (3000000000)", [1, 2147483647]),
        ("id in (1, 3000000000)", [1]),
        ("id not in (1, 3000000000)", [2147483647]),
    ],
)
def test_numbers_beyond_the_columns_type(lake: Lake, where: str, found: list[int]) -> None:
    """Null is not less than a large number, and a large number is not the largest integer."""
    table = lake.make()
    table.commit(table.data(rows(1, 2147483647, None)))
    assert [row["id"] for row in read(lake, where=where)] == found


def test_null_counts_of_nested_fields_do_not_count_null_parents(lake: Lake) -> None:
    """ORC files of Java: null count 0 for s.a although s is null, because ORC does not count below a null struct."""
    table = lake.make(columns=(("id", "int"),))
    struct = {"type": "struct", "fields": [{"id": 3, "name": "a", "required": False, "type": "int"}]}
    table.set_fields([*table.fields, {"id": 2, "name": "s", "required": False, "type": struct}])
    table.metadata["last-column-id"] = 3
    inner = pa.struct([pa.field("a", pa.int32(), metadata={"PARQUET:field_id": "3"})])
    fields = [("id", pa.int32(), "1"), ("s", inner, "2")]
    schema = pa.schema([pa.field(name, type_, metadata={"PARQUET:field_id": id_}) for name, type_, id_ in fields])
    made: list[dict[str, Any]] = [{"id": 1, "s": None}, {"id": 2, "s": {"a": 5}}]
    path, size = table._parquet(pa.Table.from_pylist(made, schema=schema))
    table.commit(table.file(content=0, path=path, records=2, size=size, nulls={3: 0}, values={3: 1}))
    assert read(lake, where="s.a is null") == made[:1]
