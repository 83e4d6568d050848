"""A byte that changed on disk: its page decodes, but does not match its checksum. No new file may get the wrong value."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

import pyarctic
from pyarctic.errors import Damaged
from pyarctic.iceberg.manifest.file_list import IS_DATA
from pyarctic.optimizing import KindChoice, Report
from pyarctic.optimizing.plan import native as plan
from pyarctic.tables.format.store_properties import BASE_BUCKETS, CHANGE_BUCKETS
from tests.models.spec import SpecFile, SpecTable
from tests.support import changes
from tests.support.integrity import local, on_disk
from tests.support.keyed_tables import IDS, many, opened
from tests.support.optimizing import optimize
from tests.support.parquet_pages import flip, have_checksums

COLUMNS = (("id", "long"), ("name", "string"), ("part", "string"))
QUIET = {"self-optimizing.writers-first": "false"}
PLAIN: dict[str, Any] = {"compression": "none", "use_dictionary": False, "store_schema": False}
ID = (117 << 32).to_bytes(8, "little")
NAME = b"name 117."


def rows_of(numbers: Sequence[int], part: str = "p") -> list[dict[str, Any]]:
    return [{"id": number << 32, "name": f"name {number}.", "part": part} for number in numbers]


def spec_table(lake: Catalog, folder: Path, *, checksums: bool = True, **options: Any) -> tuple[SpecTable, list[SpecFile]]:
    """A table of three files of a hundred rows in row groups of 25, and the files."""
    table = SpecTable(lake, "db.t", folder / "t", COLUMNS, properties=QUIET, **options)
    table.parquet = PLAIN | {"write_page_checksum": checksums}
    files = [table.data(rows_of(range(at, at + 100)), row_group_size=25) for at in (0, 100, 200)]
    table.commit(*files)
    return table, files


def sort_by_id(table: SpecTable) -> None:
    fields = [{"transform": "identity", "source-id": 1, "direction": "desc", "null-order": "nulls-last"}]
    table.metadata |= {"sort-orders": [{"order-id": 1, "fields": fields}], "default-sort-order-id": 1}
    table.register()


def assert_refused(report: Report, file: str, where: str, files_before: set[str], snapshot_before: int | None) -> None:
    (failure,) = report.failures
    assert failure.code == "damaged", failure
    assert file in failure.detail
    assert where in failure.detail
    assert not report.changed
    after = pyarctic.table("lake.db.t")
    assert after.view.snapshot_id == snapshot_before
    assert on_disk(after._loaded) == files_before


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("path", ["merge", "copy", "sort", "sort by key ranges"])
def test_a_changed_value_is_not_rewritten(
    lake: Catalog, tmp_path: Path, path: str, verify: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if path == "copy":
        monkeypatch.setattr(plan, "COPY_LEAST_ROWS", dict.fromkeys(("minor", "major", "full"), 1))
    spec, files = spec_table(lake, tmp_path)
    if path.startswith("sort"):
        sort_by_id(spec)
    flip(Path(local(files[1].path)), NAME)
    table = pyarctic.table("lake.db.t")
    before, snapshot = on_disk(table._loaded), table.view.snapshot_id
    report = optimize(table, "full", verify=verify, divides=path == "sort by key ranges")
    assert_refused(report, files[1].path, "row group 0, column name", before, snapshot)


@pytest.mark.parametrize("kind", ["minor", "full"])
def test_a_changed_key_does_not_escape_equality_deletes(lake: Catalog, tmp_path: Path, kind: KindChoice) -> None:
    """Minor converts the deletes to positions, full applies them."""
    spec, files = spec_table(lake, tmp_path)
    spec.metadata["properties"] |= {"self-optimizing.fragment-size": "1", "self-optimizing.target-size": "6000"}
    spec.commit(spec.equality_deletes([{"id": 117 << 32}, {"id": 5 << 32}]), operation="delete")
    flip(Path(local(files[1].path)), ID)
    table = pyarctic.table("lake.db.t")
    before, snapshot = on_disk(table._loaded), table.view.snapshot_id
    report = optimize(table, kind, verify=False)
    assert_refused(report, files[1].path, "row group 0, column id", before, snapshot)


@pytest.mark.parametrize("kind", ["minor", "full"])
@pytest.mark.parametrize("deletes", ["position", "equality"])
def test_a_changed_delete_file(lake: Catalog, tmp_path: Path, deletes: str, kind: KindChoice) -> None:
    spec, files = spec_table(lake, tmp_path)
    if deletes == "position":
        delete = spec.position_deletes([(files[0].path, number) for number in (3, 77, 99)], files[0])
        value = (77).to_bytes(8, "little")
    else:
        delete = spec.equality_deletes([{"id": number << 32} for number in (3, 117, 250)])
        value = ID
    spec.commit(delete, operation="delete")
    flip(Path(local(delete.path)), value)
    table = pyarctic.table("lake.db.t")
    before, snapshot = on_disk(table._loaded), table.view.snapshot_id
    report = optimize(table, kind, verify=False)
    assert_refused(report, delete.path, "a page does not match its checksum", before, snapshot)


def test_other_partitions_are_optimized(lake: Catalog, tmp_path: Path) -> None:
    table = SpecTable(lake, "db.t", tmp_path / "t", COLUMNS, properties=QUIET, partition=[("part", "identity")])
    table.parquet = PLAIN | {"write_page_checksum": True}
    files = {part: [table.data(rows_of(range(at, at + 100), part), (part,)) for at in (0, 100)] for part in ("good", "bad")}
    table.commit(*files["good"], *files["bad"])
    flip(Path(local(files["bad"][1].path)), NAME)
    report = optimize(pyarctic.table("lake.db.t"), "full", verify=False)
    (failure,) = report.failures
    assert failure.code == "damaged"
    assert report.tasks_committed == 1
    left = pyarctic.table("lake.db.t").files()["file_path"].to_list()
    assert len(left) == 3
    assert {file.path for file in files["bad"]} < set(left)


@pytest.mark.parametrize("store", ["base", "change"])
def test_keyed_merges(lake: Catalog, store: str) -> None:
    codec = {"write.parquet.compression-codec": "uncompressed"}
    one_node = {BASE_BUCKETS: "1", CHANGE_BUCKETS: "1"}
    created = pyarctic.create_table("lake.db.t", IDS, ["id"], properties=QUIET | codec | one_node)
    created.write(many(range(100), "old "))
    optimize(created, "full")
    opened().write(many(range(50, 150), "new "))
    text = many(range(75, 76), "old " if store == "base" else "new ")["text"][0].as_py().encode()
    table = opened()
    paths = (table if store == "base" else table.change_store).file_list.frame().filter(IS_DATA)["file_path"]
    (path,) = [path for path in paths if text in Path(local(path)).read_bytes()]
    flip(Path(local(path)), text)
    before = [table.view.snapshot_id, table.change_store.view.snapshot_id]
    report = optimize(opened(), "full", verify=False)
    (failure,) = report.failures
    assert failure.code == "damaged"
    assert path in failure.detail
    assert "column text" in failure.detail
    assert [opened().view.snapshot_id, opened().change_store.view.snapshot_id] == before
    with pytest.raises(Damaged, match="column text"):
        opened().scan().to_arrow()


def test_scans_stop_unless_the_column_is_not_read(lake: Catalog, tmp_path: Path) -> None:
    _, files = spec_table(lake, tmp_path)
    flip(Path(local(files[1].path)), NAME)
    table = pyarctic.table("lake.db.t")
    with pytest.raises(Damaged, match="row group 0, column name: a page does not match its checksum") as caught:
        table.scan().to_arrow()
    assert caught.value.facts | {"file": files[1].path, "row_group": 0, "column": "name"} == caught.value.facts
    assert table.scan(["id"]).to_arrow().num_rows == 300
    assert table.scan(where=f"id >= {200 << 32}").to_arrow().num_rows == 100


@pytest.mark.parametrize("copying", [True, False])
def test_files_without_checksums(lake: Catalog, tmp_path: Path, copying: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if copying:
        monkeypatch.setattr(plan, "COPY_LEAST_ROWS", dict.fromkeys(("minor", "major", "full"), 1))
    spec_table(lake, tmp_path, checksums=False)
    table = pyarctic.table("lake.db.t")
    before = table.scan().to_arrow().sort_by("id")
    report = optimize(table, "full")
    assert report.tasks_committed == 1
    assert report.rows_copied == (300 if copying else 0)
    table = pyarctic.table("lake.db.t")
    assert table.scan().to_arrow().sort_by("id").equals(before)
    (path,) = table.files()["file_path"]
    assert have_checksums(Path(local(path))) is not copying


@pytest.mark.parametrize("version", [2, 3])
def test_our_files_have_checksums(lake: Catalog, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data files, delete files, and what optimizing makes of them: encoded, copied, and with columns beside copied ones."""
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))
    table = lake.create_table("db.t", schema, properties=QUIET | {"format-version": str(version)})
    for first in (0, 100, 200):
        rows = pa.table({"id": list(range(first, first + 100)), "name": [f"n{number % 7}" for number in range(100)]})
        table = changes.apply(table, partial(changes.append, data=rows))
    monkeypatch.setattr(plan, "COPY_LEAST_ROWS", dict.fromkeys(("minor", "major", "full"), 1))
    copied = optimize(pyarctic.table("lake.db.t"), "full")
    assert copied.rows_copied == 300
    table = changes.apply(lake.load_table("db.t"), partial(changes.equality_delete, keys=pa.table({"name": ["n3"]})))
    table = changes.apply(table, partial(changes.position_delete, where="id < 10"))
    optimize(pyarctic.table("lake.db.t"), "full")
    paths = [path for path in map(Path, on_disk(lake.load_table("db.t"))) if path.suffix == ".parquet"]
    assert len(paths) == (7 if version == 2 else 6)
    assert all(map(have_checksums, paths))


def test_a_changed_row_map_is_not_used(lake: Catalog, tmp_path: Path) -> None:
    """It tells where deletes go that arrive during a rewrite: a wrong position would delete another row."""
    spec_table(lake, tmp_path)
    table = pyarctic.table("lake.db.t")
    before = table.view.snapshot_id

    def spoil() -> None:
        (path,) = (tmp_path / "t").rglob("*-rowmap.parquet")
        content = bytearray(path.read_bytes())
        content[60] ^= 1
        path.write_bytes(content)

    with pytest.raises(Damaged, match=r"rowmap\.parquet"):
        optimize(table, "full", meanwhile=spoil)
    assert pyarctic.table("lake.db.t").view.snapshot_id == before
