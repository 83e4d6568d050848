"""Where rows of data files belong under the current partition spec, as far as metadata tells.

A file is a box: for every field of the current spec the least and the greatest value that its rows may have. They follow
from the values of the file's own partition and from the bounds in its manifest. Values are numbers that keep their order;
texts and other values are hashes, which only tell whether two of them are equal. Only the number of tasks and of files
depends on it: each row tells where it is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TimeTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import DateType, IcebergType, StringType, TimestampNanoType, TimestamptzNanoType

from pyarctic.iceberg import apply_transform, internal_type
from pyarctic.iceberg.manifest import INTEGER_TYPES, find_lost_values
from pyarctic.iceberg.read import arrow_type
from pyarctic.optimizing.order.key_bounds import decode_bounds

NULL_VALUE = -(1 << 62)
"""Null as a number: before all values."""
ANY = 1 << 62
"""The bounds of values about which nothing is known are -ANY and ANY."""

_Integers = npt.NDArray[np.int64]
_Mask = npt.NDArray[np.bool_]
_TIME_UNITS: dict[type[Transform[Any, Any]], str] = {
    YearTransform: "Y",
    MonthTransform: "M",
    DayTransform: "D",
    HourTransform: "h",
}


def low_column(number: int) -> str:
    """The column with the least value of a field of the current spec; null if there is none but null."""
    return f"destination_low_{number}"


def high_column(number: int) -> str:
    """The column with the greatest value of a field of the current spec."""
    return f"destination_high_{number}"


def null_column(number: int) -> str:
    """The column that tells whether a field of the current spec may be null."""
    return f"destination_null_{number}"


def exact_column(number: int) -> str:
    """The column that tells whether some rows have the least and the greatest value, unless they are deleted."""
    return f"destination_exact_{number}"


def values_column(number: int) -> str:
    """The column with the greatest possible number of values of a field of the current spec."""
    return f"destination_values_{number}"


def source_ids(metadata: TableMetadata) -> list[int]:
    """The columns whose metrics `destinations` needs."""
    return sorted({field.source_id for field in _live_fields(metadata.spec())})


def destinations(metadata: TableMetadata, files: pl.DataFrame) -> pl.DataFrame:
    """For files with metrics of the source columns: `file_path`, and low, high, null, exact and values for each field of
    the current spec that rows are partitioned by."""
    frames = [_of_spec(metadata, int(of_spec["spec_id"][0]), of_spec) for of_spec in files.partition_by("spec_id")]
    return pl.concat(frames) if frames else _of_spec(metadata, metadata.default_spec_id, files)


def destination_fields(metadata: TableMetadata) -> int:
    """The number of fields that rows are partitioned by."""
    return len(_live_fields(metadata.spec()))


def field_step(metadata: TableMetadata, number: int) -> int | None:
    """The distance of two neighbouring values of a field; None if its values are no numbers."""
    field = _live_fields(metadata.spec())[number]
    if not isinstance(field.transform.result_type(metadata.schema().find_type(field.source_id)), INTEGER_TYPES):
        return None
    return field.transform.width if isinstance(field.transform, TruncateTransform) else 1


def _live_fields(spec: PartitionSpec) -> list[PartitionField]:
    return [field for field in spec.fields if not isinstance(field.transform, VoidTransform)]


def _of_spec(metadata: TableMetadata, spec_id: int, files: pl.DataFrame) -> pl.DataFrame:
    columns: dict[str, Any] = {"file_path": files["file_path"]}
    lost: set[int] = set().union(*(positions for _, _, positions in find_lost_values(files)))
    for number, field in enumerate(_live_fields(metadata.spec())):
        source = _Source.of(metadata, metadata.specs()[spec_id], field, files, lost)
        low, high, values = source.interval(field.transform)
        values = np.where(source.is_null, 1, values + (source.may_be_null & ~source.is_null))
        columns[low_column(number)] = pl.Series(low, dtype=pl.Int64).set(pl.Series(source.is_null), None)
        columns[high_column(number)] = pl.Series(high, dtype=pl.Int64).set(pl.Series(source.is_null), None)
        columns[exact_column(number)] = pl.Series(source.is_exact(field.transform) & (low > -ANY))
        columns[null_column(number)] = pl.Series(source.may_be_null)
        columns[values_column(number)] = pl.Series(values, dtype=pl.Float64)
    return pl.DataFrame(columns)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Source:
    """What is known of the column that a partition field is made of, file by file."""

    type: IcebergType
    former: Transform[Any, Any] | None
    """The transform of the field of the files' own spec with the same source."""
    value: pl.Series
    """Its values, as text."""
    lower: pa.Array
    upper: pa.Array
    may_be_null: _Mask
    is_null: _Mask
    """Whether no row has another value than null."""

    @classmethod
    def of(
        cls, metadata: TableMetadata, spec: PartitionSpec, field: PartitionField, files: pl.DataFrame, lost: set[int]
    ) -> Self:
        """`lost`: the positions of values in partitions that some files have lost."""
        schema_field = metadata.schema().find_field(field.source_id)
        type_ = schema_field.field_type
        former, value = _former_value(spec, field, files, lost)
        lower, upper = (
            decode_bounds(type_, _metric(files, f"{end}_{field.source_id}", pl.Binary)) for end in ("lower", "upper")
        )
        nulls, values = (_metric(files, f"{name}_{field.source_id}", pl.Int64) for name in ("nulls", "values"))
        has_value, has_no_value = value.is_not_null().to_numpy(), value.is_null().to_numpy()
        is_partitioned = former is not None
        has_no_nulls = (nulls == 0).fill_null(value=False).to_numpy() | schema_field.required
        may_be_null = has_no_value if is_partitioned else ~has_no_nulls
        is_null = has_no_value if is_partitioned else ((nulls >= values) & (values > 0)).fill_null(value=False).to_numpy()
        return cls(
            type=type_,
            former=former,
            value=value,
            lower=lower,
            upper=upper,
            may_be_null=may_be_null & ~(is_partitioned & has_value),
            is_null=is_null,
        )

    def interval(self, transform: Transform[Any, Any]) -> tuple[_Integers, _Integers, npt.NDArray[np.float64]]:
        """The least and the greatest value of a partition field, and the number of values at most."""
        interval, unknown = self._interval(transform), self._unknown(transform)
        is_known = (interval[0] > -ANY) & (interval[1] < ANY)  # numbers beyond do not fit between null and all others
        low, high, values = (np.where(is_known, *ends) for ends in zip(interval, unknown, strict=True))
        return low, high, values

    def _interval(self, transform: Transform[Any, Any]) -> tuple[_Integers, _Integers, npt.NDArray[np.float64]]:
        result_type = transform.result_type(self.type)
        if isinstance(self.former, BucketTransform) and isinstance(transform, BucketTransform):
            if self.former.num_buckets % transform.num_buckets == 0:
                buckets = _numbers(self.value) % transform.num_buckets
                return buckets, buckets, np.ones(len(buckets))
        elif self.former is not None and str(self.former) == str(transform):
            is_number = isinstance(result_type, INTEGER_TYPES)
            codes = _numbers(self.value) if is_number else _hashes(self.value)
            return codes, codes, np.ones(len(codes))
        if isinstance(self.type, INTEGER_TYPES):
            return self._interval_of_numbers(transform)
        if isinstance(self.type, StringType):
            return self._interval_of_texts(transform)
        return self._unknown(transform)

    @property
    def _has_bounds(self) -> _Mask:
        return np.asarray(pc.and_(self.lower.is_valid(), self.upper.is_valid()), bool)

    def is_exact(self, transform: Transform[Any, Any]) -> _Mask:
        """Whether the interval of a partition field follows from values of rows."""
        is_ordered = isinstance(self.type, INTEGER_TYPES) and not isinstance(transform, BucketTransform)
        return self._has_bounds & is_ordered

    def _unknown(self, transform: Transform[Any, Any]) -> tuple[_Integers, _Integers, npt.NDArray[np.float64]]:
        size = len(self.value)
        if isinstance(transform, BucketTransform):
            last = transform.num_buckets - 1
            return np.zeros(size, np.int64), np.full(size, last), np.full(size, float(transform.num_buckets))
        return np.full(size, -ANY), np.full(size, ANY), np.full(size, np.inf)

    def _interval_of_numbers(self, transform: Transform[Any, Any]) -> tuple[_Integers, _Integers, npt.NDArray[np.float64]]:
        lower, upper = (_integers(self.type, bound) for bound in (self.lower, self.upper))
        has_bounds = self._has_bounds
        first, last = self._range_of_partition()
        is_known = has_bounds | (first > -ANY)
        lower = np.where(has_bounds, np.maximum(lower, first), first)
        upper = np.where(has_bounds, np.minimum(upper, last), last)
        is_known &= (lower <= upper) & (lower > -ANY) & (upper < ANY)
        low, high = (self._transformed(transform, np.where(is_known, bound, 0)) for bound in (lower, upper))
        any_low, any_high, any_values = self._unknown(transform)
        if isinstance(transform, BucketTransform):
            is_known &= lower == upper
        is_known &= low <= high
        step = 1
        if isinstance(transform, TruncateTransform):
            step = transform.width
            is_known &= low <= lower  # as in Java, it wraps around below the least number
        values = (high.astype(np.float64) - low) // step + 1
        return np.where(is_known, low, any_low), np.where(is_known, high, any_high), np.where(is_known, values, any_values)

    def _interval_of_texts(self, transform: Transform[Any, Any]) -> tuple[_Integers, _Integers, npt.NDArray[np.float64]]:
        lower, upper = self.lower, self.upper
        if isinstance(self.former, IdentityTransform):
            lower = upper = self.value.to_arrow().cast(arrow_type(self.type))
        is_prefix = isinstance(self.former, TruncateTransform) and isinstance(transform, TruncateTransform)
        if is_prefix and self.former.width >= transform.width:  # type: ignore[union-attr, attr-defined]
            lower = upper = self.value.to_arrow().cast(arrow_type(self.type))
        low, high, values = self._unknown(transform)
        if isinstance(transform, BucketTransform):
            is_single = _is_equal(lower, upper)
            codes = np.array(apply_transform(transform, self.type, lower).fill_null(0), np.int64)
        else:
            lower, upper = (apply_transform(transform, self.type, bound) for bound in (lower, upper))
            is_single = _is_equal(lower, upper)
            codes = _hashes(pl.Series(pl.from_arrow(lower)))
        return np.where(is_single, codes, low), np.where(is_single, codes, high), np.where(is_single, 1, values)

    def _range_of_partition(self) -> tuple[_Integers, _Integers]:
        """The least and the greatest value of the source column in the partitions of the files."""
        values, is_known = _numbers(self.value), self.value.is_not_null().to_numpy()
        former, first, last = self.former, np.full(len(values), -ANY), np.full(len(values), ANY)
        if isinstance(former, IdentityTransform):
            first = last = values
        elif isinstance(former, TruncateTransform):
            first, last = values, values + former.width - 1
        elif isinstance(former, TimeTransform):
            unit = _TIME_UNITS[type(former)]
            first, last = (_since_1970(values + number, unit, self.type) - number for number in (0, 1))
        else:
            return first, last
        return np.where(is_known, first, -ANY), np.where(is_known, last, ANY)

    def _transformed(self, transform: Transform[Any, Any], values: _Integers) -> _Integers:
        source = pa.array(values).cast(internal_type(self.type), safe=False).view(arrow_type(self.type))
        return _integers(transform.result_type(self.type), apply_transform(transform, self.type, source))


