"""A condition on table columns as Arrow wants it: exact for rows, and good enough for row groups to skip them by
statistics."""

from __future__ import annotations

import pyarrow.dataset as ds
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    BoundIsNaN,
    BoundLiteralPredicate,
    BoundNotEqualTo,
    BoundNotIn,
    BoundNotNull,
    BoundPredicate,
    BoundSetPredicate,
    BoundUnaryPredicate,
    Or,
    UnboundPredicate,
)
from pyiceberg.expressions.visitors import BooleanExpressionVisitor, bind, visit
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType, NestedField

from pyarctic.iceberg.datafiles import OpenFile
from pyarctic.iceberg.projection import arrow_type, fields_by_id


def row_group_condition(file: OpenFile, bound: BooleanExpression) -> ds.Expression | None:
    """None when the statistics of this file cannot help. `bound` has no NOT, so that "unknown" may become "true"."""
    translator = _ToFileColumns(file)
    translated = visit(bound, translator)
    if isinstance(translated, AlwaysTrue):
        return None
    schema = Schema(*translator.used.values())
    return expression_to_pyarrow(bind(schema, translated, case_sensitive=True), schema)


def row_condition(bound: BooleanExpression, schema: Schema) -> ds.Expression:
    """The condition for rows of the table. `bound` has no NOT."""
    return expression_to_pyarrow(visit(bound, _NotInOfSql()), schema)


class _NotInOfSql(BooleanExpressionVisitor[BooleanExpression]):
    """For PyIceberg's translation null NOT IN (…) is true; for SQL it is unknown."""

    def visit_true(self) -> BooleanExpression:
        return AlwaysTrue()

    def visit_false(self) -> BooleanExpression:
        return AlwaysFalse()

    def visit_not(self, child_result: BooleanExpression) -> BooleanExpression:
        msg = "conditions are rewritten without NOT before they come here"
        raise AssertionError(msg)

    def visit_and(self, left_result: BooleanExpression, right_result: BooleanExpression) -> BooleanExpression:
        return And(left_result, right_result)

    def visit_or(self, left_result: BooleanExpression, right_result: BooleanExpression) -> BooleanExpression:
        return Or(left_result, right_result)

    def visit_unbound_predicate(self, predicate: UnboundPredicate) -> BooleanExpression:
        msg = f"not bound to a schema: {predicate}"
        raise TypeError(msg)

    def visit_bound_predicate(self, predicate: BoundPredicate) -> BooleanExpression:
        if isinstance(predicate, BoundNotIn):
            return And(BoundNotNull(predicate.term), predicate)
        return predicate


class _ToFileColumns(BooleanExpressionVisitor[BooleanExpression]):
    """Predicates on top-level columns that the file holds in the table's own type, under the file's names."""

    def __init__(self, file: OpenFile) -> None:
        self._found = fields_by_id(file.schema, file.names)
        self.used: dict[int, NestedField] = {}

    def visit_true(self) -> BooleanExpression:
        return AlwaysTrue()

    def visit_false(self) -> BooleanExpression:
        return AlwaysFalse()

    def visit_not(self, child_result: BooleanExpression) -> BooleanExpression:
        return AlwaysTrue()

    def visit_and(self, left_result: BooleanExpression, right_result: BooleanExpression) -> BooleanExpression:
        return And(left_result, right_result)

    def visit_or(self, left_result: BooleanExpression, right_result: BooleanExpression) -> BooleanExpression:
        return Or(left_result, right_result)

    def visit_unbound_predicate(self, predicate: UnboundPredicate) -> BooleanExpression:
        msg = f"not bound to a schema: {predicate}"
        raise TypeError(msg)

    def visit_bound_predicate(self, predicate: BoundPredicate) -> BooleanExpression:
        field = predicate.term.ref().field
        at = self._found.get(field.field_id)
        if at is None or "." in at.field.name or not at.field.type.equals(arrow_type(field.field_type)):
            return AlwaysTrue()
        # Parquet's statistics leave NaN out, and Arrow forgets that: a group of 5.0 and NaN would count as all 5.0.
        if isinstance(field.field_type, FloatType | DoubleType) and isinstance(
            predicate, BoundIsNaN | BoundNotEqualTo | BoundNotIn
        ):
            return AlwaysTrue()
        self.used[field.field_id] = NestedField(field.field_id, at.field.name, field.field_type)
        match predicate:
            case BoundUnaryPredicate():
                return predicate.as_unbound(at.field.name)
            case BoundLiteralPredicate():
                return predicate.as_unbound(at.field.name, predicate.literal)
            case BoundSetPredicate():
                return predicate.as_unbound(at.field.name, predicate.literals)
        return AlwaysTrue()
