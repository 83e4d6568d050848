"""Conditions as Spark SQL, with the same semantics, also for NaN, which Spark orders above all other numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from pyiceberg.expressions import BooleanExpression, BoundTerm
from pyiceberg.expressions.literals import Literal
from pyiceberg.expressions.visitors import BoundBooleanExpressionVisitor, visit
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

_LITERAL_FORMATS: dict[type[IcebergType], Callable[[Any], str]] = {
    BooleanType: lambda value: str(value).lower(),
    IntegerType: lambda value: f"CAST('{value}' AS INT)",
    LongType: lambda value: f"CAST('{value}' AS BIGINT)",
    FloatType: lambda value: f"CAST('{value!r}' AS FLOAT)",
    DoubleType: lambda value: f"CAST('{value!r}' AS DOUBLE)",
    DateType: lambda value: f"DATE'{np.datetime64(value, 'D')}'",
    TimestampType: lambda value: f"TIMESTAMP_NTZ'{np.datetime64(value, 'us')}'",
    TimestamptzType: lambda value: f"TIMESTAMP'{np.datetime64(value, 'us')}Z'",
    # As hexadecimal no character needs to be escaped.
    StringType: lambda value: f"CAST(X'{value.encode().hex()}' AS STRING)",
    BinaryType: lambda value: f"X'{bytes(value).hex()}'",
}


def is_supported_by_spark(type_: IcebergType) -> bool:
    """Whether Spark has the type and reads it correctly from Parquet files. For floats within structs it wrongly skips row
    groups that have NaN."""
    match type_:
        case StructType():
            types = [field.field_type for field in type_.fields]
            return all(is_supported_by_spark(child) and not isinstance(child, FloatType | DoubleType) for child in types)
        case ListType():
            return is_supported_by_spark(type_.element_type)
        case MapType():
            return is_supported_by_spark(type_.key_type) and is_supported_by_spark(type_.value_type)
    return isinstance(type_, (DecimalType, *_LITERAL_FORMATS))


def to_spark_sql(schema: Schema, bound: BooleanExpression) -> str:
    """Translate a bound condition without NOT, on columns whose types `is_supported_by_spark`."""
    return visit(bound, _ToSql(_column_names(schema.fields)))


def _column_names(fields: tuple[NestedField, ...], prefix: str = "") -> dict[int, str]:
    names = {}
    for field in fields:
        name = prefix + "`" + field.name.replace("`", "``") + "`"
        names[field.field_id] = name
        if isinstance(field.field_type, StructType):
            names |= _column_names(field.field_type.fields, f"{name}.")
    return names


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


class _ToSql(BoundBooleanExpressionVisitor[str]):
    """Turns a bound condition into Spark SQL."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names

    def _column(self, term: BoundTerm) -> str:
        return self._names[term.ref().field.field_id]

    def _format_literal(self, term: BoundTerm, value: Any) -> str:
        type_ = term.ref().field.field_type
        if isinstance(type_, DecimalType):
            return f"CAST('{value}' AS DECIMAL({type_.precision}, {type_.scale}))"
        return _LITERAL_FORMATS[type(type_)](value)

    def _compare(self, term: BoundTerm, operator: str, literal: Literal[Any]) -> str:
        if _is_nan(literal.value):
            return "false"
        column = self._column(term)
        comparison = f"{column} {operator} {self._format_literal(term, literal.value)}"
        is_float = isinstance(term.ref().field.field_type, FloatType | DoubleType)
        return f"({comparison} AND NOT isnan({column}))" if is_float and operator[0] == ">" else comparison

    def _format_set(self, term: BoundTerm, literals: set[Any]) -> str:
        return ", ".join(sorted(self._format_literal(term, value) for value in literals if not _is_nan(value)))

    def visit_true(self) -> str:
        return "true"

    def visit_false(self) -> str:
        return "false"

    def visit_not(self, child_result: str) -> str:
        return f"NOT ({child_result})"

    def visit_and(self, left_result: str, right_result: str) -> str:
        return f"({left_result}) AND ({right_result})"

    def visit_or(self, left_result: str, right_result: str) -> str:
        return f"({left_result}) OR ({right_result})"

    def visit_is_null(self, term: BoundTerm) -> str:
        return f"{self._column(term)} IS NULL"

    def visit_not_null(self, term: BoundTerm) -> str:
        return f"{self._column(term)} IS NOT NULL"

    def visit_is_nan(self, term: BoundTerm) -> str:
        return f"isnan({self._column(term)})"

    def visit_not_nan(self, term: BoundTerm) -> str:
        column = self._column(term)
        return f"({column} IS NOT NULL AND NOT isnan({column}))"

    def visit_equal(self, term: BoundTerm, literal: Literal[Any]) -> str:
        return self._compare(term, "=", literal)

    def visit_not_equal(self, term: BoundTerm, literal: Literal[Any]) -> str:
        if _is_nan(literal.value):
            return f"{self._column(term)} IS NOT NULL"
        return self._compare(term, "<>", literal)

    def visit_less_than(self, term: BoundTerm, literal: Literal[Any]) -> str:
        return self._compare(term, "<", literal)

    def visit_less_than_or_equal(self, term: BoundTerm, literal: Literal[Any]) -> str:
        return self._compare(term, "<=", literal)

    def visit_greater_than(self, term: BoundTerm, literal: Literal[Any]) -> str:
        return self._compare(term, ">", literal)

    def visit_greater_than_or_equal(self, term: BoundTerm, literal: Literal[Any]) -> str:
        return self._compare(term, ">=", literal)

    def visit_starts_with(self, term: BoundTerm, literal: Literal[Any]) -> str:
        return f"startswith({self._column(term)}, {self._format_literal(term, literal.value)})"

    def visit_not_starts_with(self, term: BoundTerm, literal: Literal[Any]) -> str:
        return f"NOT startswith({self._column(term)}, {self._format_literal(term, literal.value)})"

    def visit_in(self, term: BoundTerm, literals: set[Any]) -> str:
        members = self._format_set(term, literals)
        return f"{self._column(term)} IN ({members})" if members else "false"

    def visit_not_in(self, term: BoundTerm, literals: set[Any]) -> str:
        members = self._format_set(term, literals)
        return f"{self._column(term)} NOT IN ({members})" if members else f"{self._column(term)} IS NOT NULL"
