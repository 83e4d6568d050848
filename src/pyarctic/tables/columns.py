"""A schema from what people type: names and types as text."""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from pyarctic.errors import UsageError
from pyarctic.tables.evolving import as_type


def schema_of(columns: Sequence[tuple[str, str, bool]]) -> Schema:
    """A schema of columns: name, type as `long` or `decimal(10, 2)`, and whether it is required."""
    names = [name for name, _, _ in columns]
    if doubled := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"column {doubled!r} is there twice", hint="Give one of them another name.", column=doubled)
    return Schema(
        *(
            NestedField(number, name, as_type(type_), required=required)
            for number, (name, type_, required) in enumerate(columns, 1)
        )
    )
