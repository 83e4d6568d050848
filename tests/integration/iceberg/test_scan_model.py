"""Random histories of tables, read after every step and compared with a model that applies the rules row by row.

`HISTORIES=2000 pytest tests/integration/iceberg/test_scan_model.py` tries more of them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, note, settings
from pyiceberg.catalog import Catalog

import pyarctic
from pyarctic import config
from pyarctic.tables import Table
from tests.models.spec.history import History, conditions

LINEAGE = ["_file", "_pos", "_row_id", "_last_updated_sequence_number"]
HISTORIES = int(os.environ.get("HISTORIES", "8"))


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Catalog, Path, Iterator[int]]]:
    folder = tmp_path_factory.mktemp("lake")
    catalog = pyarctic.catalog("model", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=folder.as_uri())
    catalog.create_namespace("n")
    yield catalog, folder, count(1)
    config.reset()


def multiset(rows: Iterable[Mapping[str, Any]]) -> Counter[tuple[tuple[str, Any], ...]]:
    return Counter(tuple(row.items()) for row in rows)


def assert_same(read: pa.Table, expected: Iterable[Mapping[str, Any]]) -> None:
    ours, model = multiset(read.to_pylist()), multiset(expected)
    assert ours == model, f"only PyArctic: {ours - model}\nonly the model: {model - ours}"


def check_now(handle: Table, history: History) -> None:
    """The current state: rows, their number, where they come from."""
    scan = handle.scan()
    assert tuple(scan.schema.names) == history.names()
    assert_same(scan.to_arrow(), history.rows())
    assert scan.count() == len(history.rows())
    living = history.live_batches()
    lineage = [dict(zip(LINEAGE, (row.path, row.position, row.row_id, row.updated), strict=True)) for row in living]
    assert_same(handle.scan(LINEAGE).to_arrow(), lineage)


@pytest.mark.parametrize("version", [1, 2, 3])
@given(data=st.data())
@settings(
    max_examples=HISTORIES,
    phases=__import__("hypothesis").Phase.__members__.values()
    if not os.environ.get("NOSHRINK")
    else [__import__("hypothesis").Phase.generate],
)
def test_scan_equals_model(version: int, lake: tuple[Catalog, Path, Iterator[int]], data: st.DataObject) -> None:
    catalog, folder, numbers = lake
    name = f"n.t{next(numbers)}"
    history = History(data.draw, catalog, name, folder / name, version=version)
    followed = pyarctic.table(f"model.{name}")  # sees every state through one growing file list
    for _ in range(data.draw(st.integers(2, 7))):
        note(history.step())
        check_now(followed.refresh(), history)
    fresh = pyarctic.table(f"model.{name}")
    check_now(fresh, history)
    for _ in range(2):
        where, holds = data.draw(conditions(history.table.fields))
        note(where)
        assert_same(fresh.scan(where=where).to_arrow(), [row for row in history.rows() if holds(row)])
        assert fresh.scan(where=where).count() == sum(holds(row) is True for row in history.rows())
    for snapshot_id, (names, rows) in history.snapshots.items():
        past = fresh.scan(snapshot_id=snapshot_id)
        assert tuple(past.schema.names) == names
        assert_same(past.to_arrow(), rows)
