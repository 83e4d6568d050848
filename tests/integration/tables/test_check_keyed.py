"""Keyed tables: every contradiction between rows, files and stores is found; repairs lose no row."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import hypothesis.strategies as st
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from pyiceberg.catalog import Catalog
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, StringType

import pyarctic
from pyarctic import config
from pyarctic.errors import Rejected
from pyarctic.iceberg.commit import Change
from pyarctic.iceberg.manifest import PartitionDecoder
from pyarctic.iceberg.write import FileNames, FileTarget, write_equality_deletes
from pyarctic.tables import Table
from pyarctic.tables.check import CheckReport, TableCheck, keyed_rows
from pyarctic.tables.check.kinds import KEYED_KINDS
from pyarctic.tables.format.change_columns import FILE_OFFSET
from pyarctic.tables.format.merged_sequence import record_merged_sequences
from pyarctic.tables.format.store_properties import BASE_BUCKETS, CHANGE_BUCKETS, PRIMARY_KEY
from tests.models.optimized_keyed_table import OptimizedKeyedModel
from tests.support import amoro
from tests.support.integrity import local
from tests.support.keyed_tables import CITIES, IDS, add_file, cities, commit, made, many, opened, read, rows
from tests.support.metadata_files import edited
from tests.support.optimizing import optimize

NAME = "lake.db.t"
HISTORIES = int(os.environ.get("HISTORIES", "2"))


def check(**options: Any) -> CheckReport:
    return pyarctic.check(NAME, rows=True, **options)


def outline(report: CheckReport) -> list[tuple[str, str | None, int, int | None]]:
    """Code, store, files and rows of every finding."""
    return [(f.code, f.store, f.files, f.rows) for f in report.findings]


def sound() -> bool:
    return not [finding for finding in check(all_snapshots=True).findings if finding.severity != "note"]


def filled() -> None:
    """Ids 0 to 99, half of them in Base, in four nodes."""
    table = made()
    table.set({BASE_BUCKETS: "4", CHANGE_BUCKETS: "4"})
    table.write(many(range(50), "a"), "overwrite")
    opened().write(many(range(50, 100), "b"))
    assert sound()


# -- rows ---------------------------------------------------------------------------------------------------------


def append(lake: Catalog, data: pa.Table) -> None:
    """As an engine that does not know keys does it."""
    lake.load_table("db.t").append(data.cast(opened().arrow_schema))


def test_a_key_that_two_files_of_the_format_hold(lake: Catalog) -> None:
    filled()
    before = read()
    add_file(opened(), rows(_7="again", _8="again", _500="new"), "1-B-1-00000-0-77-00001")
    add_file(opened(), rows(_8="and again", _9="again"), "1-B-1-00000-0-77-00002")
    assert pyarctic.check(NAME, rows=False).findings == ()  # only the rows tell
    assert pyarctic.check(NAME).is_damaged
    planned = check(repair=True, dry_run=True)
    assert outline(planned) == [("duplicate-keys", "base", 4, 4)]
    assert planned.is_damaged
    assert [(r.code, r.store, r.rows, r.snapshot_id) for r in planned.repairs] == [("duplicate-keys", "base", 4, None)]
    assert outline(check()) == [("duplicate-keys", "base", 4, 4)]
    report = check(repair=True)
    assert not report.is_damaged
    assert report.repairs[0].snapshot_id == opened().view.snapshot_id
    assert sound()
    expected = before | {7: "again", 8: "and again", 9: "again", 500: "new"}  # of the later commit
    assert read() == expected
    optimize(opened(), "full")
    assert read() == read("base") == expected
    assert sound()


def test_a_key_that_another_engine_appended_is_no_damage(lake: Catalog) -> None:
    filled()
    append(lake, rows(_7="again", _8="again", _500="new"))
    append(lake, rows(_8="and again", _9="again"))
    before = read()
    assert (before[7], before[8], before[9]) == ("again", "and again", "again")
    report = check()
    assert outline(report) == [("replaced-rows", "base", 4, 4)]
    assert not report.is_damaged
    check(repair=True)
    assert check().findings == ()
    assert read() == before
    assert read("base") == {key: text for key, text in before.items() if key < 50 or key == 500}
    optimize(opened(), "full")
    assert read() == read("base") == before


def test_a_repair_leaves_the_row_that_reads_return(lake: Catalog) -> None:
    """A file of the format that is newer than an appended one does not come after it."""
    made().write(rows(_1="a", _2="a"), "overwrite")
    append(lake, rows(_1="appended"))
    add_file(opened(), rows(_1="format", _2="format"), "1-B-1-00000-0-77-00001")
    report = check()
    assert outline(report) == [("duplicate-keys", "base", 1, 1), ("replaced-rows", "base", 2, 2)]
    check(repair=True)
    assert read() == read("base") == {1: "appended", 2: "format"}
    assert check().findings == ()


def test_a_repair_leaves_the_row_that_a_pending_change_does_not_reach(lake: Catalog) -> None:
    """A transaction that began before the other row was written deletes one of the two rows."""
    table = made()
    table.write(rows(_1="a", _2="a"), "overwrite")
    add_file(opened(), rows(_5="of a later transaction"), "1-B-8-00000-0-77-00001")
    add_file(opened(), rows(_5="committed later"), "1-B-3-00000-0-77-00002")
    deleted = rows(_5="old").append_column(FILE_OFFSET.name, pa.array([1], pa.int64()))
    add_file(opened().change_store, deleted, "1-ED-5-00000-0-77-00001")
    expected = {1: "a", 2: "a", 5: "of a later transaction"}
    assert read() == expected
    assert outline(check()) == [("duplicate-keys", "base", 1, 1)]
    check(repair=True)
    assert read() == expected


def test_within_a_file_the_later_row_remains(lake: Catalog) -> None:
    made()
    twice = pa.table({"id": [1, 2, 1, 3, 1], "text": ["a", "b", "c", "d", "e"]}, schema=IDS)
    add_file(opened(), twice, "1-B-1-00000-0-77-00001")
    assert outline(check()) == [("duplicate-keys", "base", 1, 2)]
    check(repair=True)
    assert read() == {1: "e", 2: "b", 3: "d"}
    assert sound()


@pytest.mark.parametrize("is_foreign", [False, True])
@pytest.mark.parametrize("memory", [64, 4 << 10])
def test_keys_beyond_the_memory_budget(
    lake: Catalog, monkeypatch: pytest.MonkeyPatch, memory: int, is_foreign: bool
) -> None:
    monkeypatch.setattr(keyed_rows, "MEMORY_BYTES", memory)
    made().write(many(range(2_000), "a"), "overwrite")
    assert sound()
    again = many(range(1_990, 2_010), "b")
    if is_foreign:
        append(lake, again)
    else:
        add_file(opened(), again, "1-B-1-00000-0-77-00001")
    assert outline(check(repair=True)) == [("replaced-rows" if is_foreign else "duplicate-keys", "base", 1, 10)]
    assert check().findings == ()
    assert {key: text[0] for key, text in read().items()} == {key: "a" if key < 1_990 else "b" for key in range(2_010)}


def test_deleted_rows_are_no_duplicates(lake: Catalog) -> None:
    filled()
    opened().set({"self-optimizing.fragment-size": "1"})
    opened().write(rows(_7="c", _60="c"), "upsert")
    optimize(opened(), "minor")
    assert opened().files(content="position-deletes").height
    assert sound()


def test_equal_keys_of_two_partitions_are_no_duplicates(lake: Catalog) -> None:
    table = made(CITIES, ("city",))
    table.write(cities((1, "Oslo", "a"), (1, "Rome", "b"), (2, None, "c")), "overwrite")
    assert sound()
    append(lake, cities((1, "Rome", "d")))
    assert outline(check(repair=True)) == [("replaced-rows", "base", 1, 1)]
    assert sorted(opened().scan(["city", "text"]).to_arrow().to_pylist(), key=str) == [
        {"city": "Oslo", "text": "a"},
        {"city": "Rome", "text": "d"},
        {"city": None, "text": "c"},
    ]


def test_nothing_is_repaired_if_others_have_committed_since(lake: Catalog) -> None:
    made().write(rows(_1="a"), "overwrite")
    append(lake, rows(_1="b"))
    check_now = TableCheck.of_name(NAME, rows=True)
    report = check_now.run()
    append(lake, rows(_1="c"))
    files = sorted(Path(local(opened().location)).rglob("*.parquet"))
    with pytest.raises(Rejected):
        check_now.repair(report)
    assert sorted(Path(local(opened().location)).rglob("*.parquet")) == files
    check(repair=True)
    assert read() == read("base") == {1: "c"}


@pytest.mark.parametrize("store", ["base", "change"])
def test_rows_in_the_file_of_another_node(lake: Catalog, store: str) -> None:
    """The hashes of 1, 2, 3 and 4 end with 0, 1, 2 and 3: nodes 4, 5, 6 and 7."""
    filled()
    data = rows(_1001="x", _1002="x", _1003="x", _1004="x")
    nodes = {key: 4 + (31 + key) % 4 for key in data["id"].to_pylist()}
    wrong = sum(node != 5 for node in nodes.values())
    if store == "base":
        path = add_file(opened(), data, "5-B-1-00000-0-77-00001")
    else:
        path = add_file(
            opened().change_store, data.append_column("_file_offset", pa.array([1, 2, 3, 4])), "5-I-0-00000-0-77-00001"
        )
    report = check()
    assert outline(report) == [("wrong-node", store, 1, wrong)]
    assert report.findings[0].problems["file_path"].to_list() == [path]


def test_a_duplicate_in_the_file_of_another_node(lake: Catalog) -> None:
    filled()
    add_file(opened(), rows(_1="x", _2="x", _3="x", _4="x"), "5-B-1-00000-0-77-00001")
    assert outline(check()) == [("wrong-node", "base", 1, 3), ("duplicate-keys", "base", 4, 4)]


@pytest.mark.parametrize("store", ["base", "change"])
def test_rows_without_a_key(lake: Catalog, store: str) -> None:
    made()
    data = pa.table({"id": [None, 1, None], "text": ["a", "b", "c"]}, schema=IDS)
    if store == "base":
        add_file(opened(), data, "1-B-1-00000-0-77-00001")
    else:
        add_file(opened().change_store, data.append_column("_file_offset", pa.array([1, 2, 3])), "1-I-0-00000-0-77-00001")
    assert outline(check())[0] == ("null-keys", store, 1, 2)


def test_rows_in_the_file_of_another_partition(lake: Catalog) -> None:
    table = made(CITIES, ("city", "bucket(4, id)"))
    table.write(cities((1, "Oslo", "a"), (2, "Rome", "b")), "overwrite")
    assert sound()
    file = opened().file_list.frame().filter(pl.col("partition").str.contains("Oslo")).row(0, named=True)
    rome = cities((1, "Rome", "c"), (1, "Oslo", "d"), (1, None, "e"))
    partition = PartitionDecoder(opened().view.metadata).values(file["spec_id"], file["partition"])
    add_file(opened(), rome, "1-B-1-00000-0-77-00001", partition=partition)
    assert outline(check())[0] == ("wrong-partition", "base", 1, 2)


@pytest.mark.parametrize("offset", [-1, 1 << 60])
def test_offsets_that_no_writer_gives(lake: Catalog, offset: int) -> None:
    made().write(rows(_1="a"), "overwrite")
    commit(opened(), 0, rows(_1="b"), first=offset)
    assert ("wrong-offsets", "change", 1, 1) in outline(check())


def test_a_key_that_two_writers_inserted_in_one_transaction(lake: Catalog) -> None:
    made()
    commit(opened(), 9, rows(_1="a"))
    commit(opened(), 9, rows(_1="b"))
    report = check()
    assert [(f.code, f.store) for f in report.findings] == [("ambiguous-changes", "base")]
    assert "inserted twice" in report.findings[0].problems["detail"][0]


def test_a_page_of_a_base_file_that_was_changed(lake: Catalog) -> None:
    filled()
    path = opened().files(content="data")["file_path"][0]
    table = pq.ParquetFile(local(path)).read()
    content = Path(local(path)).read_bytes()
    Path(local(path)).write_bytes(content[:40] + bytes(200) + content[240:])
    assert table.num_rows
    report = check()
    assert [(f.code, f.store, f.files) for f in report.findings] == [("unreadable-file", "base", 1)]


# -- stores -------------------------------------------------------------------------------------------------------


def lose_change_store(lake: Catalog) -> None:
    lake.drop_table("db.t_change_")


def break_change_store(lake: Catalog) -> None:
    Path(local(lake.load_table("db.t_change_").metadata_location)).write_text("{")


def lose_key(lake: Catalog) -> None:
    with lake.load_table("db.t").transaction() as transaction:
        transaction.set_properties({PRIMARY_KEY: "key"})


def break_old_sequences(lake: Catalog) -> None:
    with lake.load_table("db.t").transaction() as transaction:
        transaction.set_properties({"table.partition-properties": "{"})
    edited(lake.load_table("db.t"), without_flags)


def without_flags(metadata: dict[str, Any]) -> dict[str, Any]:
    for snapshot in metadata["snapshots"]:
        del snapshot["summary"]["arctic.merged-sequences"]
    return metadata


def merge_too_far(_: Catalog) -> None:
    merge_up_to({"": 999})


def merge_another_partition(_: Catalog) -> None:
    merge_up_to({"city=Oslo": 1})


def merge_up_to(sequences: dict[str, int]) -> None:
    base = opened()
    change = Change(start=base.view.snapshot_id, empty=True)
    record = record_merged_sequences(base.view.metadata, base.view.io, change.snapshot_id, sequences)
    base.commit(record.add_to(change))


def lose_statistics(_: Catalog) -> None:
    opened().set({"arctic.merged-sequences.storage": "statistics"})
    merge_up_to({"": 1})
    for path in Path(local(opened().location)).rglob("*.puffin"):
        path.unlink()


def change_spec(lake: Catalog) -> None:
    with lake.load_table("db.t").update_spec() as update:
        update.add_field("id", BucketTransform(4), "b")


def change_schema(lake: Catalog) -> None:
    with lake.load_table("db.t_change_").update_schema() as update:
        update.add_column("more", StringType())


def interrupt_schema_change(lake: Catalog) -> None:
    with lake.load_table("db.t").update_schema() as update:
        update.add_column("more", StringType())


def equality_delete(_: Catalog) -> None:
    delete_by_key(opened())


def delete_in_change_store(_: Catalog) -> None:
    delete_by_key(opened().change_store)


def delete_by_key(store: Table) -> None:
    target = FileTarget(metadata=store.view.metadata, io=store.view.io, spec_id=0, partition=(), names=FileNames())
    key = store.schema.find_field("id")
    file = write_equality_deletes(target, pa.table({"id": pa.array([1], pa.int64())}), [key])
    store.commit(Change(start=store.view.snapshot_id, add=(file,)))


@pytest.mark.parametrize(
    ("code", "break_"),
    [
        ("missing-change-store", lose_change_store),
        ("missing-change-store", break_change_store),
        ("missing-key-columns", lose_key),
        ("merged-sequences-lost", break_old_sequences),
        ("merged-too-far", merge_too_far),
        ("unknown-partition", merge_another_partition),
        ("merged-sequences-lost", lose_statistics),
        ("different-specs", change_spec),
        ("different-schemas", change_schema),
        ("schema-behind", interrupt_schema_change),
        ("forbidden-deletes", equality_delete),
        ("forbidden-deletes", delete_in_change_store),
    ],
)
@pytest.mark.parametrize("reads_rows", [False, True])
def test_stores_that_do_not_fit(lake: Catalog, code: str, break_: Callable[[Catalog], None], reads_rows: bool) -> None:
    filled()
    break_(lake)
    report = pyarctic.check(NAME, rows=reads_rows)
    severity = KEYED_KINDS[code].severity
    assert {finding.code for finding in report.findings if finding.severity == severity} == {code}
    assert report.is_damaged == (severity == "damage")


def test_a_file_of_either_store_that_is_missing(lake: Catalog) -> None:
    filled()
    for store in (opened(), opened().change_store):
        Path(local(store.file_list.frame()["file_path"][0])).unlink()
    report = check()
    assert [(f.code, f.store, f.files) for f in report.findings] == [
        ("missing-file", "base", 1),
        ("missing-file", "change", 1),
    ]


def test_a_widened_key_is_a_note(lake: Catalog) -> None:
    narrow = pa.schema([pa.field("id", pa.int32(), nullable=False), ("v", pa.string())])
    table = pyarctic.create_table(NAME, narrow, ["id"])
    table.write(pa.table([[-1, -2, -3, 5], ["a"] * 4], schema=narrow), mode="overwrite")
    for store in ("db.t", "db.t_change_"):
        with lake.load_table(store).update_schema() as update:
            update.update_column("id", field_type=LongType())
    wide = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
    pyarctic.table(NAME).write(pa.table([[-1, 5], ["b"] * 2], schema=wide), mode="upsert")
    assert outline(check()) == [("nodes-not-checked", "base", 0, None)]
    lake.load_table("db.t").append(pa.table([[-1], ["c"]], schema=wide))
    assert ("replaced-rows", "base", 1, 1) in outline(check())


def test_totals_of_both_stores_are_repaired(lake: Catalog) -> None:
    filled()
    before = read()

    def spoil(metadata: dict[str, Any]) -> dict[str, Any]:
        metadata["snapshots"][-1]["summary"]["total-files-size"] = "1"
        return metadata

    for store in ("db.t", "db.t_change_"):
        edited(lake.load_table(store), spoil)
    assert [(f.code, f.store) for f in check().findings] == [("wrong-summary", "base"), ("wrong-summary", "change")]
    report = check(repair=True)
    assert [(repair.store, repair.snapshot_id is not None) for repair in report.repairs] == [
        ("base", True),
        ("change", True),
    ]
    assert check().findings == ()
    assert read() == before
    opened().write(rows(_1="c"), "upsert")
    optimize(opened(), "full")
    assert read() == read("base") == before | {1: "c"}
    assert check().findings == ()


def test_dangling_deletes_of_base_are_removed(lake: Catalog) -> None:
    filled()
    opened().set({"self-optimizing.fragment-size": "1"})
    opened().write(rows(_7="c", _8="c"), "upsert")
    optimize(opened(), "minor")
    assert opened().files(content="position-deletes").height
    lake.load_table("db.t").delete("id >= 0")  # PyIceberg leaves the delete files
    assert [f.code for f in check().findings] == ["dangling-deletes"]
    report = check(repair=True)
    assert [repair.code for repair in report.repairs] == ["dangling-deletes"]
    assert check().findings == ()
    assert read() == {}
    opened().write(rows(_7="d"))
    assert read() == {7: "d"}


# -- sound tables -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", amoro.NAMES)
def test_tables_of_amoro_are_sound(name: str, tmp_path: Path) -> None:
    table = amoro.unpacked(name, tmp_path).table
    assert TableCheck(table).run().findings == ()
    assert TableCheck(table, rows=True, all_snapshots=True).run().findings == ()


def test_files_of_both_stores_are_sound(lake: Catalog) -> None:
    table = made(target_size="48KB", share_insert_files="true")
    table.write(many(range(2_000), "a"))
    assert optimize(opened(), "minor").files_shared == 1
    assert sound()


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Iterator[int]]:
    folder = tmp_path_factory.mktemp("lake")
    pyarctic.catalog("checked", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=folder.as_uri())
    yield count(1)
    config.reset()


@pytest.mark.parametrize("key", ["long", "string", "composite", "wide decimal", "binary"])
@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=HISTORIES, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_histories_are_sound(key: str, numbers: Iterator[int], seed: int) -> None:
    random = Random(f"{key} {seed}")
    name = f"checked.n.t{next(numbers)}"
    model = OptimizedKeyedModel(name, random, key)
    steps = [model.insert, model.upsert, model.delete, model.cdc, model.overwrite, model.foreign_change, model.foreign_base]
    steps += [model.evolve, model.change_buckets]
    for _ in range(random.randint(3, 12)):
        random.choice(steps)()
        if random.random() < 0.3:
            optimize(model.opened(), random.choice(["minor", "major", "full"]))
            model.learn()
    report = pyarctic.check(name, rows=True, all_snapshots=True)
    assert [finding for finding in report.findings if finding.severity != "note"] == []
