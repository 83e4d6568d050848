"""An open commit that is settled long after it was sent: others have changed the table, or the clock was set."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException

import pyarctic
from pyarctic.iceberg.commit import Change
from pyarctic.optimizing.commit import roll_back
from pyarctic.tables.format import merged_sequences
from tests.faults.kept import Kept, dying
from tests.support import changes
from tests.support.integrity import leftovers, missing
from tests.support.keyed_tables import CITIES, cities, commit, made, opened, read, rows

STATISTICS = {"merged-sequences.storage": "statistics"}


def merged() -> Mapping[str, int]:
    view = opened().view
    return merged_sequences(view.metadata, view.io, view.metadata.current_snapshot())


@pytest.mark.parametrize("how", ["overwrite", "merge"])
def test_moving_the_branch_leaves_merged_sequences_to_others(
    lake: Catalog, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Another commit lands between the look of a process that is closed and its request."""
    made(CITIES, ("city",))
    opened().write(cities((1, "a", "a1"), (2, "a", "a2")), "upsert")
    opened().write(cities((11, "b", "old11"), (12, "b", "old12")), "upsert")
    process = Kept.planned("lake.db.t", "city = 'a'")
    with dying(landed=False):
        process.commit()
    accept: Any = SqlCatalog.commit_table
    raced: list[object] = []

    def commit_table(*request: Any) -> Any:
        if not raced:
            raced.append(request)
            if how == "overwrite":
                opened().write(cities((11, "b", "new11")), "overwrite", where="city = 'b'")
            else:
                pyarctic.optimize("lake.db.t", "full", where="city = 'b'")
        return accept(*request)

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", commit_table)
        process.close()
    process.clean()
    assert raced
    assert merged() == {"city=b": 3 if how == "overwrite" else 2}
    there = {11: "new11"} if how == "overwrite" else {11: "old11", 12: "old12"}
    assert read() == {1: "a1", 2: "a2", **there}
    assert leftovers(opened()._loaded) == []


@pytest.mark.parametrize("end", ["commit", "close"])
def test_what_came_to_the_change_store_meanwhile_is_seen_before_a_commit_is_sent_again(lake: Catalog, end: str) -> None:
    """A transaction outlasts its time-out, and deletes a row that an open commit merges."""
    table = made(transaction_timeout="50ms")
    table.write(rows(_1="b", _2="b"))
    pyarctic.optimize(table.name, "minor")
    early = table._begin()
    opened().write(rows(_10="a"))
    time.sleep(0.1)
    process = Kept.planned("lake.db.t")
    with dying(landed=False):
        process.commit()
    commit(opened(), early, rows(_1="-"), "ED")
    if end == "commit":
        process.commit()
        assert "older transaction" in next(iter(process.log.dropped.values()))
    else:
        process.close()
    process.clean()
    assert read() == {10: "a", 2: "b"}
    assert leftovers(opened()._loaded) == []


@pytest.mark.parametrize("how", ["rollback", "delete-rows", "remove-files", "nothing"])
def test_changes_that_left_the_change_store_are_not_brought_back(lake: Catalog, how: str) -> None:
    table = made()
    table.write(rows(_1="old", _2="b"))
    pyarctic.optimize(table.name, "full")
    before = opened().change_store.view.snapshot_id
    opened().write(rows(_1="new", _3="c"), "upsert")
    process = Kept.planned("lake.db.t")
    store = opened().change_store
    if how == "rollback":
        assert before is not None
        store.roll_back(before)
    elif how == "delete-rows":
        change = changes.position_delete(store._loaded, "id = 3")
        assert change is not None
        store.commit(change)
    elif how == "remove-files":
        new = store.file_list.frame().filter(pl.col("snapshot_id") == store.view.snapshot_id)
        store.commit(Change(start=store.view.snapshot_id, remove=new))
    expected = read()
    process.commit()
    assert read() == expected
    assert bool(process.log.dropped) == (how != "nothing")


@pytest.mark.parametrize("how", ["by rollback", "by others"])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_branch_that_was_moved_is_set_back_and_the_request_arrives(lake: Catalog, version: int, how: str) -> None:
    """Format version 1 has no sequence numbers that would refuse it: there its files stay."""
    schema = pa.schema([("id", pa.int64()), ("part", pa.int32())])
    pyarctic.create_table("lake.db.t", schema, format="iceberg", format_version=version)
    for number in range(4):
        ids = range(number * 10, number * 10 + 9)
        some = pa.table({"id": ids, "part": [0] * len(ids)}, schema=schema)
        changes.apply(lake.load_table("db.t"), partial(changes.append, data=some))
    before = pyarctic.table("lake.db.t").view.snapshot_id
    assert before is not None
    process = Kept.planned("lake.db.t")
    with dying(landed=False) as held:
        process.commit()
    process.close()
    process.clean()
    if how == "by others":
        lake.load_table("db.t").manage_snapshots().set_current_snapshot(snapshot_id=before).commit()
    else:
        roll_back(pyarctic.table("lake.db.t"))
    with suppress(CommitFailedException, ValueError):
        held[0]()
    table = pyarctic.table("lake.db.t")
    assert missing(table._loaded) == []
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [ten * 10 + one for ten in range(4) for one in range(9)]
    if version > 1:
        assert leftovers(table._loaded) == []
