"""Where it is stored how far changes are merged: every Iceberg reader loads the table, and nothing that other tools do to
snapshots and files loses it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table.refs import SnapshotRefType

import pyarctic
from pyarctic.errors import Damaged, NotFound, Rejected, Unsupported, UsageError
from pyarctic.optimizing.commit import roll_back
from pyarctic.tables import KeyedTable, upgrade
from pyarctic.tables.format import merged_sequence
from pyarctic.tables.write import prepared
from tests.support.amoro import NAMES, adopted, sequences_for_amoro, texts
from tests.support.integrity import local
from tests.support.keyed_tables import CITIES, cities, expire, made, opened, read, rows
from tests.support.metadata_files import edited

MAP, PROPERTY, FLAG = "arctic.merged-sequences", "table.partition-properties", "optimized-sequence.exist"
STATISTICS = {"arctic.merged-sequences.storage": "statistics"}

LOAD_WITHOUT_PATCHES = """
import json, sys
import duckdb, duckdb_extensions
import polars as pl
from pyiceberg.table import StaticTable
table = StaticTable.from_metadata(sys.argv[1])
ids = sorted(table.scan().to_arrow()["id"].to_pylist())
assert sorted(pl.scan_iceberg(table).collect()["id"].to_list()) == ids
duck = duckdb.connect()
duck.execute("set enable_progress_bar = false")
for extension in ("avro", "iceberg"):
    duckdb_extensions.import_extension(extension, con=duck)
