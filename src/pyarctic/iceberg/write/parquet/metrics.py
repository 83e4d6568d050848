"""Column metrics of a Parquet file, from its footer.

Planners of all engines leave a file out if its bounds say so. A bound that is not certain for every row of the file is left
out itself: where one row group tells nothing of its values, nothing is told of the column. Bounds are made of the footer's
raw values, in Iceberg's single-value form; they never pass through Python's dates, which end with the year 9999.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import StatisticsCollector, compute_statistics_plan, parquet_path_to_id_mapping
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from pyiceberg.utils.truncate import truncate_upper_bound_binary_string

from pyarctic.iceberg.write.new_file import Metrics

_FORMS: dict[type[IcebergType], str] = {
    BooleanType: "<?",
    IntegerType: "<i",
    DateType: "<i",
    LongType: "<q",
    TimeType: "<q",
    TimestampType: "<q",
    TimestamptzType: "<q",
    TimestampNanoType: "<q",
    TimestamptzNanoType: "<q",
    FloatType: "<f",
    DoubleType: "<d",
}
_SURROGATES = range(0xD800, 0xE000)
_LAST_CHARACTER = 0x10FFFF


def parquet_metrics(
    metadata: pq.FileMetaData, fields: Sequence[NestedField], properties: Mapping[str, str], nans: Mapping[int, int]
) -> tuple[Metrics, tuple[int, ...]]:
    """Metrics and split offsets from a file's footer, as `write.metadata.metrics.*` wants them. What else is in the file is
    left out."""
    schema = Schema(*fields)
    plan = compute_statistics_plan(schema, dict(properties))
    ids = parquet_path_to_id_mapping(schema)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    sizes: dict[int, int] = {}
    values: dict[int, int] = {}
    nulls: dict[int, int] = {}
    lower: dict[int, bytes] = {}
    upper: dict[int, bytes] = {}
    for place in range(metadata.num_columns):
        chunks = [group.column(place) for group in groups]
        if not chunks:
            break
        field_id = ids.get(chunks[0].path_in_schema)
        if field_id is None:
            continue
        collector = plan[field_id]
        mode = collector.mode.type.value
        sizes[field_id] = sum(chunk.total_compressed_size for chunk in chunks)
        if mode == "none":
            continue
        values[field_id] = sum(chunk.num_values for chunk in chunks)
        statistics = [chunk.statistics if chunk.is_stats_set else None for chunk in chunks]
        counts = [found.null_count if found is not None and found.has_null_count else None for found in statistics]
        if None not in counts:
            nulls[field_id] = sum(counts)  # type: ignore[arg-type]  # none is None
        if mode == "counts":
            continue
        bounds = _bounds(collector, [(c, s, n) for c, s, n in zip(chunks, statistics, counts, strict=True)])
        if bounds is not None:
            lower |= {field_id: bounds[0]}
            upper |= {field_id: bounds[1]} if bounds[1] is not None else {}
    metrics = Metrics(
        column_sizes=sizes,
        value_counts=values,
        null_counts=nulls,
        nan_counts={field_id: count for field_id, count in nans.items() if field_id in values},
        lower_bounds=lower,
        upper_bounds=upper,
    )
    return metrics, tuple(sorted(_begins(group) for group in groups))


def _begins(group: pq.RowGroupMetaData) -> int:
    """Where a row group's first column begins."""
    first = group.column(0)
    if first.has_dictionary_page and first.dictionary_page_offset < first.data_page_offset:
        return int(first.dictionary_page_offset)
    return int(first.data_page_offset)


def _bounds(
    collector: StatisticsCollector, chunks: Sequence[tuple[pq.ColumnChunkMetaData, pq.Statistics | None, int | None]]
) -> tuple[bytes, bytes | None] | None:
    """Lower and upper bound of a column; None if they are not certain, or there is no value."""
    found = []
    for chunk, statistics, null_count in chunks:
        if null_count is not None and null_count == chunk.num_values:
            continue  # nothing but nulls
        if statistics is None or not statistics.has_min_max:
            return None
        found.append((statistics.min_raw, statistics.max_raw))
    if not found or any(value is None or value != value for pair in found for value in pair):
        return None
    type_ = collector.iceberg_type
    if isinstance(type_, DecimalType):
        unscaled = [tuple(_unscaled(value) for value in pair) for pair in found]
        least, most = min(low for low, _ in unscaled), max(high for _, high in unscaled)
        return _two_complement(least), _two_complement(most)
    least, most = min(low for low, _ in found), max(high for _, high in found)
    length = collector.mode.length
    match type_:
        case StringType():
            return _text_bounds(least, most, length)
        case BinaryType():
            return (least, most) if length is None else (least[:length], _above_bytes(most, length))
        case FixedType() | UUIDType():
            return bytes(least), bytes(most)
    form = _FORMS.get(type(type_))
    return None if form is None else (struct.pack(form, least), struct.pack(form, most))


def _unscaled(value: int | bytes) -> int:
    return value if isinstance(value, int) else int.from_bytes(value, "big", signed=True)


def _two_complement(number: int) -> bytes:
    """As few bytes as hold the number and its sign."""
    magnitude = number if number >= 0 else ~number
    return number.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)


def _text_bounds(least: bytes, most: bytes, length: int | None) -> tuple[bytes, bytes | None] | None:
    try:
        low, high = least.decode(), most.decode()
    except UnicodeDecodeError:  # cut by its writer in the middle of a character
        return None
    if length is None:
        return least, most
    return low[:length].encode(), most if len(high) <= length else _above_text(high[:length])


def _above_text(text: str) -> bytes | None:
    """The least text of at most this length that is above all that begin with it; None if there is none."""
    for last in range(len(text) - 1, -1, -1):
        following = ord(text[last]) + 1
        following = _SURROGATES.stop if following in _SURROGATES else following
        if following <= _LAST_CHARACTER:
            return (text[:last] + chr(following)).encode()
    return None


def _above_bytes(value: bytes, length: int) -> bytes | None:
    return value if len(value) <= length else truncate_upper_bound_binary_string(value, length)
