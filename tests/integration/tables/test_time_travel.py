"""The past of a keyed table: both stores as they were, at snapshot ids of either store."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

import pyarctic
from pyarctic.errors import NotFound, Rejected, UsageError
from pyarctic.optimizing.commit import roll_back
from tests.support.integrity import local
from tests.support.keyed_tables import CITIES, cities, expire, made, opened, rows
from tests.support.metadata_files import edited


def read_at(snapshot_id: int | None, **options: Any) -> dict[int, str]:
    read = opened().scan(snapshot_id=snapshot_id, **options).to_arrow()
    return dict(zip(read["id"].to_pylist(), read["text"].to_pylist(), strict=True))


def append_to_base(lake: Catalog, **values: str) -> None:
    loaded = lake.load_table("db.t")
    loaded.append(rows(**values).cast(loaded.schema().as_arrow()))


def test_rows_appended_to_base_later_do_not_appear(lake: Catalog) -> None:
    table = made()
    table.write(rows(_1="a"), "overwrite")
    then = table.write(rows(_2="b"))
    append_to_base(lake, _3="later")
    assert read_at(then) == {1: "a", 2: "b"}
    pyarctic.optimize("lake.db.t", kind="full")
    assert read_at(then) == {1: "a", 2: "b"}
    assert opened().scan(snapshot_id=then).count() == 2


def test_a_column_dropped_later_keeps_its_values(lake: Catalog) -> None:
    table = made()
    table.write(rows(_1="a"), "overwrite")
    then = table.write(rows(_2="b"))
    opened().evolve(drop=["text"])
    pyarctic.optimize("lake.db.t", kind="full")
    assert read_at(then) == {1: "a", 2: "b"}
    assert opened().scan().schema.names == ["id"]


def test_ids_of_base(lake: Catalog) -> None:
    table = made()
    table.write(rows(_1="a"))
    loaded = table.write(rows(_2="load"), "overwrite")
    table.write(rows(_3="c"))
    report = pyarctic.optimize("lake.db.t", kind="minor")
    table = opened()
    table.write(rows(_3="d"), "upsert")
    assert read_at(loaded) == {2: "load"}
    assert opened().snapshots()["snapshot_id"].to_list() == [loaded, *report.snapshot_ids]
    assert read_at(report.snapshot_ids[-1]) == {2: "load", 3: "c"}
    assert opened().changes(since=loaded).to_arrow()["text"].to_pylist() == ["c", "d", "d"]
    assert opened().changes(since=report.snapshot_ids[-1]).count() == 2
    assert opened().scan(store="change", snapshot_id=loaded).count() == 1
    append_to_base(lake, _9="later")
    assert read_at(loaded) == {2: "load"}


def test_ids_of_the_other_store_and_unknown_ones(lake: Catalog) -> None:
    table = made()
    change_id = table.write(rows(_1="a"))
    base_id = table.write(rows(_2="b"), "overwrite")
    for scan in (lambda: opened().scan(snapshot_id=change_id, store="base"), lambda: opened().files(change_id)):
        with pytest.raises(UsageError, match="is one of the change store") as raised:
            scan()
        assert "store='change'" in str(raised.value.hint)
    with pytest.raises(UsageError, match="is one of the base store"):
        opened().files(base_id, store="change")
    with pytest.raises(NotFound, match="neither store") as missing:
        opened().scan(snapshot_id=7)
    assert "--store change" in str(missing.value.hint)
    with pytest.raises(NotFound, match="neither store"):
        opened().changes(since=7)
    with pytest.raises(UsageError, match="is a number"):
        opened().scan(snapshot_id="7")  # type: ignore[arg-type]


def test_a_past_whose_stores_were_expired_is_refused(lake: Catalog) -> None:
    table = made()
    base_id = table.write(rows(_1="a"), "overwrite")
    then = table.write(rows(_2="b"))
    table.write(rows(_3="c"), "overwrite")
    expire(lake.load_table("db.t"))
    with pytest.raises(NotFound, match="base store has no snapshot of that time"):
        read_at(then)
    assert opened().scan(snapshot_id=then, store="change").count() == 1
    with pytest.raises(NotFound, match="neither store"):
        read_at(base_id)
    expire(lake.load_table("db.t_change_"))
    current = opened().view.snapshot_id
    assert current is not None
    assert read_at(None) == {3: "c"}


def test_before_a_store_had_a_snapshot(lake: Catalog) -> None:
    table = made()
    append_to_base(lake, _5="appended")
    base_id = opened().view.snapshot_id
    first = table.write(rows(_1="a"))
    assert read_at(base_id) == {5: "appended"}
    assert read_at(first) == {1: "a", 5: "appended"}
    created = pyarctic.create_table("lake.db.u", pa.schema([("id", pa.int64())]), ["id"])
    alone = created.write(pa.table({"id": [1]}))
    assert created.scan(snapshot_id=alone).count() == 1


def test_after_another_engine_has_rolled_base_back(lake: Catalog) -> None:
    """The snapshots that were current then, whatever is current now."""
    table = made()
    first = table.write(rows(_1="a"), "overwrite")
    append_to_base(lake, _9="appended")
    then = opened().write(rows(_2="b"), "upsert")
    expected = {1: "a", 2: "b", 9: "appended"}
    assert read_at(then) == expected
    lake.load_table("db.t").manage_snapshots().set_current_snapshot(snapshot_id=first).commit()
    assert read_at(then) == expected
    assert read_at(None) == {1: "a", 2: "b"}
    append_to_base(lake, _8="later")
    assert read_at(then) == expected
    assert read_at(opened().view.snapshot_id) == {1: "a", 2: "b", 8: "later"}


def test_a_snapshot_that_was_expired_is_not_replaced_by_an_older_one(lake: Catalog) -> None:
    table = made()
    table.write(rows(_1="a"), "overwrite")
    append_to_base(lake, _9="appended")
    expired = opened().view.snapshot_id
    then = opened().write(rows(_2="b"), "upsert")
    append_to_base(lake, _8="later")
    later = opened().write(rows(_3="c"), "upsert")
    lake.load_table("db.t").maintenance.expire_snapshots().by_ids([expired or 0]).commit()
    with pytest.raises(NotFound, match="no snapshot of that time any more"):
        read_at(then)
    assert read_at(later) == {1: "a", 2: "b", 3: "c", 8: "later", 9: "appended"}


@pytest.mark.parametrize("goes_back_twice", [False, True])
def test_an_expired_snapshot_that_was_rolled_back_is_not_replaced(lake: Catalog, *, goes_back_twice: bool) -> None:
    """It has left no child, and the log has no entry of it any more."""

    def go_back(to: int | None) -> None:
        time.sleep(0.002)
        lake.load_table("db.t").manage_snapshots().set_current_snapshot(snapshot_id=to).commit()

    table = made()
    first = table.write(rows(_1="a"), "overwrite")
    append_to_base(lake, _2="b")
    second = opened().view.snapshot_id
    if goes_back_twice:
        go_back(first)
    before = opened().write(rows(_5="before"), "upsert")
    append_to_base(lake, _9="dropped")
    expired = opened().view.snapshot_id
    then = opened().write(rows(_6="then"), "upsert")
    go_back(second if goes_back_twice else first)
    after = opened().write(rows(_7="after"), "upsert")
    lake.load_table("db.t").maintenance.expire_snapshots().by_ids([expired or 0]).commit()
    for snapshot_id in (before, then):
        with pytest.raises(NotFound, match="no snapshot of that time any more"):
            read_at(snapshot_id)
    kept = {1: "a", 2: "b"} if goes_back_twice else {1: "a"}
    assert read_at(after) == kept | {5: "before", 6: "then", 7: "after"}
    assert read_at(second) == {1: "a", 2: "b"}


def test_an_expired_snapshot_that_the_table_was_set_to_is_not_replaced(lake: Catalog) -> None:
    table = made()
    table.write(rows(_1="a"), "overwrite")
    append_to_base(lake, _2="b")
    expired = opened().view.snapshot_id
    append_to_base(lake, _3="c")
    lake.load_table("db.t").manage_snapshots().set_current_snapshot(snapshot_id=expired).commit()
    then = opened().write(rows(_4="then"), "upsert")
    assert read_at(then) == {1: "a", 2: "b", 4: "then"}
    append_to_base(lake, _5="d")
    after = opened().write(rows(_6="after"), "upsert")
    lake.load_table("db.t").maintenance.expire_snapshots().by_ids([expired or 0]).commit()
    with pytest.raises(NotFound, match="no snapshot of that time any more"):
        read_at(then)
    assert read_at(after) == {1: "a", 2: "b", 4: "then", 5: "d", 6: "after"}


def test_what_was_merged_then_is_not_known_any_more(lake: Catalog) -> None:
    """Of a healthy table: only its past is concerned."""
    table = made()
    first = table.write(rows(_1="a"), "overwrite")
    append_to_base(lake, _9="appended")
    second = opened().view.snapshot_id
    then = opened().write(rows(_2="b"), "upsert")
    pyarctic.optimize("lake.db.t", kind="minor")
    lake.load_table("db.t").maintenance.expire_snapshots().by_ids([first or 0]).commit()
    assert read_at(second) == {1: "a", 9: "appended"}
    assert read_at(then) == {1: "a", 2: "b", 9: "appended"}
    for entry in lake.load_table("db.t").metadata.metadata_log:
        Path(local(entry.metadata_file)).unlink()
    assert read_at(None) == {1: "a", 2: "b", 9: "appended"}
    for snapshot_id in (second, then):
        with pytest.raises(NotFound, match="is not known any more") as raised:
            read_at(snapshot_id)
        assert "later snapshot" in str(raised.value.hint)
    with pytest.raises(Rejected, match="is not known"):
        roll_back(opened())


def test_clocks_that_differ(lake: Catalog) -> None:
    """The writer of Base is ten seconds behind: what it merged was in the change store."""
    table = made(CITIES, ("city",))
    table.write(cities((1, "a", "x")), "insert")
    then = opened().write(cities((2, "b", "y")), "overwrite", where="city = 'b'")

    def set_back(metadata: dict[str, Any]) -> dict[str, Any]:
        for entry in (*metadata["snapshots"], *metadata["snapshot-log"]):
            entry["timestamp-ms"] -= 10_000
        return metadata

    edited(lake.load_table("db.t"), set_back)
    assert read_at(then) == {1: "x", 2: "y"}
    assert opened().changes(since=then).count() == 0


@pytest.mark.parametrize("kind", ["native", "base"])
def test_an_expired_moment_of_one_store_is_refused(lake: Catalog, kind: str) -> None:
    if kind == "base":
        made()
    else:
        pyarctic.create_table("lake.db.t", pa.schema([("id", pa.int64()), ("text", pa.string())]), format="iceberg")
    moments, snapshots = [], []
    for number in range(3):
        append_to_base(lake, **{f"_{number}": "a"})
        time.sleep(0.002)
        moments.append(datetime.now(UTC))
        snapshots.append(lake.load_table("db.t").metadata.current_snapshot_id or 0)
    lake.load_table("db.t").maintenance.expire_snapshots().by_ids([snapshots[1]]).commit()

    def count(moment: datetime) -> int:
        options: dict[str, Any] = {"store": "base"} if kind == "base" else {}
        return pyarctic.table("lake.db.t").scan(as_of=moment, **options).count()

    assert count(moments[2]) == 3
    for moment in moments[:2]:  # since when the expired one was current is not known
        with pytest.raises(NotFound, match="no snapshot of that time any more"):
            count(moment)
