"""The one port to stdout. Commands hand over frames; how they look is decided here.

Machines (json, csv, name) get a stream that never holds more than a row at a time, raw numbers and RFC 3339 instants.
People (table, markdown) get units, ages, at most the asked-for number of rows, and only the columns that fit; what was
left off is told on stderr.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any

from pyarctic.cli.session import Format, note
from pyarctic.cli.view import render_table as people
from pyarctic.cli.view.columns import WIDE_ONLY, Column, Row
from pyarctic.cli.view.json_values import cell, jsonable
from pyarctic.units import format_count

__all__ = ["Column", "Frame", "ReaderGone", "Section", "emit", "emit_details"]

PEOPLE_LIMIT = 50


class ReaderGone(Exception):
    """Whoever read our stdout has closed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Rows to show, with what is known about them."""

    columns: Sequence[Column]
    rows: Iterable[Row]
    noun: str | None = None
    """What the rows are, in the plural; names them in the closing line."""
    total: int | None = None
    """How many rows there are in all; None when only reading to the end would tell."""
    remark: str | None = None
    """Ends the closing line: `24 of 310 files; 3 with deletes`."""
    document: Any = None
    """What `--json` writes instead of the rows, when there is but one object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One titled table of a page about a single object."""

    title: str | None
    frame: Frame
    plain: bool = False
    """Without headings: what the columns are is plain to see."""


def emit(
    frame: Frame, *, output_format: Format, wide: bool = False, absolute: bool = False, limit: int | None = None
) -> None:
    """Write the frame. `limit` None means 50 rows for people and all for machines, 0 means all."""
    for_people = output_format in (Format.TABLE, Format.MARKDOWN)
    most = limit if limit is not None else PEOPLE_LIMIT if for_people else 0
    rows = _Counted(frame.rows, most)
    if output_format is Format.JSON:
        _write_json(frame, rows)
    elif output_format is Format.CSV:
        _write_csv(frame.columns, rows)
    elif output_format is Format.NAME:
        _write_names(frame.columns, rows)
    else:
        held = list(rows)
        now = None if absolute else datetime.now(UTC)
        if output_format is Format.MARKDOWN:
            _write(people.markdown(frame.columns, held, now))
        elif held:
            _write_table(frame.columns, held, now, wide=wide)
    _flush()
    _close(frame, rows, for_people=output_format is Format.TABLE, limited=limit is not None)


def emit_details(
    document: Mapping[str, Any],
    sections: Sequence[Section],
    *,
    output_format: Format,
    absolute: bool,
    wide: bool = True,
) -> None:
    """Write a page about one object: sections for people, the document for machines."""
    if output_format is Format.JSON:
        _write(json.dumps(jsonable(document), ensure_ascii=_ascii(), indent=2) + "\n")
    elif output_format is Format.NAME:
        _write(f"{document.get('name') or document['table']}\n")
    elif output_format is Format.CSV:
        columns = (Column("field", "field"), Column("value", "value"))
        _write_csv(columns, ({"field": key, "value": value} for key, value in _flat(document)))
    else:
        now = None if absolute else datetime.now(UTC)
        for place, section in enumerate(sections):
            rows = list(section.frame.rows)
            if not rows:
                continue
            if place:
                _write("\n")
            if output_format is Format.MARKDOWN:
                heading = f"## {section.title}\n\n" if section.title else ""
                _write(heading + people.markdown(section.frame.columns, rows, now))
            else:
                _write(people.heading(section.title) if section.title else "")
                header = section.title is not None and not section.plain
                _write_table(section.frame.columns, rows, now, wide=wide, header=header)
    _flush()


class _Counted:
    """Rows up to a limit, remembering how many went by and whether more were left."""

    def __init__(self, rows: Iterable[Row], most: int) -> None:
        self._rows = iter(rows)
        self._most = most
        self.seen = 0
        self.more = False

    def __iter__(self) -> Iterator[Row]:
        for row in islice(self._rows, self._most) if self._most else self._rows:
            self.seen += 1
            yield row
        if self._most:
            self.more = next(self._rows, None) is not None


def _close(frame: Frame, rows: _Counted, *, for_people: bool, limited: bool) -> None:
    """The last line on stderr: counts, and what was left off. Machines hear only of rows they did not ask to lose."""
    if frame.noun is None or not (for_people or (rows.more and not limited)):
        return
    total = frame.total
    if total is None and not rows.more:
        total = rows.seen
    shown = format_count(rows.seen)
    noun = frame.noun.removesuffix("s") if total == 1 else frame.noun
    if total is None:
        text = f"the first {shown} {noun}" if rows.seen > 1 else f"the first {noun.removesuffix('s')}"
    elif total == rows.seen:
        text = f"{shown if total else 'no'} {noun}"
    else:
        text = f"{shown} of {format_count(total)} {noun}"
    parts = [text, frame.remark, "--limit 0 shows all" if rows.more else None]
    note("; ".join(part for part in parts if part))


def _write_table(
    columns: Sequence[Column], rows: Sequence[Row], now: datetime | None, *, wide: bool, header: bool = True
) -> None:
    drawn = people.table(columns, rows, now, wide=wide, header=header)
    _write(drawn.text)
    if drawn.dropped:
        named = [column.header for column in drawn.dropped if column.priority < WIDE_ONLY]
        rare = len(drawn.dropped) - len(named)
        if rare:
            named.append(f"{rare} more" if named else str(rare))
        note(f"columns left out: {', '.join(named)}; --wide shows all")


def _write_json(frame: Frame, rows: Iterable[Row]) -> None:
    if frame.document is not None:
        _write(json.dumps(jsonable(frame.document), ensure_ascii=_ascii(), indent=2) + "\n")
        return
    between = "["
    for row in rows:
        shown = {column.name: column.machine(row) for column in frame.columns}
        _write(between + "\n  " + json.dumps(shown, ensure_ascii=_ascii()))
        between = ","
    _write("[]\n" if between == "[" else "\n]\n")


def _write_csv(columns: Sequence[Column], rows: Iterable[Row]) -> None:
    line = io.StringIO()
    writer = csv.writer(line, lineterminator="\n")
    names: Iterable[Sequence[str]] = [[column.name for column in columns]]
    for record in chain(names, ([cell(column.machine(row)) for column in columns] for row in rows)):
        writer.writerow(record)
        _write(line.getvalue())
        line.seek(0)
        line.truncate()


def _write_names(columns: Sequence[Column], rows: Iterable[Row]) -> None:
    named = next((column for column in columns if column.identity), columns[0])
    for row in rows:
        _write(cell(named.machine(row)) + "\n")


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """A document as `field, value` pairs: `properties.owner`, `schema.0.name`."""
    inner: Iterable[tuple[Any, Any]] | None = None
    if isinstance(value, Mapping):
        inner = value.items()
    elif isinstance(value, list | tuple):
        inner = enumerate(value)
    if inner is None:
        yield path, value
        return
    for key, part in inner:
        yield from _flat(part, f"{path}.{key}" if path else str(key))


def _ascii() -> bool:
    """Whether stdout cannot carry all of Unicode, so that JSON has to escape it."""
    return "utf" not in (getattr(sys.stdout, "encoding", None) or "").lower()


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
    except BrokenPipeError as error:
        raise ReaderGone from error


def _flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise ReaderGone from error
