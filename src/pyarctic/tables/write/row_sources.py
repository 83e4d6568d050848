"""Rows in whatever form users have them, as Arrow batches.

Taken are PyArrow's own types, anything that exports an Arrow stream (frames of Polars and pandas, relations of DuckDB,
scans), lazy frames of Polars, rows as dicts, and a dict of columns.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

import polars as pl
import pyarrow as pa

from pyarctic.errors import UsageError

BATCH_ROWS = 256 << 10
_DICT_ROWS = 16 << 10
"""The number of dicts that are converted together."""
_HINT = (
    "Give Arrow data (a pyarrow.Table, batches, a reader, a dataset), a frame of Polars or pandas, a relation of DuckDB, a "
    "list of dicts, or a dict of columns."
)


def to_batches(data: Any) -> Iterator[pa.RecordBatch]:
    """The batches of any data that can be written. What is a stream is read as one."""
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        yield from data.to_batches(max_chunksize=BATCH_ROWS)
    elif isinstance(data, pa.RecordBatchReader):
        yield from data
    elif _is_a(data, "pyarrow.dataset", "Dataset", "Scanner"):
        yield from data.to_batches()
    elif isinstance(data, pl.LazyFrame):
        for frame in data.collect_batches(maintain_order=True):
            yield from to_batches(frame)
    elif _is_a(data, "pandas", "DataFrame"):
        yield from to_batches(_from_pandas(data))
    elif hasattr(data, "__arrow_c_stream__"):
        yield from pa.RecordBatchReader.from_stream(data)
    elif isinstance(data, Mapping):
        yield from to_batches(_from_columns(data))
    elif isinstance(data, Iterable) and not isinstance(data, str | bytes):
        yield from _from_parts(data)
    else:
        raise _cannot_write(data)


def _is_a(data: Any, module: str, *names: str) -> bool:
    """Whether data is of one of these types. A module that was not imported has made no object."""
    imported = sys.modules.get(module)
    return imported is not None and isinstance(data, tuple(getattr(imported, name) for name in names))


def _from_pandas(frame: Any) -> pa.Table:
    """The columns of a frame. Its index is one of them only if it has a name."""
    has_names = any(name is not None for name in frame.index.names)
    try:
        return pa.Table.from_pandas(frame, preserve_index=has_names)
    except (pa.ArrowException, ValueError, TypeError) as cause:
        raise _bad_values(cause) from cause


def _from_parts(parts: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    """Batches and tables one after the other, or rows as dicts."""
    rest = iter(parts)
    for first in rest:
        if isinstance(first, Mapping):
            yield from _from_dicts(chain([first], rest))
        elif isinstance(first, pa.RecordBatch | pa.Table | pl.DataFrame):
            yield from to_batches(first)
        else:
            raise _cannot_write(first, of="an iterable of ")


def _from_dicts(rows: Iterator[Any]) -> Iterator[pa.RecordBatch]:
    while some := list(islice(rows, _DICT_ROWS)):
        strangers = [row for row in some if not isinstance(row, Mapping)]
        if strangers:
            raise _cannot_write(strangers[0], of="dicts mixed with ")
        names = dict.fromkeys(name for row in some for name in row)
        yield from to_batches(_from_columns({name: [row.get(name) for row in some] for name in names}))


def _from_columns(columns: Mapping[Any, Any]) -> pa.Table:
    names = [str(name) for name in columns]
    arrays = [_to_array(name, values) for name, values in zip(names, columns.values(), strict=True)]
    lengths = {name: len(array) for name, array in zip(names, arrays, strict=True)}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise UsageError(f"columns have different lengths: {told}", hint="Give a value of each column for each row.")
    return pa.table(arrays, names=names)


def _to_array(name: str, values: Any) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise UsageError(f"column {name!r} is {_type_name(values)}, not a list of values", hint=_HINT, column=name)
    try:
        if isinstance(values, pa.Array | pa.ChunkedArray):
            return values
        return pa.array(values.to_arrow() if isinstance(values, pl.Series) else values)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as cause:
        raise _bad_values(cause, name) from cause


def _bad_values(cause: Exception, column: str | None = None) -> UsageError:
    subject = "a column" if column is None else f"column {column!r}"
    facts = {} if column is None else {"column": column}
    return UsageError(
        f"{subject} cannot be converted to Arrow: {str(cause).splitlines()[0]}",
        hint="The values of a column must have one type.",
        **facts,
    )


def _cannot_write(data: Any, of: str = "") -> UsageError:
    return UsageError(f"cannot write rows from {of}{_type_name(data)}", hint=_HINT)


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
