"""Rolling back processes of keyed tables: the rows stay the same, or it is refused and says why."""

from __future__ import annotations

import time

import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from pyarctic.errors import Rejected
from pyarctic.iceberg.commit import Change
from pyarctic.optimizing.commit import roll_back
from pyarctic.tables.keyed_table import KeyedTable
from tests.support import changes
from tests.support.keyed_tables import CITIES, base_files, cities, commit, expire, made, opened, read, rows, unmerged
from tests.support.optimizing import optimize

REMOVED = "changes that the process merged were removed"
EXPIRED = "changes that the process merged may have been cleaned since: .* was expired"


def merged_twice(text: str = "b") -> KeyedTable:
    """A table with two processes, each of which has merged one commit: those with the numbers 1 and 2."""
    table = made()
    for each in ("a", text):
        table.write(rows(_1=each))
        optimize(opened(), "minor")
    return table


def clean(*sequences: int) -> None:
    """Another engine removes the changes of some commits."""
    store = opened().change_store
    files = store.file_list.frame()
    store.commit(Change(start=store.view.snapshot_id, remove=files.filter(pl.col("data_sequence_number").is_in(sequences))))


def head() -> int:
    snapshot_id = opened().view.snapshot_id
    assert snapshot_id is not None
    return snapshot_id


def check_taken_back(to: int | None = None) -> None:
    """The last process, or those since a snapshot, can be undone and done again, and no row changes."""
    expected = read()
    roll_back(opened(), to)
    assert read() == expected
    assert unmerged()
    optimize(opened(), "full")
    assert read() == read("base") == expected


def test_a_run_is_taken_back(lake: Catalog) -> None:
    table = made(CITIES, ("city",))
    table.write(cities((1, "a", "old"), (2, "b", "old")))
    optimize(opened(), "minor")
    merged, base = opened().merged_sequences(), read("base")
    table.write(cities((1, "a", "new"), (3, "c", "new")), "upsert")
    optimize(opened(), "full")
    expected = read()
    begun = table._begin()
    roll_back(opened())
    assert opened().merged_sequences() == merged
    assert read("base") == base
    assert read() == expected
    opened()._end([begun])
    optimize(opened(), "full")
    assert read() == read("base") == expected


def test_a_run_that_merged_the_manifests_of_changes_is_taken_back(lake: Catalog) -> None:
    """The snapshot of the change store is a replace, and has all changes."""
    table = made()
    table.set({"commit.manifest.min-count-to-merge": "2"})
    table.write(rows(_1="a"))
    transaction = table._begin()
    optimize(opened(), "minor")
    commit(opened(), transaction, rows(_2="b"))
    assert optimize(opened(), "minor").change_manifests_merged == 2
    check_taken_back()


def test_manifests_that_were_merged_later_do_not_matter(lake: Catalog) -> None:
    table = merged_twice()
    opened().change_store.rewrite_manifests(everything=True)
    table.write(rows(_2="c"))
    opened().change_store.rewrite_manifests(everything=True)
    check_taken_back()


@pytest.mark.parametrize("is_expired", [False, True])
def test_a_run_is_not_taken_back_after_its_changes_are_gone(lake: Catalog, is_expired: bool) -> None:
    merged_twice()
    clean(1, 2)
    opened().write(rows(_2="c"))
    if is_expired:  # the one that removed them, too
        expire(opened().change_store._loaded)
    with pytest.raises(Rejected, match=EXPIRED if is_expired else REMOVED):
        roll_back(opened())
    assert read() == {1: "b", 2: "c"}


def test_changes_that_an_older_run_merged_may_be_gone(lake: Catalog) -> None:
    made().write(rows(_9="z"), "overwrite")
    first = head()
    for each in "ab":
        opened().write(rows(_1=each))
        optimize(opened(), "minor")
    (oldest, _) = sorted(opened().change_store.file_list.frame()["data_sequence_number"])
    clean(oldest)
    with pytest.raises(Rejected, match=REMOVED):
        roll_back(opened(), first)
    check_taken_back()


def test_changes_that_were_gone_before_a_run_are_not_missed(lake: Catalog) -> None:
    """A partition is merged for the first time, and nobody knows its first changes any more."""
    table = made(CITIES, ("city",))
    table.write(cities((1, "a", "x")))
    optimize(opened(), "minor")
    table.write(cities((2, "b", "lost")))
    clean(2)
    table.refresh().write(cities((3, "b", "y")))
    expire(opened().change_store._loaded)
    optimize(opened(), "minor")
    opened().write(cities((4, "c", "z")))
    assert read() == {1: "x", 3: "y", 4: "z"}
    check_taken_back()


