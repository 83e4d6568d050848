"""Tables with columns that cannot be decoded: variant, geometry and geography. What does not need them works."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StructType, UnknownType

import pyarctic
from pyarctic.cli.app import main
from pyarctic.errors import Unsupported
from pyarctic.iceberg.commit import Change
from pyarctic.iceberg.write import FileTarget, NewFile
from pyarctic.optimizing import KindChoice
from pyarctic.optimizing.plan import native as plan
from pyarctic.tables import Table
from tests.integration.iceberg.conftest import Lake
from tests.models.spec import SpecFile, SpecTable
from tests.support import changes
from tests.support.integrity import on_disk
from tests.support.optimizing import optimize

VALUES: dict[str, Any] = {
    "variant": {"metadata": b"\x01\x00\x00", "value": b"\x0c\x01"},
    "geometry(srid:4326)": b"\x01\x01\x00\x00\x00" + bytes(16),
    "geography(OGC:CRS84, karney)": b"\x01\x01\x00\x00\x00" + bytes(16),
}
TYPES = pytest.mark.parametrize("type_", VALUES)
NAME = "lake.db.t"


def rows(ids: range, type_: str) -> list[dict[str, Any]]:
    return [{"id": number, "v": None if number % 5 == 0 else VALUES[type_], "name": f"n{number}"} for number in ids]


def made(lake: Lake, type_: str, *, id_type: str = "long") -> SpecTable:
    properties = {"self-optimizing.writers-first": "false"}
    table = lake.make(columns=(("id", id_type), ("v", type_), ("name", "string")), version=3, properties=properties)
    for number in range(3):
        table.commit(table.data(rows(range(number * 100, number * 100 + 100), type_)))
    return table


def assert_unsupported(error: Unsupported, type_: str) -> None:
    assert f"column 'v' of type {type_} cannot be read or written" in str(error)
    assert error.hint
    assert error.facts | {"column": "v", "type": type_, "table": NAME} == error.facts


@TYPES
def test_such_a_table_is_shown(lake: Lake, capfd: pytest.CaptureFixture[str], type_: str) -> None:
    made(lake, type_)
    table = lake.open()
    assert str(table.schema.find_type("v")) == type_
    assert table.files().height == 3
    assert table.snapshots().height == 3
    assert table.partitions()["records"].to_list() == [300]
    assert "health" in str(pyarctic.explain(NAME))
    for command in (
        ["table", "show", NAME],
        ["table", "ls", "lake.*"],
        ["table", "files", NAME],
        ["table", "explain", NAME],
    ):
        assert main([*command, "--json"]) == 0
    capfd.readouterr()
    assert main(["table", "show", NAME, "--json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert {"id": 2, "name": "v", "type": type_, "required": False, "doc": None} in shown["schema"]


@TYPES
def test_other_columns_are_scanned(lake: Lake, type_: str) -> None:
    spec = made(lake, type_)
    spec.commit(spec.equality_deletes([{"id": 7}]), operation="delete")
    table = lake.open()
    assert table.scan(["id", "name"]).to_arrow().num_rows == 299
    assert table.scan(["name"], where="id between 100 and 102").to_arrow()["name"].to_pylist() == ["n100", "n101", "n102"]
    assert table.scan().count() == 299
    for scan in (table.scan(), table.scan(["v"]), table.scan(["id"], where="v is not null")):
        with pytest.raises(Unsupported) as caught:
            scan.to_arrow()
        assert_unsupported(caught.value, type_)


@TYPES
def test_writing_is_refused(lake: Lake, type_: str) -> None:
    made(lake, type_)
    table = lake.open()
    before, files = table.view.snapshot_id, on_disk(table._loaded)
    for data in (pa.table({"id": [1], "name": ["a"]}), pa.table({"id": [1], "v": [b""], "name": ["a"]})):
        with pytest.raises(Unsupported) as caught:
            table.write(data)
        assert_unsupported(caught.value, type_)
    assert lake.open().view.snapshot_id == before
    assert on_disk(lake.open()._loaded) == files


@TYPES
def test_such_a_column_is_not_added(lake: Lake, type_: str) -> None:
    lake.make(version=3)
    with pytest.raises(Unsupported, match="columns of type"):
        lake.open().evolve(add={"v": type_})
    assert "v" not in lake.open().schema.column_names


def lineage(table: Table) -> dict[int, tuple[int, int]]:
    rows = table.scan(["id", "_row_id", "_last_updated_sequence_number"]).to_arrow().to_pylist()
    return {row["id"]: (row["_row_id"], row["_last_updated_sequence_number"]) for row in rows}


def stored_values(table: Table) -> dict[int, Any]:
    """The values as they are in the files, by id."""
    tables = [pq.read_table(path.removeprefix("file://"), columns=["id", "v"]) for path in table.files()["file_path"]]
    return {row["id"]: row["v"] for read in tables for row in read.to_pylist()}


@TYPES
def test_row_groups_are_copied(lake: Lake, type_: str) -> None:
    """As often as files arrive, and with the ids of the rows."""
    spec = made(lake, type_)
    before = lineage(lake.open()), stored_values(lake.open())
    report = optimize(lake.open(), "full", verify=False)
    assert not report.failures
    assert (report.removed.data_files, report.added.data_files, report.rows_copied) == (3, 1, 300)
    assert (lineage(lake.open()), stored_values(lake.open())) == before
    loaded = lake.open()
    file = loaded.file_list.with_metrics(loaded.view.io, loaded.files(), [1, 2, 3]).row(0, named=True)
    assert (file["lower_1"], file["upper_1"]) == ((0).to_bytes(8, "little"), (299).to_bytes(8, "little"))
    assert (file["lower_2"], file["upper_2"]) == (None, None)
    assert file["nulls_2"] == (None if type_ == "variant" else 60)

    again = spec.data(rows(range(300, 400), type_))
    target = changes.target(loaded._loaded)
    changes.apply(loaded._loaded, lambda table: Change(start=changes.head(table), add=(spec_new_file(target, again),)))
    before = lineage(lake.open()), stored_values(lake.open())
    report = optimize(lake.open(), "full", verify=False)
    assert not report.failures
    assert (report.added.data_files, report.rows_copied) == (1, 400)
    assert (lineage(lake.open()), stored_values(lake.open())) == before


def spec_new_file(target: FileTarget, file: SpecFile) -> NewFile:
    return NewFile(
        content=0,
        path=file.path,
        file_format="PARQUET",
        spec_id=target.spec_id,
        partition=(),
        record_count=file.records,
        file_size_bytes=file.size,
    )


@TYPES
@pytest.mark.parametrize("cause", ["another type", "other columns", "sorting", "verify"])
def test_rows_that_must_be_decoded_are_not_rewritten(lake: Lake, type_: str, cause: str) -> None:
    spec = made(lake, type_, id_type="int" if cause == "another type" else "long")
    if cause == "other columns":
        spec.commit(spec.data(rows(range(300, 310), type_), without=["name"]))
    elif cause == "another type":
        spec.set_fields([{**field, "type": "long" if field["name"] == "id" else field["type"]} for field in spec.fields])
    elif cause == "sorting":
        fields = [{"transform": "identity", "source-id": 1, "direction": "desc", "null-order": "nulls-last"}]
        spec.metadata |= {"sort-orders": [{"order-id": 1, "fields": fields}], "default-sort-order-id": 1}
        spec.register()
    table = lake.open()
    before, files = table.view.snapshot_id, on_disk(table._loaded)
    report = optimize(table, "full", verify=cause == "verify")
    (failure,) = report.failures
    assert failure.code == "unsupported"
    assert f"column 'v' of type {type_}" in failure.detail
    assert not report.changed
    assert lake.open().view.snapshot_id == before
    assert on_disk(lake.open()._loaded) == files


@TYPES
@pytest.mark.parametrize("kind", ["minor", "full"])
def test_files_with_deletes_stay_and_others_are_merged(lake: Lake, type_: str, kind: KindChoice) -> None:
    spec = made(lake, type_)
    file = spec.manifests[0].entries[0]
    spec.commit(*spec.vectors({file.path: [3]}, [file]), operation="delete")
    before = lineage(lake.open())
    report = optimize(lake.open(), kind, verify=False)
    assert not report.failures
    assert (report.removed.data_files, report.added.data_files, report.rows_copied) == (2, 1, 200)
    assert file.path in lake.open().files()["file_path"]
    assert lineage(lake.open()) == before
    assert len(before) == 299


@TYPES
@pytest.mark.parametrize("column", ["v", "name"])
def test_damaged_pages_are_found(lake: Lake, type_: str, column: str) -> None:
    """In any row group, also of the column that is not decoded."""
    spec = lake.make(columns=(("id", "long"), ("v", type_), ("name", "string")), version=3)
    data = spec.data(rows(range(200), type_))
    path = data.path.removeprefix("file://")
    options: dict[str, Any] = {"write_page_checksum": True, "compression": "none", "use_dictionary": False}
    pq.write_table(pq.read_table(path), path, row_group_size=100, **options)
    content = bytearray(Path(path).read_bytes())
    spec.commit(replace(data, size=len(content)))
    assert [finding.code for finding in pyarctic.check(NAME, rows=True).findings] == ["not-checked"]
    group = pq.ParquetFile(path).metadata.row_group(1)
    chunks = [group.column(index) for index in range(group.num_columns)]
    chunk = next(chunk for chunk in chunks if chunk.path_in_schema.split(".")[0] == column)
    content[chunk.data_page_offset + chunk.total_compressed_size - 3] ^= 1
    Path(path).write_bytes(content)
    (finding,) = pyarctic.check(NAME, rows=True).findings
    assert (finding.code, finding.files) == ("unreadable-file", 1)
    assert f"row group 1, column {chunk.path_in_schema}" in finding.problems["detail"].item()


@TYPES
def test_equality_deletes_are_converted(lake: Lake, type_: str) -> None:
    """Only the key is decoded."""
    spec = made(lake, type_)
    spec.metadata["properties"] |= {"self-optimizing.fragment-size": "1", "self-optimizing.target-size": "9000"}
    spec.commit(spec.equality_deletes([{"id": 7}, {"id": 105}]), operation="delete")
    report = optimize(lake.open(), "minor", verify=False)
    assert not report.failures
    assert (report.after.equality_delete_files, report.removed.data_files) == (0, 0)
    assert lake.open().scan(["id"]).to_arrow().num_rows == 298


@TYPES
def test_the_type_survives_commits(lake: Lake, type_: str) -> None:
    made(lake, type_)
    table: Table = lake.open()
    table.set({"a": "b"})
    lake.open().evolve(rename={"name": "title"})
    loaded = lake.open()._loaded
    assert str(loaded.schema().find_type("v")) == type_
    with loaded.io.new_input(loaded.metadata_location).open() as stream:
        metadata = json.loads(stream.read())
    assert [schema["fields"][1]["type"] for schema in metadata["schemas"]] == [type_] * 2


@pytest.mark.parametrize("copying", [True, False])
def test_unknown_columns_are_not_stored(lake: Lake, copying: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither as columns nor within structs, as the specification says: the type may become any other one."""
    if copying:
        monkeypatch.setattr(plan, "COPY_LEAST_ROWS", dict.fromkeys(("minor", "major", "full"), 1))
    place = StructType(NestedField(4, "x", LongType()), NestedField(5, "y", UnknownType()))
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "u", UnknownType()), NestedField(3, "place", place))
    properties = {"format-version": "3", "self-optimizing.writers-first": "false"}
    lake.catalog.create_table("db.t", schema, properties=properties)
    for number in range(3):
        row = {"id": number, "u": None, "place": {"x": number, "y": None} if number else None}
        lake.open().write(pa.Table.from_pylist([row], schema=lake.open().arrow_schema))
    before = lake.open().scan().to_arrow().sort_by("id")
    assert before.schema.field("u").type == pa.null()
    assert before["place"].to_pylist() == [None, {"x": 1, "y": None}, {"x": 2, "y": None}]
    report = optimize(lake.open(), "full")
    assert not report.failures
    assert report.rows_copied == (3 if copying else 0)
    assert lake.open().scan().to_arrow().sort_by("id").equals(before)
    for path in on_disk(lake.open()._loaded):
        if path.endswith(".parquet"):
            columns = pq.ParquetFile(path).schema
            assert [columns.column(index).path for index in range(2)] == ["id", "place.x"]
