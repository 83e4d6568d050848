"""Conditions: parsed from text, bound to a schema, and turned into Arrow expressions for rows and for row groups.

They mean what they mean in SQL: a row is returned when the condition is true, not when it is unknown. NaN compares as in
IEEE arithmetic and Arrow: it is neither less nor greater than anything and equal to nothing, so only `is nan`, `<>` and
`not in` find it. Of null even `is not nan` is unknown.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, BooleanExpression, BoundTerm
from pyiceberg.expressions.literals import Literal
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import BoundBooleanExpressionVisitor, bind, rewrite_not, visit
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType, NestedField, StructType

from pyarctic.errors import UsageError
from pyarctic.iceberg.predicate.literals import FittedLiterals
from pyarctic.iceberg.read.data_files import OpenFile
from pyarctic.iceberg.read.projection import arrow_type, fields_by_id

ALWAYS_TRUE = AlwaysTrue()


def parse_condition(schema: Schema, where: str | BooleanExpression | None) -> BooleanExpression:
    """The condition without NOT, checked against the schema but not bound yet: partitions need it in both forms."""
    if where is None:
        return ALWAYS_TRUE
    try:
        condition = visit(rewrite_not(parse(where) if isinstance(where, str) else where), FittedLiterals(schema))
        bind_condition(schema, condition)
    except Exception as cause:  # PyIceberg's parser and binder raise half a dozen unrelated types
        reason = next(iter(str(cause).splitlines()), "")
        # A syntax error comes with the whole grammar, which helps nobody.
        told = f" ({reason})" if 0 < len(reason) < 160 else ""
        raise UsageError(f"condition is not understood: {where}{told}", hint=_hint(schema, str(where))) from cause
    return condition


def _hint(schema: Schema, where: str) -> str:
    if '"' in where:
        return "Text stands in single quotes: city = 'Oslo'."
    if re.search(r"=\s*null\b", where, re.IGNORECASE):
        return "Write `is null` or `is not null`: nothing equals null."
    return (
        "Write it like: id >= 10 and (name = 'a' or name is null). Instants look like '2024-01-31T12:00:00' or "
        f"'2024-01-31T12:00:00Z'. Columns: {', '.join(field.name for field in schema.fields)}."
    )


def bind_condition(schema: Schema, condition: BooleanExpression) -> BooleanExpression:
    """The condition bound to the schema."""
    return bind(with_optional_parents(schema), condition, case_sensitive=True)


def with_optional_parents(schema: Schema) -> Schema:
    """PyIceberg takes `s.a is null` for false when a is required, also below an optional s: there it may be null."""

    def loosened(field: NestedField, *, optional: bool) -> NestedField:
        type_ = field.field_type
        required = field.required and not optional
        if isinstance(type_, StructType):
            type_ = StructType(*(loosened(child, optional=not required) for child in type_.fields))
        return field.model_copy(update={"field_type": type_, "required": required})

    return Schema(*(loosened(field, optional=False) for field in schema.fields), schema_id=schema.schema_id)


def to_row_expression(schema: Schema, condition: BooleanExpression) -> pc.Expression:
    """For rows in the table's columns; `condition` is bound."""
    return visit(condition, _ToArrow(_references(schema.fields)))


def to_row_group_expression(file: OpenFile, condition: BooleanExpression) -> pc.Expression:
    """For the statistics of a Parquet file's row groups; what they cannot answer counts as true."""
    columns = {
        field_id: (pc.field(at.field.name), at.field.type)
        for field_id, at in fields_by_id(file.schema, file.names).items()
        if not pa.types.is_nested(at.field.type)
    }
    return visit(condition, _ToStatistics(columns))


Column = tuple[pc.Expression, pa.DataType]


def _references(fields: tuple[NestedField, ...], above: tuple[str, ...] = ()) -> dict[int, Column]:
    """Field id → Arrow reference and type, for columns and fields of structs. Names may hold dots."""
    found: dict[int, Column] = {}
    for field in fields:
        path = (*above, field.name)
        if isinstance(field.field_type, StructType):
            found |= _references(field.field_type.fields, path)
        found[field.field_id] = (pc.field(path if above else field.name), arrow_type(field.field_type))
    return found


