"""A stand-in for the library below the command line."""

from __future__ import annotations

import sys
from typing import Any, cast

import pytest

from tests.support.cli_library import Library


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    for room in ("pyarctic.tables", "pyarctic.iceberg.catalog"):
        monkeypatch.setitem(sys.modules, room, cast("Any", made))
    return made
