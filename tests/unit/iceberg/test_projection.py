"""Files as they are, turned into rows as the schema wants them."""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import parse_mapping_from_json
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from pyarctic.errors import Damaged
from pyarctic.iceberg.read.projection import Projection, names_for

Rows = list[dict[str, Any]]


def field(name: str, type_: pa.DataType, field_id: int | None) -> pa.Field:
    return pa.field(name, type_, metadata=None if field_id is None else {"PARQUET:field_id": str(field_id)})


def project(
    source: pa.Schema,
    rows: Rows,
    wanted: list[NestedField],
    *,
    constants: dict[int, Any] | None = None,
    mapping: str | None = None,
    sliced: bool = False,
) -> list[dict[str, Any]]:
    """Through a batch, or through a slice out of the middle of a larger one."""
    names = names_for(source, parse_mapping_from_json(mapping) if mapping else None)
    if sliced:
        batch = pa.RecordBatch.from_pylist([*rows, *rows, *rows], schema=source).slice(len(rows), len(rows))
    else:
        batch = pa.RecordBatch.from_pylist(rows, schema=source)
    projection = Projection.of(source, names, wanted, constants or {})
    made = projection.apply(batch)
    made.validate(full=True)
    assert made.schema.equals(projection.schema)
    out: list[dict[str, Any]] = made.to_pylist()
    return out


SLICED = pytest.mark.parametrize("sliced", [False, True])


@SLICED
def test_rename_reorder_drop_add_promote(sliced: bool) -> None:
    source = pa.schema([field("a", pa.int32(), 1), field("gone", pa.string(), 2), field("f", pa.float32(), 3),
                        field("d", pa.decimal128(5, 2), 4)])  # fmt: skip
    wanted = [
        NestedField(4, "d", DecimalType(12, 2)),
        NestedField(9, "late", StringType()),
        NestedField(3, "f", DoubleType()),
        NestedField(1, "renamed", LongType()),
    ]
    rows: Rows = [
        {"a": 1, "gone": "x", "f": 0.5, "d": Decimal("1.25")},
        {"a": None, "gone": None, "f": None, "d": None},
    ]
    assert project(source, rows, wanted, sliced=sliced) == [
        {"d": Decimal("1.25"), "late": None, "f": 0.5, "renamed": 1},
        {"d": None, "late": None, "f": None, "renamed": None},
    ]


def test_name_of_a_dropped_column_used_again() -> None:
    source = pa.schema([field("x", pa.string(), 1)])
    assert project(source, [{"x": "old"}], [NestedField(2, "x", StringType())]) == [{"x": None}]


OLD_STRUCT = pa.struct([field("a", pa.int32(), 11), field("b", pa.string(), 12)])
NEW_STRUCT = StructType(
    NestedField(12, "bb", StringType()), NestedField(13, "c", LongType()), NestedField(11, "a", LongType())
)


@SLICED
def test_inside_structs(sliced: bool) -> None:
    source = pa.schema([field("s", OLD_STRUCT, 1)])
    rows: Rows = [{"s": {"a": 1, "b": "x"}}, {"s": None}, {"s": {"a": None, "b": None}}, {"s": {"a": 2, "b": None}}]
    assert project(source, rows, [NestedField(1, "t", NEW_STRUCT)], sliced=sliced) == [
        {"t": {"bb": "x", "c": None, "a": 1}},
        {"t": None},
        {"t": {"bb": None, "c": None, "a": None}},
        {"t": {"bb": None, "c": None, "a": 2}},
    ]


@SLICED
def test_inside_lists(sliced: bool) -> None:
    source = pa.schema([field("l", pa.list_(field("element", OLD_STRUCT, 2)), 1)])
    wanted = [NestedField(1, "l", ListType(2, NEW_STRUCT, element_required=False))]
    rows: Rows = [
        {"l": [{"a": 1, "b": "x"}, None]},
        {"l": None},
        {"l": []},
        {"l": [None]},
        {"l": [{"a": 3, "b": None}]},
    ]
    assert project(source, rows, wanted, sliced=sliced) == [
        {"l": [{"bb": "x", "c": None, "a": 1}, None]},
        {"l": None},
        {"l": []},
        {"l": [None]},
        {"l": [{"bb": None, "c": None, "a": 3}]},
    ]


