"""Partitions of a keyed table: a busy one delays no other, and changes that come meanwhile are merged afterwards."""

from __future__ import annotations

import pytest
from pyiceberg.catalog import Catalog

from pyarctic.ams.handing import HandedTask
from pyarctic.ams.looks import ReportedCommit
from pyarctic.ams.rows import ClaimRow
from pyarctic.ams.states import ProcessState
from pyarctic.tables.format import merged_sequences
from pyarctic.tables.keyed_table import KeyedTable
from tests.support.ams import Desk
from tests.support.keyed_tables import CITIES, cities, made, opened

NAME = "lake.db.t"


@pytest.fixture
def table(lake: Catalog) -> KeyedTable:
    """Two upserts of a partition are enough to merge it."""
    created = made(CITIES, ("city",))
    created.set({"self-optimizing.minor.trigger.file-count": "4"})
    return created


def upsert(table: KeyedTable, *values: tuple[int, str | None, str]) -> None:
    for value in values:
        table.write(cities(value), "upsert")


def report(desk: Desk) -> None:
    """Tell the service of the newest commit of the change store."""
    view = opened().change_store.view
    news = ReportedCommit(
        store="change",
        table_uuid=desk.table(NAME).uuid,
        snapshot_id=view.snapshot_id or 0,
        sequence_number=getattr(view.metadata, "last_sequence_number", 0),
    )
    assert desk.ams.looks.report(news)


def merged() -> dict[str, int]:
    view = opened().view
    return dict(merged_sequences(view.metadata, view.io, view.metadata.current_snapshot()))


def base() -> set[tuple[object, ...]]:
    return {tuple(row.values()) for row in opened().scan(store="base").to_arrow().to_pylist()}


def execute(desk: Desk, handed: list[HandedTask]) -> None:
    for each in handed:
        desk.report(each, desk.execute(each))


def test_a_busy_partition_delays_no_other(table: KeyedTable) -> None:
    upsert(table, (1, "a", "one"), (1, "a", "two"), (2, "b", "one"))
    desk = Desk()
    desk.discover()
    [first] = desk.look()
    held = desk.poll()
    assert {each.row.partition for each in held} == {"city=a"}
    before = merged()
    upsert(table, (2, "b", "two"), (1, "a", "three"))
    report(desk)
    [second] = desk.look()
    handed = desk.poll()
    assert {each.row.partition for each in handed} == {"city=b"}
    execute(desk, handed)
    desk.commit()
    states = {row.id: row.state for row in desk.processes()}
    assert states == {first.id: ProcessState.RUNNING, second.id: ProcessState.SUCCEEDED}
    after = merged()
    assert after.get("city=a") == before.get("city=a")
    assert after["city=b"] > before.get("city=b", -1)
    assert base() == {(2, "b", "two")}
    execute(desk, held)
    desk.commit()
    assert base() == {(2, "b", "two"), (1, "a", "two")}
    with desk.store.read() as view:
        assert view.find(ClaimRow) == []
    upsert(table, (1, "a", "four"))
    desk.wait(minutes=1)
    desk.settle()
    assert base() == {(2, "b", "two"), (1, "a", "four")}