def test_a_run_is_not_taken_back_after_the_change_store_was(lake: Catalog) -> None:
    """Another tool has set it to before the changes that were merged."""
    merged_twice()
    first = lake.load_table("db.t_change_").metadata.snapshots[0].snapshot_id
    lake.load_table("db.t_change_").manage_snapshots().set_current_snapshot(snapshot_id=first).commit()
    assert read() == {1: "b"}
    with pytest.raises(Rejected, match=REMOVED):
        roll_back(opened())
    assert read() == {1: "b"}


def test_a_run_is_not_taken_back_after_rows_of_changes_were_deleted(lake: Catalog) -> None:
    merged_twice()
    store = opened().change_store
    deleted = changes.position_delete(store._loaded, "text = 'b'")
    assert deleted is not None
    store.commit(deleted)
    with pytest.raises(Rejected, match="another engine has deleted rows of the change store"):
        roll_back(opened())
    assert read() == {1: "b"}


# Transactions that outlast the timeout


def late_transaction(data: pa.Table, mode: str = "insert") -> tuple[KeyedTable, int]:
    """A transaction that a process has not waited for, and data that is later than it."""
    table = made(transaction_timeout="1ms")
    table.write(rows(_1="a", _9="z"))
    optimize(opened(), "full")
    transaction = table._begin()
    table.write(data, mode)  # type: ignore[arg-type]
    time.sleep(0.01)
    optimize(opened(), "full")
    return table, transaction


@pytest.mark.parametrize("is_merged", [False, True])
def test_a_late_transaction_does_not_come_to_count(lake: Catalog, is_merged: bool) -> None:
    """Base does not know any more that the key was deleted after it."""
    _, transaction = late_transaction(pa.table({"id": [1]}), "delete")
    before = opened().snapshots()["snapshot_id"][-2]
    commit(opened(), transaction, rows(_1="late"))
    if is_merged:
        optimize(opened(), "full")
    assert read() == {1: "late", 9: "z"}
    with pytest.raises(Rejected, match=f"transaction {transaction} was committed after the process"):
        roll_back(opened(), before)
    assert read() == {1: "late", 9: "z"}


def test_rows_of_one_file_have_one_transaction(lake: Catalog) -> None:
    """A process has merged nothing. The row that it put together with a later one is not deleted by what came between."""
    table = made(transaction_timeout="1ms", fragment_ratio="1000000", target_size="1MB")
    table.write(rows(_1="a"))
    optimize(opened(), "minor")
    transaction = table._begin()
    table.write(rows(_2="b"))
    time.sleep(0.01)
    optimize(opened(), "minor")
    assert sorted(base_files()["transaction_id"]) == [1, transaction + 1]
    optimize(opened(), "full")
    assert base_files()["transaction_id"].to_list() == [transaction + 1]
    commit(opened(), transaction, rows(_1="-"), "ED")
    assert read() == {1: "a", 2: "b"}
    with pytest.raises(Rejected, match=f"transaction {transaction} was committed after the process"):
        roll_back(opened())


def test_a_late_transaction_of_another_partition_does_not_matter(lake: Catalog) -> None:
    table = made(CITIES, ("city",), transaction_timeout="1ms")
    table.write(cities((1, "a", "x"), (2, "b", "x")))
    optimize(opened(), "full")
    transaction = table._begin()
    table.write(cities((1, "a", "y")))
    time.sleep(0.01)
    optimize(opened(), "full")
    commit(opened(), transaction, cities((2, "b", "late")))
    check_taken_back()


def test_a_transaction_that_an_overwrite_has_overtaken_does_not_matter(lake: Catalog) -> None:
    """Its changes do not count with the process, and did not before it."""
    table = made(transaction_timeout="1ms")
    table.write(rows(_9="z"), "overwrite")
    transaction = table._begin()
    table.write(rows(_1="load"), "overwrite")
    table.write(rows(_2="a"))
    time.sleep(0.01)
    commit(opened(), transaction, rows(_1="late"))
    optimize(opened(), "full")
    table.write(rows(_3="b"))
    optimize(opened(), "full")
    assert read() == {1: "load", 2: "a", 3: "b"}
    check_taken_back()
