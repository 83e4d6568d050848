"""Commits that Java makes for a test: appends, equality deletes and position deletes, through Iceberg's own writers.

Rows are dictionaries of Python values. Py4J cannot carry their types (it knows no small long, no date), so they take a
way round: PyIceberg writes them into a scratch table, and Java reads its own records from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from typing import Any, Literal
from uuid import uuid4

import pyarrow as pa
from pyiceberg.schema import Schema

from tests.oracle.session import Oracle

Row = Mapping[str, Any]
FileFormat = Literal["parquet", "avro", "orc"]


def append(oracle: Oracle, table: str, rows: Sequence[Row]) -> None:
    """Append rows with Spark; columns that a row leaves out are null."""
    with _scratch(oracle, oracle.catalog.load_table(table).schema(), rows) as scratch:
        oracle.sql(f"insert into {oracle.name}.{table} select * from {oracle.name}.{scratch}")


def equality_delete(
    oracle: Oracle,
    table: str,
    rows: Sequence[Row],
    *,
    partition: Sequence[Any] | None = None,
    file_format: FileFormat = "parquet",
) -> str:
    """Delete every row that equals one of `rows` in all their columns: one equality delete file, one commit.

    The columns of the first row are the columns compared. `partition` holds one value per partition field (after its
    transform) and is left out for an unpartitioned table. Returns the path of the delete file.
    """
    java_table = oracle.java_table(table)
    columns = tuple(rows[0])
    schema = oracle.catalog.load_table(table).schema().select(*columns)
    java_schema = java_table.schema().select(_array(oracle, oracle.java.java.lang.String, columns))
    ids = [java_schema.findField(column.name).fieldId() for column in schema.fields]
    factory = (
        _writers(oracle, java_table, file_format)
        .equalityFieldIds(_array(oracle, oracle.java.int, ids))
        .equalityDeleteRowSchema(java_schema)
        .build()
    )
    spec, values = java_table.spec(), _partition(oracle, java_table.spec(), partition)
    writer = factory.newEqualityDeleteWriter(_output(oracle, java_table, file_format, values), spec, values)
    with _scratch(oracle, schema, rows) as scratch:
        records = oracle.java.org.apache.iceberg.data.IcebergGenerics.read(oracle.java_table(scratch)).build()
        iterator = records.iterator()
        while iterator.hasNext():
            writer.write(iterator.next())
        records.close()
    return _commit(java_table, writer)


def position_delete(
    oracle: Oracle,
    table: str,
    positions: Sequence[tuple[str, int]],
    *,
    partition: Sequence[Any] | None = None,
    file_format: FileFormat = "parquet",
) -> str:
    """Delete rows by (path of the data file, position): one position delete file, one commit. Format version 2 only.

    In version 3 Java writes deletion vectors instead: use `oracle.sql("delete from …")` on a merge-on-read table.
    """
    java_table = oracle.java_table(table)
    factory = _writers(oracle, java_table, file_format).build()
    spec, values = java_table.spec(), _partition(oracle, java_table.spec(), partition)
    writer = factory.newPositionDeleteWriter(_output(oracle, java_table, file_format, values), spec, values)
    delete = oracle.java.org.apache.iceberg.deletes.PositionDelete.create()
    for path, position in sorted(positions):
        writer.write(delete.set(path, position))
    return _commit(java_table, writer)


@contextmanager
def _scratch(oracle: Oracle, schema: Schema, rows: Sequence[Row]) -> Iterator[str]:
    """The rows as a table of their own for a moment; its name is given."""
    oracle.catalog.create_namespace_if_not_exists("scratch")
    name = f"scratch.t{uuid4().hex}"
    # One small file: Java then reads the rows in the order given.
    table = oracle.catalog.create_table(name, schema=schema)
    table.append(pa.Table.from_pylist([dict(row) for row in rows], schema=table.schema().as_arrow()))
    try:
        yield name
    finally:
        oracle.catalog.purge_table(name)


def _writers(oracle: Oracle, java_table: Any, file_format: FileFormat) -> Any:
    builder = oracle.java.org.apache.iceberg.data.GenericFileWriterFactory.Builder(java_table)
    return builder.deleteFileFormat(oracle.java.org.apache.iceberg.FileFormat.fromString(file_format))


def _output(oracle: Oracle, java_table: Any, file_format: FileFormat, partition: Any) -> Any:
    java_format = oracle.java.org.apache.iceberg.FileFormat.fromString(file_format)
    files = oracle.java.org.apache.iceberg.io.OutputFileFactory.builderFor(java_table, 0, 0).format(java_format).build()
    return files.newOutputFile(java_table.spec(), partition)


def _partition(oracle: Oracle, spec: Any, values: Sequence[Any] | None) -> Any:
    if not spec.isPartitioned():
        if values is not None:
            raise ValueError("the table is not partitioned")
        return None
    if values is None or len(values) != spec.fields().size():
        raise ValueError(f"give one partition value for each of {spec}")
    names = [partition_field.name() for partition_field in spec.fields()]
    path = "/".join(f"{name}={_partition_text(value)}" for name, value in zip(names, values, strict=True))
    return oracle.java.org.apache.iceberg.DataFiles.data(spec, path)


def _partition_text(value: Any) -> str:
    """A partition value the way Java parses it from a path."""
    if value is None:
        return "__HIVE_DEFAULT_PARTITION__"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, date | datetime):
        return value.isoformat()
    return str(value)


def _commit(java_table: Any, writer: Any) -> str:
    writer.close()
    delete_file = writer.toDeleteFile()
    java_table.newRowDelta().addDeletes(delete_file).commit()
    return str(delete_file.location())


def _array(oracle: Oracle, kind: Any, values: Sequence[Any]) -> Any:
    gateway = oracle.spark.sparkContext._gateway
    assert gateway is not None
    array = gateway.new_array(kind, len(values))
    for index, value in enumerate(values):
        array[index] = value
    return array
