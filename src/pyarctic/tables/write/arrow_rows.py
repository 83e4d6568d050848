"""Rows that users give: any Arrow data, cast to the columns of a table, or refused with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from pyarctic.errors import UsageError
from pyarctic.iceberg.read import arrow_schema

BATCH_ROWS = 256 << 10


def to_batches(data: Any) -> Iterator[pa.RecordBatch]:
    """The batches of any Arrow data: a table, a batch, a reader, an iterable of batches, or an object that exports an Arrow
    stream (a frame of Polars or pandas)."""
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        yield from data.to_batches(max_chunksize=BATCH_ROWS)
    elif isinstance(data, pa.RecordBatchReader):
        yield from data
    elif hasattr(data, "__arrow_c_stream__"):
        yield from pa.RecordBatchReader.from_stream(data)
    elif isinstance(data, Iterable) and not isinstance(data, str | bytes | dict):
        for part in data:
            if not isinstance(part, pa.RecordBatch | pa.Table):
                raise UsageError(f"rows are Arrow data, not {type(part).__name__}", hint="Give pyarrow.RecordBatch objects.")
            yield from to_batches(part)
    else:
        raise UsageError(
            f"rows are Arrow data, not {type(data).__name__}",
            hint="Give a pyarrow.Table, batches, a reader, or a frame of Polars or pandas.",
        )


def fit_to_schema(batch: pa.RecordBatch, schema: Schema, *, fill: bool = False, extra: Sequence[str] = ()) -> pa.RecordBatch:
    """The batch with exactly the table's columns, in its types. Optional columns may be left out if `fill`; columns named in
    `extra` are allowed and dropped."""
    _check_columns(batch.schema.names, schema, fill=fill, extra=extra)
    wanted = arrow_schema(schema.fields)
    columns = [
        _cast(batch.column(field.name), wanted.field(field.name), field)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, wanted.field(field.name).type)
        for field in schema.fields
    ]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _check_columns(names: Sequence[str], schema: Schema, *, fill: bool, extra: Sequence[str]) -> None:
    """Refuse unknown, missing and duplicate columns."""
    wanted = [field.name for field in schema.fields]
    required = [field.name for field in schema.fields if field.required or not fill]
    unknown = [name for name in names if name not in {*wanted, *extra}]
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


def _cast(column: pa.Array, wanted: pa.Field, field: NestedField) -> pa.Array:
    if field.required and column.null_count:
        raise UsageError(
            f"column {field.name!r} is required and has {column.null_count} nulls", hint="Fill them.", column=field.name
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
