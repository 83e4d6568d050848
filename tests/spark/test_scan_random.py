"""Random histories (tests/spec/history.py) before Iceberg Java: writer, model and PyArctic must all agree with it."""

from __future__ import annotations

import os
from collections import Counter
from itertools import count
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings

from tests.models.spec.history import History, conditions
from tests.oracle.compare import arctic_table
from tests.oracle.session import Oracle

pytestmark = pytest.mark.jvm

LINEAGE = ["_file", "_pos", "_row_id", "_last_updated_sequence_number"]
HISTORIES = int(os.environ.get("HISTORIES", "6"))
_numbers = count(1)


def multiset(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(repr(row) for row in rows)


def assert_all_same(java: pa.Table, ours: pa.Table, model: list[dict[str, Any]]) -> None:
    judge = multiset(java.to_pylist())
    assert multiset(model) == judge, f"model: {multiset(model) - judge}, Java: {judge - multiset(model)}"
    mine = multiset(ours.to_pylist())
    assert mine == judge, f"PyArctic: {mine - judge}, Java: {judge - mine}"


@pytest.mark.parametrize("version", [1, 2, 3])
@given(data=st.data())
@settings(
    max_examples=HISTORIES,
    derandomize="HISTORIES" not in os.environ,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking through Spark would take longer than reading
    suppress_health_check=[HealthCheck.too_slow],
)
def test_java_model_and_pyarctic_agree(
    version: int, oracle: Oracle, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    oracle.catalog.create_namespace_if_not_exists("random")
    name = f"random.t{next(_numbers)}"
    folder = tmp_path_factory.mktemp("random") / "t"
    history = History(data.draw, oracle.catalog, name, folder, version=version)
    for _ in range(data.draw(st.integers(3, 7))):
        note(history.step())
    opened = arctic_table(oracle, name)
    assert_all_same(oracle.rows(name), opened.scan().to_arrow(), history.rows())
    # Java 1.12 fails with a NullPointerException on LIKE over a null partition value.
    where, holds = data.draw(conditions(history.table.fields, prefixes=False))
    note(where)
    java = oracle.sql(f"select * from {oracle.name}.{name} where {where}").toArrow()
    assert_all_same(java, opened.scan(where=where).to_arrow(), [row for row in history.rows() if holds(row)])
    lineage = LINEAGE if history.table.version >= 3 else LINEAGE[:2]
    expected = [dict(zip(lineage, (r.path, r.position, r.row_id, r.updated), strict=False)) for r in history.live_batches()]
    assert_all_same(oracle.rows(name, ", ".join(lineage)), opened.scan(lineage).to_arrow(), expected)
    for snapshot_id, (_, rows) in list(history.snapshots.items())[:-1]:
        past = opened.scan(snapshot_id=snapshot_id).to_arrow()
        assert_all_same(oracle.rows(name, snapshot_id=snapshot_id), past, rows)
