"""Parse compound arguments: `key=value` pairs, and columns such as `id long required`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pyarctic.errors import UsageError

_COLUMN = re.compile(r'\s*(?:"(?P<quoted>[^"]+)"|(?P<name>\S+))\s+(?P<type>.+?)(?P<required>\s+required)?\s*', re.IGNORECASE)


def parse_pairs(words: Sequence[str], example: str) -> dict[str, str]:
    """Parse `key=value` words into a mapping; duplicate keys are an error."""
    pairs: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        key = key.strip()
        if not equals or not key:
            raise UsageError(f"{word!r} is not of the form key=value", hint=f"Write it as: {example}.")
        if key in pairs:
            raise UsageError(f"{key!r} is given twice", hint="Give it once.")
        pairs[key] = value.strip()
    return pairs


def parse_column(text: str) -> tuple[str, str, bool]:
    """Parse `name type [required]` into the name, the type and whether the column is required."""
    match = _COLUMN.fullmatch(text)
    if match is None:
        hint = 'Write name and type: "id long required", "price decimal(10, 2)".'
        raise UsageError(f"{text!r} is not a column definition", hint=hint)
    name = match["quoted"] or match["name"]
    return name, match["type"], match["required"] is not None


def split_names(text: str | None) -> list[str]:
    """Split a comma-separated list of names."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def refuse_unknown_properties(properties: dict[str, str], *, force: bool) -> None:
    """Refuse properties that look like PyArctic's but are unknown, unless `force`: a misspelt name would be ignored."""
    from pyarctic.config.table_properties import unknown_properties

    if force:
        return
    for name, nearest in unknown_properties(properties).items():
        question = f"Did you mean {nearest}? " if nearest else ""
        hint = f"{question}An unknown property has no effect; --force sets it nevertheless."
        raise UsageError(f"table property {name} is not known", hint=hint, key=name)
