"""A table as users hold it: files, partitions, snapshots, summary, branches and tags, moments; and listing tables."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

import pyarctic
from pyarctic.errors import NotFound, Unavailable, UsageError
from pyarctic.tables import list_tables
from tests.integration.iceberg.conftest import Lake, rows
from tests.models.spec import SpecTable

START = datetime.fromtimestamp(1_700_000_000, UTC)


@pytest.fixture
def table(lake: Lake) -> SpecTable:
    """Partitions p, q and null; every kind of delete; three snapshots a second apart; a branch and a tag."""
    table = lake.make(version=2, partition=[("part", "identity")], properties={"owner": "anna"})
    p, q, null = (table.data(rows(*ids, part=part), (part,)) for ids, part in (((1, 2, 3), "p"), ((4,), "q"), ((5,), None)))
    first = table.commit(p, q, null)
    table.commit(table.position_deletes([(p.path, 0)], p), table.equality_deletes([{"id": 4}], ("q",)))
    table.upgrade(3)
    table.metadata["refs"] |= {
        "old": {"snapshot-id": first, "type": "tag"},
        "side": {"snapshot-id": first, "type": "branch"},
    }
    table.set_fields([*table.fields, {"id": 4, "name": "late", "required": False, "type": "int"}])
    table.commit(*table.vectors({null.path: [0]}, [null]), operation="delete")
    return table


def ids(lake: Lake, **where: object) -> list[int]:
    found = lake.open().scan(["id"], **where).to_arrow().column("id").to_pylist()  # type: ignore[arg-type]
    return sorted(found)


def test_identity(lake: Lake, table: SpecTable) -> None:
    opened = lake.open()
    assert opened.name == "lake.db.t"
    assert opened.kind == "native"
    assert opened.uuid == table.metadata["table-uuid"]
    assert opened.location == table.folder.as_uri()
    assert opened.format_version == 3
    assert opened.properties == {"owner": "anna"}
    assert opened.primary_key == ()
    assert [field.name for field in opened.schema.fields] == ["id", "name", "part", "late"]
    assert repr(opened) == "<Table lake.db.t (native, format v3)>"


def test_files(lake: Lake, table: SpecTable) -> None:
    frame = lake.open().files()
    assert sorted(frame["content"].to_list()) == [
        "data", "data", "data", "deletion-vector", "equality-deletes", "position-deletes",
    ]  # fmt: skip
    data = lake.open().files(content="data")
    assert data.select("partition", "record_count").rows() == [("part=p", 3), ("part=q", 1), ("part=null", 1)]
    assert lake.open().files(ref="old")["content"].to_list() == ["data"] * 3
    assert lake.open().files(snapshot_id=1002, content="deletion-vector").is_empty()
    with pytest.raises(UsageError, match="unknown kind of content: dta"):
        lake.open().files(content="dta")  # type: ignore[arg-type]


def test_partitions(lake: Lake, table: SpecTable) -> None:
    frame = lake.open().partitions()
    columns = [
        "partition",
        "data_files",
        "records",
        "position_delete_files",
        "equality_delete_files",
        "deletion_vectors",
    ]
    assert sorted(frame.select(columns).rows()) == [
        ("part=null", 1, 1, 0, 0, 1),
        ("part=p", 1, 3, 1, 0, 0),
        ("part=q", 1, 1, 0, 1, 0),
    ]
    files = {row["partition"]: row for row in lake.open().files(content="data").iter_rows(named=True)}
    for row in frame.iter_rows(named=True):
        size = files[row["partition"]]["file_size_bytes"]
        assert row["data_bytes"] == row["smallest_file_bytes"] == row["largest_file_bytes"] == size
        assert row["delete_bytes"] > 0
    assert lake.open().partitions(ref="old")["delete_bytes"].to_list() == [0, 0, 0]


def test_snapshots(lake: Lake, table: SpecTable) -> None:
    frame = lake.open().snapshots()
    assert frame["snapshot_id"].to_list() == [1001, 1002, 1003]
    assert frame["parent_id"].to_list() == [None, 1001, 1002]
    assert frame["sequence_number"].to_list() == [1, 2, 3]
    assert frame["refs"].to_list() == [["old", "side"], [], ["main"]]
    assert frame["operation"].to_list() == ["append", "append", "delete"]
    assert frame["committed_at"].to_list() == [START + timedelta(seconds=number) for number in (1, 2, 3)]


def test_summary(lake: Lake, table: SpecTable) -> None:
    summary = lake.open().summary()
    assert json.loads(json.dumps(summary)) == summary
    expected = {
        "name": "lake.db.t",
        "format_version": 3,
        "current_snapshot_id": "1003",
        "last_updated_at": "2023-11-14T22:13:23Z",
        "partition_spec": ["part"],
        "properties": {"owner": "anna"},
        "snapshots": 3,
        "data_files": 3,
        "delete_files": 3,
        "position_delete_files": 1,
        "equality_delete_files": 1,
        "deletion_vectors": 1,
        "records": 5,
    }
    assert {key: summary[key] for key in expected} == expected
    assert {ref["name"]: ref["snapshot_id"] for ref in summary["refs"]} == {
        "main": "1003",
        "old": "1001",
        "side": "1001",
    }
    assert summary["data_bytes"] == lake.open().files(content="data")["file_size_bytes"].sum()


def test_empty_table(lake: Lake) -> None:
    lake.make()
    opened = lake.open()
    assert opened.scan().to_arrow().num_rows == opened.scan().count() == opened.scan(where="id = 1").count() == 0
    assert opened.scan().to_arrow().schema.names == ["id", "name", "part"]
    assert opened.files().is_empty()
    assert opened.partitions().is_empty()
    assert opened.snapshots().is_empty()
    summary = opened.summary()
    assert (summary["current_snapshot_id"], summary["records"], summary["data_files"]) == (None, 0, 0)
    with pytest.raises(NotFound):
        opened.scan(as_of=datetime.now(UTC))


def test_refs_and_moments(lake: Lake, table: SpecTable) -> None:
    assert ids(lake) == ids(lake, ref="main") == [2, 3]
    assert ids(lake, ref="old") == ids(lake, ref="side") == ids(lake, snapshot_id=1001) == [1, 2, 3, 4, 5]
    assert ids(lake, snapshot_id=1002) == [2, 3, 5]
    for seconds, expected in ((1, [1, 2, 3, 4, 5]), (1.5, [1, 2, 3, 4, 5]), (2, [2, 3, 5]), (3, [2, 3]), (9e6, [2, 3])):
        assert ids(lake, as_of=START + timedelta(seconds=seconds)) == expected
    # Without a zone a moment is UTC; with one it is converted.
    naive = (START + timedelta(seconds=2)).replace(tzinfo=None)
    assert ids(lake, as_of=naive) == [2, 3, 5]
    assert ids(lake, as_of=(START + timedelta(seconds=2)).astimezone(timezone(timedelta(hours=5)))) == [2, 3, 5]
    with pytest.raises(NotFound, match="no snapshot as old as"):
        ids(lake, as_of=START)


def test_schema_of_a_tag_is_its_own_of_a_branch_the_current_one(lake: Lake, table: SpecTable) -> None:
    opened = lake.open()
    old, new = ["id", "name", "part"], ["id", "name", "part", "late"]
    assert opened.scan().schema.names == new
    assert opened.scan(ref="old").schema.names == opened.scan(snapshot_id=1001).schema.names == old
    assert opened.scan(ref="side").schema.names == new
    assert opened.scan(as_of=START + timedelta(seconds=1)).schema.names == old


def test_refresh(lake: Lake, table: SpecTable) -> None:
    opened = lake.open()
    assert opened.scan().count() == 2
    table.commit(table.data(rows(70, part="p"), ("p",)))
    assert opened.scan().count() == 2  # a handle stays at its moment
    assert opened.refresh() is opened
    assert opened.scan().count() == 3


def test_bad_questions(lake: Lake, table: SpecTable) -> None:
    opened = lake.open()
    with pytest.raises(NotFound, match="snapshot 5 does not exist") as missing:
        opened.scan(snapshot_id=5)
    assert missing.value.facts == {"snapshot_id": 5, "table": "lake.db.t"}
    with pytest.raises(NotFound, match="no branch or tag 'nope'") as unknown:
        opened.scan(ref="nope")
    assert "main" in str(unknown.value.hint)
    with pytest.raises(UsageError, match="give one of"):
        opened.scan(snapshot_id=1001, ref="main")
    with pytest.raises(UsageError, match="no such column: nope, neither"):
        opened.scan(["id", "nope", "neither"])
    with pytest.raises(UsageError, match="no column"):
        opened.scan([])
    for where in ("id >", "nope = 1", "id = 'text'"):
        with pytest.raises(UsageError, match="condition is not understood") as wrong:
            opened.scan(where=where)
        assert wrong.value.facts["table"] == "lake.db.t"
        assert wrong.value.hint


@pytest.mark.parametrize("name", ["t", "db.t", "lake.db.t.", "..", ""])
def test_bad_names(lake: Lake, name: str) -> None:
    with pytest.raises(UsageError):
        pyarctic.table(name)


@pytest.mark.parametrize("name", ["lake.db.missing", "lake.nowhere.t", "unknown.db.t"])
def test_missing_things(lake: Lake, name: str) -> None:
    with pytest.raises(NotFound) as caught:
        pyarctic.table(name)
    assert caught.value.hint


def test_columns_in_the_order_asked_for_once_each(lake: Lake, table: SpecTable) -> None:
    found = lake.open().scan(["part", "_pos", "id", "part"], where="id = 3").to_arrow()
    assert found.to_pylist() == [{"part": "p", "_pos": 2, "id": 3}]


def test_columns_of_a_condition_need_not_be_asked_for(lake: Lake, table: SpecTable) -> None:
    assert lake.open().scan(["name"], where="id = 3 and part = 'p'").to_arrow().to_pylist() == [{"name": "n"}]


def test_list_tables(lake: Lake, tmp_path: Path) -> None:
    lake.make("orders")
    lake.make("order_items")
    lake.make("people")
    lake.catalog.create_namespace("db.deep")
    lake.catalog.create_namespace("other")
    SpecTable(lake.catalog, "other.orders", tmp_path / "o", [("id", "int")])
    SpecTable(lake.catalog, "db.deep.orders", tmp_path / "d", [("id", "int")])
    pyarctic.catalog("second", type="sql", uri=f"sqlite:///{tmp_path}/second.db", warehouse=tmp_path.as_uri())
    everything = [
        "lake.db.deep.orders", "lake.db.order_items", "lake.db.orders", "lake.db.people", "lake.other.orders",
    ]  # fmt: skip
    assert list_tables() == list_tables("*") == list_tables("lake.*") == everything
    assert list_tables("lake.*.orders") == list_tables("*.orders") == [everything[0], everything[2], everything[4]]
    assert list_tables("lake.db.order*") == everything[1:3]
    assert list_tables("lake.d?.people") == [everything[3]]
    assert list_tables("lake.[!d]*.orders") == [everything[4]]
    assert list_tables("second.*") == list_tables("lake.db.Orders*") == list_tables("nope.*") == []


def test_listing_asks_only_catalogs_that_can_match(lake: Lake, tmp_path: Path) -> None:
    lake.make("orders")
    (tmp_path / "broken.db").write_text("this is no database", encoding="utf-8")
    from pyarctic import config

    config.declare_catalog("broken", {"type": "sql", "uri": f"sqlite:///{tmp_path}/broken.db"})
    assert list_tables("lake.*") == ["lake.db.orders"]
    with pytest.raises(Unavailable, match="broken"):
        list_tables()
