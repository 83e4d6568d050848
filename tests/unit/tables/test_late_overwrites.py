"""Overwrites that began before others and are committed after them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

import pyarctic

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
