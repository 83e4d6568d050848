"""Snapshots: texts that a test compares with files under tests/snapshots. UPDATE_SNAPSHOTS=1 writes the files instead."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "snapshots"
_MASKS = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "UUID"),
    (re.compile(r"\S+…\S+\.parquet"), "FILE.parquet"),
    (re.compile(r"(?:file|sqlite):/\S*…\S*"), "PATH"),
    (re.compile(r"under\s+file://FOLDER"), "under FOLDER"),
    (re.compile(r"\b\d{12,19}\b"), "ID"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*Z"), "TIME"),
    (re.compile(r"(?:just now|\d+ (?:s|min|h) ago|in \d+ (?:s|min|h))(?= |$)", re.MULTILINE), "AGE"),
    (re.compile(r"\b(?:\d+\.\d|(?:\d+ min )?\d+) s\b"), "N s"),
    (re.compile(r"\b\d+(?:\.\d [KM]i| )B\b"), "SIZE"),
    (re.compile(r" {3,}"), "   "),
    (re.compile(r"─+"), "─"),
)
"""What differs from run to run, and the widths that follow from it."""


def mask(text: str, folder: Path) -> str:
    """The text without ids, times, sizes, the path of the folder, and widths of columns."""
    text = text.replace(str(folder), "FOLDER")
    for pattern, replacement in _MASKS:
        text = pattern.sub(replacement, text)
    return text


def compare(name: str, text: str) -> None:
    """Compare a text with a file, or write the file if snapshots are updated."""
    path = FOLDER / f"{name}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"{path} does not exist; UPDATE_SNAPSHOTS=1 writes it"
    expected = path.read_text(encoding="utf-8")
    difference = "\n".join(
        difflib.unified_diff(expected.splitlines(), text.splitlines(), "expected", "is", lineterm="", n=0)
    )
    assert text == expected, f"{path} differs; UPDATE_SNAPSHOTS=1 accepts the new text:\n{difference}"
