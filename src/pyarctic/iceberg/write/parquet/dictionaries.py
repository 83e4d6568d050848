"""Choosing the columns that are worth a dictionary: hashing values that hardly repeat is the most expensive part of writing
Parquet, and a dictionary of long texts that do repeat saves most of their size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from pyarctic.iceberg.write.parquet.settings import DICTIONARY_BYTES, Dictionaries, ParquetSettings, leaf_columns

_SAMPLE_ROWS = 8 << 10
_COMPRESSED_ROWS = 32 << 10
_REPETITIVE = 0.5
"""Columns with at most this share of distinct values in a sample have a dictionary."""
_WORTHWHILE = 2 / 3
"""Other columns have one if it makes them smaller by at least a third: hashing their values costs as much CPU as all the
rest of writing them."""
_MAX_DICTIONARY_BYTES = 32 << 20


def repetitive_columns(schema: pa.Schema, rows: pa.RecordBatch) -> Dictionaries:
    """The columns whose values repeat within a few thousand rows, and nested ones, which are not sampled."""
    distinct = {name for name, ratio in _distinct_ratios(schema, rows).items() if ratio > _REPETITIVE}
    return _without(schema, distinct)


def choose_dictionaries(schema: pa.Schema, batches: Sequence[pa.RecordBatch], settings: ParquetSettings) -> Dictionaries:
    """The columns to dictionary-encode in row groups such as the one that these batches make. Where a sample has some
    repeated values, all rows are counted."""
    ratios = _distinct_ratios(schema, batches[0])
    # Some files may have a dictionary for a column, and others none: those that have one are small.
    with_dictionary = {field.name for batch in batches for field in batch.schema if pa.types.is_dictionary(field.type)}
    distinct = {name for name, ratio in ratios.items() if ratio > _REPETITIVE} - with_dictionary
    limit_bytes = DICTIONARY_BYTES
    for name in [name for name in distinct if ratios[name] < 1]:
        size = _worthwhile_dictionary(pa.chunked_array([batch.column(name) for batch in batches]), settings)
        if size is not None:
            distinct.remove(name)
            limit_bytes = max(limit_bytes, 2 * size)
    return _without(schema, distinct, limit_bytes)


def _without(schema: pa.Schema, distinct: set[str], limit_bytes: int = DICTIONARY_BYTES) -> Dictionaries:
    paths = tuple(column.path for column in leaf_columns(schema) if column.path not in distinct)
    return Dictionaries(columns=paths, limit_bytes=limit_bytes)


def _distinct_ratios(schema: pa.Schema, rows: pa.RecordBatch) -> dict[str, float]:
    """The share of distinct values among the first rows, of columns that are neither nested nor dictionary-encoded."""
    sample = rows.select([name for name in rows.schema.names if name in schema.names]).slice(0, _SAMPLE_ROWS)
    return {
        field.name: pc.count_distinct(column, mode="only_valid").as_py() / max(len(column) - column.null_count, 1)
        for field, column in zip(sample.schema, sample.columns, strict=True)
        if not pa.types.is_nested(field.type)
        and not pa.types.is_dictionary(field.type)
        and not isinstance(field.type, pa.BaseExtensionType)
    }


def _worthwhile_dictionary(column: pa.ChunkedArray, settings: ParquetSettings) -> int | None:
    """The expected size of a column's dictionary; None if it is too large, or the column is hardly smaller with it."""
    values = len(column) - column.null_count
    if not values:
        return None
    distinct = min(pl.Series(pl.from_arrow(column)).approx_n_unique(), values)
    dictionary_bytes = distinct * column.nbytes / values
    if dictionary_bytes > (settings.dictionary_bytes or _MAX_DICTIONARY_BYTES):
        return None
    value_bytes = _compressed_value_bytes(column, settings)
    index_bytes = math.ceil(math.log2(max(distinct, 2))) / 8
    is_worthwhile = distinct * value_bytes + values * index_bytes <= _WORTHWHILE * values * value_bytes
    return int(dictionary_bytes) if is_worthwhile else None


def _compressed_value_bytes(column: pa.ChunkedArray, settings: ParquetSettings) -> float:
    """How many bytes a value takes without a dictionary, by compressing some."""
    sample = column.slice(0, _COMPRESSED_ROWS).combine_chunks()
    buffers = [buffer for buffer in sample.buffers()[1:] if buffer is not None]
    if pa.types.is_string(sample.type) or pa.types.is_binary(sample.type):
        offsets = pa.Array.from_buffers(pa.int32(), len(sample) + 1, [None, buffers[0]], offset=sample.offset)
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        buffers = [buffers[1].slice(first, last - first)] if last > first else []
    plain = sum(buffer.size for buffer in buffers)
    if settings.codec == "none" or not plain:
        return float(plain / max(len(sample), 1))
    codec = pa.Codec(settings.codec, compression_level=settings.level)
    return float(sum(len(codec.compress(buffer)) for buffer in buffers) / len(sample))
