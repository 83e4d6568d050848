"""Fit columns to the width of a terminal: long texts are shortened first, then the least important columns are dropped."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TextIO

from pyarctic.cli.view.columns import Column

GAP = 3
_MIN_WIDTHS = {"cut": 14, "middle": 26, "wrap": 22}
"""Texts are not shortened below this width as long as another column can be dropped."""
_NARROWEST = 6
"""Not even if none can."""


def terminal_width(stream: TextIO) -> int | None:
    """The width of the terminal; None for pipes and files, where lines can be of any length."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return int(columns)
    return os.get_terminal_size(stream.fileno()).columns if stream.isatty() else None


def fit_columns(columns: Sequence[Column], widths: Mapping[str, int], max_width: int | None) -> dict[str, int]:
    """The columns that are shown, by name, and their widths. `widths` are those they need."""
    kept = list(columns)
    while True:
        fitted = {column.name: widths[column.name] for column in kept}
        if max_width is None or _shrink(kept, fitted, max_width, _MIN_WIDTHS):
            return fitted
        least_important = max(kept, key=lambda column: (column.priority, kept.index(column)))
        if least_important.priority == 0:
            _shrink(kept, fitted, max_width, dict.fromkeys(_MIN_WIDTHS, _NARROWEST))
            return fitted
        kept.remove(least_important)


def total_width(widths: Mapping[str, int]) -> int:
    """The width of a table with columns of these widths."""
    return sum(widths.values()) + GAP * (len(widths) - 1)


def shorten(text: str, width: int, mark: str, *, middle: bool = False) -> str:
    """Cut the text to the width, and mark where it was cut."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width:
        return text
    room = width - len(mark)
    if room <= 0:
        return mark[:width]
    if not middle:
        return set_cell_size(text, room).rstrip() + mark
    head = set_cell_size(text, room // 3)
    tail = text[-1:]
    while cell_len(tail) < room - room // 3:
        tail = text[-len(tail) - 1 :]
    return head + mark + (tail if cell_len(tail) <= room - room // 3 else tail[1:])


def wrap_words(text: str, width: int | None, indent: str = "") -> list[str]:
    """The lines of a text, broken between words; words that are longer than a line are left whole, to be copied."""
    if width is None or len(text) <= width:
        return [text]
    import textwrap

    return textwrap.wrap(
        text,
        width,
        subsequent_indent=indent,
        replace_whitespace=False,
        drop_whitespace=True,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _shrink(columns: Sequence[Column], widths: dict[str, int], max_width: int, floors: Mapping[str, int]) -> bool:
    """Shrink the widest columns with text until all fit; False if their least widths do not."""
    least = {column.name: min(widths[column.name], floors[column.fit]) for column in columns if column.can_shrink}
    excess = total_width(widths) - max_width
    while excess > 0:
        shrinkable = [name for name, floor in least.items() if widths[name] > floor]
        if not shrinkable:
            return False
        widest = max(shrinkable, key=lambda name: widths[name])
        others = [widths[name] for name in shrinkable if widths[name] < widths[widest]]
        step = max(1, min(excess, widths[widest] - max([least[widest], *others])))
        widths[widest] -= step
        excess -= step
    return True
