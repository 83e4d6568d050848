"""Files that other Iceberg engines have put into the base store: one row per key, the later commit counts."""

from __future__ import annotations

from pathlib import Path
from random import Random
from uuid import uuid4

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog

import pyarctic
from pyarctic.errors import Damaged
from pyarctic.iceberg.commit import Change, Proof
from pyarctic.iceberg.write import NewFile
from pyarctic.optimizing import KindChoice, Options, explain_table, optimize_table
from pyarctic.tables.format import BASE_BUCKETS, CHANGE_BUCKETS
from pyarctic.tables.read.merged_scan import MergedScan
from pyarctic.tables.read.splits import SplitSizes, plan_splits
from tests.support.integrity import local
from tests.support.keyed_tables import CITIES, base_files, cities, expire, faults, made, many, opened, read, rows, texts
from tests.support.optimizing import InProcessEngine

KINDS: tuple[KindChoice, ...] = ("minor", "major", "full")


def append(lake: Catalog, data: pa.Table) -> None:
    loaded = lake.load_table("db.t")
    loaded.append(data.cast(loaded.schema().as_arrow()))


def read_in_splits() -> list[tuple[int, str]]:
    scan = opened().scan()
    assert isinstance(scan, MergedScan)
    plan = plan_splits(scan, SplitSizes(readers=4, max_bytes=1 << 20), allow_plain=False)
    batches = [batch for split in plan.splits for batch in plan.reader.batches(split)]
    return sorted((row["id"], row["text"]) for batch in batches for row in batch.to_pylist())


@pytest.mark.parametrize("kind", [*KINDS, "auto"])
def test_an_appended_key_replaces_its_row(lake: Catalog, kind: KindChoice) -> None:
    table = made()
    table.write(rows(_1="a", _2="a", _3="a"), "overwrite")
    append(lake, rows(_2="appended", _4="appended"))
    expected = {1: "a", 2: "appended", 3: "a", 4: "appended"}
    assert opened().scan().count() == 4
    assert read() == expected
    assert read_in_splits() == sorted(expected.items())
    assert opened().scan(where="text = 'a'").count() == 2
    explained = explain_table(opened(), Options())
    assert any("another engine" in note for note in explained.notes)
    assert explained.health.score < 100
    report = pyarctic.optimize("lake.db.t", kind=kind)
    assert report.changed
    assert report.foreign_files == 1
    assert "1 files of Base were written by another engine" in str(report)
    assert read() == read("base") == expected
    assert opened().scan(store="base").count() == 4
    assert not opened().file_list.frame()["file_path"].str.contains("/00000-0-").any()
    assert not pyarctic.optimize("lake.db.t", kind=kind).changed
    assert not faults()


def test_a_key_appended_many_times(lake: Catalog) -> None:
    """Within a file and in several files of several commits; the last row counts."""
    table = made()
    table.write(rows(_1="a", _2="a"), "overwrite")
    append(lake, pa.concat_tables([rows(_1="b"), rows(_1="c"), rows(_3="b")]))
    append(lake, pa.concat_tables([rows(_3="d"), rows(_3="e")]))
    assert read() == {1: "c", 2: "a", 3: "e"}
    assert opened().scan(memory_bytes=1).count() == 3
    pyarctic.optimize("lake.db.t", kind="minor")
    assert read() == read("base") == {1: "c", 2: "a", 3: "e"}


def test_pending_changes_come_after_foreign_rows(lake: Catalog) -> None:
    table = made()
    table.write(rows(_1="a", _2="a", _3="a"), "overwrite")
    table.write(rows(_1="changed"), "upsert")
    table.write(pa.table({"id": [2]}), "delete")
    append(lake, rows(_1="appended", _2="appended", _3="appended"))
    expected = {1: "changed", 3: "appended"}
    assert read() == expected
    pyarctic.optimize("lake.db.t", kind="minor")
    assert read() == read("base") == expected
    opened().write(rows(_3="changed"), "upsert")
    assert read() == {1: "changed", 3: "changed"}


