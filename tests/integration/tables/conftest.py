"""A catalog over SQLite in the test's own folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

import pyarctic
from pyarctic import config


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Catalog]:
    """The catalog `lake`."""
    config.reset()
    catalog = pyarctic.catalog("lake", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    yield catalog
    catalog.close()
    config.reset()
