"""Render tables for terminals: no vertical lines, right-aligned numbers, columns that fit. Rich is imported lazily."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import filterfalse
from typing import TYPE_CHECKING, Literal

from pyarctic.cli.view.columns import WIDE_ONLY, Column, Row
from pyarctic.cli.view.layout import fit_columns, shorten, terminal_width, total_width

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

STATES = {
    "ok": ("✓", "+", "green"),
    "warn": ("!", "!", "yellow"),
    "fault": ("✗", "x", "bold red"),
    "note": ("·", "-", ""),
    "warning": ("!", "!", "yellow"),
    "damage": ("✗", "x", "bold red"),
}
"""The glyph, the ASCII glyph and the color of each state."""


@dataclass(frozen=True, slots=True)
class RenderedTable:
    """A rendered table, and what is missing in it."""

    text: str
    dropped: tuple[Column, ...]
    """Columns that do not fit, or are shown with `--wide` only."""
    shortened: bool
    """Whether a value is shortened."""


def render_table(
    columns: Sequence[Column], rows: Sequence[Row], now: datetime | None, *, wide: bool, header: bool
) -> RenderedTable:
    """Render the rows; unless `wide`, long texts are shortened and the least important columns dropped to fit the
    terminal."""
    cells = {column.name: [_cell_text(column, row, now) for row in rows] for column in columns}
    shown = _without_empty(columns, cells)
    candidates = [column for column in shown if wide or column.priority < WIDE_ONLY]
    needed = {column.name: _column_width(column.header if header else "", cells[column.name]) for column in candidates}
    widths = fit_columns(candidates, needed, None if wide else terminal_width(sys.stdout))
    kept = [column for column in candidates if column.name in widths]
    fitted = {column.name: [_fit(text, column, widths[column.name]) for text in cells[column.name]] for column in kept}
    return RenderedTable(
        _draw(kept, rows, fitted, widths, header=header),
        dropped=tuple(filterfalse(kept.__contains__, shown)),
        shortened=any(texts != cells[name] for name, texts in fitted.items()),
    )


def _without_empty(columns: Sequence[Column], cells: Mapping[str, Sequence[str]]) -> list[Column]:
    return [column for column in columns if not column.optional or any(cells[column.name])]


def _draw(
    columns: Sequence[Column],
    rows: Sequence[Row],
    texts: Mapping[str, Sequence[str]],
    widths: Mapping[str, int],
    *,
    header: bool,
) -> str:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_header=header, show_edge=False, pad_edge=False, header_style="bold")
    for column in columns:
        width = widths[column.name]
        justify: Literal["left", "right"] = "right" if column.is_right_aligned else "left"
        table.add_column(Text(_fit(column.header, column, width)), justify=justify, overflow="fold", width=width)
    for index, row in enumerate(rows):
        table.add_row(*(Text(texts[column.name][index], style=_cell_style(column, row)) for column in columns))
    return _render(table, max(total_width(widths), 1))


def _fit(text: str, column: Column, width: int) -> str:
    """Shorten the text; in sentences only words that are longer than a line."""
    if not column.can_shrink:
        return text
    mark = "…" if _supports_unicode() else "..."
    if column.fit == "wrap":
        return " ".join(shorten(word, width, mark, middle=True) for word in text.split(" "))
    return shorten(text, width, mark, middle=column.fit == "middle")


def render_markdown(columns: Sequence[Column], rows: Sequence[Row], now: datetime | None) -> str:
    """Render the rows as a GitHub table."""
    lines = [
        [column.header for column in columns],
        ["--:" if column.is_right_aligned else "---" for column in columns],
        *([_markdown_cell(column.text(row, now)) for column in columns] for row in rows),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def render_heading(title: str) -> str:
    """Render the title of a section."""
    from rich.text import Text

    return _render(Text(title, style="bold"), 200)


def escape_control_characters(text: str) -> str:
    """Escape control characters: data must not control the terminal."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def _markdown_cell(text: str) -> str:
    return escape_control_characters(text).replace("|", "\\|")


def _column_width(header: str, cells: Sequence[str]) -> int:
    from rich.cells import cell_len

    return max(cell_len(line) for text in (header, *cells) for line in text.split("\n"))


def _cell_text(column: Column, row: Row, now: datetime | None) -> str:
    text = column.text(row, now)
    if column.kind != "state" or text not in STATES:
        return escape_control_characters(text)
    glyph, ascii_glyph, _ = STATES[text]
    return f"{glyph if _supports_unicode() else ascii_glyph} {text}"


def _cell_style(column: Column, row: Row) -> str:
    state = str(row.get(column.name))
    return STATES[state][2] if column.kind == "state" and state in STATES else ""


def _supports_unicode() -> bool:
    return "utf" in (getattr(sys.stdout, "encoding", None) or "").lower()


def _render(renderable: RenderableType, width: int) -> str:
    """Render to text, with colors if stdout supports them (terminal, NO_COLOR, TERM=dumb), without trailing blanks."""
    console = _console(width)
    with console.capture() as capture:
        console.print(renderable)
    return "".join(line.rstrip() + "\n" for line in capture.get().splitlines())


def _console(width: int) -> Console:
    from rich.console import Console

    # Rich takes the encoding from its file; `capture` keeps it from writing there.
    return Console(file=sys.stdout, width=width, highlight=False, legacy_windows=False)
