"""Random histories by the specification's own writer, then optimized: rows, their ids and the past stay as they were."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from pyiceberg.catalog import Catalog

import pyarctic
from pyarctic import config
from pyarctic.optimizing import KindChoice
from pyarctic.optimizing.plan import native as native_plan
from pyarctic.tables import Table
from tests.models.spec.history import History
from tests.support.integrity import missing
from tests.support.optimizing import optimize

HISTORIES = int(os.environ.get("HISTORIES", "12"))
KINDS: tuple[KindChoice, ...] = ("auto", "minor", "major", "full")
Lake = tuple[Catalog, Path, Iterator[int]]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    folder = tmp_path_factory.mktemp("lake")
    catalog = pyarctic.catalog("spec", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=folder.as_uri())
    catalog.create_namespace("n")
    yield catalog, folder, count(1)
    config.reset()


def state(table: Table) -> Counter[str]:
    """Rows with their lineage, as a multiset."""
    lineage = ["_row_id", "_last_updated_sequence_number"] if has_row_ids(table) else []
    read = table.scan([*table.schema.column_names, *lineage]).to_arrow()
    return Counter(repr(row) for row in read.to_pylist())


def has_row_ids(table: Table) -> bool:
    snapshot = table.view.metadata.current_snapshot()
    return snapshot is not None and snapshot.first_row_id is not None


def past(table: Table) -> dict[int, Counter[str]]:
    ids = [snapshot.snapshot_id for snapshot in table.view.metadata.snapshots]
    return {one: Counter(repr(row) for row in table.scan(snapshot_id=one).to_arrow().to_pylist()) for one in ids}


@pytest.mark.parametrize("version", [1, 2, 3])
@given(data=st.data())
@settings(max_examples=HISTORIES, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_optimizing_keeps_all_rows(version: int, lake: Lake, data: st.DataObject, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, folder, numbers = lake
    name = f"n.t{next(numbers)}"
    history = History(data.draw, catalog, name, folder / name, version=version)
    for _ in range(data.draw(st.integers(3, 9))):
        note(history.step())
    history.table.metadata["properties"] |= data.draw(properties())
    history.table.register()
    monkeypatch.setattr(native_plan, "COPY_LEAST_ROWS", dict.fromkeys(("minor", "major", "full"), 1))
    table = pyarctic.table(f"spec.{name}")
    rows, before = Counter(map(repr, history.rows())), past(table)
    assert Counter(repr(row) for row in table.scan().to_arrow().to_pylist()) == rows
    for _ in range(2):
        kind = data.draw(st.sampled_from(KINDS))
        memory = data.draw(st.sampled_from([4 << 10, 64 << 20]))
        known = state(table.refresh()) if has_row_ids(table) else None
        report = optimize(table, kind, memory_bytes=memory)
        note(f"{kind}: {report.tasks_planned} tasks, {report.snapshot_ids} {report.failures}")
        assert not report.failures
        assert report.tasks_dropped == 0
        table = pyarctic.table(f"spec.{name}")
        assert Counter(repr(row) for row in table.scan().to_arrow().to_pylist()) == rows
        assert known is None or state(table) == known
        assert not missing(table._loaded)
        # Smaller files are footers above all; several specs: test_old_partitions_that_become_one in test_not_in_vain.py.
        if table.properties["self-optimizing.target-size"] == "100000" and len(table.view.metadata.specs()) == 1:
            again = optimize(table, kind, memory_bytes=memory)
            note(f"again: {again.tasks_planned} tasks")
            assert again.tasks_planned == 0
            assert not again.changed
    after = past(pyarctic.table(f"spec.{name}"))
    assert {one: after[one] for one in before} == before


@st.composite
def properties(draw: st.DrawFn) -> dict[str, str]:
    """Sizes about those of the files, so that there are fragments, undersized and large ones."""
    return {
        "self-optimizing.writers-first": "false",
        "self-optimizing.target-size": str(draw(st.sampled_from([800, 1500, 3000, 100_000]))),
        "self-optimizing.fragment-ratio": str(draw(st.sampled_from([1, 2, 8]))),
        "self-optimizing.minor.trigger.file-count": str(draw(st.sampled_from([1, 2, 12]))),
        "self-optimizing.major.trigger.delete-size-lowest": "1",
        "self-optimizing.max-task-size-bytes": str(draw(st.sampled_from([1000, 100_000]))),
        "write.delete.granularity": draw(st.sampled_from(["file", "partition"])),
    }