def test_only_its_partition_is_merged(lake: Catalog) -> None:
    table = made(CITIES, ("city",))
    table.write(cities((1, "a", "x"), (1, "b", "x"), (2, "b", "x")), "overwrite")
    untouched = set(base_files().filter(~base_files()["file_path"].str.contains("city=b"))["file_path"])
    append(lake, cities((1, "b", "appended")))
    pyarctic.optimize("lake.db.t")
    read_rows = sorted((row["city"], row["id"], row["text"]) for row in opened().scan().to_arrow().to_pylist())
    assert read_rows == [("a", 1, "x"), ("b", 1, "appended"), ("b", 2, "x")]
    assert untouched <= set(base_files()["file_path"])


def test_large_files_are_divided_by_nodes(lake: Catalog) -> None:
    table = made(target_size="64KB")
    table.write(many(range(4000), "a"), "overwrite")
    append(lake, many(range(3000, 7000), "b"))
    expected = texts(range(3000), "a") | texts(range(3000, 7000), "b")
    assert read() == expected
    report = pyarctic.optimize("lake.db.t", kind="full")
    assert report.changed
    assert read() == read("base") == expected
    assert not faults()


def test_an_update_of_another_engine(lake: Catalog) -> None:
    """Copy-on-write: the new file holds all rows of the one that it replaces."""
    table = made()
    table.write(rows(_1="a", _2="a"), "overwrite")
    loaded = lake.load_table("db.t")
    loaded.overwrite(rows(_1="updated", _2="a").cast(loaded.schema().as_arrow()))
    assert read() == {1: "updated", 2: "a"}
    pyarctic.optimize("lake.db.t")
    assert read() == read("base") == {1: "updated", 2: "a"}


def test_a_row_that_copy_on_write_takes_over_is_no_later(lake: Catalog) -> None:
    """A file that is written again because of one row holds others, too, which may have been superseded before."""
    table = made()
    table.write(rows(_1="a", _2="a", _3="a"), "overwrite")
    append(lake, rows(_2="b", _3="b", _4="b"))
    append(lake, rows(_3="c", _5="c"))
    expected = {1: "a", 2: "b", 3: "c", 4: "b", 5: "c"}
    assert read() == expected
    for deleted in (1, 4, 5):
        lake.load_table("db.t").delete(f"id = {deleted}")
        del expected[deleted]
        assert read() == expected
        assert read_in_splits() == sorted(expected.items())
    pyarctic.optimize("lake.db.t", kind="minor")
    assert read() == read("base") == expected


def replace_files(paths: set[str], data: pa.Table) -> None:
    """A compaction of another engine, which writes rows in the order in which it happens to read them."""
    table = opened()
    ids = {field.name: str(field.field_id) for field in table.schema.fields}
    fields = [field.with_metadata({"PARQUET:field_id": ids[field.name]}) for field in data.schema]
    path = f"{table.location}/data/00000-7-{uuid4()}-00001.parquet"
    pq.write_table(data.cast(pa.schema(fields)), local(path))
    file = NewFile(
        content=0,
        path=path,
        file_format="PARQUET",
        spec_id=0,
        partition=(),
        record_count=data.num_rows,
        file_size_bytes=Path(local(path)).stat().st_size,
    )
    removed = table.file_list.frame().filter(pl.col("file_path").is_in(list(paths)))
    proof = Proof(rows_in=data.num_rows, rows_deleted=0, rows_out=data.num_rows)
    table.commit(Change(start=table.view.snapshot_id, add=(file,), remove=removed, rewrites=True, proof=proof))


def data_paths() -> set[str]:
    return set(opened().file_list.frame()["file_path"])


def remove_history(lake: Catalog, *, with_metadata: bool = True) -> None:
    """Expire all snapshots but the last one, with the files that only they need, as Iceberg's Java library does."""
    loaded = lake.load_table("db.t")
    current = loaded.metadata.current_snapshot_id
    expired = [snapshot.manifest_list for snapshot in loaded.metadata.snapshots if snapshot.snapshot_id != current]
    expire(loaded)
    metadata = lake.load_table("db.t").metadata
    older = [entry.metadata_file for entry in metadata.metadata_log] if with_metadata else []
    for path in (*expired, *older):
        Path(local(path)).unlink(missing_ok=True)


