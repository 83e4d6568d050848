"""Any value a table can hold, as JSON: the rules of `--json` in one function."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from typing import Any

from pyarctic.units import format_instant


def jsonable(value: Any) -> Any:
    """The value in JSON's own types. Decimals are text, since JSON readers make floats of them; bytes are base64."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)  # JSON has no NaN and no infinity
        case datetime():
            # A timestamp without zone is not an instant, so it gets no Z.
            return value.isoformat() if value.tzinfo is None else format_instant(value)
        case date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(bytes(value)).decode("ascii")
        case Mapping():
            return {str(key): jsonable(part) for key, part in value.items()}
        case list() | tuple():
            return [jsonable(part) for part in value]
        case _:
            return str(value)


def cell(value: Any) -> str:
    """A value that went through `jsonable`, as the text of one cell."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)
