"""Large files of inserts that become part of Base as they are: when, and what must not happen to them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

import pyarctic
from pyarctic.iceberg.manifest.file_list import IS_DATA
from pyarctic.optimizing import KindChoice
from pyarctic.optimizing.commit import roll_back
from pyarctic.tables.format.store_properties import BASE_BUCKETS, CHANGE_BUCKETS
from pyarctic.tables.keyed_table import KeyedTable
from tests.support.integrity import local
from tests.support.keyed_tables import base_files, commit, expire, faults, made, many, opened, read, rows, texts, unmerged
from tests.support.optimizing import optimize

MANY = range(2_000)


def sharing() -> KeyedTable:
    return made(target_size="48KB", share_insert_files="true")


def shared() -> set[str]:
    """Data files that both stores have."""
    change = set(opened().change_store.file_list.frame()["file_path"])
    return change & set(base_files().filter(IS_DATA)["file_path"])


def test_only_if_the_table_says_so(lake: Catalog) -> None:
    made(target_size="64KB").write(many(MANY, "a"))
    assert optimize(opened(), "minor").files_shared == 0
    assert not shared()


@pytest.mark.parametrize(("kind", "is_shared"), [("minor", True), ("major", True), ("full", False)])
def test_a_large_file_becomes_part_of_base(lake: Catalog, kind: KindChoice, is_shared: bool) -> None:
    table = sharing()
    table.write(many(MANY, "a"))
    table.write(rows(_5000="b", _5001="b"))
    report = optimize(opened(), kind)
    assert report.files_shared == len(shared()) == is_shared
    assert "shared       1 files of both stores" in str(report) or not is_shared
    expected = texts(MANY, "a") | {5000: "b", 5001: "b"}
    assert read() == read("base") == expected
    plain = opened()._loaded.scan().to_arrow()  # PyIceberg does not mind the column of offsets
    assert dict(zip(plain["id"].to_pylist(), plain["text"].to_pylist(), strict=True)) == expected
    assert opened().scan(store="base", where="id >= 1995").count() == 7
    assert opened().changes().to_arrow().num_rows == 2_002
    assert not unmerged()
    assert not faults()
    if kind != "full":
        assert not optimize(opened(), kind).changed


def test_a_file_with_dead_rows_or_a_small_one_is_written(lake: Catalog) -> None:
    table = sharing()
    table.write(many(MANY, "a"))
    table.write(rows(_7="b"), "upsert")
    assert optimize(opened(), "minor").files_shared == 0
    assert read() == read("base") == texts(MANY, "a") | {7: "b"}


def test_a_file_of_several_nodes_is_written(lake: Catalog) -> None:
    table = sharing()
    table.set({BASE_BUCKETS: "4"})
    table.write(many(range(100), "b"), "overwrite")  # lies at the deeper level, and stays if it is no fragment
    table.set({"self-optimizing.fragment-size": "500"})
    table.write(many(MANY, "a"), "upsert")
    assert optimize(opened(), "minor").files_shared == 0
    assert read() == read("base") == texts(MANY, "a")


def test_deletes_and_later_rounds(lake: Catalog) -> None:
    table = sharing()
    table.set({CHANGE_BUCKETS: "4", BASE_BUCKETS: "4"})
    table.write(many(range(8_000), "a"))
    assert optimize(opened(), "minor").files_shared == 4
    table.write(rows(_1="b", _2="b", _9000="b"), "upsert")
    table.write(rows(_3="-"), "delete")
    expected = {key: text for key, text in (texts(range(8_000), "a") | {1: "b", 2: "b", 9000: "b"}).items() if key != 3}
    assert read() == expected
    optimize(opened(), "minor")
    assert len(shared()) == 4
    assert base_files().filter(~IS_DATA).height
    assert read() == read("base") == expected
    optimize(opened(), "full")
    assert not shared()
    assert read() == read("base") == expected
    assert opened().changes().to_arrow().num_rows == 8_000 + 3 * 2 + 1
    assert not faults()


@pytest.mark.parametrize("names_transaction", [False, True])
def test_not_where_an_older_transaction_may_still_come(lake: Catalog, names_transaction: bool) -> None:
    """However long ago it was begun: a file of Base that names no transaction would lose against its deletes."""
    table = sharing()
    table.set({"self-optimizing.transaction-timeout": "1ms"})
    early = table._begin()
    if names_transaction:
        later = table._begin()
        commit(opened(), later, many(MANY, "a"))
    else:
        table.write(many(MANY, "a"))
    time.sleep(0.01)
    report = optimize(opened(), "minor")
    assert not unmerged()
    assert report.files_shared == names_transaction
    commit(opened(), early, rows(_1="-", _2="-"), "ED")
    assert read() == texts(MANY, "a")
    optimize(opened(), "minor")
    assert read() == read("base") == texts(MANY, "a")


@pytest.mark.parametrize("is_older_kept", [False, True])
def test_not_where_the_beginning_of_a_transaction_may_have_been_expired(lake: Catalog, is_older_kept: bool) -> None:
    """Also if an older snapshot is there, as tags keep them."""
    table = sharing()
    table.set({"self-optimizing.transaction-timeout": "1ms"})
    if is_older_kept:
        table.write(rows(_1="old"))
    early = table._begin()
    begun = opened().change_store.view.snapshot_id
    table.write(many(MANY, "a"))
    store = opened().change_store._loaded
    if is_older_kept:
        store.maintenance.expire_snapshots().by_ids([begun or 0]).commit()
    else:
        expire(store)
    time.sleep(0.01)
    assert optimize(opened(), "minor").files_shared == 0
    commit(opened(), early, rows(_1="-", _2="-"), "ED")
    assert read() == texts(MANY, "a")


def test_work_in_vain_removes_no_shared_file(lake: Catalog) -> None:
    table = sharing()
    table.write(many(MANY, "a"))

    def overwritten() -> None:
        opened().write(rows(_1="new"), "overwrite")

    report = optimize(opened(), "minor", meanwhile=overwritten)
    assert report.tasks_dropped == 1
    assert not shared()
    assert read() == {1: "new"}
    assert opened().changes().to_arrow().num_rows == len(MANY)
    assert not faults()


def test_a_run_is_taken_back_and_repeated(lake: Catalog) -> None:
    table = sharing()
    table.write(rows(_1="x"))
    optimize(opened(), "minor")
    table.write(many(MANY, "a"), "upsert")
    assert optimize(opened(), "minor").files_shared == 1
    roll_back(opened())
    assert not shared()
    assert read() == texts(MANY, "a")
    assert optimize(opened(), "minor").files_shared == 1
    assert read() == read("base") == texts(MANY, "a")
    assert not faults()


def test_a_file_of_an_older_schema_is_written(lake: Catalog) -> None:
    table = sharing()
    table.write(many(MANY, "a"))
    table.evolve(add={"more": "int"})
    assert optimize(opened(), "minor").files_shared == 0
    assert read() == read("base") == texts(MANY, "a")


def test_a_table_is_dropped_with_its_files(lake: Catalog) -> None:
    table = sharing()
    table.write(many(MANY, "a"))
    optimize(opened(), "minor")
    (path,) = shared()
    pyarctic.drop_table("lake.db.t", purge=True)
    assert not Path(local(path)).exists()
