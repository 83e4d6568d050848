"""Random histories of keyed tables: whatever is written in whatever way, a merged read gives one row per key, the last.

`HISTORIES=500 pytest tests/unit/tables/test_keyed_model.py` tries more of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings

import pyarctic
from pyarctic import config
from pyarctic.tables.keyed import KeyedTable
from pyarctic.tables.mergedscan import MergedScan
from tests.keyedtables import KEYS, KeyedModel, Place, Row, tuples

HISTORIES = int(os.environ.get("HISTORIES", "2"))
TINY = 64
"""Bytes of memory: every word is spilled."""


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
        check_small_pieces(model, table)
    assert not [*spill.glob("arctic-words-*")]


def check_condition(model: KeyedModel, table: KeyedTable, expected: dict[Place, Row]) -> None:
    for _ in range(2):
        where, fits = model.condition()
        chosen = [row for row in expected.values() if fits(row)]
        columns = {tag: name for tag, name in model.columns.items() if model.random.random() < 0.6} or model.columns
        memory = model.random.choice([TINY, 1 << 20, 1 << 20])
        scan = table.scan([*columns.values()], where=where, memory_bytes=memory)
        assert tuples(scan.batches()) == model.shown(chosen, columns), where
        assert scan.count() == len(chosen), where


def check_small_pieces(model: KeyedModel, table: KeyedTable) -> None:
    """Words that do not fit into memory, and groups in as many parts as they have files."""
    rows = model.shown(model.expected().values())
    tiny = table.scan(memory_bytes=TINY)
    assert tuples(tiny.batches()) == rows
    assert tiny.count() == rows.total()
    scan = table.scan(memory_bytes=model.random.choice([TINY, 1 << 20]))
    assert isinstance(scan, MergedScan)
    parts = [tuples(scan.batches_of(part)) for part in scan.splits(target_bytes=1)]
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
    for _ in range(random.randint(4, 10)):
        random.choice(steps)()
        check(model, spill, thoroughly=False)
    check(model, spill, thoroughly=True)


@pytest.mark.parametrize("key", sorted(KEYS))
@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=HISTORIES, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_merged_read_equals_model(
    key: str, numbers: Iterator[int], seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCTIC_SPILL_DIR", str(tmp_path))
    model = KeyedModel(f"keyed.n.t{next(numbers)}", Random(seed), key)
    try:
        play(model, tmp_path)
    finally:
        note("\n".join(model.log))
