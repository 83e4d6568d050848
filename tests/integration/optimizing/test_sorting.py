"""Sorted and z-ordered tables: only what overlaps too deeply is rewritten, it comes out apart, and then there is rest."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, Transform, TruncateTransform
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
)

import pyarctic
from pyarctic.iceberg.read.table_scan import Scan
from pyarctic.optimizing import Report
from pyarctic.optimizing.api import Options, explain_table, plan_table
from pyarctic.optimizing.evaluate.evaluation import Evaluation, evaluate_table
from pyarctic.optimizing.execute.kernel import external_sort as ordering
from pyarctic.optimizing.execute.kernel.external_sort import Key, Sorter, sort_order
from pyarctic.tables import Table
from tests.support import changes
from tests.support.optimizing import optimize

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "x", IntegerType()),
    NestedField(3, "y", DoubleType()),
    NestedField(4, "s", StringType()),
    NestedField(5, "t", TimestampType()),
    NestedField(6, "d", DecimalType(25, 3)),
    NestedField(7, "l", ListType(8, IntegerType(), element_required=False)),
    NestedField(9, "pad", StringType()),
)
PROPERTIES = {
    "self-optimizing.writers-first": "false",
    "self-optimizing.target-size": "64KiB",
    "self-optimizing.minor.trigger.file-count": "1000",
    "self-optimizing.minor.trigger.interval": "-1",
}
MOST = 1_000_000
ROWS = 1200
"""Of each file; about as large as the target."""


def by(source: int, transform: Transform[Any, Any] | None = None, *, descending: bool = False) -> SortOrder:
    direction = SortDirection.DESC if descending else SortDirection.ASC
    return SortOrder(SortField(source, transform or IdentityTransform(), direction, NullOrder.NULLS_LAST))


def made(lake: Catalog, order: SortOrder | None = None, **properties: str) -> Callable[..., None]:
    """A table; gives what appends a file to it with `x` and `y` in a range. Only the whole range has nulls and NaN."""
    more = {name.replace("__", ".").replace("_", "-"): value for name, value in properties.items()}
    table = lake.create_table("db.t", SCHEMA, sort_order=order or SortOrder(order_id=0), properties={**PROPERTIES, **more})
    counter = iter(range(10_000))

    def append(low: int = 0, high: int = MOST, rows: int = ROWS, prefix: str = "") -> None:
        changes.apply(table, lambda t: changes.append(t, some_rows(next(counter), low, high, rows, prefix)))

    return append


def some_rows(number: int, low: int, high: int, rows: int, prefix: str) -> pa.Table:
    rng = np.random.default_rng(number)
    x, y = rng.integers(low, high, rows), rng.integers(low, high, rows)
    few = 0.01 if high == MOST else 0.0
    pads = [rng.bytes(15).hex() for _ in range(rows)]
    return pa.table(
        {
            "id": np.arange(rows) + number * 1_000_000,
            "x": pa.array(x, pa.int32(), mask=rng.random(rows) < few),
            "y": np.where(rng.random(rows) < few, np.nan, y / MOST),
            "s": [f"{prefix}{value:07d}" for value in x],
            "t": pa.array(x.astype(np.int64) * 10_000_000).cast(pa.timestamp("us")),
            "d": pa.array(x.astype(np.int64)).cast(pa.decimal128(25, 3)),
            "l": pa.array([[1]] * rows, pa.list_(pa.int32())),
            "pad": pads,
        }
    )


def opened() -> Table:
    return pyarctic.table("lake.db.t")


def ids() -> list[int]:
    return sorted(opened().scan(["id"]).to_arrow()["id"].to_pylist())


def evaluated() -> Evaluation:
    found = evaluate_table(opened())
    assert found is not None
    return found


def depth() -> int | None:
    [found] = evaluated().partitions["overlap_depth"]
    return None if found is None else int(found)


def planned() -> int:
    plan = plan_table(opened(), Options())
    assert plan is not None
    return len(plan.tasks)


def optimized(**more: Any) -> Report:
    before = ids()
    report = optimize(opened(), **more)
    assert not report.failures, report.failures
    assert ids() == before
    return report


ORDERS = {
    "int": by(2),
    "int descending": by(2, descending=True),
    "double": by(3),
    "text": by(4),
    "day": by(5, DayTransform()),
    "truncated": by(4, TruncateTransform(3)),
    "decimal": by(6, descending=True),
}


@pytest.mark.parametrize("divides", [False, True])
@pytest.mark.parametrize("name", ORDERS)
def test_files_that_overlap_are_sorted_together_and_only_once(lake: Catalog, name: str, divides: bool) -> None:
    append = made(lake, ORDERS[name], self_optimizing__max_task_size_bytes="128KiB")
    for _ in range(3):
        append()
    assert depth() == 3
    assert planned() == 0
    for _ in range(5):
        append()
    assert depth() == 8
    report = optimized(divides=divides)
    assert (report.kinds, report.removed.data_files) == (("major",), 8)
    assert depth() == 1
    assert planned() == 0
    assert not optimized().changed
    listed = opened().file_list.frame()
    assert set(listed["sort_order_id"]) == {1}
    assert listed.height > 4


@pytest.mark.parametrize("z_order", [None, "x, y"])
def test_new_data_in_a_narrow_range_rewrites_what_overlaps_with_it(lake: Catalog, z_order: str | None) -> None:
    more = {"self_optimizing__z_order": z_order} if z_order else {}
    append = made(lake, None if z_order else by(2), **more)
    for _ in range(12):
        append()
    first = optimized()
    assert first.removed.data_files == 12
    whole = first.after.data_bytes
    for _ in range(4):
        append(300_000, 310_000, rows=150)
    assert planned() == 1
    second = optimized()
    assert 4 < second.removed.data_files <= 7
    assert second.removed.data_bytes < whole / 3
    assert depth() is not None
    assert planned() == 0


@pytest.mark.parametrize("divides", [False, True])
def test_z_order_keeps_files_away_from_readers_of_each_column(lake: Catalog, divides: bool) -> None:
    append = made(lake, by(1), self_optimizing__z_order="x, y", self_optimizing__max_task_size_bytes="128KiB")
    for _ in range(16):
        append()
    before = [touched("x = 500000"), touched("y = 0.5")]
    assert before == [16, 16]
    optimized(divides=divides)
    files = opened().file_list.frame()
    assert set(files["sort_order_id"]) <= {None, 0}
    assert touched("x = 500000") <= files.height / 2
    assert touched("y = 0.5") <= files.height / 2 + 1  # one has NaN, which may be anything
    assert depth() == 1
    assert planned() == 0
    assert not optimize(opened(), "full").changed, "it is in z-order already"


def touched(where: str) -> int:
    scan = opened().scan(["id"], where)
    assert isinstance(scan, Scan)
    return scan.plan.data.height


def test_full_sorts_whole_partitions(lake: Catalog) -> None:
    append = made(lake, by(2), self_optimizing__max_task_size_bytes="64KiB")
    for _ in range(3):
        append()
    assert depth() == 3
    optimized(kind="full")
    assert depth() == 1
    assert not optimized(kind="full").changed


def test_texts_that_begin_alike_are_not_sorted_for_ever(lake: Catalog) -> None:
    """Bounds end after sixteen letters: these files cannot be told apart by them."""
    append = made(lake, by(4))
    for _ in range(6):
        append(prefix="https://example.org/")
    assert depth() == 1
    assert planned() == 0


def test_texts_that_differ_at_the_end_of_their_bounds(lake: Catalog) -> None:
    append = made(lake, by(4))
    for _ in range(6):
        append(prefix="https://a.b/")
    assert depth() == 6
    optimized()
    assert depth() == 1
    assert planned() == 0


def test_a_key_that_is_everywhere(lake: Catalog) -> None:
    append = made(lake, by(2))
    for _ in range(6):
        append(7, 9)
    assert depth() == 6
    optimized()
    assert depth() == 1
    assert planned() == 0


@pytest.mark.parametrize(
    ("property_", "value"),
    [
        ("self_optimizing__sort__trigger__overlap_depth", "-1"),
        ("self_optimizing__sort_on_rewrite", "false"),
        ("write__metadata__metrics__column__x", "counts"),
    ],
)
def test_what_is_switched_off_or_cannot_be_measured_is_no_reason(lake: Catalog, property_: str, value: str) -> None:
    append = made(lake, by(2), **{property_: value})
    for _ in range(6):
        append()
    assert planned() == 0


def test_buckets_have_no_order(lake: Catalog) -> None:
    append = made(lake, by(2, BucketTransform(16)))
    for _ in range(6):
        append()
    assert depth() is None
    assert planned() == 0


def test_files_of_which_nothing_is_known_reach_everywhere_until_they_were_written_anew(lake: Catalog) -> None:
    append = made(lake, by(2), write__metadata__metrics__column__x="counts")
    for _ in range(5):
        append()
    with lake.load_table("db.t").transaction() as transaction:
        transaction.set_properties({"write.metadata.metrics.column.x": "full"})
    assert depth() == 5
    optimized()
    assert depth() == 1
    assert planned() == 0


@pytest.mark.parametrize(
    ("z_order", "told"),
    [
        ("x, nowhere", "names 'nowhere', which is no column of the table"),
        ("l", "names 'l', and values of type list<int> have no order"),
        ("l.element", "names 'l.element', which is no column of the table"),
    ],
)
def test_columns_that_cannot_be_used_are_told(lake: Catalog, z_order: str, told: str) -> None:
    append = made(lake, by(2), self_optimizing__z_order=z_order)
    for _ in range(6):
        append(rows=100)
    explained = explain_table(opened(), Options())
    assert f"table property self-optimizing.z-order {told}: nothing is sorted" in explained.notes
    report = optimized(kind="full")
    assert report.changed
    assert set(opened().file_list.frame()["sort_order_id"]) <= {None, 0}


def test_a_column_without_bounds_is_told(lake: Catalog) -> None:
    append = made(lake, self_optimizing__z_order="x, y", write__metadata__metrics__column__y="none")
    append()
    assert any("keeps no bounds of column 'y'" in note for note in explain_table(opened(), Options()).notes)
    assert depth() is None


def test_explain_tells_the_measure(lake: Catalog) -> None:
    append = made(lake, by(2), self_optimizing__sort__trigger__overlap_depth="5")
    for _ in range(5):
        append()
    explained = explain_table(opened(), Options())
    [partition] = explained.partitions
    [rule] = [rule for rule in partition.rules if rule.name == "overlap-depth"]
    assert (rule.kind, rule.unit, rule.threshold, rule.measured, rule.met) == ("major", "files", 5.0, 5.0, True)
    assert partition.causes == ("overlap-depth",)
    [task] = explained.tasks
    assert (task.data_files, task.sort) == (5, True)


@pytest.mark.parametrize("divides", [False, True])
def test_a_file_without_live_rows(lake: Catalog, divides: bool) -> None:
    append = made(lake, by(2), self_optimizing__max_task_size_bytes="128KiB")
    for _ in range(6):
        append()
    table = lake.load_table("db.t")
    changes.apply(table, lambda t: changes.position_delete(t, "id < 1000000"))
    before = ids()
    assert len(before) == 5 * ROWS
    report = optimized(kind="full", divides=divides)
    assert not report.failures
    assert ids() == before


@pytest.mark.parametrize("divides", [False, True])
@pytest.mark.parametrize("z_order", [None, "x, y"])
def test_rows_that_nobody_knew_to_be_dead(lake: Catalog, z_order: str | None, divides: bool) -> None:
    """How many rows equality deletes hit is known when they are read; files have the right size all the same."""
    more = {"self_optimizing__z_order": z_order} if z_order else {}
    append = made(lake, None if z_order else by(2), self_optimizing__max_task_size_bytes="128KiB", **more)
    for _ in range(8):
        append()
    dead = pa.table({"id": pa.array([number for number in ids() if number % 10 > 1], pa.int64())})
    changes.apply(lake.load_table("db.t"), lambda t: changes.equality_delete(t, dead))
    optimized(kind="full", divides=divides)
    assert opened().file_list.frame().height <= 2
    assert not optimized(kind="full").changed
    assert planned() == 0


@pytest.mark.parametrize("most", [2, 3])
def test_more_ranges_than_files_may_be_open(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "_MAX_RANGES", most)
    rng = np.random.default_rng(most)
    rows = pa.table({"a": rng.integers(0, 400, 20_000), "b": rng.integers(0, 9, 20_000), "n": np.arange(20_000)})
    keys = [Key(column="a", descending=True), Key(column="b")]
    expected = rows.take(pa.array(sort_order(rows, keys)))["n"].to_pylist()
    with Sorter(keys, 8_000, lambda: pl.Series(rows["a"].to_numpy()[::5]), sample_step=5) as sorter:
        for batch in rows.to_batches(max_chunksize=700):
            sorter.add(batch)
        assert [n for batch in sorter.batches() for n in batch.column("n").to_pylist()] == expected


def test_spilled_files_are_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCTIC_SPILL_DIR", str(tmp_path))
    rows = pa.record_batch({"a": np.random.default_rng(1).integers(0, 1 << 40, 20_000)})
    with Sorter([Key(column="a")], 8_000, lambda: pl.Series(rows["a"].to_numpy()[::16])) as sorter:
        sorter.add(rows)
        assert sum(batch.num_rows for batch in sorter.batches()) == rows.num_rows
        assert sorter.spilled_bytes
    held = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert not [path for path in held if str(path).startswith(str(tmp_path))]
    assert not list(tmp_path.iterdir())


def test_packs_that_are_sorted_together_are_one_task(lake: Catalog) -> None:
    """Files of a grid lie well apart, and are half as large as they should be: packs of them would overlap."""
    properties = {"z-order": "x, y", "max-task-size-bytes": "64KiB", "sort.trigger.overlap-depth": "2"}
    told = PROPERTIES | {f"self-optimizing.{name}": value for name, value in properties.items()}
    table = lake.create_table("db.t", SCHEMA, properties=told)
    for number in range(16):
        x, y = (100 * place for place in divmod(number, 4))
        data = some_rows(number, x, x + 90, 400, "").set_column(2, "y", some_rows(99, y, y + 90, 400, "")["y"])
        table = changes.apply(table, partial(changes.append, data=data))
    assert depth() == 1
    optimized()
    assert planned() == 0


def test_partitions_are_measured_apart(lake: Catalog) -> None:
    append = made(lake, by(2))
    with lake.load_table("db.t").update_spec() as update:
        update.add_field("s", TruncateTransform(1), "first")
    for _ in range(5):
        append(0, 100, prefix="a")
    for _ in range(2):
        append(0, 100, prefix="b")
    depths = evaluated().partitions.select("partition", "overlap_depth").sort("partition").rows()
    assert [found for _, found in depths] == [5, 2]
    plan = plan_table(opened(), Options())
    assert plan is not None
    assert [task.data.height for task in plan.tasks] == [5]
    assert pl.concat([task.data for task in plan.tasks])["partition"].n_unique() == 1
