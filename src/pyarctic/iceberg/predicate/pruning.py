"""Pruning files by a condition, with partition values and column bounds, for a complete frame of files at once.

A file is dropped only if it cannot contain a matching row; if that is not known, it is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from pyiceberg.expressions import AlwaysTrue, BooleanExpression, BoundTerm
from pyiceberg.expressions.literals import Literal
from pyiceberg.expressions.visitors import (
    BoundBooleanExpressionVisitor,
    bind,
    inclusive_projection,
    rewrite_not,
    visit,
)
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import (
    DateType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
)

from pyarctic.iceberg.manifest.file_list import FileList
from pyarctic.iceberg.manifest.partition_keys import INTEGER_TYPES

MAY_MATCH = pl.lit(value=True)
_MAX_SET = 200
"""The values of a larger set are not compared one by one, only its least and its greatest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The metrics of one column, as expressions over a frame of files."""

    lower: pl.Expr | None
    upper: pl.Expr | None
    nulls: pl.Expr
    values: pl.Expr


class _MayMatch(BoundBooleanExpressionVisitor[pl.Expr]):
    """Turns a bound condition without NOT into a Polars expression over bounds."""

    def __init__(self, bounds: Callable[[NestedField], Bounds]) -> None:
        self._bounds = bounds

    def _bounds_of(self, term: BoundTerm) -> Bounds:
        return self._bounds(term.ref().field)

    def _at_most(self, term: BoundTerm, value: Any, *, equal: bool = True) -> pl.Expr:
        lower, value = self._bounds_of(term).lower, _to_column_precision(term, value)
        return MAY_MATCH if lower is None else ((lower <= value) if equal else (lower < value)).fill_null(value=True)

    def _at_least(self, term: BoundTerm, value: Any, *, equal: bool = True) -> pl.Expr:
        upper, value = self._bounds_of(term).upper, _to_column_precision(term, value)
        return MAY_MATCH if upper is None else ((upper >= value) if equal else (upper > value)).fill_null(value=True)

    def visit_true(self) -> pl.Expr:
        return MAY_MATCH

    def visit_false(self) -> pl.Expr:
        return pl.lit(value=False)

    def visit_not(self, child_result: pl.Expr) -> pl.Expr:
        msg = "conditions must be rewritten without NOT first"
        raise AssertionError(msg)

    def visit_and(self, left_result: pl.Expr, right_result: pl.Expr) -> pl.Expr:
        return left_result & right_result

    def visit_or(self, left_result: pl.Expr, right_result: pl.Expr) -> pl.Expr:
        return left_result | right_result

    def visit_is_null(self, term: BoundTerm) -> pl.Expr:
        return (self._bounds_of(term).nulls > 0).fill_null(value=True)

    def visit_not_null(self, term: BoundTerm) -> pl.Expr:
        bounds = self._bounds_of(term)
        return (bounds.nulls < bounds.values).fill_null(value=True)

    def visit_equal(self, term: BoundTerm, literal: Literal[Any]) -> pl.Expr:
        return self._at_most(term, literal.value) & self._at_least(term, literal.value)

    def visit_in(self, term: BoundTerm, literals: set[Any]) -> pl.Expr:
        if len(literals) > _MAX_SET:
            return self._at_most(term, max(literals)) & self._at_least(term, min(literals))
        return pl.any_horizontal(self._at_most(term, value) & self._at_least(term, value) for value in literals)

    def visit_less_than(self, term: BoundTerm, literal: Literal[Any]) -> pl.Expr:
        return self._at_most(term, literal.value, equal=False)

    def visit_less_than_or_equal(self, term: BoundTerm, literal: Literal[Any]) -> pl.Expr:
        return self._at_most(term, literal.value)

    def visit_greater_than(self, term: BoundTerm, literal: Literal[Any]) -> pl.Expr:
        return self._at_least(term, literal.value, equal=False)

    def visit_greater_than_or_equal(self, term: BoundTerm, literal: Literal[Any]) -> pl.Expr:
        return self._at_least(term, literal.value)

    def visit_starts_with(self, term: BoundTerm, literal: Literal[Any]) -> pl.Expr:
        bounds, prefix = self._bounds_of(term), str(literal.value)
        if bounds.lower is None or bounds.upper is None:
            return MAY_MATCH
        length = len(prefix)
        not_after = bounds.lower.str.slice(0, length) <= prefix
        not_before = bounds.upper.str.slice(0, length) >= prefix
        return (not_after & not_before).fill_null(value=True)

    def visit_not_equal(self, term: BoundTerm, literal: Literal[Any]) -> pl.Expr:
        return MAY_MATCH

    def visit_not_in(self, term: BoundTerm, literals: set[Any]) -> pl.Expr:
        return MAY_MATCH

    def visit_is_nan(self, term: BoundTerm) -> pl.Expr:
        return MAY_MATCH

    def visit_not_nan(self, term: BoundTerm) -> pl.Expr:
        return MAY_MATCH

    def visit_not_starts_with(self, term: BoundTerm, literal: Literal[Any]) -> pl.Expr:
        return MAY_MATCH


def _to_column_precision(term: BoundTerm, value: Any) -> Any:
    # A float column is compared in single precision: its bounds as well as its rows.
    return float(np.float32(value)) if isinstance(term.ref().field.field_type, FloatType) else value


def prune_partitions(files: pl.DataFrame, metadata: TableMetadata, schema: Schema, where: BooleanExpression) -> pl.DataFrame:
    """The files without those of partitions in which no row can match."""
    kept = []
    for (spec_id,), spec_files in files.group_by("spec_id", maintain_order=True):
        spec = metadata.specs()[spec_id]
        condition = inclusive_projection(schema, spec)(where)
        if spec.is_unpartitioned() or isinstance(condition, AlwaysTrue):
            kept.append(spec_files)
            continue
        partition_fields = spec.partition_type(schema).fields
        bound = rewrite_not(bind(Schema(*partition_fields), condition, case_sensitive=True))
        index_of = {field.field_id: index for index, field in enumerate(partition_fields)}
        values = pl.col("values").list

        def bounds(field: NestedField, index_of: dict[int, int] = index_of, values: Any = values) -> Bounds:
            text = values.get(index_of[field.field_id], null_on_oob=True)
            value = _parse_partition_value(text, field.field_type)
            return Bounds(lower=value, upper=value, nulls=text.is_null().cast(pl.Int64), values=pl.lit(1))

        partitions = spec_files.select("partition").unique()
        decoded = partitions.with_columns(values=pl.col("partition").str.json_decode(pl.List(pl.String)))
        matching = decoded.filter(visit(bound, _MayMatch(bounds)))
        kept.append(spec_files.join(matching, on="partition", how="semi", maintain_order="left"))
    return pl.concat(kept) if kept else files


def prune_by_metrics(
    files: pl.DataFrame, file_list: FileList, io: FileIO, schema: Schema, bound: BooleanExpression
) -> pl.DataFrame:
    """The files without those whose column bounds or null counts rule out the condition. `bound` has no NOT."""
    field_ids: list[int] = []
    top_level_ids = {field.field_id for field in schema.fields}

    def bounds(field: NestedField) -> Bounds:
        field_ids.append(field.field_id)
        lower, upper = (decode_bound(pl.col(f"{end}_{field.field_id}"), field.field_type) for end in ("lower", "upper"))
        nulls, values = pl.col(f"nulls_{field.field_id}"), pl.col(f"values_{field.field_id}")
        if field.field_id not in top_level_ids:  # some writers do not count fields of null structs
            nulls = pl.lit(None, pl.Int64)
        return Bounds(lower=lower, upper=upper, nulls=nulls, values=values)

    may_match = visit(bound, _MayMatch(bounds))
    if not field_ids or files.is_empty():
        return files
    with_metrics = file_list.with_metrics(io, files, sorted(set(field_ids)))
    return with_metrics.filter(may_match).select(files.columns)


def _parse_partition_value(text: pl.Expr, type_: IcebergType) -> pl.Expr | None:
    if isinstance(type_, INTEGER_TYPES):
        return text.cast(pl.Int64, strict=False)
    return text if isinstance(type_, StringType) else None


def decode_bound(raw: pl.Expr, type_: IcebergType) -> pl.Expr | None:
    """Decode bounds from Iceberg's single-value serialization. A promoted column has the narrow type in old files."""

    def number(dtype: type[pl.DataType], size: int) -> pl.Expr:
        # Polars reads beyond the end of short values, so only values of the right size are passed to it.
        return pl.when(raw.bin.size() == size).then(raw).otherwise(None).bin.reinterpret(dtype=dtype, endianness="little")

    if isinstance(type_, IntegerType | LongType | DateType):
        return pl.coalesce(number(pl.Int64, 8), number(pl.Int32, 4).cast(pl.Int64))
    if isinstance(type_, INTEGER_TYPES):  # four bytes would be days of a date promoted to a timestamp: not decoded
        return number(pl.Int64, 8)
    if isinstance(type_, FloatType | DoubleType):
        value = pl.coalesce(number(pl.Float64, 8), number(pl.Float32, 4).cast(pl.Float64))
        return pl.when(value.is_nan()).then(None).otherwise(value)
    if isinstance(type_, StringType):
        return raw.cast(pl.String, strict=False)
    return None
