"""Tables whose partition spec was changed: optimizing makes fewer files, as explained, and comes to rest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

import hypothesis.strategies as st
import polars as pl
import pyarrow.compute as pc
import pytest
from hypothesis import Phase, given, note, settings
from pyiceberg.catalog import Catalog
from pyiceberg.table.update.spec import UpdateSpec
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import StringType

import pyarctic
from pyarctic import config
from pyarctic.iceberg.commit import Change
from pyarctic.iceberg.manifest.file_list import IS_DATA
from pyarctic.iceberg.transforms import partition_values
from pyarctic.optimizing import KindChoice, Report, explain_table, optimize_table
from pyarctic.optimizing.api import Options, plan_table
from pyarctic.optimizing.observe.destinations import ANY, field_step
from pyarctic.optimizing.observe.observation import observe
from pyarctic.optimizing.plan import Explanation
from tests.models.optimized_table import ID, A, B, K, N, OptimizedTable, Row, S
from tests.support import changes
from tests.support.metadata_files import cleaned, edited, lose_partition_values
from tests.support.optimizing import InProcessEngine

HISTORIES = int(os.environ.get("HISTORIES", "6"))
KINDS: tuple[KindChoice, ...] = ("minor", "major", "full")
FIELDS: dict[str, tuple[str, Transform[Any, Any]]] = {
    "t_year": ("t", YearTransform()),
    "t_month": ("t", MonthTransform()),
    "t_day": ("t", DayTransform()),
    "t_hour": ("t", HourTransform()),
    "k_part": ("k", IdentityTransform()),
    "k_sevens": ("k", TruncateTransform(7)),
    "id_part": ("id", IdentityTransform()),
    "s_part": ("s", IdentityTransform()),
    "s_first": ("s", TruncateTransform(1)),
    "id_bucket32": ("id", BucketTransform(32)),
    "id_bucket16": ("id", BucketTransform(16)),
    "id_bucket3": ("id", BucketTransform(3)),
    "id_hundreds": ("id", TruncateTransform(100)),
    "id_tens": ("id", TruncateTransform(10)),
    "a_part": ("n.a", IdentityTransform()),
}
Lake = tuple[Catalog, Iterator[int]]


@pytest.fixture(scope="module")
def evolving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    folder = tmp_path_factory.mktemp("lake")
    catalog = pyarctic.catalog("evolving", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=folder.as_uri())
    catalog.create_namespace("n")
    yield catalog, count(1)
    config.reset()


def create(lake: Lake, version: int, seed: int, sort: str = "none", **properties: str) -> OptimizedTable:
    catalog, numbers = lake
    table = OptimizedTable(catalog, f"n.t{next(numbers)}", Random(seed))
    told = {f"self-optimizing.{name.replace('_', '-')}": value for name, value in properties.items()}
    table.create(version, "whole", sort, {"self-optimizing.writers-first": "false", **told})
    return table


def partition_by(table: OptimizedTable, *names: str) -> None:
    """Change the partition spec."""
    current = {field.name for field in table.load().spec().fields if str(field.transform) != "void"}

    def change(update: UpdateSpec) -> None:
        for name in sorted(current - set(names)):
            update.remove_field(name)
        for name in names:
            if name not in current:
                update.add_field(*FIELDS[name], name)

    with table.load().update_spec() as update:
        change(update)
    table.log.append(f"partitioned by {names}")


def random_fields(random: Random) -> list[str]:
    """At most one of time: Iceberg allows no more."""
    time_field = random.choice([name for name in FIELDS if name.startswith("t_")])
    others = [name for name in FIELDS if not name.startswith("t_")]
    return random.sample([time_field, *random.sample(others, 2)], random.choice([0, 1, 1, 2]))


def append(table: OptimizedTable, times: int, number: int = 40, values: Row | None = None) -> None:
    """Files as by so many appends, in one commit. `values`: some that all rows have."""
    loaded = table.load()
    batches = [[row | (values or {}) for row in table._fresh(loaded, number)] for _ in range(times)]
    files = [file for rows in batches for file in table._written(loaded, rows)]
    table._commit(loaded, Change(start=changes.head(loaded), add=tuple(files)))
    table.rows |= {row[ID]: row for rows in batches for row in rows}
    table.log.append(f"{times} appends of {number}")


@dataclass(frozen=True)
class Process:
    """What was explained, what was done, and the number of data files before and after every commit."""

    explained: Explanation
    report: Report
    files: list[int]


def delete_everywhere(table: OptimizedTable) -> None:
    """An equality delete in the spec without partitions: it applies to all files."""
    loaded, dead = table.load(), sorted(table.rows)[::7]
    keys = pl.DataFrame({"id": dead})
    deletes = table._equality(loaded, keys, ("id",), everywhere=True)
    table._commit(loaded, Change(start=changes.head(loaded), add=tuple(deletes)))
    table._kill(dead)
    table.log.append(f"equality delete of {len(dead)} rows everywhere")


def optimize(table: OptimizedTable, kind: KindChoice, memory_bytes: int = 64 << 20) -> Process:
    handle = pyarctic.table(f"evolving.{table.name}")
    explained = explain_table(handle, Options(kind=kind))
    report = optimize_table(handle.refresh(), InProcessEngine(), Options(kind=kind, verify=True, memory_bytes=memory_bytes))
    metadata = table.load().metadata
    totals = {one.snapshot_id: int(one.summary["total-data-files"] or 0) for one in metadata.snapshots if one.summary}
    files = [totals[explained.snapshot_id or 0], *(totals[snapshot_id] for snapshot_id in report.snapshot_ids)]
    table.log.append(f"{kind}: {explained.expected}, files {files}")
    return Process(explained, report, files)


def check(process: Process, *, is_size_known: bool = True) -> None:
    """It was done as explained, and no commit made more files."""
    explained, report, files = process.explained, process.report, process.files
    assert not report.failures
    assert not report.dropped
    assert len(explained.tasks) == report.tasks_planned == report.tasks_committed
    assert {task.kind for task in explained.tasks} == set(report.kinds)
    if not explained.expected:
        return
    assert explained.expected == report.predicted
    assert explained.expected["commits"] == len(report.snapshot_ids)
    assert explained.expected["data_files_in"] == report.removed.data_files
    # Equality deletes may apply to all rows of a task.
    least = explained.expected["data_files_out_least"] - sum(task.delete_files > 0 for task in explained.tasks)
    assert least <= report.added.data_files
    if is_size_known:
        assert report.added.data_files <= explained.expected["data_files_out_most"]
    assert files == sorted(files, reverse=True), "there are more files in between"


@pytest.mark.parametrize("version", [1, 2, 3])
@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=HISTORIES, phases=[Phase.generate])
def test_optimizing_does_what_was_explained(version: int, evolving: Lake, seed: int) -> None:
    random = Random(seed)
    properties = random.choice([{}, {"target_size": "64KiB"}, {"target_size": "16KiB", "max_task_size_bytes": "24KiB"}])
    table = create(evolving, version, seed, random.choice(["none", "none", "k", "s, f"]), **properties)
    try:
        for _ in range(random.randint(2, 3)):
            partition_by(table, *random_fields(random))
            append(table, random.choice([1, 3, 8, 30]), random.choice([1, 10, 40]))
            for _ in range(random.randint(0, 2)):
                random.choice([table.equality_delete, table.position_delete])()
        kind = random.choice(KINDS)
        for number in range(3):
            process = optimize(table, kind)
            check(process, is_size_known="16KiB" not in properties.values())  # most of a tiny file is its footer
            table.check()
            assert not pyarctic.check(f"evolving.{table.name}", rows=True).is_damaged
            if not process.report.changed:
                break
            assert number < 2, "it does not come to rest"
    finally:
        note("\n".join(table.log))


# -- shapes -----------------------------------------------------------------------------------------------------------

Shape = Callable[[OptimizedTable], None]


def to_buckets(table: OptimizedTable) -> None:
    append(table, 14)
    partition_by(table, "id_bucket32")


def to_hours(table: OptimizedTable) -> None:
    partition_by(table, "t_day")
    append(table, 14)
    partition_by(table, "t_hour")
    append(table, 3)


def to_days_and_buckets(table: OptimizedTable) -> None:
    append(table, 60, 20)
    partition_by(table, "t_day", "id_bucket16")
    append(table, 2)


def to_fewer(table: OptimizedTable) -> None:
    partition_by(table, "t_day", "k_part")
    append(table, 5)
    partition_by(table, "t_day")
    append(table, 3)


SHAPES: tuple[Shape, ...] = (to_buckets, to_hours, to_days_and_buckets, to_fewer)


@pytest.mark.parametrize("kind", [*KINDS, "auto"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("version", [2, 3])
def test_there_are_never_more_files(evolving: Lake, version: int, shape: Shape, kind: KindChoice) -> None:
    table = create(evolving, version, 7)
    shape(table)
    process = optimize(table, kind)
    check(process)
    table.check()
    assert not optimize(table, kind).report.tasks_planned
    assert len(process.files) <= 2, "one commit is enough"


def spec_ids(table: OptimizedTable) -> set[int]:
    return set(table.handle().file_list.frame().filter(IS_DATA)["spec_id"])


def data_files(table: OptimizedTable) -> int:
    return table.handle().file_list.frame().filter(IS_DATA).height


@pytest.mark.parametrize("kind", KINDS)
def test_small_files_of_a_former_spec_are_merged_in_their_partition(evolving: Lake, kind: KindChoice) -> None:
    table = create(evolving, 2, 1)
    to_buckets(table)
    process = optimize(table, kind)
    assert process.files == [14, 1]
    assert process.explained.expected["data_files_out"] == 1
    assert any("keep a former partition spec" in text for text in process.explained.notes)


def test_full_moves_rows_to_fewer_partitions(evolving: Lake) -> None:
    """The new partitions follow from the old ones, so that everything is known before."""
    table = create(evolving, 2, 1)
    partition_by(table, "t_hour")
    append(table, 4)
    partition_by(table, "t_month")
    append(table, 4)
    process = optimize(table, "full")
    check(process)
    figures = process.explained.expected
    assert (
        figures["data_files_out_least"] == figures["data_files_out"] == figures["data_files_out_most"] == data_files(table)
    )
    assert len(spec_ids(table)) == 1
    assert not optimize(table, "full").report.tasks_planned


@pytest.mark.parametrize("memory_bytes", [64 << 20, 64 << 10])
@pytest.mark.parametrize("sort", ["none", "k"])
def test_full_moves_rows_of_many_files(evolving: Lake, sort: str, memory_bytes: int) -> None:
    """Files of the current spec in the same partitions are merged with them at once."""
    table = create(evolving, 2, 1, sort)
    append(table, 20)
    partition_by(table, "id_bucket3")
    append(table, 2)
    process = optimize(table, "full", memory_bytes)
    check(process)
    table.check()
    assert data_files(table) == 3
    assert len(spec_ids(table)) == 1
    assert not optimize(table, "full").report.tasks_planned


@pytest.mark.parametrize("memory_bytes", [64 << 20, 64 << 10])
@pytest.mark.parametrize("sort", ["none", "k"])
def test_rows_stay_if_they_would_make_more_files(evolving: Lake, sort: str, memory_bytes: int) -> None:
    """Bounds of texts do not tell how many there are. Once tried, it is not tried again."""
    table = create(evolving, 3, 1, sort)
    append(table, 3, 60)
    partition_by(table, "s_part")
    process = optimize(table, "full", memory_bytes)
    assert "(1 to 3)" in str(process.explained)
    check(process)
    table.check()
    assert process.files == [3, 1]
    assert len(spec_ids(table)) == 1
    assert not optimize(table, "full").report.tasks_planned
    append(table, 2)
    check(optimize(table, "full"))
    table.check()


@pytest.mark.parametrize("value", [1, None])
@pytest.mark.parametrize("sort", ["none", "k"])
def test_rows_stay_in_partitions_of_several_specs(evolving: Lake, sort: str, value: int | None) -> None:
    """Partitions of two former specs with the same value are not the same partition."""
    table = create(evolving, 2, 1, sort)
    partition_by(table, "k_part")
    append(table, 2, 40, {K: value, N: {A: 7, B: "x"}})
    partition_by(table, "a_part")
    append(table, 2, 40, {K: 8, N: {A: value, B: "x"}})
    partition_by(table, "s_part")
    process = optimize(table, "full")
    check(process)
    table.check()
    assert process.files == [4, 2]
    assert pyarctic.check(f"evolving.{table.name}", rows=True).findings == ()
    for where, rows in (("k = 8", 80), ("n.a = 7", 80)):
        assert table._scan(["id"], where).num_rows == rows


def test_a_plan_of_some_partitions_moves_only_their_rows(evolving: Lake) -> None:
    table = create(evolving, 2, 1)
    partition_by(table, "t_day", "k_part")
    append(table, 5)
    partition_by(table, "t_day")
    handle = pyarctic.table(f"evolving.{table.name}")
    report = optimize_table(handle, InProcessEngine(), Options(kind="full", where="k = 1"))
    assert report.changed
    plan = plan_table(handle.refresh(), Options(kind="full", where="k = 1"))
    assert plan is not None
    assert not plan.tasks
    table.check()
    assert len(spec_ids(table)) == 2


def with_late_column(table: OptimizedTable, *names: str) -> None:
    """Partition by a column that is added for that, named `late_part`, and others, in this order."""
    with table.load().update_schema() as update:
        update.add_column("late", StringType())
    with table.load().update_spec() as update:
        for name in names:
            update.add_field(*FIELDS.get(name, ("late", IdentityTransform())), name)


def drop_late_column(table: OptimizedTable) -> None:
    with table.load().update_spec() as update:
        update.remove_field("late_part")
    late = table.load().schema().find_field("late").field_id
    with table.load().update_schema() as update:
        update.delete_column("late")
    for row in table.rows.values():
        row.pop(late)


@pytest.mark.parametrize("rewrites_manifests", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", [2, 3])
def test_the_source_of_a_former_spec_was_dropped(
    evolving: Lake, version: int, kind: KindChoice, rewrites_manifests: bool
) -> None:
    table = create(evolving, version, 1)
    with_late_column(table, "late_part")
    append(table, 6)
    table.equality_delete()
    drop_late_column(table)
    if rewrites_manifests:
        table.rewrite_manifests()
    append(table, 2)
    check(optimize(table, kind))
    table.check()
    assert not optimize(table, kind).report.tasks_planned


def lose_values(table: OptimizedTable) -> None:
    lose_partition_values(table.load(), "late_part")


def lose_type(table: OptimizedTable) -> None:
    """No schema is left that has the column."""
    edited(table.load(), cleaned)


Loss = Callable[[OptimizedTable], None]


@pytest.mark.parametrize("lose", [lose_values, lose_type])
@pytest.mark.parametrize("deletes", ["none", "positions", "equality"])
@pytest.mark.parametrize("kind", ["minor", "full"])
@pytest.mark.parametrize("names", [("late_part",), ("k_part", "late_part")])
def test_a_partition_is_not_known_any_more(
    evolving: Lake, names: tuple[str, ...], kind: KindChoice, deletes: str, lose: Loss
) -> None:
    """No rows can be written to it. Everything else is optimized, and full optimizing moves its rows."""
    table = create(evolving, 2, 1)
    with_late_column(table, *names)
    append(table, 6)
    drop_late_column(table)
    append(table, 14)
    if deletes == "positions":
        table.position_delete()
    elif deletes == "equality":
        delete_everywhere(table)
    lose(table)
    table._handle = None  # it knows the manifests as they were
    known = table.handle().file_list.frame().filter(IS_DATA & (pl.col("spec_id") == 1))["file_path"]
    process = optimize(table, kind)
    check(process)
    table.check()
    assert process.report.changed
    files = table.handle().file_list.frame().filter(IS_DATA & (pl.col("spec_id") == 1))["file_path"]
    assert set(files) == (set() if kind == "full" else set(known))
    assert not optimize(table, kind).report.tasks_planned


def test_rows_of_unknown_partitions_stay_if_they_might_make_more_files(evolving: Lake) -> None:
    """They could not be written back."""
    table = create(evolving, 2, 1)
    with_late_column(table, "late_part")
    append(table, 2)
    drop_late_column(table)
    partition_by(table, "s_part")
    append(table, 6)
    lose_values(table)
    known = table.handle().file_list.frame().filter(IS_DATA & (pl.col("spec_id") == 1))["file_path"]
    check(optimize(table, "full"))
    table.check()
    assert set(known) <= set(table.handle().file_list.frame()["file_path"])


@pytest.mark.parametrize("text", ["true or false, maybe", "say [false]", "false", "[false]"])
def test_texts_are_not_taken_for_lost_values(evolving: Lake, text: str) -> None:
    table = create(evolving, 2, 1)
    partition_by(table, "s_part")
    append(table, 14, 5, {S: text})
    check(optimize(table, "minor"))
    table.check()
    assert data_files(table) == 1


# -- where rows belong ------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=HISTORIES * 2, phases=[Phase.generate])
def test_rows_belong_where_metadata_tells(evolving: Lake, seed: int) -> None:
    random = Random(seed)
    table = create(evolving, 2, seed)
    for _ in range(2):
        partition_by(table, *random_fields(random))
        append(table, 2, random.choice([1, 5, 40]))
    partition_by(table, *random_fields(random))
    note("\n".join(table.log))
    assert_destinations(table)


@pytest.mark.parametrize("former", ["whole", "id_bucket3", "k_part", "id_part"])
@pytest.mark.parametrize("name", ["k_sevens", "k_part", "id_tens", "id_part"])
def test_numbers_at_the_ends_of_their_range(evolving: Lake, name: str, former: str) -> None:
    """Truncating wraps around there, as in Java."""
    table = create(evolving, 2, 1)
    if former != "whole":
        partition_by(table, former)
    for k, number in ((-(2**31), -(2**63)), (2**31 - 1, 2**63 - 1), (-(2**31) + 6, 2**62 + 1), (5, -(2**62)), (None, 7)):
        append(table, 1, 1, {K: k, ID: number})
    append(table, 1, 3, {K: -(2**31)})
    rows = list(table.rows.values())
    loaded = table.load()
    files = [file for pair in (rows[:2], rows[2:4], rows[:1] + rows[4:]) for file in table._written(loaded, pair)]
    table._commit(loaded, Change(start=changes.head(loaded), add=tuple(files)))
    partition_by(table, name)
    assert_destinations(table)
    explained = explain_table(table.handle(), Options(kind="full")).expected
    if explained:
        assert explained["data_files_out_least"] <= explained["data_files_out"] <= explained["data_files_out_most"]


def assert_destinations(table: OptimizedTable) -> None:
    """Every row of a file of a former spec belongs to a partition that metadata tells."""
    observation = observe(table.handle())
    assert observation is not None
    if observation.destinations is None:
        return
    metadata = observation.metadata
    names = metadata.schema().column_names
    rows = table._scan([*(name for name in names if "." not in name), "_file"]).combine_chunks()
    for file in observation.destinations.iter_rows(named=True):
        own = rows.filter(pc.equal(rows["_file"], file["file_path"])).combine_chunks().to_batches()[0]
        _, partitions = partition_values(metadata.spec(), metadata.schema(), own)
        live = [at for at, field in enumerate(metadata.spec().fields) if str(field.transform) != "void"]
        for number, at in enumerate(live):
            values = {partition[at] for partition in partitions}
            assert len({str(value) for value in values}) <= file[f"destination_values_{number}"]
            assert None not in values or file[f"destination_null_{number}"]
            if field_step(metadata, number) is not None:
                low, high = file[f"destination_low_{number}"], file[f"destination_high_{number}"]
                assert low == -ANY or all(low <= value <= high for value in values - {None})
                if file[f"destination_exact_{number}"] and low is not None:
                    assert {low, high} <= values
