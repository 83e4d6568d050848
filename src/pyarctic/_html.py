"""Small HTML views for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def html_page(title: str, *parts: str) -> str:
    """A view with a title."""
    return f"<div><strong>{escape(title)}</strong>{''.join(parts)}</div>"


def html_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; None is an empty cell, and numbers are aligned to the right."""
    head = "".join(f"<th>{escape(header)}</th>" for header in headers)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def html_text(text: str) -> str:
    """Preformatted text."""
    return f"<pre>{escape(text)}</pre>"


def _cell(value: object) -> str:
    if isinstance(value, int | float):
        text = f"{value:,}" if isinstance(value, int) else f"{value:g}"
        return f'<td style="text-align: right">{text}</td>'
    return f'<td style="text-align: left">{"" if value is None else escape(str(value))}</td>'
