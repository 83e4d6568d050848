"""Pruning by partition, by bounds and by row groups must never lose a matching row; and must do something."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from pyarctic.iceberg.read import Scan
from tests.integration.iceberg.conftest import Lake, rows
from tests.models.spec import SpecFile, SpecTable
from tests.models.spec.history import conditions

COLUMNS = (("i", "int"), ("s", "string"), ("f", "double"))
FLOATS = st.none() | st.sampled_from([0.0, -1.5, 1.0, 5.0, math.inf, math.nan])
TEXTS = st.none() | st.sampled_from(["", "a", "ab", "abc", "abcd", "abd", "b", "z\U0010ffff", "é", "zé"])
ROWS = st.fixed_dictionaries({"i": st.none() | st.integers(-3, 3), "s": TEXTS, "f": FLOATS})
METRICS = ("lower", "upper", "nulls", "values")
FILES = st.lists(
    st.tuples(st.lists(ROWS, min_size=1, max_size=6), st.integers(1, 4), st.sets(st.sampled_from(METRICS))),
    min_size=1,
    max_size=4,
)
_Row = dict[str, Any]


def _float_condition(text: str, holds: Callable[[float], bool]) -> tuple[str, Callable[[_Row], bool | None]]:
    return text, lambda row: None if row["f"] is None else holds(row["f"])


FLOAT_CONDITIONS = [
    _float_condition("f is nan", math.isnan),
    _float_condition("f is not nan", lambda f: not math.isnan(f)),
    _float_condition("f = 5.0", lambda f: f == 5.0),
    _float_condition("f != 5.0", lambda f: f != 5.0),
    _float_condition("f < 1.0", lambda f: f < 1.0),
    _float_condition("f >= 1.0", lambda f: f >= 1.0),
    _float_condition("f in (1.0, 5.0)", lambda f: f in (1.0, 5.0)),
    _float_condition("f not in (1.0, 5.0)", lambda f: f not in (1.0, 5.0)),
]
CONDITIONS = st.one_of(
    conditions([{"name": "i", "type": "long"}, {"name": "s", "type": "string"}]), st.sampled_from(FLOAT_CONDITIONS)
)


def without_metrics(file: SpecFile, missing: Collection[str] = METRICS) -> SpecFile:
    nothing: dict[str, Any] = {name: {} for name in missing}
    return replace(file, **nothing)


def as_text(found: list[_Row]) -> Counter[str]:
    return Counter(repr(sorted(row.items())) for row in found)


@given(files=FILES, wheres=st.lists(CONDITIONS, min_size=3, max_size=3), promote=st.booleans())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_matching_row_is_lost(lake: Lake, files: Any, wheres: Any, promote: bool) -> None:
    """Cut and missing metrics, bounds of a column that was promoted, NaN, many row groups."""
    table = lake.make(columns=COLUMNS)
    everything: list[_Row] = []
    entries = []
    for content, length, missing in files:
        made = table.data(content, bounds_length=length, row_group_size=2)
        entries.append(without_metrics(made, missing))
        everything += content
    table.commit(*entries)
    if promote:
        table.set_fields([field | ({"type": "long"} if field["name"] == "i" else {}) for field in table.fields])
    opened = lake.open()
    for where, holds in wheres:
        expected = [row for row in everything if holds(row)]
        assert as_text(opened.scan(where=where).to_arrow().to_pylist()) == as_text(expected), where
        assert opened.scan(where=where).count() == len(expected)


def kept(lake: Lake, where: str) -> set[int]:
    """How many rows the files have that were not pruned: files are told apart by it."""
    found = lake.open().scan(where=where)
    assert isinstance(found, Scan)
    return set(found.plan.data["record_count"].to_list())


@pytest.fixture
def measured(lake: Lake) -> SpecTable:
    """Files of 1, 2, 3 and 4 rows with different contents."""
    table = lake.make(columns=COLUMNS)
    table.commit(
        table.data([{"i": 1, "s": "apple", "f": 1.0}]),
        table.data([{"i": 10, "s": "banana", "f": 10.0}] * 2, bounds_length=3),
        table.data([{"i": None, "s": None, "f": None}] * 3),
        table.data([{"i": 10, "s": "cherry", "f": math.nan}] * 3 + [{"i": None}]),
    )
    return table


@pytest.mark.parametrize(
    ("where", "files"),
    [
        ("i = 1", {1, 3}),  # bounds of a file of nulls are not known
        ("i > 1", {2, 3, 4}),
        ("i >= 10", {2, 3, 4}),
        ("i < 1", {3}),
        ("i <= 1", {1, 3}),
        ("i in (0, 2)", {3}),
        ("i in (0, 1)", {1, 3}),
        ("i in (11, 12)", {3}),
        ("i is null", {3, 4}),
        ("i is not null", {1, 2, 4}),
        ("i is not null and i < 5", {1}),
        ("i < 5 or s = 'cherry'", {1, 3, 4}),
        ("s = 'banana'", {2, 3}),
        ("s = 'bzz'", {3}),
        ("s like 'ba%'", {2, 3}),
        ("s like 'bananas%'", {2, 3}),  # the upper bound was cut to "bao"
        ("s like 'c%' and i is not null", {4}),
        ("not (i > 1)", {1, 3}),
        ("f > 5.0", {2, 3, 4}),
        ("f is nan", {1, 2, 3, 4}),
        ("i != 1", {1, 2, 3, 4}),
    ],
)
def test_files_are_pruned_by_bounds(lake: Lake, measured: SpecTable, where: str, files: set[int]) -> None:
    assert kept(lake, where) == files


def test_bounds_of_a_promoted_column(lake: Lake, measured: SpecTable) -> None:
    measured.set_fields([field | ({"type": "long"} if field["name"] == "i" else {}) for field in measured.fields])
    assert kept(lake, "i = 1") == {1, 3}
    measured.commit(measured.data([{"i": 2**40}] * 5))
    assert kept(lake, "i > 100") == {3, 5}


def test_files_are_pruned_by_partition(lake: Lake) -> None:
    table = lake.make(partition=[("part", "identity"), ("id", "identity")])
    places: list[tuple[str | None, int | None]] = [("a", 1), ("b", 2), (None, 3), ("c", None)]
    files = [
        without_metrics(table.data(rows(*[id_] * count, part=part), (part, id_)))
        for count, (part, id_) in enumerate(places, start=1)
    ]
    table.commit(*files)
    assert kept(lake, "part = 'a'") == {1, 3}
    assert kept(lake, "part is null") == {3}
    assert kept(lake, "part is not null and id >= 2") == {2, 4}
    assert kept(lake, "id > 2 and part like 'b%'") == {3, 4} - {4}
    assert kept(lake, "name = 'n'") == {1, 2, 3, 4}
    # A spec without the column prunes nothing; one whose column was dropped does no harm.
    table.partition_by()
    table.commit(without_metrics(table.data(rows(1, 1, 1, 1, 1, part="z"))))
    assert kept(lake, "part = 'a'") == {1, 3, 5}
    table.set_fields([field for field in table.fields if field["name"] != "part"])
    assert kept(lake, "id = 1") == {1, 4, 5}
    assert lake.open().scan(where="id = 1").count() == 6


def test_row_groups_are_skipped_and_positions_stay_true(lake: Lake) -> None:
    table = lake.make()
    file = table.data(rows(*range(100)), row_group_size=10)
    table.commit(file, table.position_deletes([(file.path, 42), (file.path, 55)], file))
    found = lake.open().scan(["id", "_pos"], where="id >= 40 and id < 60").to_arrow().to_pylist()
    assert found == [{"id": i, "_pos": i} for i in range(40, 60) if i not in (42, 55)]


@pytest.mark.parametrize("where", ["f is nan", "f != 5.0", "f not in (5.0, 6.0)"])
def test_row_groups_with_nan_are_kept(lake: Lake, where: str) -> None:
    """Parquet's statistics know nothing of NaN: the group looks as if it were all 5.0."""
    table = lake.make(columns=COLUMNS)
    table.commit(table.data([{"i": 1, "f": 5.0}, {"i": 2, "f": math.nan}]))
    assert lake.open().scan(["i"], where=where).to_arrow().to_pylist() == [{"i": 2}]
