"""What PyIceberg refuses or gets wrong, mended; and canaries that tell when it has mended it itself."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.catalog.rest import TableResponse
from pyiceberg.exceptions import CommitFailedException, ValidationError
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadataV3
from pyiceberg.table.update import AddSnapshotUpdate, SetPropertiesUpdate, update_table_metadata
from pyiceberg.types import LongType, NestedField

from pyarctic.iceberg.catalog.pyiceberg_patches import apply_catalog_patches, apply_patches, staged_metadata
from tests.integration.iceberg.conftest import Lake, rows
from tests.models.spec import SpecTable
from tests.services.catalogs import FreshCatalog, kinds

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
    apply_patches()
    catalog = InMemoryCatalog("memory", warehouse=tmp_path.as_uri())
    catalog.create_namespace("db")
    with_statistics(SpecTable(catalog, "db.t", tmp_path / "t", [("id", "int"), ("name", "string"), ("part", "string")]))
    assert catalog.load_table("db.t").metadata.statistics[0].blob_metadata[0].type == KIND
    catalog.close()


@pytest.mark.parametrize("version", [1, 2, 3])
def test_rest_response(lake: Lake, version: int) -> None:
    metadata = with_statistics(lake.make(version=version))
    apply_patches()
    body = json.dumps({"metadata-location": "file:///m.json", "metadata": metadata, "config": {}})
    response = TableResponse.model_validate_json(body)
    assert response.metadata.statistics[0].blob_metadata[0].type == KIND
    written = json.loads(response.metadata.model_dump_json())
    assert written["statistics"][0]["blob-metadata"][0]["type"] == KIND
    assert written["format-version"] == version


TYPES = {
    "variant": "variant",
    "unknown": "unknown",
    "geometry": "geometry",
    "geometry(OGC:CRS84)": "geometry",
    "geometry( srid:4326 )": "geometry(srid:4326)",
    "geometry('EPSG:4326')": "geometry('EPSG:4326')",
    "geography": "geography",
    "geography(OGC:CRS84, spherical)": "geography",
    "geography(srid:4326)": "geography(srid:4326)",
    "geography(OGC:CRS84,karney)": "geography(OGC:CRS84, karney)",
}
"""Types of version 3 in metadata, and as they are written again. Iceberg Java takes quotes for a part of the name."""


@pytest.mark.parametrize(("text", "written"), TYPES.items())
def test_types_of_version_3(text: str, written: str) -> None:
    apply_patches()
    field = {"name": "a", "required": False, "type": text}
    nested: list[dict[str, Any]] = [
        {"type": "list", "element-id": 3, "element": text, "element-required": False},
        {"type": "struct", "fields": [field | {"id": 5}]},
    ]
    fields = [field | {"id": 1}, *({"id": 2 * n, "name": f"n{n}", "required": False, "type": nested[n - 1]} for n in (1, 2))]
    schema = Schema.model_validate_json(json.dumps({"type": "struct", "schema-id": 0, "fields": fields}))
    assert str(schema.find_type("a")) == written
    dumped = json.loads(schema.model_dump_json())["fields"]
    assert dumped[0]["type"] == written
    assert dumped[1]["type"]["element"] == written
    assert dumped[2]["type"]["fields"][0]["type"] == written
    assert Schema.model_validate_json(schema.model_dump_json()) == schema
    assert pickle.loads(pickle.dumps(schema)) == schema
    assert copy.deepcopy(schema).find_type("a") == schema.find_type("a")


def test_other_types_are_refused_as_before() -> None:
    apply_patches()
    for text in ("variants", "geometry(", "geography(a, b, c)", "whatever"):
        with pytest.raises((ValueError, ValidationError), match=r"type|Type"):
            NestedField.model_validate({"id": 1, "name": "a", "required": False, "type": text})


def test_row_ids_begin_at_zero(lake: Lake) -> None:
    table = lake.catalog.create_table("db.new", Schema(NestedField(1, "id", LongType())), properties={"format-version": "3"})
    assert isinstance(table.metadata, TableMetadataV3)
    assert table.metadata.next_row_id == 0
    assert json.loads(Path(table.metadata_location.removeprefix("file://")).read_text())["next-row-id"] == 0


@pytest.mark.parametrize("version", [2, 3])
def test_a_taken_sequence_number_is_noticed(lake: Lake, version: int) -> None:
    """Of a branch's first snapshot, and of one without new rows in version 3, stock PyIceberg does not notice it."""
    made = lake.make(version=version)
    made.commit(made.data(rows(1)))
    table = lake.catalog.load_table("db.t")
    snapshot = table.metadata.snapshots[0].model_copy(update={"snapshot_id": 5, "parent_snapshot_id": None, "added_rows": 0})
    snapshot = snapshot.model_copy(update={"first_row_id": getattr(table.metadata, "next_row_id", None)})
    with pytest.raises(ValueError, match="sequence number 1 was taken"):
        update_table_metadata(table.metadata, (AddSnapshotUpdate(snapshot=snapshot),))


