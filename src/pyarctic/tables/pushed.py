"""Conditions that another engine hands down, to rule out files. It applies them itself as well, so none has to be taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyiceberg.expressions import (
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    NotNull,
    StartsWith,
)
from pyiceberg.types import DoubleType, FloatType

from pyarctic.errors import UsageError
from pyarctic.iceberg import conditions
from pyarctic.tables.handle import Table

_MADE: dict[str, Any] = {
    "=": EqualTo,
    ">": GreaterThan,
    ">=": GreaterThanOrEqual,
    "<": LessThan,
    "<=": LessThanOrEqual,
    "in": In,
    "starts with": StartsWith,
}
_UNARY: dict[str, Any] = {"is null": IsNull, "is not null": NotNull}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """A comparison of a column with a value."""

    column: tuple[str, ...]
    sign: str
    value: Any = None


def where_of(table: Table, where: str | None, pushed: Sequence[Pushed]) -> BooleanExpression | None:
    """A user's condition with those of the engine that are understood."""
    known = [found for each in pushed if (found := _condition(table, each)) is not None]
    if where is not None:
        known.append(conditions.understood(table.schema, where))
    return reduce(And, known) if known else None


def _condition(table: Table, each: Pushed) -> BooleanExpression | None:
    name = ".".join(each.column)
    try:
        field = table.schema.find_field(name)
    except ValueError:
        return None
    if isinstance(field.field_type, FloatType | DoubleType):  # engines differ about NaN
        return None
    if each.sign in _UNARY:
        made: BooleanExpression = _UNARY[each.sign](name)
    elif each.sign in _MADE:
        value = each.value
        if hasattr(value, "isoformat"):
            value = value.isoformat()
        try:
            made = _MADE[each.sign](name, value)
        except (TypeError, ValueError):
            return None
    else:
        return None
    try:
        return conditions.understood(table.schema, made)
    except UsageError:
        return None
