"""Literals of a condition, converted to the types of the columns they are compared with.

PyIceberg wants decimals with all their digits and timestamps in one format. With a literal out of the range of a type its
comparisons are true even for null, and members of sets are clamped to the type's limits. Both are corrected before binding.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    BoundPredicate,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    LiteralPredicate,
    Not,
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    Or,
    SetPredicate,
    UnboundPredicate,
)
from pyiceberg.expressions.literals import AboveMax, BelowMin, Literal, literal
from pyiceberg.expressions.visitors import BooleanExpressionVisitor
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, DoubleType, FloatType, IcebergType, TimestampType, TimestamptzType

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_ZONE = re.compile(r"(Z|[+-]\d{2}:\d{2})$")


class LiteralConverter(BooleanExpressionVisitor[BooleanExpression]):
    """Converts the literals of a condition without NOT."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def visit_true(self) -> BooleanExpression:
        return AlwaysTrue()

    def visit_false(self) -> BooleanExpression:
        return AlwaysFalse()

    def visit_not(self, child_result: BooleanExpression) -> BooleanExpression:
        return Not(child_result)

    def visit_and(self, left_result: BooleanExpression, right_result: BooleanExpression) -> BooleanExpression:
        return And(left_result, right_result)

    def visit_or(self, left_result: BooleanExpression, right_result: BooleanExpression) -> BooleanExpression:
        return Or(left_result, right_result)

    def visit_bound_predicate(self, predicate: BoundPredicate) -> BooleanExpression:
        return predicate

    def visit_unbound_predicate(self, predicate: UnboundPredicate) -> BooleanExpression:
        type_ = predicate.term.bind(self._schema, case_sensitive=True).ref().field.field_type
        if isinstance(predicate, SetPredicate):
            return _convert_set(predicate, type_)
        if isinstance(predicate, LiteralPredicate):
            return _convert_comparison(predicate, type_)
        return predicate


def _convert_set(predicate: SetPredicate, type_: IcebergType) -> BooleanExpression:
    converted = {convert_literal(member, type_) for member in predicate.literals}
    in_range = {member for member in converted if not out_of_range(member, type_)}
    if isinstance(predicate, In):
        return _create(In, predicate.term, in_range) if in_range else AlwaysFalse()
    return _create(NotIn, predicate.term, in_range) if in_range else _create(NotNull, predicate.term)


def _convert_comparison(predicate: LiteralPredicate, type_: IcebergType) -> BooleanExpression:
    converted = convert_literal(predicate.literal, type_)
    side = out_of_range(converted, type_)
    if not side:
        return _create(type(predicate), predicate.term, converted)
    if isinstance(predicate, NotEqualTo):
        return _create(NotNull, predicate.term)
    if isinstance(predicate, LessThan | LessThanOrEqual if side > 0 else GreaterThan | GreaterThanOrEqual):
        not_null = _create(NotNull, predicate.term)
        is_float = isinstance(type_, FloatType | DoubleType)
        return And(not_null, _create(NotNaN, predicate.term)) if is_float else not_null
    return AlwaysFalse()


def convert_literal(value: Literal[Any], type_: IcebergType) -> Literal[Any]:
    """The literal in the form that PyIceberg wants for this type. Invalid literals are left to PyIceberg's own errors."""
    plain = value.value
    if isinstance(type_, DecimalType) and isinstance(plain, Decimal | float | int) and not isinstance(plain, bool):
        exact = Decimal(str(plain))
        exponent = exact.as_tuple().exponent
        if isinstance(exponent, int) and exponent >= -type_.scale:
            return literal(exact + Decimal((0, (0,), -type_.scale)))  # the zero adds the missing digits
    if isinstance(plain, str) and isinstance(type_, TimestampType | TimestamptzType):
        return literal(_normalize_timestamp(plain, zoned=isinstance(type_, TimestamptzType)))
    return value


def _normalize_timestamp(text: str, *, zoned: bool) -> str:
    """Allow dates alone, a space instead of T, and Z instead of +00:00; without a zone it is UTC."""
    text = f"{text}T00:00:00" if _DATE.fullmatch(text) else text.replace(" ", "T", 1)
    if not zoned:
        return text
    return text.removesuffix("Z") + "+00:00" if text.endswith("Z") or not _ZONE.search(text) else text


def out_of_range(value: Literal[Any], type_: IcebergType) -> int:
    """1 if the literal is above all values of the type, -1 if below, 0 if in range."""
    if isinstance(type_, DecimalType) and isinstance(value.value, Decimal):
        limit = Decimal(10) ** (type_.precision - type_.scale)
        return int(value.value >= limit) - int(value.value <= -limit)
    converted = value.to(type_)
    return int(isinstance(converted, AboveMax)) - int(isinstance(converted, BelowMin))


def _create(predicate: Callable[..., BooleanExpression], *arguments: Any) -> BooleanExpression:
    # PyIceberg's predicates take positional arguments, which their types do not declare.
    return predicate(*arguments)
