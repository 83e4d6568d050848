"""The ranges of partition values in a manifest list, compared with the manifests: planners skip manifests by them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import DecimalType, IcebergType

from pyarctic.iceberg.check.bounds import bound_value
from pyarctic.iceberg.manifest.partition_keys import PartitionDecoder
from pyarctic.iceberg.manifest.reader import DELETED, PartitionRange, RawManifests


class PartitionRanges:
    """Compares manifests with their rows of the manifest list, in any thread."""

    def __init__(self, metadata: TableMetadata) -> None:
        decoder = PartitionDecoder(metadata)
        self._fields = {
            spec_id: [
                (field.name, None if isinstance(field.transform, VoidTransform) else decoder.result_type(field))
                for field in spec.fields
            ]
            for spec_id, spec in metadata.specs().items()
        }

    def find_wrong(self, raw: RawManifests) -> Iterator[str]:
        """The partition fields of one manifest whose live entries have values outside of their range."""
        (ref,) = raw.refs
        fields, ranges = self._fields.get(ref.spec_id, []), ref.partitions or []
        live = raw.frame.filter(pl.col("status") != DELETED)
        for (name, type_), range_, column in zip(fields, ranges, raw.partition_columns, strict=False):
            if type_ is not None and live.schema[column] != pl.Null and not _covers(range_, live[column], type_):
                yield f"partition field {name}: values outside of its range in the list"


def _covers(range_: PartitionRange, values: pl.Series, type_: IcebergType) -> bool:
    if values.null_count() and not range_["contains_null"]:
        return False
    values = values.drop_nulls()
    if values.dtype.is_float():
        numbers = values.drop_nans()
        if len(numbers) < len(values) and range_["contains_nan"] is False:
            return False
        values = numbers
    if values.is_empty():
        return True
    lower, upper = range_["lower_bound"], range_["upper_bound"]
    if lower is None or upper is None:  # only allowed if there are no values
        return False
    low, high = bound_value(lower, type_), bound_value(upper, type_)
    if low is None or high is None:
        return True
    least, greatest = _ends(values, type_)
    return bool(low <= least and greatest <= high)


def _ends(values: pl.Series, type_: IcebergType) -> tuple[Any, Any]:
    """The least and the greatest value, comparable with those of bounds."""
    if values.dtype == pl.String:
        return str(values.min()).encode(), str(values.max()).encode()
    if values.dtype != pl.Binary:
        return values.min(), values.max()
    distinct = values.unique().to_list()
    if isinstance(type_, DecimalType):
        distinct = [int.from_bytes(value, "big", signed=True) for value in distinct]
    return min(distinct), max(distinct)
