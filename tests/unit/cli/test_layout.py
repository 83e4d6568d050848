"""Columns fit the terminal: texts are shortened first, then the least important columns are dropped."""

from __future__ import annotations

import pytest

from pyarctic.cli.view.columns import Column
from pyarctic.cli.view.layout import fit_columns, shorten, total_width, wrap_words

NAME = Column("name", "Name", priority=0)
PATH = Column("path", "Path", priority=0, fit="middle")
SIZE = Column("size", "Size", "bytes", priority=1)
KIND = Column("kind", "Kind", priority=2)


def test_what_fits_is_not_touched() -> None:
    needed = {"name": 20, "path": 40, "size": 8}
    assert fit_columns([NAME, PATH, SIZE], needed, None) == needed
    assert fit_columns([NAME, PATH, SIZE], needed, 74) == needed


def test_texts_are_shortened_before_columns_are_dropped() -> None:
    fitted = fit_columns([NAME, PATH, SIZE, KIND], {"name": 20, "path": 90, "size": 8, "kind": 9}, 80)
    assert fitted == {"name": 20, "path": 34, "size": 8, "kind": 9}
    assert total_width(fitted) == 80


def test_the_least_important_column_goes_first() -> None:
    fitted = fit_columns([NAME, PATH, SIZE, KIND], {"name": 20, "path": 90, "size": 8, "kind": 9}, 60)
    assert fitted == {"name": 20, "path": 26, "size": 8}


@pytest.mark.parametrize("width", [20, 25, 33, 40])
def test_what_must_be_shown_is_shortened_further(width: int) -> None:
    fitted = fit_columns([NAME, PATH, SIZE], {"name": 50, "path": 90, "size": 8}, width)
    assert {"name", "path"} <= set(fitted)
    assert total_width(fitted) <= width


@pytest.mark.parametrize(
    ("text", "width", "middle", "expected"),
    [
        ("short", 5, False, "short"),
        ("a longer text", 8, False, "a longe…"),
        ("a longer text", 3, False, "a…"),
        ("data/city=Oslo/00001.parquet", 16, True, "data/…01.parquet"),
        ("日本語日本語", 7, False, "日本語…"),
        ("日本語日本語", 7, True, "日…本語"),
        ("long", 1, True, "…"),
    ],
)
def test_a_mark_shows_where_text_was_cut(text: str, width: int, middle: bool, expected: str) -> None:
    assert shorten(text, width, "…", middle=middle) == expected


def test_lines_break_between_words() -> None:
    assert wrap_words("one two three", None) == ["one two three"]
    assert wrap_words("  one two three", 9, "    ") == ["  one two", "    three"]
    path = "/a/path/that-is-longer/than-the-line"
    assert wrap_words(f"see {path} there", 20) == ["see", path, "there"]
