"""Random histories of keyed tables: whatever is written in whatever way, a merged read gives one row per key, the last.

`HISTORIES=500 pytest tests/unit/tables/test_keyed_model.py` tries more of them.
"""

from __future__ import annotations

import os
import pickle
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from pyiceberg.expressions import And

import pyarctic
from pyarctic import config
from pyarctic.iceberg.predicate import parse_condition
from pyarctic.tables.keyed_table import KeyedTable
from pyarctic.tables.read.merged_scan import MergedScan
from pyarctic.tables.read.splits import SplitSizes, plan_splits
from tests.models.key_versions import Place, Row
from tests.models.keyed_table import KeyedModel, tuples
from tests.support import keyed_tables as keyedrounds
from tests.support.keyed_tables import IDS, rows

HISTORIES = int(os.environ.get("HISTORIES", "2"))
OTHERS = ("wide decimal", "time", "binary", "truth")
TINY = 64
"""Bytes of memory: every version is spilled."""


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Iterator[int]]:
    folder = tmp_path_factory.mktemp("lake")
    pyarctic.catalog("keyed", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=folder.as_uri())
    yield count(1)
    config.reset()


def check(model: KeyedModel, spill: Path, *, thoroughly: bool) -> None:
    """Ask the table in many ways."""
    random = model.random
    table = model.handle().refresh()
    expected = model.expected()
    if model.in_order is not None:
        assert model.in_order == expected, "the model contradicts itself"
    rows = model.shown(expected.values())
    assert tuples(table.scan().batches()) == rows
    if thoroughly or random.random() < 0.3:
        assert table.scan().count() == len(expected)
        check_condition(model, table, expected)
    if thoroughly or random.random() < 0.2:
        check_log(model, table)
        check_past(model, table)
    if thoroughly or random.random() < 0.1:
        check_small_splits(model, table)
    if thoroughly or random.random() < 0.05:
        check_single_keys(model, table, expected)
    assert not [*spill.glob("arctic-versions-*")]


def check_condition(model: KeyedModel, table: KeyedTable, expected: dict[Place, Row]) -> None:
    for _ in range(2):
        where, fits = model.condition()
        chosen = [row for row in expected.values() if fits(row)]
        columns = {tag: name for tag, name in model.columns.items() if model.random.random() < 0.6} or model.columns
        memory = model.random.choice([TINY, 1 << 20, 1 << 20])
        scan = table.scan([*columns.values()], where=where, memory_bytes=memory)
        assert tuples(scan.batches()) == model.shown(chosen, columns), where
        assert scan.count() == len(chosen), where


def check_single_keys(model: KeyedModel, table: KeyedTable, expected: dict[Place, Row]) -> None:
    """Every key that there is or may be, alone and with another condition; and some keys together."""
    keys = model.all_keys()
    stores = {store: table.scan(model.keys, store=store).to_arrow().to_pylist() for store in ("base", "change")}
    for key in keys:
        where = model.key_condition([key])
        scan = table.scan(where=where, memory_bytes=model.random.choice([TINY, 1 << 20]))
        chosen = [row for row in expected.values() if model.key_of(row) == key]
        assert tuples(scan.batches()) == model.shown(chosen), where
        for store, stored in stores.items():
            count = sum(tuple(row.values()) == key for row in stored)
            assert table.scan(where=where, store=store).to_arrow().num_rows == count, (store, where)  # type: ignore[arg-type]
        text, fits = model.condition()
        both = And(where, parse_condition(table.schema, text))
        assert tuples(table.scan(where=both).batches()) == model.shown(row for row in chosen if fits(row)), both
    some = model.random.sample(keys, 2)
    chosen = [row for row in expected.values() if model.key_of(row) in some]
    scan = table.scan(where=model.key_condition(some))
    assert tuples(scan.batches()) == model.shown(chosen), some
    plan = plan_splits(scan, SplitSizes(readers=2), allow_plain=False)  # type: ignore[arg-type]
    parts = [tuples(plan.reader.batches(split)) for split in plan.splits]
    assert sum(parts, Counter()) == model.shown(chosen), some


def check_small_splits(model: KeyedModel, table: KeyedTable) -> None:
    """Versions that do not fit into memory, and splits from single files to many key groups."""
    rows = model.shown(model.expected().values())
    tiny = table.scan(memory_bytes=TINY)
    assert tuples(tiny.batches()) == rows
    assert tiny.count() == rows.total()
    scan = table.scan(memory_bytes=model.random.choice([TINY, 1 << 20]))
    assert isinstance(scan, MergedScan)
    target = model.random.choice([1, 1, 4 << 10, 1 << 20])
    plan = plan_splits(scan, SplitSizes(readers=1, min_bytes=target, max_bytes=target), allow_plain=False)
    assert not plan.plain_files
    sent = pickle.loads(pickle.dumps(plan.reader))
    parts = [tuples(sent.batches(split)) for split in plan.splits]
    assert sum(parts, type(rows)()) == rows


def check_log(model: KeyedModel, table: KeyedTable) -> None:
    """The changes in order make up the table, from nothing or from a former state."""
    assert table.changes().count() == table.scan(store="change").count()
    if not model.is_logged:
        return
    now = alike(model, model.expected())
    assert replayed(model, table, None, {}) == now
    if model.in_order is not None and model.commits:
        past = model.random.choice(model.commits)
        assert replayed(model, table, past.snapshot_id, model.expected(past)) == now