@SLICED
def test_inside_maps(sliced: bool) -> None:
    source = pa.schema(
        [field("m", pa.map_(field("key", pa.int32(), 2).with_nullable(False), field("value", OLD_STRUCT, 3)), 1)]
    )
    wanted = [NestedField(1, "m", MapType(2, LongType(), 3, NEW_STRUCT, value_required=False))]
    rows: Rows = [{"m": [(1, {"a": 1, "b": "x"}), (2, None)]}, {"m": None}, {"m": []}, {"m": [(3, None)]}]
    assert project(source, rows, wanted, sliced=sliced) == [
        {"m": [(1, {"bb": "x", "c": None, "a": 1}), (2, None)]},
        {"m": None},
        {"m": []},
        {"m": [(3, None)]},
    ]


@SLICED
def test_deep_nesting_with_nulls_on_every_level(sliced: bool) -> None:
    inner = pa.list_(field("element", OLD_STRUCT, 4))
    middle = pa.struct([field("l", inner, 3), field("n", pa.int32(), 6)])
    source = pa.schema([field("x", pa.list_(field("element", middle, 2)), 1)])
    target = StructType(
        NestedField(6, "n", LongType()), NestedField(3, "ll", ListType(4, NEW_STRUCT, element_required=False))
    )
    wanted = [NestedField(1, "x", ListType(2, target, element_required=False))]
    rows: Rows = [
        {"x": [{"l": [{"a": 1, "b": "y"}, None], "n": 1}, None, {"l": None, "n": None}]},
        {"x": None},
        {"x": [{"l": [], "n": 5}]},
    ]
    assert project(source, rows, wanted, sliced=sliced) == [
        {"x": [{"n": 1, "ll": [{"bb": "y", "c": None, "a": 1}, None]}, None, {"n": None, "ll": None}]},
        {"x": None},
        {"x": [{"n": 5, "ll": []}]},
    ]


def test_defaults_also_inside_structs() -> None:
    source = pa.schema([field("s", OLD_STRUCT, 1)])
    struct = StructType(NestedField(11, "a", LongType()), NestedField(13, "c", IntegerType(), initial_default=7))
    wanted = [NestedField(1, "s", struct), NestedField(2, "d", StringType(), required=True, initial_default="x")]
    rows: Rows = [{"s": {"a": 1, "b": None}}, {"s": None}]
    assert project(source, rows, wanted) == [{"s": {"a": 1, "c": 7}, "d": "x"}, {"s": None, "d": "x"}]


def test_default_does_not_replace_a_null() -> None:
    source = pa.schema([field("a", pa.int32(), 1)])
    assert project(source, [{"a": None}], [NestedField(1, "a", IntegerType(), initial_default=7)]) == [{"a": None}]


def test_identity_constants_fill_missing_columns_only() -> None:
    source = pa.schema([field("a", pa.string(), 1)])
    wanted = [
        NestedField(1, "a", StringType()),
        NestedField(2, "day", DateType()),
        NestedField(3, "at", TimestampType()),
        NestedField(4, "zoned", TimestamptzType()),
        NestedField(5, "price", DecimalType(9, 2)),
        NestedField(6, "key", UUIDType()),
        NestedField(7, "raw", FixedType(2)),
        NestedField(8, "nothing", IntegerType(), initial_default=4),
    ]
    key = uuid.UUID(int=5)
    constants = {1: "other", 2: 1, 3: 10**6, 4: 10**6, 5: Decimal("1.50"), 6: key.bytes, 7: b"ab", 8: None}
    made = project(source, [{"a": "x"}, {"a": "y"}], wanted, constants=constants)
    assert [row["a"] for row in made] == ["x", "y"]
    assert made[0] == made[1] | {"a": "x"}
    assert made[0] == {
        "a": "x", "day": date(1970, 1, 2), "at": datetime(1970, 1, 1, 0, 0, 1),  # noqa: DTZ001 - it has no zone
        "zoned": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "price": Decimal("1.50"), "key": key.bytes, "raw": b"ab",
        "nothing": None,
    }  # fmt: skip


