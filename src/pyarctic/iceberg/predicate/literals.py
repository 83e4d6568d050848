"""Literals of a condition, fitted to the types of the columns they are compared with.

PyIceberg wants decimals with all their digits and instants in one spelling. A literal beyond what a type can hold makes its
comparisons true even for null, and members of sets move to the type's limits. All of that is put right before binding.
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

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_ZONE = re.compile(r"(Z|[+-]\d{2}:\d{2})$")


class FittedLiterals(BooleanExpressionVisitor[BooleanExpression]):
    """The same condition with literals that fit. The condition has no NOT."""

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
            return _fitted_set(predicate, type_)
        if isinstance(predicate, LiteralPredicate):
            return _fitted_comparison(predicate, type_)
        return predicate


def _fitted_set(predicate: SetPredicate, type_: IcebergType) -> BooleanExpression:
    fitted = {fit(member, type_) for member in predicate.literals}
    within = {member for member in fitted if not beyond(member, type_)}
    if isinstance(predicate, In):
        return _made(In, predicate.term, within) if within else AlwaysFalse()
    return _made(NotIn, predicate.term, within) if within else _made(NotNull, predicate.term)


def _fitted_comparison(predicate: LiteralPredicate, type_: IcebergType) -> BooleanExpression:
    fitted = fit(predicate.literal, type_)
    side = beyond(fitted, type_)
    if not side:
        return _made(type(predicate), predicate.term, fitted)
    if isinstance(predicate, NotEqualTo):
        return _made(NotNull, predicate.term)
    if isinstance(predicate, LessThan | LessThanOrEqual if side > 0 else GreaterThan | GreaterThanOrEqual):
        known = _made(NotNull, predicate.term)
        is_float = isinstance(type_, FloatType | DoubleType)
        return And(known, _made(NotNaN, predicate.term)) if is_float else known
    return AlwaysFalse()


def fit(value: Literal[Any], type_: IcebergType) -> Literal[Any]:
    """The literal in the spelling that PyIceberg wants for this type; what cannot be helped is left to its own error."""
    plain = value.value
    if isinstance(type_, DecimalType) and isinstance(plain, Decimal | float | int) and not isinstance(plain, bool):
        exact = Decimal(str(plain))
        exponent = exact.as_tuple().exponent
        if isinstance(exponent, int) and exponent >= -type_.scale:
            return literal(exact + Decimal((0, (0,), -type_.scale)))  # the zero brings the missing digits
    if isinstance(plain, str) and isinstance(type_, TimestampType | TimestamptzType):
        return literal(_instant(plain, zoned=isinstance(type_, TimestamptzType)))
    return value


def _instant(text: str, *, zoned: bool) -> str:
    """Days alone, a blank for the T, Z for +00:00; without a zone UTC is meant."""
    text = f"{text}T00:00:00" if _DAY.fullmatch(text) else text.replace(" ", "T", 1)
    if not zoned:
        return text
    return text.removesuffix("Z") + "+00:00" if text.endswith("Z") or not _ZONE.search(text) else text


def beyond(value: Literal[Any], type_: IcebergType) -> int:
    """1 above all values of the type, -1 below them, 0 within."""
    if isinstance(type_, DecimalType) and isinstance(value.value, Decimal):
        limit = Decimal(10) ** (type_.precision - type_.scale)
        return int(value.value >= limit) - int(value.value <= -limit)
    converted = value.to(type_)
    return int(isinstance(converted, AboveMax)) - int(isinstance(converted, BelowMin))


def _made(predicate: Callable[..., BooleanExpression], *arguments: Any) -> BooleanExpression:
    # PyIceberg's predicates take their arguments by position, which their types do not tell.
    return predicate(*arguments)