class _ToArrow(BoundBooleanExpressionVisitor[pc.Expression]):
    def __init__(self, columns: Mapping[int, Column]) -> None:
        self._columns = columns

    def _column(self, term: BoundTerm) -> pc.Expression:
        return self._columns[term.ref().field.field_id][0]

    def _scalar(self, term: BoundTerm, value: Any) -> pc.Expression:
        return pc.scalar(pa.scalar(value, arrow_type(term.ref().field.field_type)))

    def visit_true(self) -> pc.Expression:
        return pc.scalar(True)

    def visit_false(self) -> pc.Expression:
        return pc.scalar(False)

    def visit_not(self, child_result: pc.Expression) -> pc.Expression:
        msg = "conditions are rewritten without NOT before they come here"
        raise AssertionError(msg)

    def visit_and(self, left_result: pc.Expression, right_result: pc.Expression) -> pc.Expression:
        return left_result & right_result

    def visit_or(self, left_result: pc.Expression, right_result: pc.Expression) -> pc.Expression:
        return left_result | right_result

    def visit_is_null(self, term: BoundTerm) -> pc.Expression:
        return self._column(term).is_null()

    def visit_not_null(self, term: BoundTerm) -> pc.Expression:
        return self._column(term).is_valid()

    def visit_is_nan(self, term: BoundTerm) -> pc.Expression:
        return pc.is_nan(self._column(term))

    def visit_not_nan(self, term: BoundTerm) -> pc.Expression:
        return ~pc.is_nan(self._column(term))

    def visit_equal(self, term: BoundTerm, literal: Literal[Any]) -> pc.Expression:
        return self._column(term) == self._scalar(term, literal.value)

    def visit_not_equal(self, term: BoundTerm, literal: Literal[Any]) -> pc.Expression:
        return self._column(term) != self._scalar(term, literal.value)

    def visit_less_than(self, term: BoundTerm, literal: Literal[Any]) -> pc.Expression:
        return self._column(term) < self._scalar(term, literal.value)

    def visit_less_than_or_equal(self, term: BoundTerm, literal: Literal[Any]) -> pc.Expression:
        return self._column(term) <= self._scalar(term, literal.value)

    def visit_greater_than(self, term: BoundTerm, literal: Literal[Any]) -> pc.Expression:
        return self._column(term) > self._scalar(term, literal.value)

    def visit_greater_than_or_equal(self, term: BoundTerm, literal: Literal[Any]) -> pc.Expression:
        return self._column(term) >= self._scalar(term, literal.value)

    def visit_starts_with(self, term: BoundTerm, literal: Literal[Any]) -> pc.Expression:
        return pc.starts_with(self._column(term), literal.value)

    def visit_not_starts_with(self, term: BoundTerm, literal: Literal[Any]) -> pc.Expression:
        return ~pc.starts_with(self._column(term), literal.value)

    def visit_in(self, term: BoundTerm, literals: set[Any]) -> pc.Expression:
        if isinstance(term.ref().field.field_type, FloatType | DoubleType):
            # Arrow's set lookup compares bits, and 0.0 would not find -0.0.
            equal = [self._column(term) == self._scalar(term, value) for value in literals]
            return functools.reduce(lambda a, b: a | b, equal)
        return self._column(term).isin(pa.array(literals, arrow_type(term.ref().field.field_type)))

    def visit_not_in(self, term: BoundTerm, literals: set[Any]) -> pc.Expression:
        # Arrow's set lookup answers false for null, so its opposite would be true.
        return ~self.visit_in(term, literals) & self._column(term).is_valid()


class _ToStatistics(_ToArrow):
    """Only predicates that Arrow judges rightly by minimum, maximum and null count; the others become true."""

    def _usable(self, term: BoundTerm) -> bool:
        field = term.ref().field
        column = self._columns.get(field.field_id)
        return column is not None and column[1].equals(arrow_type(field.field_type))

    def _known(self, term: BoundTerm, answer: str, *values: Any) -> pc.Expression:
        if not self._usable(term):
            return self.visit_true()
        judged: pc.Expression = getattr(super(), answer)(term, *values)
        return judged

    def visit_is_null(self, term: BoundTerm) -> pc.Expression:
        return self._known(term, "visit_is_null")

    def visit_not_null(self, term: BoundTerm) -> pc.Expression:
        return self._known(term, "visit_not_null")

    def visit_equal(self, term: BoundTerm, literal: Literal[Any]) -> pc.Expression:
        return self._known(term, "visit_equal", literal)

    def visit_less_than(self, term: BoundTerm, literal: Literal[Any]) -> pc.Expression:
        return self._known(term, "visit_less_than", literal)

    def visit_less_than_or_equal(self, term: BoundTerm, literal: Literal[Any]) -> pc.Expression:
        return self._known(term, "visit_less_than_or_equal", literal)

    def visit_greater_than(self, term: BoundTerm, literal: Literal[Any]) -> pc.Expression:
        return self._known(term, "visit_greater_than", literal)

    def visit_greater_than_or_equal(self, term: BoundTerm, literal: Literal[Any]) -> pc.Expression:
        return self._known(term, "visit_greater_than_or_equal", literal)

    def visit_in(self, term: BoundTerm, literals: set[Any]) -> pc.Expression:
        return self._known(term, "visit_in", literals)

    # Statistics leave NaN out, and Arrow forgets that: a group of 5.0 and NaN would count as all 5.0.
    def visit_not_equal(self, term: BoundTerm, literal: Literal[Any]) -> pc.Expression:
        return self.visit_true()

    def visit_not_in(self, term: BoundTerm, literals: set[Any]) -> pc.Expression:
        return self.visit_true()

    def visit_is_nan(self, term: BoundTerm) -> pc.Expression:
        return self.visit_true()

    def visit_not_nan(self, term: BoundTerm) -> pc.Expression:
        return self.visit_true()

    def visit_starts_with(self, term: BoundTerm, literal: Literal[Any]) -> pc.Expression:
        return self.visit_true()

    def visit_not_starts_with(self, term: BoundTerm, literal: Literal[Any]) -> pc.Expression:
        return self.visit_true()
