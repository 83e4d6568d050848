"""Statistics of unknown kind, which stock PyIceberg refuses to load."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.catalog.rest import TableResponse

from pyarctic.iceberg.gaps import close_gaps
from tests.spec import SpecTable
from tests.unit.iceberg.conftest import Lake, rows

KIND = "amoro-optimized-sequence"


def with_statistics(table: SpecTable) -> dict[str, Any]:
    """Put statistics of another project's kind into the metadata."""
    snapshot = table.commit(table.data(rows(1, 2)))
    blob = {"type": KIND, "snapshot-id": snapshot, "sequence-number": 1, "fields": [], "properties": {"a": "b"}}
    table.metadata["statistics"] = [
        {
            "snapshot-id": snapshot,
            "statistics-path": "file:///nowhere.puffin",
            "file-size-in-bytes": 10,
            "file-footer-size-in-bytes": 5,
            "blob-metadata": [blob],
        }
    ]
    table.register()
    return table.metadata


@pytest.mark.parametrize("version", [1, 2, 3])
def test_sql_catalog(lake: Lake, version: int) -> None:
    with_statistics(lake.make(version=version))
    assert lake.open().scan().count() == 2
    [statistics] = lake.catalog.load_table("db.t").metadata.statistics
    assert statistics.blob_metadata[0].type == KIND
    assert statistics.blob_metadata[0].properties == {"a": "b"}


def test_memory_catalog(tmp_path: Path) -> None:
    close_gaps()
    catalog = InMemoryCatalog("memory", warehouse=tmp_path.as_uri())
    catalog.create_namespace("db")
    with_statistics(SpecTable(catalog, "db.t", tmp_path / "t", [("id", "int"), ("name", "string"), ("part", "string")]))
    assert catalog.load_table("db.t").metadata.statistics[0].blob_metadata[0].type == KIND
    catalog.close()


@pytest.mark.parametrize("version", [1, 2, 3])
def test_rest_response(lake: Lake, version: int) -> None:
    metadata = with_statistics(lake.make(version=version))
    close_gaps()
    body = json.dumps({"metadata-location": "file:///m.json", "metadata": metadata, "config": {}})
    response = TableResponse.model_validate_json(body)
    assert response.metadata.statistics[0].blob_metadata[0].type == KIND
    if version < 3:  # PyIceberg does not write the third version
        written = json.loads(response.metadata.model_dump_json())
        assert written["statistics"][0]["blob-metadata"][0]["type"] == KIND


CANARY = """
import json, sys
from pyiceberg.exceptions import ValidationError
from pyiceberg.table.metadata import TableMetadataUtil
text = sys.stdin.read()
try:
    TableMetadataUtil.parse_raw(text)
except ValidationError as error:
    sys.exit(0 if "blob-metadata" in str(error) else f"another complaint: {error}")
sys.exit("accepted")
"""


def test_canary_pyiceberg_still_refuses(lake: Lake) -> None:
    """When this fails PyIceberg has closed the gap: remove pyarctic.iceberg.gaps and its callers."""
    metadata = with_statistics(lake.make())
    answer = subprocess.run([sys.executable, "-c", CANARY], input=json.dumps(metadata), capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    del metadata["statistics"]
    other = subprocess.run([sys.executable, "-c", CANARY], input=json.dumps(metadata), capture_output=True, text=True)
    assert other.stderr.strip() == "accepted"  # it is the statistics that it refuses
