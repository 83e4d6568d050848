"""A catalog of its own for a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

import pyarctic
from pyarctic import config


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Catalog]:
    config.reset()
    catalog = pyarctic.catalog("lake", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("db")
    yield catalog
    catalog.close()
    config.reset()
