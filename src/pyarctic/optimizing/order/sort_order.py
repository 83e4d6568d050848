"""The order of rows that a table's properties and its sort order ask for, and the columns that key bounds are measured by.

A sort order is measured by its first field, because readers skip files by it; z-order by all its columns. Writers truncate
the bounds of texts, and may increment the last character. What comes before it is exact, so only that much is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.io.pyarrow import MetricsMode, compute_statistics_plan
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField
from pyiceberg.transforms import IdentityTransform, TimeTransform, Transform, TruncateTransform
from pyiceberg.types import IcebergType

from pyarctic.config.table_properties import Z_ORDER
from pyarctic.optimizing.order.ranks import PREFIX_BYTES, TEXTS, is_orderable
from pyarctic.optimizing.settings import Settings

_MONOTONIC_TRANSFORMS = (IdentityTransform, TruncateTransform, TimeTransform)
"""Transforms that keep the order of values."""


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """One column that key bounds are measured by."""

    field_id: int
    type: IcebergType
    transform: Transform[Any, Any]
    is_required: bool
    nulls_low: bool
    """Whether nulls are sorted next to the least values."""
    exact: int | None
    """The number of first characters (or bytes) of a text's bound that are exact; None: all."""

    @property
    def prefix_bytes(self) -> int:
        """The number of first bytes of a text or binary that ranks are made of."""
        return PREFIX_BYTES if self.exact is None else min(self.exact, PREFIX_BYTES)


@dataclass(frozen=True, kw_only=True)
class Order:
    """The order that rows should have."""

    z_order: tuple[int, ...]
    """Ids of the columns that rows are clustered by; empty: the table's sort order counts."""
    dimensions: tuple[Dimension, ...]
    """Empty: bounds do not show how files overlap."""
    sorts: bool = True
    """False if the property names columns that cannot be used."""
    notes: tuple[str, ...] = ()


def table_order(metadata: TableMetadata, settings: Settings) -> Order | None:
    """The order that rows of a table should have; None: any."""
    if settings.z_order:
        return _z_order(metadata, settings.z_order)
    fields = metadata.sort_order().fields
    if not settings.sort or not fields:
        return None
    dimension = _sort_dimension(metadata, fields[0])
    return Order(z_order=(), dimensions=() if dimension is None else (dimension,))


def z_dimensions(metadata: TableMetadata, field_ids: Sequence[int]) -> tuple[Dimension, ...]:
    """The columns of z-order."""
    return tuple(_dimension(metadata, field_id, IdentityTransform(), nulls_low=True) for field_id in field_ids)


def _z_order(metadata: TableMetadata, names: Sequence[str]) -> Order:
    schema = metadata.schema()
    ids: list[int] = []
    for name in names:
        try:
            field = schema.find_field(name)
            schema.accessor_for_field(field.field_id)
        except ValueError:
            problem = f"names {name!r}, which is no column of the table"
        else:
            if is_orderable(field.field_type):
                ids.append(field.field_id)
                continue
            problem = f"names {name!r}, and values of type {field.field_type} have no order"
        note = f"table property {Z_ORDER.name} {problem}: nothing is sorted"
        return Order(z_order=(), dimensions=(), sorts=False, notes=(note,))
    unbounded = [name for name, field_id in zip(names, ids, strict=True) if not _has_bounds(metadata, field_id)]
    if unbounded:
        note = f"how files overlap cannot be measured: write.metadata.metrics.* keeps no bounds of column {unbounded[0]!r}"
        return Order(z_order=tuple(ids), dimensions=(), notes=(note,))
    return Order(z_order=tuple(ids), dimensions=z_dimensions(metadata, ids))


def _sort_dimension(metadata: TableMetadata, field: SortField) -> Dimension | None:
    if not isinstance(field.transform, _MONOTONIC_TRANSFORMS) or not _has_bounds(metadata, field.source_id):
        return None
    if not is_orderable(metadata.schema().find_type(field.source_id)):
        return None
    nulls_first = field.null_order == NullOrder.NULLS_FIRST
    ascending = field.direction == SortDirection.ASC
    return _dimension(metadata, field.source_id, field.transform, nulls_low=nulls_first == ascending)


def _dimension(metadata: TableMetadata, field_id: int, transform: Transform[Any, Any], *, nulls_low: bool) -> Dimension:
    schema = metadata.schema()
    field = schema.find_field(field_id)
    is_top_level = any(field.field_id == field_id for field in schema.fields)
    mode = _metrics_mode(metadata, field_id)
    length = None if mode is None else mode.length
    return Dimension(
        field_id=field_id,
        type=field.field_type,
        transform=transform,
        is_required=field.required and is_top_level,
        nulls_low=nulls_low,
        exact=length - 1 if length is not None and isinstance(field.field_type, TEXTS) else None,
    )


def _metrics_mode(metadata: TableMetadata, field_id: int) -> MetricsMode | None:
    """Which metrics of a column are written to manifests; None: the column does not exist any more."""
    collector = compute_statistics_plan(metadata.schema(), dict(metadata.properties)).get(field_id)
    return None if collector is None else collector.mode


def _has_bounds(metadata: TableMetadata, field_id: int) -> bool:
    mode = _metrics_mode(metadata, field_id)
    return mode is not None and mode.type.value in ("truncate", "full")
