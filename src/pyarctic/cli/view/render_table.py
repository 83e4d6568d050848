"""Render tables for terminals: no vertical lines, right-aligned numbers, only columns that fit. Rich is imported lazily."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from pyarctic.cli.view.columns import WIDE_ONLY, Column, Row

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

GAP = 3
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
    """A rendered table and the columns that were dropped."""

    text: str
    dropped: tuple[Column, ...]


def render_table(
    columns: Sequence[Column], rows: Sequence[Row], now: datetime | None, *, wide: bool, header: bool
) -> RenderedTable:
    """Render the rows; unless `wide`, columns with the lowest priority are dropped until the rest fits the terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    candidates = [column for column in columns if wide or column.priority < WIDE_ONLY]
    cells = {column.name: [_cell_text(column, row, now) for row in rows] for column in candidates}
    widths = {column.name: _column_width(column.header, cells[column.name]) for column in candidates}
    terminal_width = None if wide else _terminal_width()
    kept = _columns_that_fit(candidates, widths, terminal_width)
    width = _total_width(kept, widths)
    table = Table(box=box.SIMPLE_HEAD, show_header=header, show_edge=False, pad_edge=False, header_style="bold")
    for column in kept:
        table.add_column(Text(column.header), justify="right" if column.is_right_aligned else "left", overflow="fold")
    for index, row in enumerate(rows):
        table.add_row(*(Text(cells[column.name][index], style=_cell_style(column, row)) for column in kept))
    text = _render(table, max(width, 1) if terminal_width is None else min(width, terminal_width))
    return RenderedTable(text, tuple(column for column in columns if column not in kept))


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


def _columns_that_fit(columns: Sequence[Column], widths: dict[str, int], max_width: int | None) -> list[Column]:
    kept = list(columns)
    while max_width is not None and _total_width(kept, widths) > max_width:
        least_important = max(kept, key=lambda column: (column.priority, kept.index(column)))
        if least_important.priority == 0:
            break
        kept.remove(least_important)
    return kept


def _total_width(columns: Sequence[Column], widths: dict[str, int]) -> int:
    return sum(widths[column.name] + GAP for column in columns) - GAP


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


def _terminal_width() -> int | None:
    """The width of the terminal; None for pipes and files, where lines can be of any length."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return int(columns)
    return os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else None


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