def test_snapshots_are_shared_by_copies(lake: Lake) -> None:
    made = lake.make()
    made.commit(made.data(rows(1)))
    metadata = lake.catalog.load_table("db.t").metadata
    copy = metadata.model_copy(deep=True)
    assert copy.snapshots is not metadata.snapshots
    assert copy.snapshots[0] is metadata.snapshots[0]


def test_staged_metadata_is_told(lake: Lake) -> None:
    made = lake.make()
    made.commit(made.data(rows(1)))
    table = lake.catalog.load_table("db.t")
    update = SetPropertiesUpdate(updates={"a": "b"})
    with staged_metadata() as staged:
        response = lake.catalog.commit_table(table, (), (update,))
    assert staged == [response.metadata_location]
    lake.catalog.commit_table(table, (), (SetPropertiesUpdate(updates={"a": "c"}),))
    assert len(staged) == 1  # outside the block nobody listens


@pytest.mark.parametrize("any_catalog", kinds("hive"), indirect=True)
def test_hive_refuses_a_commit_whose_lock_was_lost(any_catalog: FreshCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another client commits while ours holds the lock, as it can when the lock has expired."""
    apply_patches()
    name = f"{any_catalog.namespace}.t"
    table = any_catalog.catalog.create_table(name, Schema(NestedField(1, "id", LongType())))
    apply_catalog_patches()
    stage = any_catalog.catalog._update_and_stage_table  # type: ignore[attr-defined]
    other = any_catalog.client()
    monkeypatch.setattr(other, "_create_lock_request", lambda *_: any_catalog.catalog._create_lock_request("x", "y"))  # type: ignore[attr-defined]

    def slow(*args: Any, **kwargs: Any) -> Any:
        staged = stage(*args, **kwargs)
        other.load_table(name).transaction().set_properties({"first": "yes"}).commit_transaction()
        return staged

    monkeypatch.setattr(any_catalog.catalog, "_update_and_stage_table", slow)
    with pytest.raises(CommitFailedException, match="although it was locked"):
        any_catalog.catalog.commit_table(table, (), (SetPropertiesUpdate(updates={"second": "yes"}),))
    assert other.load_table(name).properties == {"first": "yes"} | table.properties


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
    """When this fails PyIceberg has closed the gap: remove the repair of statistics."""
    metadata = with_statistics(lake.make())
    answer = subprocess.run([sys.executable, "-c", CANARY], input=json.dumps(metadata), capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    del metadata["statistics"]
    other = subprocess.run([sys.executable, "-c", CANARY], input=json.dumps(metadata), capture_output=True, text=True)
    assert other.stderr.strip() == "accepted"  # it is the statistics that it refuses


V3_CANARY = """
from pyiceberg.table.metadata import TableMetadataV3
print(TableMetadataV3.model_fields["next_row_id"].default)
try:
    TableMetadataV3.model_construct().model_dump_json()
except NotImplementedError:
    print("refused")
"""


def test_canary_pyiceberg_still_does_not_write_version_3() -> None:
    """When this fails PyIceberg has closed the gap: remove the repairs of version 3."""
    answer = subprocess.run([sys.executable, "-c", V3_CANARY], capture_output=True, text=True)
    assert answer.stdout.split() == ["None", "refused"], answer.stderr


TYPES_CANARY = """
from pyiceberg.types import GeographyType, GeometryType, NestedField
for text in ("variant", "geometry(srid:4326)", "geography(OGC:CRS84, karney)"):
    try:
        NestedField(1, "a", text)
    except Exception as error:
        print("refused")
print(str(GeometryType("srid:4326")), str(GeographyType("srid:4326", "karney")))
"""


def test_canary_pyiceberg_still_does_not_know_types_of_version_3() -> None:
    """When this fails PyIceberg has closed the gap: remove the repair of types, or a part of it."""
    answer = subprocess.run([sys.executable, "-c", TYPES_CANARY], capture_output=True, text=True)
    refused, written = ["refused"] * 3, "geometry('srid:4326') geography('srid:4326', 'karney')"
    assert answer.stdout.splitlines() == [*refused, written], answer.stderr
