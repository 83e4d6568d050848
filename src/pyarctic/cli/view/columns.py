"""Columns: the meaning of a value, from which both its text form and its JSON form follow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from pyarctic.cli.view.json_values import to_cell, to_json_value
from pyarctic.units import format_age, format_bytes, format_count, format_timestamp

Row = Mapping[str, Any]
WIDE_ONLY = 9
"""The priority of columns that are shown with `--wide` only."""
Kind = Literal["text", "id", "count", "bytes", "time", "state", "number", "json"]
Fit = Literal["cut", "middle", "wrap", "keep"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a frame."""

    name: str
    """The field in JSON and CSV."""
    header: str
    """The header in tables."""
    kind: Kind = "text"
    """`id` is a 64-bit number that becomes a string in JSON, because many JSON readers round it; `json` is text that
    contains a JSON document, which is embedded."""
    priority: int = 1
    """On a narrow terminal columns with the highest number are dropped first; 0 is always shown, 9 with `--wide` only."""
    identity: bool = False
    """Whether `--format name` prints this column."""
    prefix: str = ""
    """A common prefix of all values (the folder of the table), which tables leave out."""
    fit: Fit = "cut"
    """What happens to text that is too long for the terminal: cut at its end, cut in its middle (paths), wrapped
    (sentences), or kept. A mark shows where it was cut."""
    optional: bool = False
    """Whether tables leave the column out if it is empty in all rows."""

    @property
    def is_right_aligned(self) -> bool:
        return self.kind in ("count", "bytes", "number")

    @property
    def can_shrink(self) -> bool:
        return self.fit == "wrap" or (self.fit != "keep" and self.kind in ("text", "json"))

    def json_value(self, row: Row) -> Any:
        """The value for JSON."""
        value = row.get(self.name)
        if value is None:
            return None
        if self.kind == "json":
            return json.loads(value)
        return str(value) if self.kind == "id" else to_json_value(value)

    def text(self, row: Row, now: datetime | None) -> str:
        """The value as text for tables; with `now`, timestamps become ages."""
        value = row.get(self.name)
        if value is None:
            return ""
        if isinstance(value, int) and not isinstance(value, bool):
            if self.kind == "bytes":
                return format_bytes(value)
            if self.kind == "count":
                return format_count(value)
        if self.kind == "time" and isinstance(value, datetime):
            return format_age(value, now) if now is not None else format_timestamp(value)
        if isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
            return ", ".join(value)
        return to_cell(to_json_value(value)).removeprefix(self.prefix)
