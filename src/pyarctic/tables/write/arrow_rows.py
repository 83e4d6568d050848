"""Rows that users give, cast to the columns of a table, or refused with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from pyarctic.errors import UsageError
from pyarctic.iceberg.read import arrow_schema, repeat_value
from pyarctic.units import format_quantity


def fit_to_schema(batch: pa.RecordBatch, schema: Schema, *, extra: Sequence[str] = ()) -> pa.RecordBatch:
    """The batch with exactly the table's columns, in its types. Optional columns that it lacks are filled with their
    `write-default`, or null; columns named in `extra` are allowed and dropped."""
    wanted = arrow_schema(schema.fields)
    _check_columns(batch.schema, schema, extra)
    columns = [
        _cast(batch.column(field.name), wanted.field(field.name), field)
        if field.name in batch.schema.names
        else repeat_value(field.write_default, wanted.field(field.name).type, batch.num_rows)
        for field in schema.fields
    ]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _check_columns(given: pa.Schema, schema: Schema, extra: Sequence[str]) -> None:
    """Refuse unknown, missing and duplicate columns."""
    names, wanted = given.names, [field.name for field in schema.fields]
    required = [field.name for field in schema.fields if field.required and field.write_default is None]
    unknown = [path for path in _unknown_fields(pa.struct(list(given)), schema.as_struct()) if path not in extra]
    missing = [name for name in required if name not in names]
    duplicates = sorted(Counter(names) - Counter(set(names)))
    by_fault = {"unknown": unknown, "missing": missing, "twice": duplicates}
    faults = [f"{fault} {', '.join(columns)}" for fault, columns in by_fault.items() if columns]
    if faults:
        similar = get_close_matches(unknown[0], missing or wanted, n=1) if unknown else []
        raise UsageError(
            f"columns do not fit the table: {'; '.join(faults)}",
            hint=(f"Did you mean {similar[0]!r}? " if similar else "") + f"The table has: {', '.join(wanted)}.",
        )


def _unknown_fields(given: pa.DataType, wanted: IcebergType) -> Iterator[str]:
    """The paths of fields that the table does not have; Arrow's cast would drop those within structs."""
    if isinstance(wanted, StructType) and pa.types.is_struct(given):
        types = {field.name: field.field_type for field in wanted.fields}
        for child in given:
            if child.name not in types:
                yield child.name
            else:
                yield from (f"{child.name}.{path}" for path in _unknown_fields(child.type, types[child.name]))
    elif isinstance(wanted, ListType) and hasattr(given, "value_type"):
        yield from (f"element.{path}" for path in _unknown_fields(given.value_type, wanted.element_type))
    elif isinstance(wanted, MapType) and pa.types.is_map(given):
        yield from (f"key.{path}" for path in _unknown_fields(given.key_type, wanted.key_type))
        yield from (f"value.{path}" for path in _unknown_fields(given.item_type, wanted.value_type))


def _cast(column: pa.Array, wanted: pa.Field, field: NestedField) -> pa.Array:
    if field.required and column.null_count:
        raise UsageError(
            f"column {field.name!r} is required and has {format_quantity(column.null_count, 'null')}",
            hint="Fill it: every row needs a value.",
            column=field.name,
        )
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_dictionary(column.type) and not pa.types.is_dictionary(wanted.type):
        column = column.dictionary_decode()
    if column.type.equals(wanted.type):
        return column
    try:
        cast = column.cast(wanted.type)
        if not _is_lossless(column, cast):
            raise pa.ArrowInvalid("information would be lost")  # Arrow itself raises it for other types
        return cast
    except (pa.ArrowException, ValueError) as cause:
        raise UsageError(
            f"column {field.name!r} is {column.type}, which does not fit {field.field_type}: {str(cause).splitlines()[0]}",
            hint="Cast it before you write it, so that you decide what is lost.",
            column=field.name,
        ) from cause


def _is_lossless(column: pa.Array, cast: pa.Array) -> bool:
    """Whether a cast has kept all values. Arrow does not check some casts: it rounds floats to decimals, truncates
    timestamps to dates, and takes any number for true."""
    if pa.types.is_floating(column.type) and pa.types.is_decimal(cast.type):
        back = cast.cast(pa.string()).cast(column.type)  # Arrow's cast from decimal to float is not exact
    elif (pa.types.is_timestamp(column.type) and pa.types.is_date(cast.type)) or (
        pa.types.is_integer(column.type) and pa.types.is_boolean(cast.type)
    ):
        back = cast.cast(column.type)
    else:
        return True
    return pc.all(pc.equal(back, column)).as_py() is not False


def key_frame(batch: pa.RecordBatch, names: Sequence[str]) -> pl.DataFrame:
    """The key columns of some rows."""
    return pl.DataFrame(pa.Table.from_batches([batch.select(list(names))]))


def check_keys(batch: pa.RecordBatch, names: Sequence[str]) -> None:
    """Refuse rows whose key is null."""
    for name in names:
        column = batch.column(name)
        if column.null_count:
            row = pc.index(column.is_null(), True).as_py()  # the value looked for
            raise UsageError(
                f"key column {name!r} is null in {column.null_count} rows; the first is row {row}",
                hint="A row without its key cannot be found again.",
                column=name,
            )


def partition_columns(metadata: TableMetadata) -> list[str]:
    """The columns that the partitions of a table are made of."""
    sources = {field.source_id for field in metadata.spec().fields}
    return [field.name for field in metadata.schema().fields if sources & set(Schema(field).field_ids)]


def check_partition_columns(batch: pa.RecordBatch, metadata: TableMetadata) -> None:
    """Refuse rows of a keyed table without partition columns: filled with null, they would change a wrong partition."""
    if missing := [name for name in partition_columns(metadata) if name not in batch.schema.names]:
        raise UsageError(
            f"rows lack the partition column {missing[0]}",
            hint="Give it. Only mode delete can look it up, with [[across_partitions=True]].",
            column=missing[0],
        )
