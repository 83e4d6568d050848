"""Column metrics of a Parquet file, from its footer.

Scan planners of all engines skip a file by its bounds. Bounds that are not certain for every row of the file are omitted: if
one row group has no statistics, the column has no bounds. Bounds are computed from the raw values of the footer, in
Iceberg's single-value serialization; they never become Python dates, which end with the year 9999.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    StatisticsCollector,
    compute_statistics_plan,
    parquet_path_to_id_mapping,
)
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

from pyarctic.iceberg.read.projection import is_decodable
from pyarctic.iceberg.write.new_file import Metrics

_STRUCT_FORMATS: dict[type[IcebergType], str] = {
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
_MAX_CODE_POINT = 0x10FFFF

Value = TypeVar("Value")
_Bounds = tuple[bytes | None, bytes | None]
_NO_BOUNDS: _Bounds = (None, None)


class _Column:
    """The chunks of one column in all row groups."""

    def __init__(self, chunks: Sequence[pq.ColumnChunkMetaData]) -> None:
        self._chunks = chunks

    @property
    def path(self) -> str:
        return str(self._chunks[0].path_in_schema)

    @property
    def compressed_bytes(self) -> int:
        return sum(chunk.total_compressed_size for chunk in self._chunks)

    @property
    def value_count(self) -> int:
        return sum(chunk.num_values for chunk in self._chunks)

    @property
    def null_count(self) -> int | None:
        """The number of nulls, or None if any row group does not have it."""
        counts = [count for count in self._null_counts if count is not None]
        return sum(counts) if len(counts) == len(self._chunks) else None

    def raw_ranges(self) -> list[tuple[Any, Any]]:
        """Minimum and maximum of each row group with values; empty if one of them is not known."""
        ranges = []
        for chunk, statistics, null_count in zip(self._chunks, self._statistics, self._null_counts, strict=True):
            if null_count is not None and null_count == chunk.num_values:
                continue  # nothing but nulls
            if statistics is None or not statistics.has_min_max:
                return []
            ranges.append((statistics.min_raw, statistics.max_raw))
        has_unknown = any(value is None or value != value for pair in ranges for value in pair)  # NaN differs from itself
        return [] if has_unknown else ranges

    @cached_property
    def _statistics(self) -> list[pq.Statistics | None]:
        return [chunk.statistics if chunk.is_stats_set else None for chunk in self._chunks]

    @cached_property
    def _null_counts(self) -> list[int | None]:
        return [
            statistics.null_count if statistics is not None and statistics.has_null_count else None
            for statistics in self._statistics
        ]


def parquet_metrics(
    metadata: pq.FileMetaData, fields: Sequence[NestedField], properties: Mapping[str, str], nans: Mapping[int, int]
) -> tuple[Metrics, tuple[int, ...]]:
    """Metrics and split offsets from the footer of a file, for the given fields and as `write.metadata.metrics.*` configures
    them. `nans`: NaN counts by field id, which footers do not have."""
    schema = Schema(*fields)
    plan = compute_statistics_plan(schema, dict(properties))
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = _columns_by_id(metadata, groups, parquet_path_to_id_mapping(schema))
    modes = {field_id: plan[field_id].mode.type for field_id in columns}
    counted = {field_id: column for field_id, column in columns.items() if modes[field_id] != MetricModeTypes.NONE}
    null_counts = {field_id: column.null_count for field_id, column in counted.items()}
    bounds = {
        field_id: _bounds(plan[field_id], column)
        for field_id, column in counted.items()
        if modes[field_id] != MetricModeTypes.COUNTS
    }
    metrics = Metrics(
        column_sizes={field_id: column.compressed_bytes for field_id, column in columns.items()},
        value_counts={field_id: column.value_count for field_id, column in counted.items()},
        null_counts=_without_none(null_counts),
        nan_counts={field_id: count for field_id, count in nans.items() if field_id in counted},
        lower_bounds=_without_none({field_id: lower for field_id, (lower, _) in bounds.items()}),
        upper_bounds=_without_none({field_id: upper for field_id, (_, upper) in bounds.items()}),
    )
    return metrics, tuple(sorted(_first_page_offset(group) for group in groups))


def footer_ranges(metadata: pq.FileMetaData, index: int) -> list[tuple[Any, Any]]:
    """The least and the greatest value of a column in each row group with values, as raw values of its physical type; empty
    if one of them is not known."""
    return _column(metadata, index).raw_ranges()


def footer_null_count(metadata: pq.FileMetaData, index: int) -> int | None:
    """The number of nulls in a column; None if it is not known."""
    return _column(metadata, index).null_count


def _column(metadata: pq.FileMetaData, index: int) -> _Column:
    return _Column([metadata.row_group(number).column(index) for number in range(metadata.num_row_groups)])


def _columns_by_id(
    metadata: pq.FileMetaData, groups: Sequence[pq.RowGroupMetaData], ids: Mapping[str, int]
) -> dict[int, _Column]:
    if not groups:
        return {}
    columns = [_Column([group.column(index) for group in groups]) for index in range(metadata.num_columns)]
    return {ids[column.path]: column for column in columns if column.path in ids}


def _without_none(values: Mapping[int, Value | None]) -> dict[int, Value]:
    return {field_id: value for field_id, value in values.items() if value is not None}


def _first_page_offset(group: pq.RowGroupMetaData) -> int:
    """The offset of a row group's first column."""
    first = group.column(0)
    if first.has_dictionary_page and first.dictionary_page_offset < first.data_page_offset:
        return int(first.dictionary_page_offset)
    return int(first.data_page_offset)


