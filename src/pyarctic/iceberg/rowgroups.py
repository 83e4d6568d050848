"""A condition on table columns as one on a Parquet file's columns, good enough to skip row groups by statistics."""

from __future__ import annotations

import pyarrow.dataset as ds
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    BoundLiteralPredicate,
    BoundPredicate,
    BoundSetPredicate,
    BoundUnaryPredicate,
    Or,
    UnboundPredicate,
)
from pyiceberg.expressions.visitors import BooleanExpressionVisitor, bind, visit
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

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
        self.used[field.field_id] = NestedField(field.field_id, at.field.name, field.field_type)
        match predicate:
            case BoundUnaryPredicate():
                return predicate.as_unbound(at.field.name)
            case BoundLiteralPredicate():
                return predicate.as_unbound(at.field.name, predicate.literal)
            case BoundSetPredicate():
                return predicate.as_unbound(at.field.name, predicate.literals)
        return AlwaysTrue()
