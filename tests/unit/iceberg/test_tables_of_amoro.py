"""Base stores made by Apache Amoro (tests/data/mixed-iceberg), read as the ordinary Iceberg tables they are."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.table.metadata import TableMetadataUtil

from pyarctic.iceberg import TableView
from pyarctic.iceberg.gaps import close_gaps
from pyarctic.iceberg.scan import scan

FIXTURES = Path(__file__).parents[2] / "data" / "mixed-iceberg"
NAMES = sorted(path.stem for path in (FIXTURES / "expected").glob("*.json"))


class MovedIO(PyArrowFileIO):
    """The tables hold absolute paths under /tmp/wh; they are unpacked elsewhere."""

    def __init__(self, home: Path) -> None:
        super().__init__()
        self._home = home

    def new_input(self, location: str) -> PyArrowFile:
        return super().new_input(location.removeprefix("file:").replace("/tmp/wh", str(self._home / "wh"), 1))


@pytest.mark.parametrize("name", NAMES)
def test_base_store_reads_as_its_maker_reads_it(name: str, tmp_path: Path) -> None:
    expected = json.loads((FIXTURES / "expected" / f"{name}.json").read_text())
    with tarfile.open(FIXTURES / "tables" / f"{name}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    close_gaps()
    io = MovedIO(tmp_path)
    with io.new_input(expected["base_metadata"]).open() as stream:
        metadata = TableMetadataUtil.parse_raw(stream.read().decode())
    assert metadata.statistics or name.endswith("__change")
    view = TableView(name=name, metadata=metadata, io=io)
    rows = scan(view, snapshot=metadata.current_snapshot(), schema=metadata.schema()).to_arrow()
    assert Counter(map(_text, rows.to_pylist())) == Counter(map(_text, expected["base"]))


def _text(row: dict[str, Any]) -> str:
    return json.dumps({name: _plain(value) for name, value in row.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(timespec="microseconds")
    if isinstance(value, date):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value
