"""Numbers among a table's properties, which are all text."""

from __future__ import annotations

from collections.abc import Mapping

from pyarctic.errors import UsageError


def positive_property(properties: Mapping[str, str], key: str, default: int) -> int:
    """A whole number above zero."""
    value = whole_property(properties, key, default)
    if value <= 0:
        raise UsageError(f"table property {key} = {value} must be positive", hint=f"The default is {default}.")
    return value


def whole_property(properties: Mapping[str, str], key: str, default: int) -> int:
    """A whole number, zero or above."""
    value = number(key, properties[key]) if key in properties else default
    if value < 0:
        raise UsageError(f"table property {key} = {value} must not be negative", hint=f"The default is {default}.")
    return value


def number(key: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"table property {key} = {text!r} is not a whole number") from None
