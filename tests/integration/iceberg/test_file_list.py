"""The file list: what it reads again and what it does not, how it is saved, what changed between snapshots."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from polars.testing import assert_frame_equal
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.table import Table as IcebergTable

from pyarctic.errors import Damaged, NotFound
from pyarctic.iceberg.manifest import FILE_SCHEMA, FileList, changed_files, snapshot_by_id
from pyarctic.iceberg.manifest.file_list import ManifestReader
from tests.integration.iceberg.conftest import Lake, rows
from tests.models.spec import SpecFile, SpecTable


class CountingIO(PyArrowFileIO):
    """Remembers which files were opened."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []

    def new_input(self, location: str) -> PyArrowFile:
        self.opened.append(location)
        return super().new_input(location)

    def manifests(self) -> list[str]:
        """The manifests opened since the last question."""
        seen, self.opened = [path for path in self.opened if "-m0" in path], []
        return seen


@pytest.fixture
def io() -> CountingIO:
    return CountingIO()


def load(lake: Lake) -> IcebergTable:
    return lake.catalog.load_table("db.t")


def three_commits(lake: Lake) -> tuple[SpecTable, list[SpecFile]]:
    table = lake.make()
    files = [table.data(rows(number)) for number in range(3)]
    for file in files:
        table.commit(file)
    return table, files


def paths(frame: pl.DataFrame) -> set[str]:
    return set(frame["file_path"].to_list())


def test_only_unknown_manifests_are_read(lake: Lake, io: CountingIO) -> None:
    table, files = three_commits(lake)
    loaded = load(lake)
    listed = FileList.of(loaded.metadata, io, loaded.metadata.current_snapshot())
    assert len(io.manifests()) == 3
    assert paths(listed.frame()) == {file.path for file in files}
    table.commit(table.data(rows(9)))
    loaded = load(lake)
    later = listed.at(io, loaded.metadata.current_snapshot())
    assert io.manifests() == [table.manifests[-1].path]
    assert later.frame().height == 4
    assert listed.frame().height == 3  # the old list stays as it was
    # Removing a file rewrites its manifest: the new one is read, the old one forgotten.
    table.commit(removed=[files[0]], operation="delete")
    gone = later.at(io, load(lake).metadata.current_snapshot())
    assert io.manifests() == [table.manifests[0].path]
    assert paths(gone.frame()) == paths(later.frame()) - {files[0].path}
    fresh = FileList.of(loaded.metadata, PyArrowFileIO(), load(lake).metadata.current_snapshot())
    assert_frame_equal(gone.frame(), fresh.frame())


def test_going_back_to_an_older_snapshot_reads_nothing_new(lake: Lake, io: CountingIO) -> None:
    _, files = three_commits(lake)
    metadata = load(lake).metadata
    listed = FileList.of(metadata, io, metadata.current_snapshot())
    io.manifests()
    older = listed.at(io, snapshot_by_id(metadata, 1001))
    assert io.manifests() == []
    assert paths(older.frame()) == {files[0].path}
    assert older.snapshot_id == 1001


def test_row_ids_given_by_an_upgrade_reach_a_known_list(lake: Lake, tmp_path: Path) -> None:
    """The manifest file stays, but the first v3 commit gives its entries row ids through the manifest list."""
    table, files = three_commits(lake)
    metadata = load(lake).metadata
    listed = FileList.of(metadata, PyArrowFileIO(), metadata.current_snapshot())
    listed.save(tmp_path / "list")
    table.upgrade(3)
    table.commit(table.data(rows(7)))
    snapshot = load(lake).metadata.current_snapshot()
    for known in (listed, FileList.load(tmp_path / "list", listed.table_uuid)):
        now = known.at(PyArrowFileIO(), snapshot).frame()
        ids = dict(now.select("file_path", "first_row_id").iter_rows())
        assert [ids[file.path] for file in files] == [0, 1, 2]


def test_table_without_snapshot(lake: Lake) -> None:
    lake.make()
    frame = FileList.of(load(lake).metadata, PyArrowFileIO(), None).frame()
    assert frame.is_empty()
    assert frame.schema == FILE_SCHEMA


