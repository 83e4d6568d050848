"""What is wrong with a CSV file or JSON lines: column, line and value instead of Arrow's words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from pyarctic.errors import UsageError
from pyarctic.units import format_quantity

_CSV_VALUE = re.compile(r"In CSV column #(?P<column>\d+): (?:Row #(?P<line>\d+): )?(?P<reason>.*)")
_CSV_WIDTH = re.compile(
    r"CSV parse error: (?:Row #(?P<line>\d+): )?Expected (?P<expected>\d+) columns, got (?P<got>\d+)(?:: (?P<text>.*))?"
)
_JSON_ROW = re.compile(r"JSON parse error: (?P<reason>.*?)\.? in row (?P<row>\d+)")
_JSON_TYPE = re.compile(r"Column\(/?(?P<column>[^)]*)\) changed from (?P<expected>\w+) to (?P<got>\w+)")
_QUOTED = re.compile(r"'(?P<value>.*)'")
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}


class BadText(ValueError):
    """Text that cannot be read; its message tells where and why."""


def check_separator(header: Sequence[str], known: Sequence[str], name: str) -> None:
    """Refuse a CSV file whose header looks like columns that something else than commas separates."""
    if len(header) != 1 or header[0] in known:
        return
    for separator, word in _SEPARATORS.items():
        if separator in header[0]:
            raise UsageError(
                f"{name}: its columns are separated by {word}, not by commas: {header[0]!r}",
                hint="Nothing was written. Save it as CSV with commas.",
                file=name,
            )


def explain_csv_error(text: str, header: Sequence[str], types: Mapping[str, str]) -> str:
    """An error of Arrow's CSV reader in our words."""
    if match := _CSV_VALUE.match(text):
        index = int(match["column"])
        column = header[index] if index < len(header) else None
        value = _QUOTED.search(match["reason"])
        line = f"line {match['line']}, " if match["line"] else ""
        reason = match["reason"]
        if value is not None:
            kind = None if column is None else types.get(column)
            reason = f"{value['value']!r} is not of type {kind}" if kind else f"{value['value']!r} cannot be read"
        return f"{line}column {index + 1 if column is None else repr(column)}: {reason}"
    if match := _CSV_WIDTH.match(text):
        line = f"line {match['line']}" if match["line"] else "a line"
        return f"{line} has {format_quantity(int(match['got']), 'value')} instead of {match['expected']}" + (
            f": {match['text']}" if match["text"] else ""
        )
    if "Empty CSV file" in text:
        return "it is empty; its first line must name the columns"
    return text


def explain_json_error(text: str) -> str:
    """An error of Arrow's JSON reader in our words. It counts rows from 0."""
    if not (match := _JSON_ROW.match(text)):
        return text
    reason = match["reason"]
    if changed := _JSON_TYPE.match(reason):
        column, expected, got = changed["column"], changed["expected"], changed["got"]
        reason = f"column {column!r}: a {got}, not a {expected}" if column else f"an {got} instead of an object"
    return f"line {int(match['row']) + 1}: {reason[:1].lower()}{reason[1:]}"


def first_bad_value(column: pa.Array, parse: Callable[[pa.Array], pa.Array]) -> tuple[int, str] | None:
    """The index and the text of the first value that cannot be parsed."""
    for index in range(len(column)):
        try:
            parse(column.slice(index, 1))
        except (pa.ArrowException, ValueError):
            return index, str(column[index].as_py())
    return None