def replayed(model: KeyedModel, table: KeyedTable, since: int | None, known: dict[Place, Row]) -> dict[Place, Row]:
    tags = {name: tag for tag, name in model.columns.items()}
    told = table.changes(since).to_arrow().to_pylist()
    changes = [{tags[name]: value for name, value in row.items() if name in tags} for row in told]
    rows = alike(model, known)
    for place, row, said in zip(model.places(changes), changes, told, strict=True):
        rows.pop(place, None)
        if said["_change_action"] in ("INSERT", "UPDATE_AFTER"):
            rows[place] = row
    return rows


def alike(model: KeyedModel, rows: dict[Place, Row]) -> dict[Place, Row]:
    """Rows with the columns of now, whenever they were written."""
    return {place: {tag: row.get(tag) for tag in model.columns} for place, row in rows.items()}


def check_past(model: KeyedModel, table: KeyedTable) -> None:
    for commit in model.random.sample(model.commits, min(2, len(model.commits))):
        scan = table.scan(snapshot_id=commit.snapshot_id)
        rows = model.expected(commit).values()
        assert scan.schema.names == [*commit.columns.values()]
        assert tuples(scan.batches()) == model.shown(rows, commit.columns), f"as of {commit.sequence}"


def play(model: KeyedModel, spill: Path) -> None:
    random = model.random
    steps = [model.insert, model.upsert, model.upsert, model.delete, model.cdc, model.cdc]
    steps += [model.upsert_across, model.delete_across, model.overwrite, model.evolve, model.change_buckets]
    if random.random() < 0.5:
        steps += [model.foreign_change, model.foreign_change]
    if random.random() < 0.3:
        steps += [model.foreign_base]
    if random.random() < 0.4:
        steps += [model.begin, model.finish, model.finish]
    if random.random() < 0.3:
        steps = [step for step in steps if step != model.overwrite]
    for _ in range(random.choice([3, 5, 8])):
        random.choice(steps)()
        check(model, spill, thoroughly=False)
    check(model, spill, thoroughly=True)


@pytest.mark.parametrize("key", ["long", "string", "composite", "decimal", "date", "others"])
@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=HISTORIES, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_merged_read_equals_model(
    key: str, numbers: Iterator[int], seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCTIC_SPILL_DIR", str(tmp_path))
    random = Random(f"{key} {seed}")  # Hypothesis likes small numbers: they need not mean the same for every key
    kind = random.choice(OTHERS) if key == "others" else key
    model = KeyedModel(f"keyed.n.t{next(numbers)}", random, kind)
    try:
        play(model, tmp_path)
    finally:
        note("\n".join(model.log))


commit = partial(keyedrounds.commit, mask=1)


@pytest.fixture
def table(numbers: Iterator[int]) -> KeyedTable:
    created = pyarctic.create_table(f"keyed.n.t{next(numbers)}", IDS, ["id"])
    assert isinstance(created, KeyedTable)
    return created


def read(table: KeyedTable) -> dict[int, str]:
    scanned = table.refresh().scan().to_arrow().to_pylist()
    found = {row["id"]: row["text"] for row in scanned}
    assert len(found) == len(scanned)
    return found


def test_transactions_count_by_their_number_not_by_their_commit(table: KeyedTable) -> None:
    early, late = table._begin(), table._begin()
    table.write(rows(_1="new", _2="new"))
    commit(table, late, rows(_1="late", _3="late", _4="late"))
    commit(table, early, rows(_1="early", _3="early", _5="early"))
    assert read(table) == {1: "new", 2: "new", 3: "late", 4: "late", 5: "early"}
    commit(table, early, rows(_2="-", _4="-", _5="-"), "ED", first=9)
    assert read(table) == {1: "new", 2: "new", 3: "late", 4: "late"}
    commit(table, late, rows(_3="-", _2="-"), "ED", first=9)
    assert read(table) == {1: "new", 2: "new", 4: "late"}


def test_base_rows_of_a_later_transaction_win_over_changes_of_an_earlier(table: KeyedTable) -> None:
    early = table._begin()
    table.write(rows(_1="hidden", _2="hidden"))
    table.write(rows(_1="base", _3="base"), "overwrite")
    commit(table, early, rows(_1="early", _4="early"))
    commit(table, early, rows(_3="-"), "ED", first=9)
    for memory in (TINY, 1 << 20):
        scan = table.refresh().scan(memory_bytes=memory)
        assert tuples(scan.batches()) == {(1, "base"): 1, (3, "base"): 1, (4, "early"): 1}
    assert table.scan(where="text = 'early'").to_arrow()["id"].to_pylist() == [4]
    table.write(rows(_1="last"))
    assert read(table) == {1: "last", 3: "base", 4: "early"}


def test_the_past_has_its_own_schema(table: KeyedTable) -> None:
    """Base stays as it was, so only the changes tell which schema was in force."""
    first = table.write(rows(_1="a"))
    table.write(rows(_1="base"), "overwrite")
    table.evolve(add={"more": "long"})
    last = table.write(rows(_2="b").append_column("more", pa.array([7])))
    assert table.scan(snapshot_id=first).to_arrow().to_pylist() == [{"id": 1, "text": "a"}]
    assert sorted(tuples(table.scan(snapshot_id=last).batches())) == [(1, "base", None), (2, "b", 7)]
