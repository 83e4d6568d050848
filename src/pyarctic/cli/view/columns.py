"""Columns: what a value means, told once, so that people and machines each get their own form of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from pyarctic.cli.view.json_values import cell, jsonable
from pyarctic.units import format_age, format_bytes, format_count, format_instant

Row = Mapping[str, Any]
WIDE_ONLY = 9
"""The priority of columns that few people want to see."""
Kind = Literal["text", "id", "count", "bytes", "time", "state", "number", "json"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a frame."""

    name: str
    """The field in JSON and CSV."""
    header: str
    """The heading for people."""
    kind: Kind = "text"
    """`id` is a 64-bit number that machines get as text, since JSON readers round it; `json` is text that
    holds a document, which machines get as such."""
    priority: int = 1
    """On a narrow terminal columns with the highest number go first; 0 always stays, 9 comes with `--wide` only."""
    identity: bool = False
    """What `--format name` prints."""
    prefix: str = ""
    """The beginning all values share (the folder of the table), which people need not read on every line."""

    @property
    def right(self) -> bool:
        return self.kind in ("count", "bytes", "number")

    def machine(self, row: Row) -> Any:
        """The value for JSON."""
        value = row.get(self.name)
        if value is None:
            return None
        if self.kind == "json":
            return json.loads(value)
        return str(value) if self.kind == "id" else jsonable(value)

    def human(self, row: Row, now: datetime | None) -> str:
        """The value for people; with `now` instants become ages."""
        value = row.get(self.name)
        if value is None:
            return ""
        if isinstance(value, int) and not isinstance(value, bool):
            if self.kind == "bytes":
                return format_bytes(value)
            if self.kind == "count":
                return format_count(value)
        if self.kind == "time" and isinstance(value, datetime):
            return format_age(value, now) if now is not None else format_instant(value)
        if isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
            return ", ".join(value)
        return cell(jsonable(value)).removeprefix(self.prefix)
