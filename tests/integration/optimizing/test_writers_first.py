"""Writers that begin while a process runs, and catalogs that let them win."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from functools import partial

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.types import LongType, NestedField

import pyarctic
from pyarctic.iceberg.manifest import ManifestReader, files_changed_by
from pyarctic.optimizing import Options, Report
from pyarctic.optimizing.api import optimize_table
from pyarctic.optimizing.observe import history
from tests.support import changes
from tests.support.integrity import missing
from tests.support.metadata_files import edited, without_last_snapshot
from tests.support.optimizing import InProcessEngine, Meanwhile, RecordingListener, nobody

SCHEMA = Schema(NestedField(1, "id", LongType()))
MARK = "polaris.internal.conflict-resolution.by-operation-type.replace"
NAME = "lake.db.t"
_NOT_JUST_NOW = 0.8
"""Right after a statement the next one has not begun, and a commit is welcome."""


def make(lake: Catalog, *files: range, **properties: str) -> Table:
    told = {"format-version": "2", "commit.retry.min-wait-ms": "1", "commit.retry.max-wait-ms": "2"}
    table = lake.create_table("db.t", SCHEMA, properties={**told, **{k.replace("_", "-"): v for k, v in properties.items()}})
    for ids in files:
        table = changes.apply(table, partial(changes.append, data=pa.table({"id": np.array(ids)})))
    return table


def loaded(lake: Catalog) -> Table:
    return lake.load_table("db.t")


def ids(lake: Catalog) -> list[int]:
    return sorted(changes.rows(loaded(lake))["id"].to_pylist())


def delete(lake: Catalog, where: str) -> None:
    """A statement of another engine."""
    changes.apply(loaded(lake), partial(changes.position_delete, where=where))


def optimize(listener: RecordingListener | None = None, before_commit: Meanwhile = nobody, kind: str = "full") -> Report:
    options = Options(kind=kind)  # type: ignore[arg-type]
    return optimize_table(pyarctic.table(NAME), InProcessEngine(before_commit=before_commit), options, listener)


def summaries(lake: Catalog) -> list[tuple[Operation, str | None]]:
    told = [snapshot.summary for snapshot in loaded(lake).metadata.snapshots]
    return [(one.operation, one.additional_properties.get(MARK)) for one in told if one is not None]


# ---- the first statements of a writer -----------------------------------------------------------------------------------


def test_the_first_statement_of_a_writer_is_followed_by_a_pause(lake: Catalog) -> None:
    """The second one runs already when the files are ready: it must not find them replaced."""
    make(lake, range(4), range(4, 8))
    table = loaded(lake)
    with table.transaction() as transaction:
        transaction.set_properties({"self-optimizing.writers-first.quiet-time": "10s"})

    def delete_later() -> None:
        time.sleep(1.5)
        delete(lake, "id = 5")

    second = threading.Thread(target=delete_later)

    def begin() -> None:
        delete(lake, "id = 1")
        second.start()
        time.sleep(_NOT_JUST_NOW)

    listener = RecordingListener()
    report = optimize(listener, begin)
    second.join()
    assert report.tasks_committed == 1
    assert [operation for operation, _ in summaries(lake)][-3:] == [Operation.DELETE, Operation.DELETE, Operation.REPLACE]
    assert any("waiting 20 s at most" in message for message in listener.messages)
    assert ids(lake) == [0, 2, 3, 4, 6, 7]


def test_a_writer_that_does_not_go_on_is_waited_for_no_longer_than_two_quiet_times(lake: Catalog) -> None:
    make(lake, range(4), range(4, 8))
    with loaded(lake).transaction() as transaction:
        transaction.set_properties({"self-optimizing.writers-first.quiet-time": "1s"})
    moments: list[float] = []

    def begin() -> None:
        delete(lake, "id = 1")
        time.sleep(_NOT_JUST_NOW)
        moments.append(time.monotonic())

    report = optimize(before_commit=begin)
    assert report.tasks_committed == 1
    assert 1.5 < time.monotonic() - moments[0] < 8


def test_a_statement_that_deletes_whole_files_holds_a_partition_back(lake: Catalog) -> None:
    make(lake, range(4), range(4, 8), range(8, 12))
    loaded(lake).delete("id >= 4 and id < 8")
    summary = loaded(lake).metadata.snapshots[-1].summary
    assert summary is not None
    assert (summary.operation, summary.additional_properties["deleted-data-files"]) == (Operation.DELETE, "1")
    [row] = pyarctic.explain(NAME, "full").partitions
    assert row.waits


def test_statements_that_changed_nothing_do_not_hide_others(lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    make(lake, range(4), range(4, 8))
    for number in range(3):
        delete(lake, f"id = {number}")
    metadata = loaded(lake).metadata
    first = metadata.snapshots[-3]

    def of_the_first(reader: ManifestReader, snapshot: Snapshot) -> pl.DataFrame:
        files = files_changed_by(reader, snapshot)
        return files if snapshot == first else files.clear()

    monkeypatch.setattr(history, "files_changed_by", of_the_first)
    monkeypatch.setattr(history, "_MAX_STATEMENTS", 1)
    reader = ManifestReader(loaded(lake).io)
    found = history.recent_statements(metadata, reader, datetime(2000, 1, 1, tzinfo=UTC))
    assert found["snapshot_id"].to_list() == [first.snapshot_id]


def test_one_statement_holds_a_partition_back_for_a_while_only(lake: Catalog) -> None:
    make(lake, range(4), range(4, 8))
    delete(lake, "id = 1")
    for quiet_time, held_back in (("30s", ("",)), ("100ms", ())):
        with loaded(lake).transaction() as transaction:
            transaction.set_properties({"self-optimizing.writers-first.quiet-time": quiet_time})
        time.sleep(1.1)
        explanation = pyarctic.explain(NAME, "full")
        assert tuple(row.partition for row in explanation.partitions if row.waits) == held_back


# ---- catalogs that let writers win --------------------------------------------------------------------------------------


def test_merges_of_native_tables_may_be_rolled_back_and_conversions_may_not(lake: Catalog) -> None:
    converting(lake)
    report = optimize(kind="minor")
    assert (report.tasks_committed, report.after.equality_delete_files) == (2, 0)
    assert summaries(lake)[-2:] == [(Operation.REPLACE, "rollback"), (Operation.OVERWRITE, None)]


def test_where_writers_do_not_come_first_nothing_is_rolled_back_for_them(lake: Catalog) -> None:
    make(lake, range(4), range(4, 8), **{"self-optimizing.writers-first": "false"})
    optimize()
    assert summaries(lake)[-1] == (Operation.REPLACE, None)


def test_commits_of_keyed_tables_are_not_rolled_back(lake: Catalog) -> None:
    table = pyarctic.create_table("lake.db.k", pa.schema([pa.field("id", pa.int64(), nullable=False)]), ["id"])
    table.write(pa.table({"id": [1, 2]}), mode="upsert")
    pyarctic.optimize("lake.db.k", "full", InProcessEngine())
    table.write(pa.table({"id": [2, 3]}), mode="upsert")
    pyarctic.optimize("lake.db.k", "full", InProcessEngine())
    told = [snapshot.summary for snapshot in lake.load_table("db.k").metadata.snapshots]
    assert told
    assert [one for one in told if one is not None and MARK in one.additional_properties] == []


def converting(lake: Catalog) -> Table:
    """Two fragments that are merged, a large file that is kept, and an equality delete for all of them. Its conversion is
    committed after the merge."""
    table = make(
        lake,
        range(20_000),
        range(30_000, 30_010),
        range(30_010, 30_020),
        **{"self-optimizing.target-size": "20000", "self-optimizing.fragment-size": "5000"},
    )
    return changes.apply(table, partial(changes.equality_delete, keys=pa.table({"id": [7, 30_001, 30_011]})))


def let_writer_win(lake: Catalog) -> None:
    """Drop the last snapshot as Apache Polaris does when a writer conflicts with it, and commit the writer's."""
    table = loaded(lake)
    dropped = table.metadata.current_snapshot()
    assert dropped is not None
    assert dropped.summary is not None
    assert (dropped.summary.operation, dropped.summary[MARK]) == (Operation.REPLACE, "rollback")
    edited(table, without_last_snapshot)
    delete(lake, "id = 30005")


@pytest.mark.parametrize("when", ["in the middle", "at the end"])
def test_a_commit_that_is_rolled_back_is_noticed_and_no_row_comes_back(lake: Catalog, when: str) -> None:
    """In the middle, the merged files are live again, and need the equality delete that the conversion would remove."""
    if when == "in the middle":
        converting(lake)
    else:
        make(lake, range(30_000, 30_010), range(30_010, 30_020))
    expected = sorted({*ids(lake)} - {30_005})
    pending = [let_writer_win]

    def after_commit() -> None:
        if pending:
            pending.pop()(lake)

    report = optimize(RecordingListener(after_commit), kind="minor" if when == "in the middle" else "full")
    assert ids(lake) == expected
    assert missing(loaded(lake)) == []
    assert (report.snapshot_ids, report.tasks_committed, len(report.rolled_back)) == ((), 0, 1)
    assert all("rolled back" in reason for reason in report.dropped)
    assert report.tasks_dropped == report.tasks_planned
    # The next process does it all.
    with loaded(lake).transaction() as transaction:
        transaction.set_properties({"self-optimizing.writers-first": "false"})
    again = optimize(kind="full")
    assert (again.after.delete_files, again.rolled_back) == (0, ())
    assert ids(lake) == expected