duck.load_extension("iceberg")
assert sorted(id for id, in duck.sql(f"select id from iceberg_scan('{sys.argv[1]}')").fetchall()) == ids
assert "pyarctic" not in sys.modules
print(json.dumps(ids))
"""


def load_without_patches(table: Any) -> subprocess.CompletedProcess[str]:
    """Read Base with PyIceberg, Polars and DuckDB as they are."""
    command = [sys.executable, "-c", LOAD_WITHOUT_PATCHES, table._loaded.metadata_location]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def check_agreement() -> dict[str, int]:
    """Both rules give the same."""
    table = opened()
    merged = table.merged_sequences()
    assert sequences_for_amoro(table.view.metadata, table.view.io) == merged
    return merged


def head_summary() -> dict[str, str]:
    snapshot = opened().view.metadata.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return snapshot.summary.additional_properties


def append_to_base(lake: Catalog, **values: str) -> None:
    loaded = lake.load_table("db.t")
    loaded.append(rows(**values).cast(loaded.schema().as_arrow()))


def test_the_summary_of_a_merge_has_them(lake: Catalog) -> None:
    table = made(CITIES, ("city",))
    table.write(cities((1, "a", "x"), (2, "b", "x")))
    pyarctic.optimize("lake.db.t", kind="minor")
    assert json.loads(head_summary()[MAP]) == check_agreement() == {"city=a": 1, "city=b": 1}
    assert FLAG not in head_summary()
    assert not opened().view.metadata.statistics
    table.write(cities((1, "a", "y")), "upsert")
    pyarctic.optimize("lake.db.t", kind="minor")
    assert json.loads(head_summary()[MAP]) == check_agreement() == {"city=a": 2, "city=b": 1}


def test_readers_without_patches_load_base(lake: Catalog) -> None:
    table = made()
    table.write(rows(_1="a", _2="a"), "overwrite")
    table.write(rows(_2="b", _3="b"), "upsert")
    pyarctic.optimize("lake.db.t", kind="full")
    loaded = load_without_patches(opened())
    assert loaded.returncode == 0, loaded.stderr
    assert json.loads(loaded.stdout) == [1, 2, 3]


def test_statistics_by_property_and_an_upgrade(lake: Catalog) -> None:
    """Once an ancestor has statistics they are written, until the table is upgraded."""
    table = made()
    table.set(STATISTICS)
    table.write(rows(_1="a"))
    pyarctic.optimize("lake.db.t", kind="minor")
    assert load_without_patches(opened()).returncode != 0, "PyIceberg has learnt it: no need for an upgrade"
    table = opened()
    table.unset(*STATISTICS)
    table.write(rows(_2="b"))
    pyarctic.optimize("lake.db.t", kind="minor")
    assert FLAG in head_summary()
    assert check_agreement() == {"": 2}
    planned = opened().upgrade(dry_run=True)
    assert (planned.needed, planned.snapshot_id) == (True, None)
    table = opened()
    report = table.upgrade()
    assert report.snapshot_id == opened().view.snapshot_id
    assert planned.expired_snapshots == report.expired_snapshots
    assert len(report.removed_statistics) == 2
    assert check_agreement() == {"": 2}
    assert json.loads(load_without_patches(opened()).stdout) == [1, 2]
    assert not table.upgrade().needed
    table.write(rows(_4="d"))
    pyarctic.optimize("lake.db.t", kind="minor")
    assert MAP in head_summary()
    assert check_agreement() == {"": 3}
    assert read() == {1: "a", 2: "b", 4: "d"}


@pytest.mark.parametrize("name", NAMES)
def test_tables_of_amoro_are_upgraded(name: str, tmp_path: Path) -> None:
    amoro = adopted(name, tmp_path)
    amoro.table.upgrade()
    amoro.table.refresh()
    assert not merged_sequence.statistics_with_merged_sequences(amoro.table.view.metadata)
    for store in ("merged", "base", "change"):
        assert texts(amoro.table.scan(store=store).to_arrow().to_pylist()) == texts(amoro.expected[store])
    view = amoro.table.view
    assert sequences_for_amoro(view.metadata, view.io) == amoro.table.merged_sequences()


def with_statistics() -> None:
    """A table in the older form, whose next commit is not bound to it."""
    table = made()
    table.set(STATISTICS)
    table.write(rows(_1="a", _2="a"), "overwrite")
    opened().unset(*STATISTICS)


def test_an_upgrade_keeps_what_a_tag_needs(lake: Catalog) -> None:
    with_statistics()
    lake.load_table("db.t").manage_snapshots().create_tag(opened().view.snapshot_id or 0, "audit").commit()
    before = opened().view.metadata
    assert before.refs["audit"].snapshot_ref_type == SnapshotRefType.TAG
    with pytest.raises(Rejected, match="audit"):
        opened().upgrade()
    assert opened().view.metadata == before


def test_an_upgrade_that_the_next_merge_would_undo(lake: Catalog) -> None:
    with_statistics()
    opened().set(STATISTICS)
    before = opened().view.metadata
    with pytest.raises(Rejected, match="next merge would write them again"):
        opened().upgrade()
    assert opened().view.metadata == before
    opened().unset(*STATISTICS)
    opened().upgrade()
    opened().write(rows(_2="b"))
    pyarctic.optimize("lake.db.t", kind="minor")
    assert not opened().upgrade(dry_run=True).needed


def test_an_upgrade_keeps_what_the_order_of_foreign_files_needs(lake: Catalog) -> None:
    with_statistics()
    append_to_base(lake, _2="b")
    lake.load_table("db.t").delete("id = 1")
    assert read() == {2: "b"}
    with pytest.raises(Rejected, match="which of them came last") as raised:
        opened().upgrade()
    assert "Optimize the table first" in str(raised.value.hint)
    pyarctic.optimize("lake.db.t")
    opened().upgrade()
    assert read() == read("base") == {2: "b"}


def race_before_expiry(monkeypatch: pytest.MonkeyPatch, race: Callable[[KeyedTable], object]) -> None:
    """Do something, once, between both steps of an upgrade."""
    expire_snapshots, races = upgrade._expire_older_snapshots, iter([True])

    def expire_after_race(table: KeyedTable) -> tuple[int, ...] | None:
        if next(races, False):
            race(table)
        return expire_snapshots(table)

    monkeypatch.setattr(upgrade, "_expire_older_snapshots", expire_after_race)


def test_an_upgrade_beside_a_writer(lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that merges between both steps of an upgrade: it begins again."""
    with_statistics()
    race_before_expiry(monkeypatch, lambda _: opened().write(rows(_2="b"), "overwrite"))
    opened().upgrade()
    assert read() == {2: "b"}
    assert MAP in head_summary()
    assert check_agreement() == {"": 2}


