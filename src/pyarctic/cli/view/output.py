"""The only module that writes to stdout. Commands pass frames; their format is decided here.

Machine-readable formats (json, csv, name) are streamed row by row, with raw numbers and RFC 3339 timestamps. Formats for
people (table, markdown) show units and ages, a limited number of rows, and only the columns that fit; a note on stderr
says what was left out.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any

from pyarctic.cli.session import Format, note
from pyarctic.cli.view.columns import WIDE_ONLY, Column, Row
from pyarctic.cli.view.json_values import to_cell, to_json_value
from pyarctic.cli.view.render_table import render_heading, render_markdown, render_table
from pyarctic.units import format_count, format_quantity

__all__ = ["Column", "Frame", "ReaderClosed", "Section", "emit", "emit_details", "write_heading"]

DEFAULT_ROW_LIMIT = 50
_MAX_COLUMNS_NAMED = 6


class ReaderClosed(Exception):
    """The reader of our stdout has closed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Rows to print, and how."""

    columns: Sequence[Column]
    rows: Iterable[Row]
    noun: str | None = None
    """What the rows are, in the plural; used in the closing note."""
    total: int | None = None
    """Total number of rows; None if it is not known before all rows are read."""
    remark: str | None = None
    """Appended to the closing note: `24 of 310 files; 3 with deletes`."""
    document: Any = None
    """What `--json` writes instead of the rows, if there is only one object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One titled table of a page about a single object."""

    title: str | None
    frame: Frame
    plain: bool = False
    """Without column headers."""


def emit(
    frame: Frame, *, output_format: Format, wide: bool = False, absolute: bool = False, limit: int | None = None
) -> None:
    """Write the frame. `limit` None means 50 rows for tables and all for machine-readable formats; 0 means all."""
    for_people = output_format in (Format.TABLE, Format.MARKDOWN)
    max_rows = limit if limit is not None else DEFAULT_ROW_LIMIT if for_people else 0
    rows = _CountedRows(frame.rows, max_rows)
    missing = _Missing()
    if output_format is Format.JSON:
        _write_json(frame, rows)
    elif output_format is Format.CSV:
        _write_csv(frame.columns, rows)
    elif output_format is Format.NAME:
        _write_names(frame.columns, rows)
    else:
        row_list = list(rows)
        now = None if absolute else datetime.now(UTC)
        if output_format is Format.MARKDOWN:
            _write(render_markdown(frame.columns, row_list, now))
        elif row_list:
            _write_table(frame.columns, row_list, now, missing, wide=wide)
    _flush()
    missing.tell()
    _note_row_counts(frame, rows, for_people=output_format is Format.TABLE, limited=limit is not None)


def emit_details(
    document: Mapping[str, Any],
    sections: Sequence[Section],
    *,
    output_format: Format,
    absolute: bool,
    wide: bool = False,
) -> None:
    """Write a page about one object: sections as tables, or the document for machine-readable formats."""
    missing = _Missing(is_page=True)
    if output_format is Format.JSON:
        _write(json.dumps(to_json_value(document), ensure_ascii=_needs_ascii(), indent=2) + "\n")
    elif output_format is Format.NAME:
        _write(f"{document.get('name') or document['table']}\n")
    elif output_format is Format.CSV:
        columns = (Column("field", "field"), Column("value", "value"))
        _write_csv(columns, ({"field": key, "value": value} for key, value in _flatten(document)))
    else:
        now = None if absolute else datetime.now(UTC)
        for index, section in enumerate(sections):
            rows = list(section.frame.rows)
            if not rows:
                continue
            if index:
                _write("\n")
            if output_format is Format.MARKDOWN:
                heading = f"## {section.title}\n\n" if section.title else ""
                _write(heading + render_markdown(section.frame.columns, rows, now))
            else:
                _write(render_heading(section.title) if section.title else "")
                header = section.title is not None and not section.plain
                _write_table(section.frame.columns, rows, now, missing, wide=wide, header=header)
    _flush()
    missing.tell()


def emit_lines(documents: Iterable[Mapping[str, Any]]) -> None:
    """Write each as a line of JSON, at once: somebody may wait for it."""
    for document in documents:
        _write(json.dumps(to_json_value(document), ensure_ascii=_needs_ascii()) + "\n")
        _flush()


def write_heading(title: str, *, markdown: bool = False) -> None:
    """Write the title of what follows on the page, or an empty line."""
    _write(f"## {title}\n\n" if markdown else render_heading(title) if title else "\n")


class _CountedRows:
    """Rows up to a limit; records how many were read and whether there are more."""

    def __init__(self, rows: Iterable[Row], max_rows: int) -> None:
        self._rows = iter(rows)
        self._max_rows = max_rows
        self.count = 0
        self.has_more = False

    def __iter__(self) -> Iterator[Row]:
        for row in islice(self._rows, self._max_rows) if self._max_rows else self._rows:
            self.count += 1
            yield row
        if self._max_rows:
            self.has_more = next(self._rows, None) is not None


def _note_row_counts(frame: Frame, rows: _CountedRows, *, for_people: bool, limited: bool) -> None:
    """Write the closing note on stderr: row counts, and what was left out.

    With machine-readable formats only if rows were left out that no `--limit` excluded.
    """
    if frame.noun is None or not (for_people or (rows.has_more and not limited)):
        return
    total = frame.total
    if total is None and not rows.has_more:
        total = rows.count
    count = format_count(rows.count)
    noun = frame.noun.removesuffix("s") if total == 1 else frame.noun
    if total is None:
        text = f"the first {count} {noun}" if rows.count > 1 else f"the first {noun.removesuffix('s')}"
    elif total == rows.count:
        text = f"{count if total else 'no'} {noun}"
    else:
        text = f"{count} of {format_count(total)} {noun}"
    parts = [text, frame.remark, "--limit 0 shows all" if rows.has_more else None]
    note("; ".join(part for part in parts if part))


def _write_table(
    columns: Sequence[Column],
    rows: Sequence[Row],
    now: datetime | None,
    missing: _Missing,
    *,
    wide: bool,
    header: bool = True,
) -> None:
    table = render_table(columns, rows, now, wide=wide, header=header)
    _write(table.text)
    missing.shortened |= table.shortened
    missing.headers += [column.header for column in table.dropped if column.priority < WIDE_ONLY]
    missing.others += sum(column.priority >= WIDE_ONLY for column in table.dropped)


@dataclass(slots=True)
class _Missing:
    """What tables do not show."""

    headers: list[str] = field(default_factory=list)
    """The columns that did not fit."""
    others: int = 0
    """The number of columns that are shown with `--wide` only."""
    shortened: bool = False
    is_page: bool = False
    """Whether the tables are sections of a page, for which columns that only `--wide` shows are not worth a note."""

    def tell(self) -> None:
        """Write a note about it."""
        headers = list(dict.fromkeys(self.headers))
        if headers:
            more = len(headers) - _MAX_COLUMNS_NAMED
            names = ", ".join(headers[:_MAX_COLUMNS_NAMED]) + (f" and {more} more" if more > 0 else "")
            note(f"columns left out: {names}; --wide shows all")
        elif self.others and not self.is_page:
            note(f"{format_quantity(self.others, 'more column')} with --wide")
        elif self.shortened:
            note("long values are shortened; --wide shows them in full")


def _write_json(frame: Frame, rows: Iterable[Row]) -> None:
    if frame.document is not None:
        _write(json.dumps(to_json_value(frame.document), ensure_ascii=_needs_ascii(), indent=2) + "\n")
        return
    separator = "["
    for row in rows:
        record = {column.name: column.json_value(row) for column in frame.columns}
        _write(separator + "\n  " + json.dumps(record, ensure_ascii=_needs_ascii()))
        separator = ","
    _write("[]\n" if separator == "[" else "\n]\n")


def _write_csv(columns: Sequence[Column], rows: Iterable[Row]) -> None:
    line = io.StringIO()
    writer = csv.writer(line, lineterminator="\n")
    names: Iterable[Sequence[str]] = [[column.name for column in columns]]
    for record in chain(names, ([to_cell(column.json_value(row)) for column in columns] for row in rows)):
        writer.writerow(record)
        _write(line.getvalue())
        line.seek(0)
        line.truncate()


def _write_names(columns: Sequence[Column], rows: Iterable[Row]) -> None:
    identity = next((column for column in columns if column.identity), columns[0])
    for row in rows:
        _write(to_cell(identity.json_value(row)) + "\n")


def _flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a document as `field, value` pairs: `properties.owner`, `schema.0.name`."""
    inner: Iterable[tuple[Any, Any]] | None = None
    if isinstance(value, Mapping):
        inner = value.items()
    elif isinstance(value, list | tuple):
        inner = enumerate(value)
    if inner is None:
        yield path, value
        return
    for key, part in inner:
        yield from _flatten(part, f"{path}.{key}" if path else str(key))


def _needs_ascii() -> bool:
    """Whether stdout cannot encode all of Unicode, so that JSON has to escape it."""
    return "utf" not in (getattr(sys.stdout, "encoding", None) or "").lower()


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
    except BrokenPipeError as error:
        raise ReaderClosed from error


def _flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise ReaderClosed from error
