"""Tables for people: no vertical rules, numbers to the right, columns that fit. Rich is loaded at the first table."""

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
STATES = {"ok": ("✓", "+", "green"), "warn": ("!", "!", "yellow"), "fault": ("✗", "x", "bold red")}
"""Each state with its glyph, the glyph for terminals without Unicode, and its colour: any one of the three suffices."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A finished table and the columns that are not in it."""

    text: str
    dropped: tuple[Column, ...]


def table(columns: Sequence[Column], rows: Sequence[Row], now: datetime | None, *, wide: bool, header: bool) -> Drawn:
    """Draw the rows; unless `wide`, columns of least priority give way until the rest fits the terminal."""
    from rich import box
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    offered = [column for column in columns if wide or column.priority < WIDE_ONLY]
    cells = {column.name: [visible(_shown(column, row, now)) for row in rows] for column in offered}
    widths = {
        column.name: max(cell_len(line) for text in (column.header, *cells[column.name]) for line in text.split("\n"))
        for column in offered
    }
    room = None if wide else _terminal_width()
    kept = _fitting(offered, widths, room)
    width = _total(kept, widths)
    drawn = Table(box=box.SIMPLE_HEAD, show_header=header, show_edge=False, pad_edge=False, header_style="bold")
    for column in kept:
        drawn.add_column(Text(column.header), justify="right" if column.right else "left", overflow="fold")
    for place, row in enumerate(rows):
        drawn.add_row(*(Text(cells[column.name][place], style=_style(column, row)) for column in kept))
    text = _render(drawn, max(width, 1) if room is None else min(width, room))
    return Drawn(text, tuple(column for column in columns if column not in kept))


def markdown(columns: Sequence[Column], rows: Sequence[Row], now: datetime | None) -> str:
    """The rows as a GitHub table."""
    lines = [
        [column.header for column in columns],
        ["--:" if column.right else "---" for column in columns],
        *([_markdown_cell(column.human(row, now)) for column in columns] for row in rows),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def heading(title: str) -> str:
    """The title above a section."""
    from rich.text import Text

    return _render(Text(title, style="bold"), 200)


def visible(text: str) -> str:
    """Control characters spelled out: data must not steer the terminal."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def _markdown_cell(text: str) -> str:
    return visible(text).replace("|", "\\|")


def _fitting(columns: Sequence[Column], widths: dict[str, int], room: int | None) -> list[Column]:
    kept = list(columns)
    while room is not None and _total(kept, widths) > room:
        least = max(kept, key=lambda column: (column.priority, kept.index(column)))
        if least.priority == 0:
            break
        kept.remove(least)
    return kept


def _total(columns: Sequence[Column], widths: dict[str, int]) -> int:
    return sum(widths[column.name] + GAP for column in columns) - GAP


def _shown(column: Column, row: Row, now: datetime | None) -> str:
    text = column.human(row, now)
    if column.kind != "state" or text not in STATES:
        return text
    glyph, plain, _ = STATES[text]
    return f"{glyph if _unicode() else plain} {text}"


def _style(column: Column, row: Row) -> str:
    return STATES[str(row.get(column.name))][2] if column.kind == "state" and str(row.get(column.name)) in STATES else ""


def _unicode() -> bool:
    return "utf" in (getattr(sys.stdout, "encoding", None) or "").lower()


def _terminal_width() -> int | None:
    """The width to keep to; None off a terminal, where a pipe or a file takes lines of any length."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return int(columns)
    return os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else None


def _render(what: RenderableType, width: int) -> str:
    """Draw to text, coloured as stdout deserves (terminal, NO_COLOR, TERM=dumb), trailing blanks removed."""
    console = _console(width)
    with console.capture() as capture:
        console.print(what)
    return "".join(line.rstrip() + "\n" for line in capture.get().splitlines())


def _console(width: int) -> Console:
    from rich.console import Console

    # Rich asks its file for the encoding; the capture below keeps the text from being written there.
    return Console(file=sys.stdout, width=width, highlight=False, legacy_windows=False)
