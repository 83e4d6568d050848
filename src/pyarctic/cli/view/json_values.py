"""Conversion of values to JSON: the rules of `--json`."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from typing import Any

from pyarctic.units import format_timestamp


def to_json_value(value: Any) -> Any:
    """Convert to JSON types. Decimals become strings, because JSON readers turn them into floats; bytes become base64."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)  # JSON has no NaN or infinity
        case datetime():
            # A timestamp without time zone gets no Z.
            return value.isoformat() if value.tzinfo is None else format_timestamp(value)
        case date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(bytes(value)).decode("ascii")
        case Mapping():
            return {str(key): to_json_value(part) for key, part in value.items()}
        case list() | tuple():
            return [to_json_value(part) for part in value]
        case _:
            return str(value)


def to_cell(value: Any) -> str:
    """Format a result of `to_json_value` as the text of one cell."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)
