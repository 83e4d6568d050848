"""Histories that other tools have cut, handles that others have left behind, answers that were lost."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table as IcebergTable
from pyiceberg.types import LongType

import pyarctic
from pyarctic.errors import Damaged, NotFound, OutcomeUnknown, Rejected, Unsupported, UsageError
from pyarctic.iceberg.commit import Change
from pyarctic.tables import WriteMode
from pyarctic.tables.create import TableAdvice
from pyarctic.tables.format.store_properties import check_spec
from pyarctic.tables.keyed_table import KeyedTable
from tests.support.integrity import local

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


def rows(*pairs: tuple[int, str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"id": key, "v": value} for key, value in pairs], schema=SCHEMA)


def new_table() -> KeyedTable:
    table = pyarctic.create_table("lake.db.t", SCHEMA, ["id"])
    assert isinstance(table, KeyedTable)
    return table


def content(table: Any = None, **asked: Any) -> dict[int, str]:
    found = (table or pyarctic.table("lake.db.t")).scan(**asked).to_arrow()
    assert found["id"].to_pylist() == list(dict.fromkeys(found["id"].to_pylist()))
    return dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))


def expire_all_but_the_last(table: IcebergTable) -> None:
    """PyIceberg takes the last snapshot its parent, too."""
    table.maintenance.expire_snapshots().by_ids([s.snapshot_id for s in table.metadata.snapshots[:-1]]).commit()


@pytest.mark.parametrize("mode", ["insert", "upsert", "overwrite"])
def test_a_change_store_whose_snapshots_were_expired_is_written_to(lake: Catalog, mode: WriteMode) -> None:
    stale = new_table()
    for key in range(3):
        pyarctic.table("lake.db.t").write(rows((key, "old")))
    expire_all_but_the_last(lake.load_table("db.t_change_"))
    pyarctic.table("lake.db.t").write(rows((3, "fresh")))
    assert stale.write(rows((1, "new")), mode=mode) is not None
    kept = {} if mode == "overwrite" else {0: "old", 2: "old", 3: "fresh"}
    assert content() == kept | {1: "new"}


def test_rows_are_added_to_a_table_whose_snapshots_were_expired(lake: Catalog) -> None:
    table = pyarctic.create_table("lake.db.t", SCHEMA)
    for key in range(3):
        table.write(rows((key, "old")))
    expire_all_but_the_last(lake.load_table("db.t"))
    pyarctic.table("lake.db.t").write(rows((3, "new")))
    assert len(content()) == 4


def test_files_stay_if_the_snapshot_of_a_lost_answer_was_expired(lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    new_table().write(rows((1, "a")))
    writer = pyarctic.table("lake.db.t")
    assert isinstance(writer, KeyedTable)
    catalog = writer.change_store._loaded.catalog
    send = catalog.commit_table

    def lost(*request: Any) -> Any:
        send(*request)
        monkeypatch.setattr(catalog, "commit_table", send)
        pyarctic.table("lake.db.t").write(rows((3, "c")))
        expire_all_but_the_last(lake.load_table("db.t_change_"))
        msg = "the answer was lost"
        raise ConnectionError(msg)

    monkeypatch.setattr(catalog, "commit_table", lost)
    with pytest.raises(OutcomeUnknown):
        writer.write(rows((2, "b")))
    assert content() == {1: "a", 2: "b", 3: "c"}


@pytest.mark.parametrize("mode", ["insert", "overwrite"])
@pytest.mark.usefixtures("lake")
def test_files_stay_if_the_snapshot_of_a_lost_answer_was_rolled_back(
    mode: WriteMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table()
    table.write(rows((1, "a")), mode="overwrite")
    table.write(rows((2, "b")))
    writer = pyarctic.table("lake.db.t")
    assert isinstance(writer, KeyedTable)
    store = writer if mode == "overwrite" else writer.change_store
    catalog, send = store._loaded.catalog, store._loaded.catalog.commit_table

    def lost(*request: Any) -> Any:
        answer = send(*request)
        if request[0].name() != store._loaded.name():
            return answer
        monkeypatch.setattr(catalog, "commit_table", send)
        other = pyarctic.table("lake.db.t")
        assert isinstance(other, KeyedTable)
        moved = other if mode == "overwrite" else other.change_store
        moved.roll_back(moved.view.metadata.snapshots[-2].snapshot_id)
        msg = "the answer was lost"
        raise ConnectionError(msg)

    monkeypatch.setattr(catalog, "commit_table", lost)
    with pytest.raises(Rejected, match="rolled back since"):
        writer.write(rows((3, "c")), mode=mode)
    monkeypatch.undo()
    assert content() == {1: "a", 2: "b"}
    store.refresh().roll_back(store.view.metadata.snapshots[-1].snapshot_id)
    assert content() == ({3: "c"} if mode == "overwrite" else {1: "a", 2: "b", 3: "c"})


def test_the_past_is_refused_when_its_base_was_expired(lake: Catalog) -> None:
    table = new_table()
    table.write(rows((1, "load")), mode="overwrite")
    then = table.write(rows((2, "change")))
    table.write(rows((3, "second")), mode="overwrite")
    assert content(snapshot_id=then) == {1: "load", 2: "change"}
    expire_all_but_the_last(lake.load_table("db.t"))
    with pytest.raises(NotFound, match="no snapshot of that time"):
        content(snapshot_id=then)
    assert content() == {3: "second"}


def test_merged_changes_do_not_come_back_when_the_history_of_base_was_cut(lake: Catalog) -> None:
    table = new_table()
    table.write(rows((1, "hidden")))
    table.write(rows((3, "load")), mode="overwrite")
    lake.load_table("db.t").append(pa.Table.from_batches([rows((5, "appended"))]))
    assert content() == {3: "load", 5: "appended"}
    expire_all_but_the_last(lake.load_table("db.t"))
    assert content() == {3: "load", 5: "appended"}
    with lake.load_table("db.t").transaction() as transaction:
        transaction.remove_properties("table.partition-properties")
    assert content() == {3: "load", 5: "appended"}, "an older metadata file tells it"
    for entry in lake.load_table("db.t").metadata.metadata_log:
        Path(local(entry.metadata_file)).unlink(missing_ok=True)
    with pytest.raises(Damaged, match="what was merged is not known"):
        content()


def test_a_base_of_appends_with_a_cut_history_is_read_when_somebody_says_that_nothing_was_merged(lake: Catalog) -> None:
    new_table().write(rows((1, "change")))
    base = lake.load_table("db.t")
    for key in (5, 6):
        base.append(pa.Table.from_batches([rows((key, "appended"))]))
    expire_all_but_the_last(base)
    with base.transaction() as transaction:
        transaction.set_properties({"table.partition-properties": "{}"})
    assert content() == {1: "change", 5: "appended", 6: "appended"}


def test_a_moment_shows_nothing_of_base_that_came_later(lake: Catalog) -> None:
    table = new_table()
    table.write(rows((1, "a")))
    moments = []

    def slowly() -> Iterator[pa.RecordBatch]:
        yield rows((2, "load"))
        time.sleep(0.01)
        moments.append(dt.datetime.now(dt.UTC))  # the overwrite has begun, and nobody sees it yet
        time.sleep(0.01)

    table.write(slowly(), mode="overwrite")
    moments.append(dt.datetime.now(dt.UTC))
    time.sleep(0.01)
    lake.load_table("db.t").append(pa.Table.from_batches([rows((5, "appended"))]))
    assert [content(as_of=moment) for moment in moments] == [{1: "a"}, {2: "load"}]


@pytest.mark.usefixtures("lake")
def test_a_handle_that_wrote_sees_what_others_merged_and_removed() -> None:
    stale = new_table()
    stale.write(rows((1, "a")))
    other = pyarctic.table("lake.db.t")
    assert isinstance(other, KeyedTable)
    other.write(rows((1, "a")), mode="overwrite")  # as a merge does
    store = other.change_store
    store.commit(Change(start=store.view.snapshot_id, remove=store.file_list.frame()))  # as their time to live demands
    stale.write(rows((2, "b")))
    assert content(stale) == {1: "a", 2: "b"}


@pytest.mark.usefixtures("lake")
def test_a_delete_needs_the_partition_columns() -> None:
    schema = pa.schema([*SCHEMA, ("city", pa.string())])
    with pytest.warns(TableAdvice):
        table = pyarctic.create_table("lake.db.t", schema, ["id"], partition_by=["city"])
    table.write(pa.table([[1, 2], ["a", "b"], ["Oslo", None]], schema=schema))
    with pytest.raises(UsageError, match="lack the partition column city"):
        table.write(pa.table({"id": [1]}), mode="delete")
    table.write(pa.table({"id": [2], "city": pa.array([None], pa.string())}), mode="delete")
    table.write(pa.table({"id": [1]}), mode="delete", across_partitions=True)
    assert content(table) == {}


@pytest.mark.usefixtures("lake")
def test_stores_with_specs_of_different_numbers_are_refused() -> None:
    table = pyarctic.create_table("lake.db.t", SCHEMA, ["id"], partition_by=["id"])
    base = table.view.metadata
    spec = base.spec().model_copy(update={"spec_id": 1})
    change = base.model_copy(update={"partition_specs": [spec], "default_spec_id": 1})
    with pytest.raises(Unsupported, match="partitioned differently"):
        check_spec(base, change)


def test_a_key_that_another_engine_widened_is_found_in_its_old_files(lake: Catalog) -> None:
    """Negative numbers have another hash as ints than as longs."""
    narrow = pa.schema([pa.field("id", pa.int32(), nullable=False), ("v", pa.string())])
    table = pyarctic.create_table("lake.db.t", narrow, ["id"])
    table.write(pa.table([[-1, -2, -3, 5], ["a"] * 4], schema=narrow), mode="overwrite")
    table.write(pa.table([[-7, 7], ["a"] * 2], schema=narrow))
    for store in ("db.t", "db.t_change_"):
        with lake.load_table(store).update_schema() as update:
            update.update_column("id", field_type=LongType())
    table = pyarctic.table("lake.db.t")
    table.write(rows((-1, "new"), (-7, "new"), (5, "new")), mode="upsert")
    table.write(pa.table({"id": [-2]}), mode="delete")
    assert content() == {-1: "new", -3: "a", -7: "new", 5: "new", 7: "a"}
