"""Files that PyArctic wrote, committed and read by Iceberg Java."""

from __future__ import annotations

import pytest

from pyarctic.iceberg.write import FileNames, FileTarget
from pyarctic.iceberg.write.parquet import DataFileWriter
from tests.oracle.compare import arctic_table, assert_same_rows, multiset
from tests.oracle.session import Oracle

pytestmark = pytest.mark.jvm

COLUMNS = (
    "flag boolean, i int, l bigint, f float, d double, small decimal(9, 2), large decimal(38, 10), day date, "
    "at timestamp, local timestamp_ntz, s string, b binary, a array<int>, m map<string, int>, "
    "n struct<x: int, y: array<struct<z: string>>>"
)
ROWS = """
    (true, 1, 2, 1.5, 2.5, 1.25, 1234567890123456789012345678.0123456789, date'2024-01-31',
     timestamp'2024-01-31 12:00:00.123456', timestamp_ntz'2024-01-31 12:00:00.123456', 'text', x'00ff', array(1, null),
     map('k', 1, 'n', null), named_struct('x', 1, 'y', array(named_struct('z', 'deep'), null))),
    (null, null, null, float('NaN'), double('-0.0'), -0.01, -0.0000000001, date'1960-01-01',
     timestamp'1960-01-01 00:00:00', null, '', x'', array(), map(), named_struct('x', null, 'y', array())),
    (false, -1, -2, null, null, null, null, null, null, null, null, null, null, null, null)
"""


@pytest.mark.parametrize("version", [2, 3])
def test_java_reads_every_type(oracle: Oracle, version: int) -> None:
    namespace = oracle.namespace()
    original, copy = f"{namespace}.original", f"{namespace}.copy"
    for name in (original, copy):
        oracle.sql(f"create table {name} ({COLUMNS}) using iceberg tblproperties ('format-version'='{version}')")
    oracle.sql(f"insert into {original} values {ROWS}")
    loaded = oracle.catalog.load_table(copy)
    place = FileTarget(metadata=loaded.metadata, io=loaded.io, spec_id=0, partition=(), names=FileNames())
    with DataFileWriter(place) as writer:
        for batch in arctic_table(oracle, original).scan().batches():
            writer.write(batch)
    (file,) = writer.files
    java_table = oracle.java_table(copy)
    described = (
        oracle.java.org.apache.iceberg.DataFiles.builder(java_table.spec())
        .withPath(file.path)
        .withFileSizeInBytes(file.file_size_bytes)
        .withRecordCount(file.record_count)
        .withFormat("PARQUET")
        .build()
    )
    java_table.newAppend().appendFile(described).commit()
    rows = assert_same_rows(oracle, copy)
    assert multiset(rows) == multiset(oracle.rows(original))
    assert rows.num_rows == 3
