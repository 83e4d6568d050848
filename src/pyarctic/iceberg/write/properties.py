"""Table properties that are numbers."""

from __future__ import annotations

from collections.abc import Mapping

from pyarctic.errors import UsageError


def positive_property(properties: Mapping[str, str], key: str, default: int) -> int:
    """The integer value of a property, which must be greater than zero."""
    value = non_negative_property(properties, key, default)
    if value <= 0:
        raise UsageError(f"table property {key} = {value} must be positive", hint=f"The default is {default}.")
    return value


def non_negative_property(properties: Mapping[str, str], key: str, default: int) -> int:
    """The integer value of a property, which must be zero or greater."""
    value = parse_integer(key, properties[key]) if key in properties else default
    if value < 0:
        raise UsageError(f"table property {key} = {value} must not be negative", hint=f"The default is {default}.")
    return value


def parse_integer(key: str, text: str) -> int:
    """Parse the value of a property."""
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"table property {key} = {text!r} is not a whole number") from None
