"""Words that stand for more than one thing: `key=value`, and columns such as `id long required`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pyarctic.cli.session import note
from pyarctic.errors import UsageError

_COLUMN = re.compile(r'\s*(?:"(?P<quoted>[^"]+)"|(?P<name>\S+))\s+(?P<type>.+?)(?P<required>\s+required)?\s*', re.IGNORECASE)


def pairs(words: Sequence[str], example: str) -> dict[str, str]:
    """`key=value` words as a mapping; a key may be named once."""
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        key = key.strip()
        if not equals or not key:
            raise UsageError(f"{word!r} is not of the form key=value", hint=f"write it as {example}")
        if key in found:
            raise UsageError(f"{key!r} is given twice", hint="name it once")
        found[key] = value.strip()
    return found


def column(text: str) -> tuple[str, str, bool]:
    """A column as people write it: its name, its type, and whether it is required."""
    understood = _COLUMN.fullmatch(text)
    if understood is None:
        hint = 'write name and type: "id long required", "price decimal(10, 2)"'
        raise UsageError(f"{text!r} is not a column", hint=hint)
    name = understood["quoted"] or understood["name"]
    return name, understood["type"], understood["required"] is not None


def names(text: str | None) -> list[str]:
    """Names with commas between them."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def note_unknown_properties(properties: dict[str, str]) -> None:
    """Say which properties look like ours and are not: a misspelt name does nothing, silently."""
    from pyarctic.config.table_properties import unknown_properties

    for name, nearest in unknown_properties(properties).items():
        note(f"table property {name} is not known" + (f"; did you mean {nearest}?" if nearest else ""))
