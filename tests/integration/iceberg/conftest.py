"""A catalog over SQLite in the test's own folder, and tables made in it by the specification's writer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog

import pyarctic
from pyarctic import config
from pyarctic.tables import Table
from tests.models.spec import SpecTable

COLUMNS = (("id", "int"), ("name", "string"), ("part", "string"))


@dataclass(slots=True)
class Lake:
    """The catalog `lake` with its database `db`."""

    folder: Path
    catalog: Catalog
    made: dict[str, SpecTable] = field(default_factory=dict)

    def make(self, name: str = "t", columns: Sequence[tuple[str, str]] = COLUMNS, **options: Any) -> SpecTable:
        self.made[name] = SpecTable(self.catalog, f"db.{name}", self.folder / name, columns, **options)
        return self.made[name]

    def open(self, name: str = "t") -> Table:
        return pyarctic.table(f"lake.db.{name}")


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    config.reset()
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": tmp_path.as_uri()}
    catalog = pyarctic.catalog("lake", **properties)
    catalog.create_namespace("db")
    yield Lake(tmp_path, catalog)
    catalog.close()
    config.reset()


def rows(*ids: int | None, name: str | None = "n", part: str | None = "p") -> list[dict[str, Any]]:
    """Rows for COLUMNS."""
    return [{"id": id_, "name": name, "part": part} for id_ in ids]
