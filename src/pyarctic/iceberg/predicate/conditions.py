"""Conditions: parsed from text, bound to a schema, and turned into Arrow expressions for rows and for row groups.

They have SQL semantics: a row is returned if the condition is true, not if it is unknown. NaN compares as in IEEE
arithmetic and Arrow: it is neither less nor greater than anything and equal to nothing, so only `is nan`, `<>` and `not in`
match it. For null even `is not nan` is unknown.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from decimal import InvalidOperation
from difflib import get_close_matches
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
from pyarctic.iceberg.predicate.literals import LiteralConverter
from pyarctic.iceberg.read.data_files import OpenFile
from pyarctic.iceberg.read.projection import arrow_field, arrow_type, fields_by_id

ALWAYS_TRUE = AlwaysTrue()
_UNKNOWN_COLUMN = re.compile(r"Could not find (?:field|column) with name (?P<name>[^,]+)")


def parse_condition(schema: Schema, where: str | BooleanExpression | None) -> BooleanExpression:
    """Parse a condition, rewrite it without NOT and check it against the schema. It is not bound yet, because pruning by
    partition needs it unbound.

        parse_condition(schema, "id >= 10 and (name = 'a' or name is null)")
    """
    if where is None:
        return ALWAYS_TRUE
    try:
        condition = visit(rewrite_not(parse(where) if isinstance(where, str) else where), LiteralConverter(schema))
        bind_condition(schema, condition)
    except Exception as cause:  # PyIceberg's parser and binder raise half a dozen unrelated types
        reason = next(iter(str(cause).splitlines()), "")
        if isinstance(cause, InvalidOperation):  # its text is the name of a class
            reason = "Could not convert a value into a decimal"
        if unknown := _UNKNOWN_COLUMN.search(reason):
            raise _no_such_column(schema, unknown["name"]) from cause
        # The message of a syntax error contains the complete grammar, which is no help.
        detail = f" ({reason})" if 0 < len(reason) < 160 else ""
        raise UsageError(f"condition is not understood: {where}{detail}", hint=_hint(schema, str(where), reason)) from cause
    return condition


def _no_such_column(schema: Schema, name: str) -> UsageError:
    names = list(schema.column_names)
    similar = get_close_matches(name, names, n=1)
    hint = (f"Did you mean {similar[0]}? " if similar else "") + f"Columns: {', '.join(names)}."
    return UsageError(f"condition is not understood: there is no column {name}", hint=hint, column=name)


def _hint(schema: Schema, where: str, reason: str) -> str:
    if "Could not convert" in reason:
        types = ", ".join(f"{field.name} is {field.field_type}" for field in schema.fields)
        return f"Write it like: id >= 10, with values of the type of the column: {types}."
    if '"' in where:
        return "Write strings in single quotes: city = 'Oslo'."
    if re.search(r"=\s*null\b", where, re.IGNORECASE):
        return "Write `is null` or `is not null`: nothing equals null."
    return (
        "Write it like: id >= 10 and (name = 'a' or name is null). Timestamps look like '2024-01-31T12:00:00' or "
        f"'2024-01-31T12:00:00Z'. Columns: {', '.join(field.name for field in schema.fields)}."
    )


def bind_condition(schema: Schema, condition: BooleanExpression) -> BooleanExpression:
    """Bind a condition to the schema."""
    return bind(with_optional_parents(schema), condition, case_sensitive=True)


def with_optional_parents(schema: Schema) -> Schema:
    """The schema with required fields of optional structs made optional: they are null where the struct is, while PyIceberg
    takes `s.a is null` for false if `a` is required."""

    def relax(field: NestedField, *, parent_is_optional: bool) -> NestedField:
        type_ = field.field_type
        required = field.required and not parent_is_optional
        if isinstance(type_, StructType):
            type_ = StructType(*(relax(child, parent_is_optional=not required) for child in type_.fields))
        return field.model_copy(update={"field_type": type_, "required": required})

    return Schema(*(relax(field, parent_is_optional=False) for field in schema.fields), schema_id=schema.schema_id)


def to_row_expression(schema: Schema, condition: BooleanExpression) -> pc.Expression:
    """An Arrow expression for rows of the table; `condition` is bound."""
    return visit(condition, _ToArrow(_references(schema.fields)))


def to_row_group_expression(file: OpenFile, condition: BooleanExpression) -> pc.Expression:
    """An Arrow expression for row group statistics of a Parquet file; predicates they cannot decide become true."""
    columns = {
        field_id: file_field.field
        for field_id, file_field in fields_by_id(file.schema, file.names).items()
        if not pa.types.is_nested(file_field.field.type)
    }
    return visit(condition, _ToStatistics(columns))


def _references(fields: tuple[NestedField, ...], parents: tuple[str, ...] = ()) -> dict[int, pc.Expression]:
    """Field id → Arrow reference, for columns and fields of structs. Names may contain dots."""
    references: dict[int, pc.Expression] = {}
    for field in fields:
        path = (*parents, field.name)
        if isinstance(field.field_type, StructType):
            references |= _references(field.field_type.fields, path)
        references[field.field_id] = pc.field(path if parents else field.name)
    return references


class _ToArrow(BoundBooleanExpressionVisitor[pc.Expression]):
    """Turns a bound condition without NOT into an Arrow expression."""

    def __init__(self, references: Mapping[int, pc.Expression]) -> None:
        self._references = references

    def _column(self, term: BoundTerm) -> pc.Expression:
        return self._references[term.ref().field.field_id]

    def _scalar(self, term: BoundTerm, value: Any) -> pc.Expression:
        return pc.scalar(pa.scalar(value, arrow_type(term.ref().field.field_type)))

    def visit_true(self) -> pc.Expression:
        return pc.scalar(True)

    def visit_false(self) -> pc.Expression:
        return pc.scalar(False)

    def visit_not(self, child_result: pc.Expression) -> pc.Expression:
        msg = "conditions must be rewritten without NOT first"
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
            # Arrow's set lookup compares bits, and 0.0 would not match -0.0.
            equal = [self._column(term) == self._scalar(term, value) for value in literals]
            return functools.reduce(lambda a, b: a | b, equal)
        return self._column(term).isin(pa.array(literals, arrow_type(term.ref().field.field_type)))

    def visit_not_in(self, term: BoundTerm, literals: set[Any]) -> pc.Expression:
        # Arrow's set lookup is false for null, so its negation would be true.
        return ~self.visit_in(term, literals) & self._column(term).is_valid()


class _ToStatistics(_ToArrow):
    """Keeps only predicates that Arrow decides correctly by minimum, maximum and null count; the others become true."""

    def __init__(self, columns: Mapping[int, pa.Field]) -> None:
        super().__init__({field_id: pc.field(column.name) for field_id, column in columns.items()})
        self._columns = columns

    def _has_statistics(self, term: BoundTerm) -> bool:
        field = term.ref().field
        column = self._columns.get(field.field_id)
        return column is not None and column.type.equals(arrow_field(field).type)

    def _if_decidable(self, term: BoundTerm, visit_name: str, *values: Any) -> pc.Expression:
        if not self._has_statistics(term):
            return self.visit_true()
        expression: pc.Expression = getattr(super(), visit_name)(term, *values)
        return expression

    def visit_is_null(self, term: BoundTerm) -> pc.Expression:
        return self._if_decidable(term, "visit_is_null")

    def visit_not_null(self, term: BoundTerm) -> pc.Expression:
        return self._if_decidable(term, "visit_not_null")

    def visit_equal(self, term: BoundTerm, literal: Literal[Any]) -> pc.Expression:
        return self._if_decidable(term, "visit_equal", literal)

    def visit_less_than(self, term: BoundTerm, literal: Literal[Any]) -> pc.Expression:
        return self._if_decidable(term, "visit_less_than", literal)

    def visit_less_than_or_equal(self, term: BoundTerm, literal: Literal[Any]) -> pc.Expression:
        return self._if_decidable(term, "visit_less_than_or_equal", literal)

    def visit_greater_than(self, term: BoundTerm, literal: Literal[Any]) -> pc.Expression:
        return self._if_decidable(term, "visit_greater_than", literal)

    def visit_greater_than_or_equal(self, term: BoundTerm, literal: Literal[Any]) -> pc.Expression:
        return self._if_decidable(term, "visit_greater_than_or_equal", literal)

    def visit_in(self, term: BoundTerm, literals: set[Any]) -> pc.Expression:
        return self._if_decidable(term, "visit_in", literals)

    # Statistics exclude NaN, which Arrow ignores: a row group with 5.0 and NaN would count as all 5.0.
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
