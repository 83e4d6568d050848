"""Overwrites that began before others and are committed after them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import pyarctic
from pyarctic.errors import Unavailable
from pyarctic.tables import KeyedTable
from pyarctic.tables.write import prepared as writes
from tests.support.integrity import leftovers

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


def rows(*pairs: tuple[int, str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"id": key, "v": value} for key, value in pairs], schema=SCHEMA)


def content() -> dict[int, str]:
    found = pyarctic.table("lake.db.t").scan().to_arrow()
    return dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))


@pytest.mark.usefixtures("lake")
def test_what_a_later_overwrite_hid_stays_hidden() -> None:
    table = pyarctic.create_table("lake.db.t", SCHEMA, ["id"])
    table.write(rows((1, "before")))

    def meanwhile() -> Iterator[pa.RecordBatch]:
        yield rows((2, "first load"))
        # By now the first load has begun its transaction.
        other = pyarctic.table("lake.db.t")
        other.write(rows((3, "hidden by the second load")))
        other.write(rows((4, "second load")), mode="overwrite")

    table.write(meanwhile(), mode="overwrite")
    assert content() == {2: "first load"}


@pytest.mark.usefixtures("lake")
def test_a_change_that_came_after_the_load_began_stays() -> None:
    table = pyarctic.create_table("lake.db.t", SCHEMA, ["id"])
    table.write(rows((1, "before")))

    def meanwhile() -> Iterator[pa.RecordBatch]:
        yield rows((2, "load"))
        pyarctic.table("lake.db.t").write(rows((3, "later")))

    table.write(meanwhile(), mode="overwrite")
    assert content() == {2: "load", 3: "later"}


@pytest.mark.usefixtures("lake")
def test_a_round_of_optimizing_meanwhile_hides_nothing() -> None:
    """The overwrite must be made anew, and takes place where it began all the same."""
    cities = pa.schema([*SCHEMA, ("city", pa.string())])

    def of(city: str, key: int, value: str) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([{"id": key, "v": value, "city": city}], schema=cities)

    table = pyarctic.create_table("lake.db.t", cities, ["id", "city"], ["city"])
    table.write(of("Oslo", 1, "before"))
    table.write(of("Rome", 2, "before"))

    def meanwhile() -> Iterator[pa.RecordBatch]:
        yield of("Oslo", 3, "load")
        pyarctic.table("lake.db.t").write(of("Oslo", 9, "later"))
        assert pyarctic.optimize("lake.db.t", kind="minor", where="city = 'Rome'").changed

    table.write(meanwhile(), mode="overwrite", replace="partitions")
    assert content() == {2: "before", 3: "load", 9: "later"}
    pyarctic.optimize("lake.db.t", kind="full")
    assert content() == {2: "before", 3: "load", 9: "later"}
    assert not pyarctic.table("lake.db.t").summary()["change_store"]["unmerged_files"]


@pytest.mark.usefixtures("lake")
@pytest.mark.parametrize("fault", [OSError("no space left"), Unavailable("the storage does not answer")])
def test_an_overwrite_that_cannot_be_committed_leaves_nothing(fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pyarctic.create_table("lake.db.t", SCHEMA, ["id"])
    table.write(rows((1, "before")))

    def fail(*_: Any) -> None:
        raise fault

    monkeypatch.setattr(writes, "record_merged_sequences", fail)
    with pytest.raises(Unavailable):
        table.write(rows((2, "load")), mode="overwrite")
    monkeypatch.undo()
    opened = pyarctic.table("lake.db.t")
    assert isinstance(opened, KeyedTable)
    assert [*leftovers(opened._loaded), *leftovers(opened.change_store._loaded)] == []
    assert content() == {1: "before"}
    pyarctic.optimize("lake.db.t", kind="minor")
    assert opened.refresh().scan(store="base").count() == 1, "no transaction is waited for"
