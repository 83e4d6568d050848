"""Parts of a condition: what it demands of some columns alone, and the only values that a column may have."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pyiceberg.expressions import AlwaysFalse, And, BooleanExpression, BoundEqualTo, BoundIn, Or
from pyiceberg.expressions.visitors import extract_field_ids
from pyiceberg.schema import Schema

from pyarctic.iceberg.predicate.conditions import ALWAYS_TRUE, bind_condition


def restrict_condition(schema: Schema, condition: BooleanExpression, field_ids: Collection[int]) -> BooleanExpression:
    """What a condition without NOT demands of some columns alone: it is true wherever the condition is true."""
    if isinstance(condition, And | Or):
        left, right = (restrict_condition(schema, part, field_ids) for part in (condition.left, condition.right))
        # Both simplify what is always true or always false.
        return And(left, right) if isinstance(condition, And) else Or(left, right)
    return condition if extract_field_ids(bind_condition(schema, condition)) <= set(field_ids) else ALWAYS_TRUE


def allowed_values(bound: BooleanExpression, field_id: int) -> set[Any] | None:
    """The only values of a column with which a bound condition without NOT can be true; None if they are not listed."""
    match bound:
        case And():
            parts = [values for part in (bound.left, bound.right) if (values := allowed_values(part, field_id)) is not None]
            return set.intersection(*parts) if parts else None
        case Or():
            left, right = allowed_values(bound.left, field_id), allowed_values(bound.right, field_id)
            return None if left is None or right is None else left | right
        case AlwaysFalse():
            return set()
        case BoundEqualTo() if bound.term.ref().field.field_id == field_id:
            return {bound.literal.value}
        case BoundIn() if bound.term.ref().field.field_id == field_id:
            return set(bound.value_set)
    return None
