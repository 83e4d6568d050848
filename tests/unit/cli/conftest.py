"""The command line run in this process, over a stand-in for the library."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

import pytest

from pyarctic import config
from pyarctic.cli.app import main
from tests.unit.cli.library import Arctic, Library, Ran


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    for room in ("pyarctic.tables", "pyarctic.iceberg.catalog"):
        monkeypatch.setitem(sys.modules, room, cast("Any", made))
    return made


@pytest.fixture
def arctic(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Arctic:
    """Run `arctic` with these words, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    config.reset()

    def run(*words: str) -> Ran:
        capfd.readouterr()
        code = main(words)
        out, err = capfd.readouterr()
        return Ran(code, out, err)

    return run