def _bounds(collector: StatisticsCollector, column: _Column) -> _Bounds:
    """Lower and upper bound of a column; None if they are not certain, or there is no value."""
    ranges, type_ = column.raw_ranges(), collector.iceberg_type
    if not ranges or not is_decodable(type_):  # bounds of geometries are points, not their bytes
        return _NO_BOUNDS
    if isinstance(type_, DecimalType):
        ranges = [(_unscaled(lower), _unscaled(upper)) for lower, upper in ranges]
    return _serialize(type_, min(lower for lower, _ in ranges), max(upper for _, upper in ranges), collector.mode.length)


def _serialize(type_: IcebergType, lower: Any, upper: Any, length: int | None) -> _Bounds:
    """The bounds in single-value serialization; strings and binaries are truncated to `length`."""
    match type_:
        case DecimalType():
            return _to_bytes(lower), _to_bytes(upper)
        case StringType():
            return _string_bounds(lower, upper, length)
        case BinaryType():
            return (lower, upper) if length is None else (lower[:length], _truncate_upper_binary(upper, length))
        case FixedType() | UUIDType():
            return bytes(lower), bytes(upper)
    struct_format = _STRUCT_FORMATS.get(type(type_))
    return _NO_BOUNDS if struct_format is None else (struct.pack(struct_format, lower), struct.pack(struct_format, upper))


def _unscaled(value: int | bytes) -> int:
    return value if isinstance(value, int) else int.from_bytes(value, "big", signed=True)


def _to_bytes(number: int) -> bytes:
    """Two's complement in the fewest bytes that represent the number and its sign."""
    magnitude = number if number >= 0 else ~number
    return number.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)


def _string_bounds(lower: bytes, upper: bytes, length: int | None) -> _Bounds:
    try:
        lower_text, upper_text = lower.decode(), upper.decode()
    except UnicodeDecodeError:  # truncated by the writer in the middle of a character
        return _NO_BOUNDS
    if length is None:
        return lower, upper
    return lower_text[:length].encode(), upper if len(upper_text) <= length else _next_string(upper_text[:length])


def _next_string(prefix: str) -> bytes | None:
    """The smallest string, not longer than the prefix, that is greater than all strings with it; None if there is none."""
    for last in range(len(prefix) - 1, -1, -1):
        following = ord(prefix[last]) + 1
        following = _SURROGATES.stop if following in _SURROGATES else following
        if following <= _MAX_CODE_POINT:
            return (prefix[:last] + chr(following)).encode()
    return None


def _truncate_upper_binary(value: bytes, length: int) -> bytes | None:
    return value if len(value) <= length else truncate_upper_bound_binary_string(value, length)