def _former_value(
    spec: PartitionSpec, field: PartitionField, files: pl.DataFrame, lost: set[int]
) -> tuple[Transform[Any, Any] | None, pl.Series]:
    """The transform and the values of the field of a spec that tells most about the source column of another field."""
    candidates = [
        (position, own.transform)
        for position, own in enumerate(spec.fields)
        if own.source_id == field.source_id and not isinstance(own.transform, VoidTransform) and position not in lost
    ]
    if not candidates:
        return None, pl.Series([None] * files.height, dtype=pl.String)

    def closeness(candidate: tuple[int, Transform[Any, Any]]) -> int:
        transform = candidate[1]
        if str(transform) == str(field.transform):
            return 3
        if isinstance(transform, IdentityTransform):
            return 2
        return 1 if isinstance(transform, BucketTransform) == isinstance(field.transform, BucketTransform) else 0

    position, transform = max(candidates, key=closeness)
    return transform, files.select(pl.col("partition").str.json_path_match(f"$[{position}]")).to_series()


def _metric(files: pl.DataFrame, name: str, dtype: type[pl.DataType]) -> pl.Series:
    return files[name] if name in files.columns else pl.Series([None] * files.height, dtype=dtype)


def _numbers(texts: pl.Series) -> _Integers:
    return texts.cast(pl.Int64, strict=False).fill_null(0).to_numpy()


def _hashes(texts: pl.Series) -> _Integers:
    return (texts.hash(seed=0) // 4).cast(pl.Int64).to_numpy()


def _integers(type_: IcebergType, values: pa.Array) -> _Integers:
    numbers = values if pa.types.is_integer(values.type) else values.view(internal_type(type_))
    return np.asarray(numbers.cast(pa.int64()).fill_null(0), np.int64)


def _is_equal(lower: pa.Array, upper: pa.Array) -> _Mask:
    return np.asarray(pc.equal(lower, upper).fill_null(False), bool)


def _since_1970(ordinals: _Integers, unit: str, type_: IcebergType) -> _Integers:
    """The first value of a column in years, months, days or hours since 1970."""
    moments = ordinals.astype(f"datetime64[{unit}]")
    if isinstance(type_, DateType):
        return moments.astype("datetime64[D]").astype(np.int64)
    micros = moments.astype("datetime64[us]").astype(np.int64)
    return micros * 1000 if isinstance(type_, TimestampNanoType | TimestamptzNanoType) else micros
