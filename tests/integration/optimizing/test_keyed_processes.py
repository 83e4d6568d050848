"""Rounds over keyed tables, one question at a time: order, independence, others at work meanwhile, what files look like."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.types import LongType

import pyarctic
from pyarctic.errors import ArcticError, Unavailable, Unsupported
from pyarctic.iceberg.manifest.file_list import IS_DATA
from pyarctic.optimizing import KindChoice, Options, explain_table, optimize_table
from pyarctic.optimizing.api import plan_table
from pyarctic.optimizing.execute import AttemptFuture
from pyarctic.optimizing.execute.attempt_files import find_attempt_files, remove_attempt_files
from pyarctic.optimizing.protocol import Job, Progress, Task, TaskFailure, TaskResult
from pyarctic.tables.format.store_properties import BASE_BUCKETS, CHANGE_BUCKETS
from pyarctic.tables.keyed_table import KeyedTable
from tests.support import changes
from tests.support.integrity import local
from tests.support.keyed_tables import (
    CITIES,
    IDS,
    base_files,
    cities,
    commit,
    data_nodes,
    faults,
    made,
    many,
    opened,
    read,
    rows,
    texts,
    unmerged,
)
from tests.support.metadata_files import cleaned, edited, upgraded
from tests.support.optimizing import InProcessEngine, optimize

KINDS: tuple[KindChoice, ...] = ("minor", "major", "full")


# Order


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_a_transaction_counts_by_its_number_whatever_is_merged_before_it(lake: Catalog, kind: KindChoice | None) -> None:
    table = made()
    table.write(rows(_1="old", _2="old", _3="old"))
    early = table._begin()
    table.write(rows(_1="new", _4="new"))
    if kind:
        optimize(opened(), kind)
    commit(opened(), early, rows(_1="-", _2="-", _4="-"), "ED")
    commit(opened(), early, rows(_3="early"), first=9)
    assert read() == {1: "new", 3: "early", 4: "new"}
    optimize(opened(), kind or "minor")
    assert read() == read("base") == {1: "new", 3: "early", 4: "new"}
    assert not unmerged()


def test_nothing_is_merged_beyond_an_open_transaction(lake: Catalog) -> None:
    table = made()
    table.write(rows(_1="a"))
    early = table._begin()
    table.write(rows(_1="b"))
    optimize(opened(), "minor")
    assert opened().merged_sequences() == {"": early - 1}
    assert read("base") == {1: "a"}
    planned = plan_table(opened(), Options(kind="minor"))
    assert planned is not None
    assert not planned.tasks
    commit(opened(), early, rows(_2="early"))
    optimize(opened(), "minor")
    assert read("base") == read() == {1: "b", 2: "early"}


@pytest.mark.parametrize("kind", ["auto", *KINDS])
def test_changes_that_wait_for_an_abandoned_transaction_are_reported(lake: Catalog, kind: KindChoice) -> None:
    table = made(CITIES, ("city",))
    table.write(cities((1, "Oslo", "a"), (2, "Rome", "a")))
    optimize(opened(), "minor")
    abandoned = table._begin()
    table.write(cities((1, "Oslo", "b")))
    report = optimize(opened(), kind)
    assert not report.changed
    assert report.health_before.score == 100, "one small file costs nothing"
    waiting = report.waiting_changes
    assert waiting is not None
    assert (waiting.transaction, waiting.change_files, waiting.partitions) == (abandoned, 1, 1)
    assert waiting.until is not None
    until = waiting.until.isoformat()[:16]
    assert report.to_dict()["waiting_changes"]["transaction"] == abandoned
    assert str(report.to_dict()["waiting_changes"]["until"]).startswith(until)
    assert "nothing can be done now" in str(report)
    assert f"changes wait for transaction {abandoned}" in str(report)
    explained = explain_table(opened(), Options(kind=kind))
    assert explained.waiting_changes == waiting
    assert explained.health == report.health_before
    assert explained.to_dict()["waiting_changes"]["change_files"] == 1
    assert f"wait for transaction {abandoned}" in str(explained)
    assert {row.partition: bool(row.waits) for row in explained.partitions} == {"city=Oslo": True, "city=Rome": False}
    opened()._end([abandoned])
    report = optimize(opened(), "minor")
    assert report.changed
    assert report.waiting_changes is None
    assert report.health_after.score == 100


def test_many_changes_that_wait_cost_health_and_name_the_transaction(lake: Catalog) -> None:
    table = made(CITIES, ("city",))
    table.set({"self-optimizing.minor.trigger.file-count": "1"})
    abandoned = table._begin()
    for number in range(6):
        table.write(cities((number, "Oslo", "b")))
    explained = explain_table(opened(), Options(kind="full"))
    assert not explained.tasks
    [deduction] = explained.health.deductions
    assert explained.health.score < 100
    assert deduction.cause == "pending-changes"
    assert deduction.detail.startswith("6 change files with 6 rows are not merged: 6 of 6 rows")
    assert deduction.cure.startswith(f"6 change files wait for transaction {abandoned} until 20")
    opened()._end([abandoned])
    [deduction] = explain_table(opened(), Options()).health.deductions
    assert deduction.cure == "minor optimizing merges 6 change files"
    assert optimize(opened()).health_after.score == 100


def test_changes_wait_for_older_transactions_that_came_after_an_open_one(lake: Catalog) -> None:
    table = made()
    first = table._begin()
    table.write(rows(_1="a"))
    table._begin()
    commit(opened(), first, rows(_1="first", _2="first"))
    optimize(opened(), "full")
    assert opened().merged_sequences() == {}
    assert read() == {1: "a", 2: "first"}


def test_an_open_transaction_is_ignored_after_its_timeout(lake: Catalog) -> None:
    table = made(transaction_timeout="20ms")
    table._begin()
    table.write(rows(_1="a"))
    time.sleep(0.05)
    optimize(opened(), "minor")
    assert read("base") == {1: "a"}
    assert not unmerged()


def test_an_overwrite_leaves_no_transaction_open(lake: Catalog) -> None:
    table = made()
    table.write(rows(_1="a"), "overwrite")
    table.write(rows(_2="b"))
    optimize(opened(), "full")
    table.write(rows(_3="c"))
    optimize(opened(), "full")
    assert not unmerged()


def test_an_overwrite_that_came_second_leaves_no_transaction_open(lake: Catalog) -> None:
    made().write(rows(_1="a"), "overwrite")
    late = opened()
    opened().write(rows(_2="b"), "overwrite")
    late.write(rows(_3="c"), "overwrite")
    late.write(rows(_4="d"))
    optimize(opened(), "full")
    late.write(rows(_5="e"))
    optimize(opened(), "full")
    assert not unmerged()


def test_an_overwrite_of_nothing_leaves_no_transaction_open(lake: Catalog) -> None:
    table = made(CITIES, ("city",))
    table.write(cities((1, "a", "x"))[:0], "overwrite", where="city = 'b'")
    table.write(cities((1, "a", "x")))
    optimize(opened(), "full")
    assert not unmerged()


def test_rows_of_others_keep_their_age(lake: Catalog) -> None:
    table = made()
    early = table._begin()
    table.write(rows(_1="load"), "overwrite")
    store = opened()
    store.commit(changes.append(store._loaded, rows(_2="foreign")))
    optimize(opened(), "full")
    commit(opened(), early, rows(_1="early", _2="early"))
    assert read() == {1: "load", 2: "early"}


# Independence


def change_files(part: str = "") -> list[Path]:
    """The oldest first."""
    listed = opened().change_store.file_list.frame().sort("data_sequence_number")
    return [Path(local(path)) for path in listed["file_path"] if part in path]


@pytest.mark.parametrize("kind", KINDS)
def test_a_partition_whose_task_fails_stays_and_others_are_merged(lake: Catalog, kind: KindChoice) -> None:
    table = made(CITIES, ("city",))
    table.write(cities((1, "a", "old"), (2, "b", "old")))
    optimize(opened(), kind)
    table.write(cities((1, "a", "new"), (2, "b", "new")))
    before = opened().merged_sequences()
    damaged = change_files("city=a")[-1]
    content = damaged.read_bytes()
    damaged.write_bytes(b"PAR1 is not all PAR1")
    report = optimize(opened(), kind)
    assert [failure.partition for failure in report.failures] == ["city=a"]
    after = opened().merged_sequences()
    assert after["city=a"] == before["city=a"]
    assert after["city=b"] > before["city=b"]
    assert not faults()
    damaged.write_bytes(content)
    assert read() == {1: "new", 2: "new"}
    assert not optimize(opened(), kind).failures
    assert read("base") == {1: "new", 2: "new"}


@pytest.mark.parametrize("fault", ["corrupt", "missing"])
def test_one_bad_file_of_four_nodes_keeps_the_partition_as_it_is(lake: Catalog, fault: str) -> None:
    table = made(target_size="1KB")
    table.set({BASE_BUCKETS: "4", CHANGE_BUCKETS: "4"})
    table.write(many(range(400), "a"))
    optimize(opened(), "full")
    table.write(many(range(300, 500), "b"), "upsert")
    before = opened()
    damaged = change_files("/5-I-")[-1]
    content = damaged.read_bytes()
    if fault == "missing":
        damaged.unlink()
    else:
        damaged.write_bytes(content[:20] + b"\0" * 40 + content[60:])
    report = optimize(opened(), "minor")
    assert report.tasks_planned >= 4
    assert report.tasks_committed == 0
    assert {failure.code for failure in report.failures} <= {"damaged", "not-found", "unavailable"}
    assert all("5-I-" in failure.detail for failure in report.failures)
    assert opened().view.snapshot_id == before.view.snapshot_id
    assert opened().merged_sequences() == before.merged_sequences()
    damaged.write_bytes(content)
    assert not faults()
    assert not optimize(opened(), "minor").failures
    assert read() == read("base") == texts(range(300), "a") | texts(range(300, 500), "b")
    assert data_nodes() <= {4, 5, 6, 7}


class Forgetful(InProcessEngine):
    """Loses the first attempt at every task, after it has written everything."""

    lost = 0

    def submit(self, job: Job, io: FileIO, task: Task, attempt: int, listen: Callable[[Progress], None]) -> AttemptFuture:
        lost = super().submit(job, io, task, attempt, listen).result()
        assert isinstance(lost, TaskResult)
        if attempt:
            return AttemptFuture.of(lost)
        assert set(find_attempt_files(job, io, task, attempt)) == lost.paths
        assert set(remove_attempt_files(job, io, task, attempt)) == lost.paths
        self.lost += 1
        return AttemptFuture.of(TaskFailure(task=task.id, attempt=attempt, code="lost", detail="", retryable=True))


@pytest.mark.parametrize("buckets", ["1", "4"])
def test_lost_attempts_leave_nothing(lake: Catalog, buckets: str) -> None:
    """Their files are found by name: data, position deletes of several nodes, and the map of rows."""
    table = made(fragment_size="1", target_size="1KB")
    table.set({BASE_BUCKETS: "4"})
    table.write(many(range(200), "a"), "overwrite")
    table.set({BASE_BUCKETS: buckets})
    table.write(many(range(100, 300), "b"), "upsert")
    for kind in ("minor", "full"):
        engine = Forgetful()
        report = optimize_table(opened(), engine, Options(kind=kind))
        assert report.tasks_committed == report.tasks_planned == engine.lost > 0
        assert not faults()
    assert read() == read("base") == texts(range(100), "a") | texts(range(100, 300), "b")


def test_a_catalog_that_cannot_be_reached_leaves_nothing(lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    made().write(rows(_1="a"))

    def unreachable(*_: object) -> None:
        raise Unavailable("the catalog is away")

    with monkeypatch.context() as patch:
        patch.setattr(KeyedTable, "try_commit", unreachable)
        with pytest.raises(Unavailable):
            optimize(opened(), "full")
    assert not faults()
    optimize(opened(), "full")
    assert read("base") == {1: "a"}


# What others do meanwhile


@pytest.mark.parametrize("kind", KINDS)
def test_an_overwrite_meanwhile_makes_only_its_own_partition_wait(lake: Catalog, kind: KindChoice) -> None:
    table = made(CITIES, ("city",))
    table.write(cities((1, "a", "old"), (2, "b", "old")))

    def others() -> None:
        opened().write(cities((3, "a", "load")), "overwrite", replace="partitions")
        opened().write(cities((4, "a", "later")))

    report = optimize(opened(), kind, meanwhile=others)
    assert (report.tasks_committed, len(report.dropped)) == (1, 1)
    assert read() == {2: "old", 3: "load", 4: "later"}
    assert read("base") == {2: "old", 3: "load"}
    assert not faults()


@pytest.mark.parametrize("kind", ["minor", "full"])
def test_deletes_of_others_are_moved_to_the_new_files(lake: Catalog, kind: KindChoice) -> None:
    table = made()
    table.write(rows(_1="a", _2="a", _3="a", _4="a"), "overwrite")
    table.write(rows(_2="b"), "upsert")

    def others() -> None:
        store = opened()
        change = changes.position_delete(store._loaded, "id in (2, 3)")
        assert change is not None
        store.commit(change)

    report = optimize(opened(), kind, meanwhile=others)
    assert not report.dropped
    assert report.rebased_rows == 1, "the other one was dead already"
    assert read() == read("base") == {1: "a", 2: "b", 4: "a"}


def test_deletes_of_others_for_rows_that_all_were_replaced_do_no_harm(lake: Catalog) -> None:
    table = made()
    table.write(rows(_1="a", _2="a"), "overwrite")
    table.write(rows(_1="b", _2="b"), "upsert")

    def others() -> None:
        store = opened()
        change = changes.position_delete(store._loaded, "id = 1")
        assert change is not None
        store.commit(change)

    assert not optimize(opened(), "full", meanwhile=others).dropped
    assert read() == read("base") == {1: "b", 2: "b"}


def test_rows_that_others_append_to_base_meanwhile_are_not_lost(lake: Catalog) -> None:
    table = made()
    table.write(rows(_1="a"))
    table.write(rows(_2="-"), "delete")

    def others() -> None:
        store = opened()
        store.commit(changes.append(store._loaded, rows(_2="foreign", _3="foreign")))

    assert optimize(opened(), "minor", meanwhile=others).dropped
    assert read() == {1: "a", 3: "foreign"}, "any change of the same key wins"
    optimize(opened(), "minor")
    assert read() == read("base") == {1: "a", 3: "foreign"}


def test_changes_that_come_meanwhile_stay_unmerged(lake: Catalog) -> None:
    made().write(rows(_1="a", _2="a"))
    report = optimize(opened(), "full", meanwhile=lambda: (opened().write(rows(_1="b")), None)[1])
    assert not report.dropped
    assert read("base") == {1: "a", 2: "a"}
    assert read() == {1: "b", 2: "a"}


# Partitions, keys and the tree


@pytest.mark.parametrize("kind", KINDS)
def test_null_and_the_text_null_are_left_alone(lake: Catalog, kind: KindChoice) -> None:
    """The format cannot tell how far each of them is merged."""
    table = made(CITIES, ("city",))
    table.write(cities((1, None, "x"), (2, "null", "y"), (3, "a", "z")))
    report = optimize(opened(), kind)
    assert report.tasks_committed == 1
    assert opened().merged_sequences() == {"city=a": 1}
    assert read() == {1: "x", 2: "y", 3: "z"}
    table.write(cities((1, None, "-")), "delete")
    optimize(opened(), kind)
    assert read() == {2: "y", 3: "z"}


@pytest.mark.parametrize("is_cleaned", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_key_that_another_engine_widened(lake: Catalog, kind: KindChoice, is_cleaned: bool) -> None:
    """Negative keys have another hash since then: nodes do not tell any more where they are. Nor do schemas, if they were
    cleaned."""
    schema = pa.schema([("id", pa.int32()), ("text", pa.string())])
    table = made(schema)
    table.set({BASE_BUCKETS: "4", CHANGE_BUCKETS: "4"})
    ids = list(range(-20, 20))
    table.write(pa.table({"id": ids, "text": ["old"] * 40}, schema=schema))
    optimize(opened(), "minor")
    for store in (opened()._loaded, opened().change_store._loaded):
        with store.update_schema() as update:
            update.update_column("id", LongType())
    opened().write(many(range(1000, 1001), "new"))
    if is_cleaned:
        optimize(opened(), "minor")
        for store in (opened()._loaded, opened().change_store._loaded):
            edited(store, cleaned)
            assert len(store.refresh().metadata.schemas) == 1
    opened().write(many(range(-20, 0), "new"), "upsert")
    opened().write(many(range(5), "-"), "delete")
    optimize(opened(), kind)
    expected = texts(range(-20, 0), "new") | texts(range(1000, 1001), "new") | dict.fromkeys(range(5, 20), "old")
    assert read() == read("base") == expected
    assert not unmerged()
    again = plan_table(opened(), Options(kind=kind))
    assert again is not None
    assert not again.tasks


@pytest.mark.parametrize("kind", KINDS)
def test_keys_of_others_that_are_null(lake: Catalog, kind: KindChoice) -> None:
    """No bound tells of them, so that files which have one share a key, however far their other keys are apart."""
    made()
    for store in (opened()._loaded, opened().change_store._loaded):
        with store.update_schema(allow_incompatible_changes=True) as update:
            update.set_identifier_fields()
            update.make_column_optional("id")
    for number, text in ((1, "old"), (100, "new")):
        commit(opened(), opened()._begin(), pa.table({"id": [number, None], "text": [text, text]}, schema=IDS))
    assert read() == {1: "old", 100: "new", None: "new"}
    optimize(opened(), kind)
    assert read() == read("base") == {1: "old", 100: "new", None: "new"}


def test_a_base_that_another_engine_upgraded_is_refused(lake: Catalog) -> None:
    table = made()
    table.write(rows(_1="a"), "overwrite")
    edited(opened()._loaded, upgraded)
    opened().write(rows(_1="b"), "upsert")
    with pytest.raises(Unsupported, match="Base has format version 3"):
        optimize(opened(), "minor")
    assert read() == {1: "b"}


@pytest.mark.parametrize("is_cleaned", [False, True])
def test_another_key_column_that_was_widened(lake: Catalog, is_cleaned: bool) -> None:
    narrow = pa.schema([("a", pa.string()), ("b", pa.int32()), ("text", pa.string())])
    properties = {BASE_BUCKETS: "4", CHANGE_BUCKETS: "4", "self-optimizing.fragment-size": "1"}
    pyarctic.create_table("lake.db.t", narrow, ["a", "b"], properties=properties)

    def data(numbers: range, text: str, schema: pa.Schema) -> pa.Table:
        return pa.table([["x"] * len(numbers), list(numbers), [text] * len(numbers)], schema=schema)

    opened().write(data(range(-20, 20), "old", narrow), "overwrite")
    for store in (opened()._loaded, opened().change_store._loaded):
        with store.update_schema() as update:
            update.update_column("b", LongType())
    wide = narrow.set(1, pa.field("b", pa.int64()))
    opened().write(data(range(1000, 1001), "new", wide))
    optimize(opened(), "minor")
    if is_cleaned:
        for store in (opened()._loaded, opened().change_store._loaded):
            edited(store, cleaned)
    opened().write(data(range(-20, 0), "new", wide), "upsert")
    expected = [(number, "new") for number in range(-20, 0)] + [(number, "old") for number in range(20)] + [(1000, "new")]
    for _ in range(2):
        found = opened().scan().to_arrow().sort_by("b")
        assert list(zip(found["b"].to_pylist(), found["text"].to_pylist(), strict=True)) == expected
        optimize(opened(), "minor")


def test_buckets_that_change_between_rounds(lake: Catalog) -> None:
    table = made(target_size="1KB")
    expected: dict[int, str] = {}
    for number, buckets in enumerate(["1", "8", "2", "16", "4"]):
        table.set({BASE_BUCKETS: buckets, CHANGE_BUCKETS: buckets})
        ids = range(40 * number, 40 * number + 120)
        table.write(many(ids, f"{number}-"), "upsert")
        expected |= texts(ids, f"{number}-")
        optimize(opened(), "minor")
        assert read() == read("base") == expected
    optimize(opened(), "full")
    assert read() == read("base") == expected
    assert max(data_nodes()) < 8
    assert not faults()


@pytest.mark.parametrize(("buckets", "most"), [(None, 4096), ("1", 1), ("2", 2), ("8", 8)])
def test_much_data_is_written_to_many_nodes_within_the_limit(lake: Catalog, buckets: str | None, most: int) -> None:
    table = made(target_size="4KB")
    if buckets is None:
        table.unset(BASE_BUCKETS)
    else:
        table.set({BASE_BUCKETS: buckets})
    table.write(rows(_1="little"))
    optimize(opened(), "minor")
    assert data_nodes() == {1}
    table.write(many(range(2000), "much"))
    optimize(opened(), "full")
    nodes = data_nodes()
    assert len(nodes) == (most if buckets else 16)
    assert min(nodes) == len(nodes), "all of one level"
    assert read() == texts(range(2000), "much")


# What the files look like


def test_deletes_of_a_file_that_stays_are_told_anew(lake: Catalog) -> None:
    table = made(fragment_size="1")
    table.set({BASE_BUCKETS: "2"})
    table.write(many(range(100), "a"), "overwrite")
    data = set(base_files()["file_path"])
    for number in range(3):
        table.write(many(range(10 * number, 10 * number + 10), "-"), "delete")
        optimize(opened(), "minor")
        files = base_files()
        deletes = files.filter(~IS_DATA)
        assert set(files.filter(IS_DATA)["file_path"]) == data
        assert deletes["referenced_data_file"].is_unique().all()
        assert set(deletes["referenced_data_file"]) <= data
        assert deletes["record_count"].sum() == 10 * (number + 1)
        about = dict(files.filter(IS_DATA).select("file_path", "node_id").iter_rows())
        for file in deletes.iter_rows(named=True):
            assert Path(file["file_path"]).name.startswith(f"{about[file['referenced_data_file']]}-PD-")
        assert files["transaction_id"].max() <= opened().merged_sequences()[""]  # type: ignore[operator]
    assert read() == texts(range(30, 100), "a")


def test_row_groups_of_large_inserts_are_copied_without_their_offsets(lake: Catalog) -> None:
    table = made()
    table.write(many(range(25_000), "a"))
    table.write(many(range(25_000, 50_000), "b"))
    table.write(rows(_49999="-"), "delete")
    report = optimize(opened(), "minor")
    assert report.rows_copied == 25_000
    (path,) = base_files()["file_path"]
    file = pq.ParquetFile(local(path))
    assert file.schema_arrow.names == ["id", "text"]
    assert file.metadata.num_rows == 49_999
    expected = texts(range(25_000), "a") | texts(range(25_000, 49_999), "b")
    plain = file.read()
    assert dict(zip(plain["id"].to_pylist(), plain["text"].to_pylist(), strict=True)) == expected
    assert read() == read("base") == expected
    assert opened().scan(where="id >= 49990").count() == 9


# Losses


@pytest.mark.parametrize("fault", ["corrupt", "missing"])
def test_a_lost_list_of_what_was_merged_stops_optimizing(lake: Catalog, fault: str) -> None:
    table = made()
    table.set({"arctic.merged-sequences.storage": "statistics"})
    table.write(rows(_1="a"))
    optimize(opened(), "minor")
    table.write(rows(_2="b"))
    (statistics,) = opened().view.metadata.statistics
    path = Path(local(statistics.statistics_path))
    content = path.read_bytes()
    if fault == "missing":
        path.unlink()
    else:
        path.write_bytes(b"PFA1" + b"\0" * (len(content) - 8) + b"PFA1")
    before = opened().view.snapshot_id
    with pytest.raises(ArcticError) as raised:
        optimize(opened(), "full")
    assert raised.value.code in ("damaged", "not-found", "unavailable")
    assert path.name in str(raised.value)
    path.write_bytes(content)
    assert opened().view.snapshot_id == before
    optimize(opened(), "full")
    assert read() == read("base") == {1: "a", 2: "b"}


# Triggers


@pytest.mark.parametrize(("buckets", "writes"), [(1, 3), (4, 12)])
def test_thresholds_count_for_every_node_that_is_written_to(lake: Catalog, buckets: int, writes: int) -> None:
    table = made()
    table.set({CHANGE_BUCKETS: str(buckets), "self-optimizing.minor.trigger.file-count": "3"})
    for number in range(writes):
        (partition,) = explain_table(opened(), Options()).partitions or (None,)
        assert partition is None or partition.kind is None
        assert optimize(opened(), "auto").tasks_planned == 0
        table.write(rows(**{f"_{number}": "a"}))
    (partition,) = explain_table(opened(), Options()).partitions
    small = next(rule for rule in partition.rules if rule.name == "small-files")
    assert (small.measured, small.threshold, small.met) == (writes, 3 * buckets, True)
    assert (partition.kind, partition.causes) == ("minor", ("small-files",))
    assert optimize(opened(), "auto").tasks_committed == 1
    assert not unmerged()
    assert optimize(opened(), "auto").tasks_planned == 0


def test_many_deletes_call_for_major_and_their_positions_for_full(lake: Catalog) -> None:
    table = made()
    table.set({"self-optimizing.major.trigger.delete-size-lowest": "1"})
    table.write(many(range(500), "a"), "overwrite")
    table.write(many(range(300), "-"), "delete")
    (partition,) = explain_table(opened(), Options()).partitions
    assert (partition.kind, partition.causes) == ("major", ("delete-ratio",))
    table.set({"self-optimizing.full.trigger.position-delete-size": "500"})
    (partition,) = explain_table(opened(), Options()).partitions
    assert (partition.kind, partition.causes) == ("full", ("delete-ratio", "position-delete-size"))
    assert optimize(opened(), "auto").kinds == ("full",)
    assert read("base") == texts(range(300, 500), "a")
    assert base_files().filter(~IS_DATA).is_empty()


def test_conditions_choose_partitions(lake: Catalog) -> None:
    table = made(CITIES, ("city",))
    table.write(cities((1, "a", "x"), (2, "b", "x")))
    optimize_where("city = 'b'")
    assert opened().merged_sequences() == {"city=b": 1}
    assert read("base") == {2: "x"}


def optimize_where(where: str) -> None:
    optimize_table(opened(), InProcessEngine(), Options(kind="minor", where=where))


def test_partitions_that_cannot_be_merged_take_no_room_from_others(lake: Catalog) -> None:
    """Null and the text 'null' are more files than a plan takes, and the worst off."""
    table = made(CITIES, ("city",), max_file_count="20")
    table.set({"self-optimizing.minor.trigger.file-count": "2"})
    for number in range(22):
        table.write(cities((number, None, "x"), (number, "null", "y")))
    for number in range(3):
        table.write(cities((number, "Oslo", "z")))
    report = optimize(opened(), "auto")
    assert (report.tasks_committed, report.left_out) == (1, 0)
    assert unmerged() == 44