def test_a_tag_that_is_created_during_an_upgrade(lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    with_statistics()
    first = opened().view.snapshot_id or 0

    def create_tag(table: KeyedTable) -> None:
        lake.load_table("db.t").manage_snapshots().create_tag(first, "audit").commit()
        table.refresh()

    race_before_expiry(monkeypatch, create_tag)
    with pytest.raises(Rejected, match="audit"):
        opened().upgrade()
    assert opened().scan(ref="audit", store="base").count() == 2
    assert read() == {1: "a", 2: "a"}


@pytest.mark.parametrize("properties", [{}, STATISTICS])
def test_no_expiry_of_others_loses_them(lake: Catalog, properties: dict[str, str]) -> None:
    table = made()
    table.set({"comment": "any", **properties})
    table.write(rows(_1="hidden"))
    table.write(rows(_1="a"), "overwrite")
    append_to_base(lake, _5="appended")
    expire(lake.load_table("db.t"))
    assert read() == {1: "a", 5: "appended"}
    assert check_agreement() == {"": 2}
    opened().write(rows(_6="new"))
    pyarctic.optimize("lake.db.t", kind="full")
    assert read() == read("base") == {1: "a", 5: "appended", 6: "new"}


def remove_older_metadata(lake: Catalog) -> None:
    for entry in lake.load_table("db.t").metadata.metadata_log:
        Path(local(entry.metadata_file)).unlink(missing_ok=True)


def roll_back_with_another_tool(lake: Catalog, to: int | None) -> None:
    lake.load_table("db.t").manage_snapshots().set_current_snapshot(snapshot_id=to).commit()


@pytest.mark.parametrize("appended", [{}, {5: "appended"}])
def test_a_cut_history_of_an_older_state(lake: Catalog, appended: dict[int, str]) -> None:
    """Another engine has rolled Base back to before the last merge and expired the rest: the property is of later."""
    table = made()
    table.write(rows(_1="a"), "overwrite")
    append_to_base(lake, _4="appended")
    target = opened().view.snapshot_id
    table.write(rows(_2="pending"), "upsert")
    pyarctic.optimize("lake.db.t", kind="minor")
    roll_back_with_another_tool(lake, target)
    for key, text in appended.items():
        append_to_base(lake, **{f"_{key}": text})
    assert opened().merged_sequences() == {"": 1}
    expire(lake.load_table("db.t"))
    assert opened().merged_sequences() == {"": 1}
    assert read() == {1: "a", 2: "pending", 4: "appended"} | appended
    remove_older_metadata(lake)
    with pytest.raises(Damaged, match="what was merged is not known") as raised:
        read()
    assert "arctic.merged-sequences.snapshot-id" in str(raised.value.hint)


def test_a_rollback_over_a_merge_that_followed_an_expiry(lake: Catalog) -> None:
    """The merge knows what was merged before it, but not of all snapshots that the table may be rolled back to."""
    table = made()
    table.write(rows(_1="a"), "upsert")
    pyarctic.optimize("lake.db.t", kind="minor")
    merged_at = opened().view.snapshot_id
    targets = []
    for key in (4, 5):
        append_to_base(lake, **{f"_{key}": "appended"})
        targets.append(opened().view.snapshot_id)
    lake.load_table("db.t").maintenance.expire_snapshots().by_ids([merged_at or 0]).commit()
    opened().write(rows(_1="later"), "upsert")
    for _ in range(2):  # both snapshots tell what was merged before
        pyarctic.optimize("lake.db.t", kind="minor")
        assert read() == {1: "later", 4: "appended", 5: "appended"}
        for target, keys in zip(targets, [(4,), (4, 5)], strict=True):
            roll_back_with_another_tool(lake, target)
            assert opened().merged_sequences() == {"": 1}
            assert read() == {1: "later"} | dict.fromkeys(keys, "appended")
    remove_older_metadata(lake)
    assert opened().merged_sequences() == {"": 1}
    roll_back_with_another_tool(lake, targets[0])
    with pytest.raises(Damaged, match="what was merged is not known"):
        read()
    assert [finding.code for finding in pyarctic.check("lake.db.t").findings] == ["merged-sequences-lost"]


@pytest.mark.parametrize("is_partial", [True, False])
def test_a_property_that_another_engine_left_behind(
    lake: Catalog, monkeypatch: pytest.MonkeyPatch, *, is_partial: bool
) -> None:
    """An engine that stores statistics only has committed after us; then the snapshots of both are expired."""
    table = made(CITIES, ("city",))
    table.write(cities((1, "a", "x"), (9, "b", "x")), "overwrite")
    table.write(cities((2, "a", "hidden")), "upsert")
    record = merged_sequence.record_merged_sequences

    def record_statistics_only(*arguments: Any) -> merged_sequence.MergedSequenceRecord:
        return replace(record(*arguments, storage="statistics"), set_properties={}, remove_properties=())

    monkeypatch.setattr(prepared, "record_merged_sequences", record_statistics_only)
    opened().write(cities((1, "a", "z")), "overwrite", where="city = 'a'" if is_partial else None)
    monkeypatch.undo()
    expected = opened().merged_sequences()
    loaded = lake.load_table("db.t")
    loaded.append(cities((5, "a", "x")).cast(loaded.schema().as_arrow()))
    expire(lake.load_table("db.t"))
    assert opened().merged_sequences() == expected
    assert sorted(opened().scan().to_arrow()["id"].to_pylist()) == ([1, 5, 9] if is_partial else [1, 5])
    remove_older_metadata(lake)
    with pytest.raises(Damaged, match="what was merged is not known"):
        opened().scan().to_arrow()


@pytest.mark.parametrize("has_older_metadata", [True, False])
def test_a_table_that_was_never_merged(lake: Catalog, *, has_older_metadata: bool) -> None:
    table = made()
    append_to_base(lake, _1="a")
    append_to_base(lake, _2="a")
    table.write(rows(_3="c"), "upsert")
    expire(lake.load_table("db.t"))
    if not has_older_metadata:
        remove_older_metadata(lake)
    assert check_agreement() == {}
    assert read() == {1: "a", 2: "a", 3: "c"}
    pyarctic.optimize("lake.db.t", kind="minor")
    append_to_base(lake, _4="a")
    append_to_base(lake, _5="a")
    expire(lake.load_table("db.t"))
    if not has_older_metadata:
        remove_older_metadata(lake)
    assert check_agreement() == {"": 1}
    assert read() == read("base") == {1: "a", 2: "a", 3: "c", 4: "a", 5: "a"}


def test_the_hint_for_a_lost_history_works(lake: Catalog) -> None:
    table = made()
    table.write(rows(_1="hidden"))
    table.write(rows(_1="a"), "overwrite")
    lake.load_table("db.t").delete("id = 1")
    append_to_base(lake, _2="a")
    expire(lake.load_table("db.t"))
    remove_older_metadata(lake)
    with pytest.raises(Damaged, match="what was merged is not known"):
        read()
    assert pyarctic.check("lake.db.t").findings[0].code == "merged-sequences-lost"
    with lake.load_table("db.t").transaction() as transaction:
        transaction.set_properties({"arctic.merged-sequences.snapshot-id": str(opened().view.snapshot_id)})
    assert read() == {2: "a"}


def test_a_rollback_restores_the_property(lake: Catalog) -> None:
    table = made()
    table.write(rows(_1="a"))
    pyarctic.optimize("lake.db.t", kind="minor")
    before = check_agreement()
    table.write(rows(_2="b"))
    pyarctic.optimize("lake.db.t", kind="minor")
    assert check_agreement() != before
    roll_back(opened())
    assert check_agreement() == before
    assert read() == {1: "a", 2: "b"}
    append_to_base(lake, _5="appended")
    expire(lake.load_table("db.t"))
    assert check_agreement() == before
    assert read() == {1: "a", 2: "b", 5: "appended"}


def test_a_rollback_to_before_the_first_merge_clears_the_property(lake: Catalog) -> None:
    """Other engines read the property, and it outlives the snapshots: the changes would be hidden."""
    table = made()
    append_to_base(lake, _5="appended")
    table.write(rows(_1="a"))
    pyarctic.optimize("lake.db.t", kind="minor")
    roll_back(opened())
    assert check_agreement() == {}
    assert read() == {1: "a", 5: "appended"}
    append_to_base(lake, _6="appended")
    expire(lake.load_table("db.t"))
    assert check_agreement() == {}
    assert read() == {1: "a", 5: "appended", 6: "appended"}


def test_before_the_first_merge_nothing_is_merged(lake: Catalog) -> None:
    table = made()
    append_to_base(lake, _5="appended")
    table.write(rows(_1="a"))
    then = opened().snapshots(store="change")["snapshot_id"][-1]
    pyarctic.optimize("lake.db.t", kind="minor")
    past = opened().scan(snapshot_id=then).to_arrow()
    assert dict(zip(past["id"].to_pylist(), past["text"].to_pylist(), strict=True)) == {1: "a", 5: "appended"}


def test_large_maps_are_compressed_and_the_largest_are_statistics(lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made(CITIES, ("city",))
    names = [f"city {number}" for number in range(100)]
    data = cities(*((number, name, "x") for number, name in enumerate(names)))
    table.write(data, "overwrite")
    assert head_summary()[MAP].startswith("zlib:")
    assert len(check_agreement()) == 100
    monkeypatch.setattr(merged_sequence, "_MAX_SUMMARY_CHARS", 100)
    opened().write(data, "overwrite")
    assert FLAG in head_summary()
    assert set(check_agreement().values()) == {2}
    assert PROPERTY in opened().properties
    monkeypatch.setattr(merged_sequence, "_MAX_PROPERTY_CHARS", 100)
    opened().write(data, "overwrite")
    assert PROPERTY not in opened().properties, "never an old map"
    assert set(check_agreement().values()) == {3}
    before = opened().view.snapshot_id
    with pytest.raises(Unsupported, match="too many partitions"):
        opened().upgrade()
    assert opened().view.snapshot_id == before
    assert opened().scan().count() == 100


def test_entries_of_other_features_stay(lake: Catalog) -> None:
    made()
    with lake.load_table("db.t").transaction() as transaction:
        transaction.set_properties({PROPERTY: json.dumps({"": {"hive-location": "file:///h", "max-txId": "0"}})})
    opened().write(rows(_1="a"), "overwrite")
    values = json.loads(opened().properties[PROPERTY])[""]
    assert values["hive-location"] == "file:///h"
    assert values["max-txId"] == "1"
    assert check_agreement() == {"": 1}


@pytest.mark.parametrize("value", ["zlib:AAAA", "zlib:?", "{", "[1]", '{"": "x"}'])
def test_a_map_that_cannot_be_parsed(lake: Catalog, value: str) -> None:
    made().write(rows(_1="a"), "overwrite")

    def spoil(metadata: dict[str, Any]) -> dict[str, Any]:
        metadata["snapshots"][-1]["summary"][MAP] = value
        return metadata

    edited(lake.load_table("db.t"), spoil)
    with pytest.raises(Damaged, match="cannot be parsed"):
        read()


def test_properties_of_the_format_cannot_be_set(lake: Catalog) -> None:
    table = made()
    for name in (PROPERTY, "arctic.merged-sequences.snapshot-id"):
        with pytest.raises(UsageError, match=name):
            table.set({name: "{}"})
    with pytest.raises(UsageError) as raised:
        table.set({"arctic.merged-sequences.storage": "elsewhere"})
    assert "summary or statistics" in str(raised.value.hint)


def store_in_property_alone(lake: Catalog, *, merged_at: str | None = None) -> None:
    """Leave the table as an engine of the format does that stores the map in the property alone: the summary of its commit
    has none, and it does not say which snapshot the property is of."""

    def edit(told: dict[str, Any]) -> dict[str, Any]:
        for snapshot in told["snapshots"] if merged_at is None else told["snapshots"][-1:]:
            snapshot["summary"].pop(MAP, None)
        properties = {name: value for name, value in told["properties"].items() if name != merged_sequence.MERGED_AT}
        return told | {"properties": properties | ({} if merged_at is None else {merged_sequence.MERGED_AT: merged_at})}

    edited(lake.load_table("db.t"), edit)


def merged_by_an_older_engine(lake: Catalog) -> tuple[int, int]:
    """A table with two snapshots of Base by such an engine, an overwrite and a merge. Returns two ids of the change store,
    from before and in between."""
    table = made()
    first = table.write(rows(_1="a", _2="a"), "upsert")
    table.write(rows(_7="g"), "overwrite")
    second = table.write(rows(_3="c"), "upsert")
    pyarctic.optimize("lake.db.t", "full")
    store_in_property_alone(lake)
    assert first is not None
    assert second is not None
    return first, second


def test_the_past_of_a_table_with_a_property_alone(lake: Catalog) -> None:
    """The property has the newest state only: what was merged before is not known, and not guessed."""
    first, second = merged_by_an_older_engine(lake)
    assert read() == {3: "c", 7: "g"}
    with pytest.raises(NotFound, match="what was merged"):
        opened().scan(snapshot_id=second).to_arrow()
    assert sorted(opened().scan(snapshot_id=first).to_arrow()["id"].to_pylist()) == [1, 2]  # before Base had anything


def test_a_rollback_of_the_first_merge_after_an_older_engine(lake: Catalog) -> None:
    _, second = merged_by_an_older_engine(lake)
    opened().write(rows(_4="d"), "upsert")
    assert pyarctic.optimize("lake.db.t", "full").changed
    before_rollback = check_agreement()
    with pytest.raises(NotFound, match="what was merged"):
        opened().scan(snapshot_id=second).to_arrow()
    roll_back(opened())
    assert opened().merged_sequences()[""] < before_rollback[""]
    assert read() == {3: "c", 4: "d", 7: "g"}
    assert pyarctic.optimize("lake.db.t", "full").changed
    assert read("base") == {3: "c", 4: "d", 7: "g"}


def test_an_older_engine_that_goes_on_after_us(lake: Catalog) -> None:
    table = made()
    table.write(rows(_1="a"), "upsert")
    pyarctic.optimize("lake.db.t", "full")
    merged_at = opened().view.metadata.properties[merged_sequence.MERGED_AT]
    table.write(rows(_2="b"), "upsert")
    table.write(rows(_7="g"), "overwrite")
    store_in_property_alone(lake, merged_at=merged_at)
    assert read() == {7: "g"}