def test_copy_on_write_over_files_of_different_ages(lake: Catalog) -> None:
    """Both of its new files hold the key, and nothing tells which row is the later one: a read must not choose."""
    table = made()
    table.write(rows(_2="a", _3="a"), "overwrite")
    append(lake, rows(_2="b", _3="b"))
    before = opened().view.snapshot_id
    lake.load_table("db.t").delete("id = 3")
    after = opened().view.snapshot_id
    for attempt in (read, read_in_splits, lambda: optimize_table(opened(), InProcessEngine(), Options(kind="minor"))):
        with pytest.raises(Damaged, match=r"key 2 has several rows in Base, .* the latest is not known") as raised:
            attempt()
        assert raised.value.facts["keys"] == 1
        assert "optimize the table, and repeat it" in str(raised.value.hint)
    assert opened().scan(store="base").count() == 2
    [finding] = [each for each in pyarctic.check("lake.db.t", rows=True, repair=True).findings if each.severity == "damage"]
    assert (finding.code, finding.rows) == ("unknown-order", 1)
    assert opened().view.snapshot_id == after, "nothing to repair"
    # The hint, in both ways.
    lake.load_table("db.t").delete("id = 2")
    opened().write(rows(_2="b"), "upsert")
    assert read() == {2: "b"}
    lake.load_table("db.t").manage_snapshots().set_current_snapshot(snapshot_id=before).commit()
    pyarctic.optimize("lake.db.t", kind="minor")
    lake.load_table("db.t").delete("id = 3")
    assert read() == {2: "b"}


def test_copy_on_write_over_files_of_different_ages_without_common_keys(lake: Catalog) -> None:
    table = made()
    table.write(rows(_1="a", _2="a"), "overwrite")
    append(lake, rows(_3="b", _4="b"))
    append(lake, rows(_2="c", _5="c"))
    lake.load_table("db.t").delete("id = 1 or id = 4")
    expected = {2: "c", 3: "b", 5: "c"}
    assert read() == expected
    assert read_in_splits() == sorted(expected.items())
    pyarctic.optimize("lake.db.t", kind="minor")
    assert read() == read("base") == expected


@pytest.mark.parametrize("merges", [False, True])
def test_a_compaction_of_another_engine(lake: Catalog, *, merges: bool) -> None:
    """Files of one commit: their rows keep their age. Files of several: the order of rows with the same key is lost."""
    table = made()
    table.write(rows(_1="a", _4="a"), "overwrite")
    ours = data_paths()
    append(lake, rows(_1="b", _2="b"))
    appended = data_paths() - ours
    if merges:
        replace_files(data_paths(), pa.concat_tables([rows(_1="b", _2="b"), rows(_1="a", _4="a")]))
        with pytest.raises(Damaged, match="key 1 has several rows"):
            read()
        return
    append(lake, rows(_1="c"))
    replace_files(appended, rows(_1="b", _2="b"))
    expected = {1: "c", 2: "b", 4: "a"}
    assert read() == expected
    pyarctic.optimize("lake.db.t", kind="minor")
    assert read() == read("base") == expected


@pytest.mark.parametrize("statement", ["append", "delete", "compaction"])
def test_expired_snapshots_that_tell_the_order(lake: Catalog, statement: str) -> None:
    """What is known stays the same; what is not is refused, if a key depends on it."""
    table = made()
    table.write(rows(_1="a", _2="a"), "overwrite")
    ours = data_paths()
    append(lake, rows(_2="b"))
    expected = {1: "a", 2: "b"}
    if statement == "delete":
        lake.load_table("db.t").delete("id = 1")
        del expected[1]
    elif statement == "compaction":
        replace_files(ours, rows(_1="a", _2="a"))
    else:
        append(lake, rows(_2="c"))
        expected[2] = "c"
    assert read() == expected
    append(lake, rows(_7="d"))
    expected[7] = "d"
    expire(lake.load_table("db.t"))
    assert read() == expected, "older metadata files and manifests tell it"
    remove_history(lake, with_metadata=False)
    if statement == "append":
        assert read() == expected, "it was an append, as an older metadata file tells"
    remove_history(lake)
    with pytest.raises(Damaged):
        read()


