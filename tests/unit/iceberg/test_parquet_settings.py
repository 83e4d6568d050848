"""Parquet settings: every `write.parquet.*` property is honoured, or named as one without effect."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import BooleanType, IntegerType, ListType, LongType, MapType, NestedField, StringType, StructType

from pyarctic.errors import UsageError
from pyarctic.iceberg.write.parquet import ParquetSettings, choose_dictionaries, file_schema, ignored_properties
from pyarctic.iceberg.write.parquet.settings import leaf_columns

NESTED = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "flag", BooleanType()),
    NestedField(3, "address", StructType(NestedField(4, "city", StringType()))),
    NestedField(5, "tags", ListType(6, StringType())),
    NestedField(7, "prices", MapType(8, StringType(), 9, IntegerType())),
)


def write(table: pa.Table, properties: dict[str, str], **options: Any) -> tuple[pq.FileMetaData, bytes]:
    sink = pa.BufferOutputStream()
    with ParquetSettings.of(properties).writer(sink, table.schema, [], rows=table.num_rows, **options) as writer:
        writer.write_table(table)
    data = sink.getvalue().to_pybytes()
    return pq.read_metadata(pa.BufferReader(data)), data


def numbers(rows: int) -> pa.Table:
    schema = file_schema([NestedField(1, "id", LongType()), NestedField(2, "name", StringType())])
    return pa.table({"id": np.arange(rows), "name": [f"n{number % 100}" for number in range(rows)]}).cast(schema)


def test_leaf_columns_are_those_of_the_file() -> None:
    schema = file_schema(NESTED.fields)
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    parquet = pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
    assert [column.path for column in leaf_columns(schema)] == [column.path for column in parquet]
    assert {column.name: column.field_id for column in leaf_columns(schema)} == {
        "id": 1,
        "flag": 2,
        "address.city": 4,
        "tags.element": 6,
        "prices.key": 8,
        "prices.value": 9,
    }


def test_files_have_page_indexes_and_checksums() -> None:
    metadata, _ = write(numbers(100), {})
    chunks = [metadata.row_group(0).column(index) for index in range(2)]
    assert all(chunk.has_column_index and chunk.has_offset_index for chunk in chunks)


def test_bloom_filters_of_properties_and_of_inputs() -> None:
    table = numbers(50_000)
    filters = {name: f"write.parquet.bloom-filter-enabled.column.{name}" for name in ("id", "name")}

    def lengths(properties: dict[str, str], **options: Any) -> list[int | None]:
        metadata, _ = write(table, properties, **options)
        return [metadata.row_group(0).column(index).bloom_filter_length for index in range(2)]

    assert lengths({}) == [None, None]
    by_property = lengths({filters["id"]: "true"})
    assert by_property[0] is not None
    assert by_property[1] is None
    assert lengths({}, bloom_filters={2})[1] is not None
    assert lengths({filters["name"]: "false"}, bloom_filters={2}) == [None, None]
    limited = lengths({filters["id"]: "true", "write.parquet.bloom-filter-max-bytes": "5000"})
    assert limited[0] is not None
    assert limited[0] < 5_000 < by_property[0]
    few = lengths({filters["id"]: "true", "write.parquet.bloom-filter-ndv.column.id": "100"})
    rough = lengths({filters["id"]: "true", "write.parquet.bloom-filter-fpp.column.id": "0.5"})
    assert few[0] is not None
    assert rough[0] is not None
    assert max(few[0], rough[0]) < by_property[0]


def test_pages_statistics_and_codec() -> None:
    table = numbers(50_000)
    plain, small = write(table, {})[1], write(table, {"write.parquet.page-row-limit": "1000"})[1]
    assert len(small) > len(plain)  # more pages
    metadata, data = write(table, {"write.parquet.page-version": "V2", "write.parquet.compression-codec": "gzip"})
    assert metadata.row_group(0).column(0).compression == "GZIP"
    assert pq.read_table(pa.BufferReader(data)).num_rows == 50_000
    metadata, _ = write(table, {"write.parquet.stats-enabled.column.id": "false"})
    assert [metadata.row_group(0).column(index).is_stats_set for index in range(2)] == [False, True]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("page-version", "v3"),
        ("compression-codec", "rar"),
        ("page-row-limit", "0"),
        ("bloom-filter-fpp.column.id", "2"),
        ("bloom-filter-ndv.column.id", "many"),
        ("compression-level", "high"),
    ],
)
def test_bad_values_are_named(name: str, value: str) -> None:
    properties = {f"write.parquet.{name}": value, "write.parquet.bloom-filter-enabled.column.id": "true"}
    with pytest.raises(UsageError, match=name.split(".")[0]):
        write(numbers(10), properties)


def test_properties_without_effect_are_named() -> None:
    properties = {
        "write.parquet.row-group-check-min-record-count": "100",
        "write.parquet.shred-variants": "true",
        "write.parquet.dict-enabled": "true",
        "write.parquet.bloom-filter-enabled.column.flag": "true",
        "write.parquet.bloom-filter-enabled.column.nobody": "true",
        "write.parquet.bloom-filter-enabled.column.address.city": "true",
        "write.parquet.page-size-bytes": "1000",
        "write.delete.parquet.stats-enabled.column.id": "false",
        "write.format.default": "parquet",
    }
    ignored = dict(ignored_properties(properties, file_schema(NESTED.fields)))
    assert {name.split("parquet.")[1] for name in ignored} == {
        "row-group-check-min-record-count",
        "shred-variants",
        "dict-enabled",
        "bloom-filter-enabled.column.flag",
        "bloom-filter-enabled.column.nobody",
        "stats-enabled.column.id",
    }


def test_delete_files_have_their_own_properties_and_else_those_of_data_files() -> None:
    properties = {
        "write.parquet.compression-codec": "gzip",
        "write.parquet.page-row-limit": "77",
        "write.delete.parquet.compression-codec": "snappy",
        "write.parquet.bloom-filter-enabled.column.id": "true",
    }
    deletes, data = ParquetSettings.of(properties, deletes=True), ParquetSettings.of(properties)
    assert (deletes.codec, deletes.page_rows, dict(deletes.of_columns)) == ("snappy", 77, {})
    assert data.codec == "gzip"


def texts(rows: int, distinct: int) -> pa.RecordBatch:
    rng = np.random.default_rng(3)
    values = np.array(["".join(rng.choice(list("abcdefghijklmnopqrst "), 40)) for _ in range(distinct)])
    return pa.record_batch({"text": values[rng.integers(0, distinct, rows)], "id": rng.permutation(rows)})


def test_texts_of_middling_cardinality_have_a_dictionary() -> None:
    rows = texts(100_000, 30_000)
    dictionaries = choose_dictionaries(rows.schema, [rows.slice(0, 50_000), rows.slice(50_000)], ParquetSettings.of({}))
    assert dictionaries.columns == ("text",)
    table = pa.table(rows)
    with_dictionary, _ = write(table, {}, dictionaries=dictionaries)
    chunk = with_dictionary.row_group(0).column(0)
    assert chunk.has_dictionary_page
    without, _ = write(table, {"write.parquet.dict-size-bytes": "1000"}, dictionaries=dictionaries)
    assert chunk.total_compressed_size < 0.8 * without.row_group(0).column(0).total_compressed_size


def test_a_column_that_has_a_dictionary_in_some_files_only() -> None:
    plain = texts(8_000, 8_000)
    encoded = pa.record_batch({"text": pa.array(["a", "b"] * 50).dictionary_encode(), "id": np.arange(100)})
    assert choose_dictionaries(plain.schema, [plain, encoded], ParquetSettings.of({})).columns == ("text",)


def test_values_that_hardly_repeat_have_no_dictionary() -> None:
    rows = texts(20_000, 60_000)
    assert choose_dictionaries(rows.schema, [rows], ParquetSettings.of({})).columns == ()


def test_a_dictionary_beyond_the_tables_limit_is_not_begun() -> None:
    rows = texts(100_000, 30_000)
    limited = ParquetSettings.of({"write.parquet.dict-size-bytes": "100000"})
    assert choose_dictionaries(rows.schema, [rows], limited).columns == ()


def test_columns_of_nulls_and_few_rows() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.list_(pa.field("element", pa.string())))])
    empty = pa.record_batch(
        [pa.nulls(9_000, pa.int64()), pa.nulls(9_000, pa.string()), pa.nulls(9_000, schema.types[2])], schema
    )
    assert choose_dictionaries(schema, [empty], ParquetSettings.of({})).columns == ("a", "b", "c.list.element")
    sliced = pa.record_batch([[1, 2, 2, 3], ["x", None, "y", "y"], [["q"], None, [], ["q"]]], schema).slice(1, 2)
    assert "c.list.element" in choose_dictionaries(schema, [sliced], ParquetSettings.of({})).columns