def test_saved_list_saves_reading(lake: Lake, io: CountingIO, tmp_path: Path) -> None:
    table, files = three_commits(lake)
    table.commit(table.equality_deletes([{"id": 1, "name": "x"}]), table.position_deletes([(files[0].path, 0)], files[0]))
    metadata = load(lake).metadata
    snapshot = metadata.current_snapshot()
    listed = FileList.of(metadata, io, snapshot)
    target = tmp_path / "deep" / "list.parquet"
    listed.save(target)
    listed.save(target)  # replaces
    assert [path.name for path in target.parent.iterdir()] == ["list.parquet"]
    io.manifests()
    loaded = FileList.load(target, listed.table_uuid).at(io, snapshot)
    assert io.manifests() == []
    assert_frame_equal(loaded.frame(), listed.frame())
    assert loaded.frame().schema == FILE_SCHEMA
    with_metrics = loaded.with_metrics(io, loaded.frame(), [1])
    assert with_metrics["values_1"].to_list() == [1, 1, 1, None, None]


def test_saved_list_of_another_table(lake: Lake, tmp_path: Path) -> None:
    three_commits(lake)
    metadata = load(lake).metadata
    FileList.of(metadata, PyArrowFileIO(), metadata.current_snapshot()).save(tmp_path / "list")
    with pytest.raises(Damaged, match="belongs to table") as caught:
        FileList.load(tmp_path / "list", "another")
    assert "Delete it" in str(caught.value.hint)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"garbage" * 100])
def test_saved_garbage(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "list").write_bytes(content)
    with pytest.raises(Damaged, match="cannot be read"):
        FileList.load(tmp_path / "list", "x")


def test_saved_parquet_of_other_origin(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "list")
    with pytest.raises(Damaged, match="cannot be read"):
        FileList.load(tmp_path / "list", "x")
    with pytest.raises(Damaged):
        FileList.load(tmp_path / "missing", "x")


def test_changed_files(lake: Lake, io: CountingIO) -> None:
    table, files = three_commits(lake)
    vectors_table = lake.make("v", version=3)
    other = table.data(rows(50))
    table.commit(other, removed=[files[1]], operation="overwrite")
    metadata = load(lake).metadata

    def changes(since: int | None, until: int) -> set[tuple[str, str]]:
        before = None if since is None else snapshot_by_id(metadata, since)
        frame = changed_files(ManifestReader(io), before, snapshot_by_id(metadata, until))
        assert frame.schema == {**FILE_SCHEMA, "change": pl.String}
        return set(frame.select("file_path", "change").iter_rows())

    assert changes(None, 1001) == {(files[0].path, "added")}
    assert changes(1003, 1004) == {(other.path, "added"), (files[1].path, "removed")}
    # files[1] came and went within; files[0] only moved to another manifest.
    assert changes(1001, 1004) == {(files[2].path, "added"), (other.path, "added")}
    assert changes(1004, 1001) == {(files[2].path, "removed"), (other.path, "removed")}
    io.manifests()
    assert changes(1002, 1002) == set()
    assert io.manifests() == []
    with pytest.raises(NotFound):
        changes(1001, 5)
    # Two vectors in one Puffin file: one is replaced, the other stays.
    data = [vectors_table.data(rows(1, 2)), vectors_table.data(rows(3, 4))]
    vectors = vectors_table.vectors({data[0].path: [0], data[1].path: [1]}, data)
    first = vectors_table.commit(*data, *vectors)
    newer = vectors_table.vectors({data[0].path: [0, 1]}, data[:1])
    second = vectors_table.commit(*newer, removed=vectors[:1])
    metadata = lake.catalog.load_table("db.v").metadata
    assert changes(first, second) == {(newer[0].path, "added"), (vectors[0].path, "removed")}


def test_a_saved_list_of_manifests_of_several_kinds(lake: Lake, tmp_path: Path) -> None:
    """Manifests of data and of deletes are decoded apart, and stand in the list in turns."""
    made = lake.make()
    made.commit(made.data(rows(1)))
    deletes = made.equality_deletes([{"id": 7}])
    made.commit(deletes, operation="delete")
    made.commit(made.data(rows(2)))
    table = lake.catalog.load_table("db.t")
    FileList.of(table.metadata, table.io, table.current_snapshot()).save(tmp_path / "list")
    made.commit(made.data(rows(3)), removed=[deletes], operation="overwrite")
    table = lake.catalog.load_table("db.t")
    now = table.current_snapshot()
    loaded = FileList.load(tmp_path / "list", table.metadata.table_uuid).at(table.io, now).frame()
    read = FileList.of(table.metadata, table.io, now).frame()
    assert loaded.sort("file_path").equals(read.sort("file_path"))
    assert loaded.height == 3
