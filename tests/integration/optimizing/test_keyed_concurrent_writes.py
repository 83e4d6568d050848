"""What others do to either store while a partition is merged, and what they did before in an unusual order: no row comes
back, and none is lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableResponse
from pyiceberg.types import LongType, NestedField, StringType

import pyarctic
from pyarctic.iceberg.commit import Change
from pyarctic.optimizing import KindChoice, Options, explain_table
from pyarctic.tables import Table
from tests.support import changes
from tests.support.integrity import missing
from tests.support.keyed_tables import IDS, commit, faults, made, opened, read, rows, unmerged
from tests.support.optimizing import optimize

KINDS: tuple[KindChoice, ...] = ("minor", "major", "full")


def append_to_base(data: pa.Table) -> None:
    """As another engine does it: files of no transaction."""
    table = opened()
    table.commit(
        changes.append(table._loaded, data.cast(pa.schema([IDS.field("id").with_nullable(False), IDS.field("text")])))
    )


# Rows that are written together are as old as the youngest of them: changes of older transactions would be lost on some.


@pytest.mark.parametrize("kind", [*KINDS, "auto"])
def test_base_waits_with_the_changes_that_are_held(lake: Catalog, kind: KindChoice) -> None:
    table = made()
    table.set({"self-optimizing.minor.trigger.file-count": "2"})
    table.write(rows(_7="x"))
    early = table._begin()
    opened().write(rows(_10="a"), "overwrite")
    append_to_base(rows(_1="b", _2="b"))
    opened()._begin()  # a third one, which holds what the first brings
    commit(opened(), early, rows(_1="-"), "ED")
    assert read() == {10: "a", 2: "b"}
    optimize(opened(), kind)
    assert read() == {10: "a", 2: "b"}
    notes = explain_table(opened(), Options(kind=kind)).notes
    assert any("1 partitions wait as a whole for transaction" in note for note in notes)


@pytest.mark.parametrize("kind", KINDS)
def test_base_waits_with_held_changes_of_a_transaction_that_was_given_up(lake: Catalog, kind: KindChoice) -> None:
    table = made(transaction_timeout="300ms", fragment_size="1")
    table.write(rows(_1="b", _2="b"))
    optimize(opened(), "minor")
    early = table._begin()
    opened().write(rows(_10="a"))
    time.sleep(0.4)
    optimize(opened(), "minor")
    assert not unmerged()
    opened()._begin()
    commit(opened(), early, rows(_1="-"), "ED")
    assert read() == {10: "a", 2: "b"}
    optimize(opened(), kind)
    assert read() == {10: "a", 2: "b"}


def test_a_transaction_that_was_given_up_comes_before_the_commit(lake: Catalog) -> None:
    table = made(transaction_timeout="50ms")
    table.write(rows(_1="b", _2="b"))
    optimize(opened(), "minor")
    early = table._begin()
    opened().write(rows(_10="a"))
    time.sleep(0.1)
    report = optimize(opened(), "full", meanwhile=lambda: commit(opened(), early, rows(_1="-"), "ED"))
    assert "older transaction" in report.dropped[0]
    assert read() == {10: "a", 2: "b"}
    optimize(opened(), "full")
    assert read() == read("base") == {10: "a", 2: "b"}
    assert not faults()


# A row of Base that wins over an older insert: when it goes, that insert counts.


def delete_position() -> None:
    table = opened()
    dead = table.scan(changes.ORIGIN, "id = 1", store="base").to_arrow()
    change = changes.position_delete_of(table._loaded, dead)
    assert change is not None
    table.commit(change)


def delete_files() -> None:
    table = opened()
    table.commit(Change(start=table.view.snapshot_id, remove=table.file_list.frame()))


@pytest.mark.parametrize("fragment", ["1", "1MB"])
@pytest.mark.parametrize("deletes", [delete_position, delete_files])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_deleted_row_of_base_has_won_over_comes_back(
    lake: Catalog, kind: KindChoice, deletes: Callable[[], None], fragment: str
) -> None:
    table = made(fragment_size=fragment)
    early = table._begin()
    opened().write(rows(_1="base"), "overwrite")
    commit(opened(), early, rows(_1="old", _7="old"))
    assert read() == {1: "base", 7: "old"}
    report = optimize(opened(), kind, meanwhile=deletes)
    assert report.tasks_dropped == 1
    assert read() == {1: "old", 7: "old"}
    optimize(opened(), kind)
    assert read() == read("base") == {1: "old", 7: "old"}
    assert not faults()


# A commit whose answer is lost, and which somebody takes back at once.


def keyed() -> Table:
    table = made()
    table.write(rows(_1="a"), "overwrite")
    table.write(rows(_1="b", _2="b"), "upsert")
    return table


def merged() -> Table:
    table = pyarctic.create_table("lake.db.plain", IDS)
    for number in range(3):
        table.write(rows(**{f"_{number}": "a"}))
    return table


def converted() -> Table:
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "text", StringType()))
    properties = {"format-version": "3", "self-optimizing.fragment-size": "1"}
    loaded = pyarctic.catalog("lake").create_table("db.deleted", schema, properties=properties)
    loaded = changes.apply(loaded, partial(changes.append, data=rows(_1="a", _2="a", _3="a")))
    loaded = changes.apply(loaded, partial(changes.position_delete, where="id = 1"))
    changes.apply(loaded, partial(changes.equality_delete, keys=pa.table({"id": [2]})))
    return pyarctic.table("lake.db.deleted")


@pytest.mark.parametrize(("make", "kind"), [(keyed, "full"), (merged, "full"), (converted, "minor")])
def test_a_commit_that_was_taken_back_keeps_its_files(
    lake: Catalog, make: Callable[[], Table], kind: KindChoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make()
    expected = table.refresh().scan().count()
    runner, before = pyarctic.table(table.name), table.view.snapshot_id
    assert before is not None
    catalog = runner._loaded.catalog
    send = catalog.commit_table

    def lost(*request: Any) -> CommitTableResponse:
        send(*request)
        monkeypatch.undo()
        pyarctic.table(table.name).roll_back(before)
        raise ConnectionError("the answer was lost")

    monkeypatch.setattr(catalog, "commit_table", lost)
    report = optimize(runner, kind)
    assert "rolled back since" in report.dropped[0]
    assert table.refresh().view.snapshot_id == before
    newest = max(table.view.metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    assert newest.snapshot_id != before
    assert not missing(table._loaded)
    table.roll_back(newest.snapshot_id)
    assert pyarctic.table(table.name).scan().count() == expected