def test_expired_appends_without_common_keys(lake: Catalog) -> None:
    table = made()
    table.write(rows(_1="a"), "overwrite")
    for text in ("b", "c"):
        append(lake, rows(_1="b") if text == "b" else rows(_3=text))
    remove_history(lake)
    assert read() == {1: "b", 3: "c"}
    pyarctic.optimize("lake.db.t", kind="minor")
    assert read() == read("base") == {1: "b", 3: "c"}


def test_rows_appended_during_a_process_are_not_lost(lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan knows nothing of them: its partition is planned again."""
    from pyarctic.optimizing.commit.table_now import ConcurrentChanges
    from pyarctic.optimizing.commit.units import CommitUnit

    table = made()
    table.write(rows(_1="a"), "overwrite")
    append(lake, rows(_1="b"))
    conflict_with, races = ConcurrentChanges.conflict_with, iter([True])

    def race(self: ConcurrentChanges, partition: CommitUnit) -> str | None:
        if next(races, False):
            append(lake, rows(_1="c", _5="c"))
            self._table.refresh()
        return conflict_with(self, partition)

    monkeypatch.setattr(ConcurrentChanges, "conflict_with", race)
    pyarctic.optimize("lake.db.t")
    assert read() == {1: "c", 5: "c"}
    pyarctic.optimize("lake.db.t")
    assert read() == read("base") == {1: "c", 5: "c"}


@pytest.mark.parametrize("seed", range(6))
def test_random_histories(lake: Catalog, seed: int) -> None:
    """Writers of all kinds beside an engine that appends keys which Base may hold; compared with two dicts."""
    random = Random(seed)
    properties = {BASE_BUCKETS: random.choice(["1", "4"]), CHANGE_BUCKETS: random.choice(["1", "2"])}
    pyarctic.create_table("lake.db.t", CITIES, ["id", "city"], random.choice([(), ("city",)]), properties)
    merged: dict[tuple[str, int], str] = {}
    pending: dict[tuple[str, int], str | None] = {}

    def choose() -> list[tuple[int, str, str]]:
        return [
            (random.randrange(12), random.choice("ab"), f"t{random.randrange(1000)}") for _ in range(random.randrange(1, 9))
        ]

    def check() -> None:
        expected = {place: text for place, text in (merged | pending).items() if text is not None}
        memory = random.choice([1, 1 << 20])
        rows_read = opened().scan(memory_bytes=memory).to_arrow().to_pylist()
        assert sorted((row["city"], row["id"], row["text"]) for row in rows_read) == sorted(
            (*p, t) for p, t in expected.items()
        )
        assert opened().scan(memory_bytes=memory).count() == len(expected)

    for _ in range(14):
        match random.choice(["upsert", "delete", "append", "append", "append", "overwrite", "optimize"]):
            case "upsert":
                data = choose()
                opened().write(cities(*data), "upsert")
                pending |= {(city, key): text for key, city, text in data}
            case "delete":
                data = choose()
                opened().write(cities(*data), "delete")
                pending |= {(city, key): None for key, city, _ in data}
            case "append":
                data = choose()
                append(lake, cities(*data))
                merged |= {(city, key): text for key, city, text in data}
            case "overwrite":
                data = choose()
                opened().write(cities(*data), "overwrite")
                merged, pending = {(city, key): text for key, city, text in data}, {}
            case "optimize":
                optimize_table(opened(), InProcessEngine(), Options(kind=random.choice(KINDS)))
                merged = {place: text for place, text in (merged | pending).items() if text is not None}
                pending = {}
                assert opened().scan(store="base").count() == len(merged)
                assert not opened().summary()["change_store"]["unmerged_files"]
                assert not faults()
        check()