def test_missing_required_column_is_refused() -> None:
    source = pa.schema([field("a", pa.int32(), 1)])
    with pytest.raises(Damaged, match="required column 'b'") as caught:
        project(source, [{"a": 1}], [NestedField(2, "b", IntegerType(), required=True)])
    assert caught.value.facts["column"] == "b"
    made = project(source, [{"a": 1}], [NestedField(2, "b", IntegerType(), required=True)], constants={2: 5})
    assert made == [{"b": 5}]


MAPPING = """[{"field-id": 1, "names": ["id", "number"]},
 {"field-id": 2, "names": ["s"], "fields": [{"field-id": 11, "names": ["a"]}, {"field-id": 12, "names": ["b"]}]},
 {"field-id": 3, "names": ["l"], "fields": [{"field-id": 4, "names": ["element"],
  "fields": [{"field-id": 11, "names": ["a"]}, {"field-id": 12, "names": ["b"]}]}]}]"""
PLAIN_STRUCT = pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.string())])


@SLICED
def test_name_mapping_for_files_without_ids(sliced: bool) -> None:
    source = pa.schema([pa.field("unknown", pa.int32()), pa.field("number", pa.int32()), pa.field("s", PLAIN_STRUCT),
                        pa.field("l", pa.list_(PLAIN_STRUCT))])  # fmt: skip
    wanted = [
        NestedField(1, "id", LongType()),
        NestedField(2, "s", NEW_STRUCT),
        NestedField(3, "l", ListType(4, NEW_STRUCT, element_required=False)),
    ]
    rows: Rows = [{"unknown": 9, "number": 1, "s": {"a": 2, "b": "x"}, "l": [{"a": 3, "b": "y"}, None]}]
    assert project(source, rows, wanted, mapping=MAPPING, sliced=sliced) == [
        {"id": 1, "s": {"bb": "x", "c": None, "a": 2}, "l": [{"bb": "y", "c": None, "a": 3}, None]}
    ]


def test_name_mapping_is_ignored_when_the_file_has_ids() -> None:
    source = pa.schema([field("id", pa.int32(), 5), field("other", pa.int32(), 1)])
    made = project(source, [{"id": 10, "other": 20}], [NestedField(1, "id", LongType())], mapping=MAPPING)
    assert made == [{"id": 20}]


def test_files_without_ids_and_mapping_are_read_by_position() -> None:
    source = pa.schema([pa.field("x", pa.int32()), pa.field("y", pa.string())])
    made = project(source, [{"x": 1, "y": "a"}], [NestedField(2, "b", StringType()), NestedField(1, "a", LongType())])
    assert made == [{"b": "a", "a": 1}]


def test_arrow_variants_of_the_same_type() -> None:
    source = pa.schema([field("s", pa.large_string(), 1), field("d", pa.dictionary(pa.int32(), pa.string()), 2),
                        field("l", pa.large_list(field("element", pa.int32(), 4)), 3), field("t", pa.timestamp("ns"), 5),
                        field("u", pa.binary(16), 6)])  # fmt: skip
    wanted = [
        NestedField(1, "s", StringType()),
        NestedField(2, "d", StringType()),
        NestedField(3, "l", ListType(4, LongType(), element_required=False)),
        NestedField(5, "t", TimestampType()),
        NestedField(6, "u", UUIDType()),
    ]
    moment = datetime(2024, 1, 1, 0, 0, 0, 1)  # noqa: DTZ001 - it has no zone
    row = {"s": "a", "d": "b", "l": [1, None], "t": moment, "u": bytes(16)}
    assert project(source, [row], wanted) == [row]


def test_whole_schema() -> None:
    schema = Schema(NestedField(1, "a", LongType()))
    source = pa.schema([field("a", pa.int64(), 1)])
    batch = pa.RecordBatch.from_pylist([{"a": 1}], schema=source)
    made = Projection.of(source, None, schema, {}).apply(batch)
    assert made.column(0).buffers()[1].address == batch.column(0).buffers()[1].address  # nothing was copied
