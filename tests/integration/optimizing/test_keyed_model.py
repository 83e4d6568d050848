"""Random histories of keyed tables with rounds of optimizing, others writing in the middle of them: a merged read gives what
it gave without them, Base alone gives the rows as far as they are merged, and rounds end.

`HISTORIES=500 pytest tests/integration/optimizing/test_keyed_model.py` tries more of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from random import Random

import hypothesis.strategies as st
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, example, given, note, settings

import pyarctic
from pyarctic import config
from pyarctic.iceberg.manifest.file_list import IS_DATA
from pyarctic.optimizing import KindChoice, Options
from pyarctic.optimizing.api import plan_table
from pyarctic.optimizing.commit.decision import CommitPolicy
from pyarctic.optimizing.plan import keyed as keyedplan
from pyarctic.optimizing.plan import native as plan
from pyarctic.tables.format.file_names import parse_file_names
from pyarctic.tables.format.store_properties import BASE_BUCKETS, CHANGE_BUCKETS
from pyarctic.tables.keyed_table import KeyedTable
from tests.models.keyed_histories import KINDS, play
from tests.models.optimized_keyed_table import OptimizedKeyedModel
from tests.support.optimizing import optimize as optimize_once

HISTORIES = int(os.environ.get("HISTORIES", "2"))
OTHERS = ("composite", "date", "wide decimal", "time", "binary", "truth")


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Iterator[int]]:
    folder = tmp_path_factory.mktemp("lake")
    pyarctic.catalog("healed", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=folder.as_uri())
    yield count(1)
    config.reset()


def copied(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups of so many rows are copied."""
    for module in (plan, keyedplan):
        monkeypatch.setattr(module, "COPY_LEAST_ROWS", dict.fromkeys(("minor", "major", "full"), least))


@pytest.mark.parametrize("key", ["long", "string", "others"])
@given(seed=st.integers(0, 1 << 32))
@example(seed=1 << 32)  # keys are long: a process merges manifests of the change store, and is rolled back
@settings(
    max_examples=HISTORIES,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_optimizing_changes_no_row(key: str, numbers: Iterator[int], seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(f"{key} {seed}")
    copied(random.choice([1, 3, 1000]), monkeypatch)
    policy = CommitPolicy(interval=timedelta(seconds=random.choice([0, 60])))
    monkeypatch.setattr(CommitPolicy, "of", lambda _metadata: policy)
    model = OptimizedKeyedModel(f"healed.n.t{next(numbers)}", random, random.choice(OTHERS) if key == "others" else key)
    try:
        play(model)
    finally:
        note("\n".join(model.log))


ROWS = pa.schema([("id", pa.int64()), ("kind", pa.string()), ("text", pa.string())])


def fill(table: KeyedTable, random: Random, target: int) -> dict[int, str]:
    """Writes of all sizes, together a few times the target; gives what must be read then."""
    known: dict[int, str] = {}
    for number in range(random.randint(2, 5)):
        size = int(target * random.choice([0.02, 0.2, 0.6, 1.2, 3]) / 40) + 1
        ids = [random.randint(0, 1 << random.choice([8, 14])) for _ in range(size)]
        texts = [random.randbytes(18).hex() for _ in ids]
        data = pa.table([ids, [f"k{text[0]}" for text in texts], texts], schema=ROWS)
        match random.choice(["overwrite"] if number == 0 else ["insert", "upsert", "upsert", "delete"]):
            case "delete":
                table.write(data, "delete")
                known = {key: text for key, text in known.items() if key not in set(ids)}
            case mode:
                table.write(data, mode)  # type: ignore[arg-type]
                known |= dict(zip(ids, texts, strict=True))
        if random.random() < 0.3:
            optimize_once(table, random.choice(KINDS), verify=False)
            table.refresh()
    return known


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 1 << 32))
@settings(
    max_examples=max(HISTORIES // 2, 1),
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_a_second_round_has_nothing_to_do(
    kind: KindChoice, numbers: Iterator[int], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(f"{kind} {seed}")
    copied(random.choice([100, 20_000]), monkeypatch)
    target = random.choice([64 << 10, 128 << 10])
    properties = {
        "self-optimizing.target-size": str(target),
        "self-optimizing.minor.trigger.file-count": str(random.choice([1, 12])),
        "self-optimizing.major.trigger.delete-size-lowest": str(random.choice([1, 64 << 10])),
        "self-optimizing.full.trigger.position-delete-size": str(random.choice([1000, 1 << 20])),
        "self-optimizing.sort-on-rewrite": random.choice(["true", "false"]),
        "self-optimizing.share-insert-files": random.choice(["true", "false"]),
        "write.target-file-size-bytes": str(random.choice([target // 4, 8 << 20])),
        CHANGE_BUCKETS: str(random.choice([1, 4])),
        **random.choice([{}, {}, {BASE_BUCKETS: "1"}, {BASE_BUCKETS: "4"}]),
    }
    table = pyarctic.create_table(f"healed.n.t{next(numbers)}", ROWS, ["id"], properties=properties)
    assert isinstance(table, KeyedTable)
    note(str(properties))
    known = fill(table, random, target)
    note(shape(table))
    report = optimize_once(table, kind, verify=False, memory_bytes=random.choice([64 << 10, 64 << 20]))
    note(f"{report.tasks_planned} tasks: {shape(table)}; target {target >> 10} KiB")
    assert not report.failures
    assert table._pending().is_empty() or kind == "auto"
    read = table.scan().to_arrow()
    assert dict(zip(read["id"].to_pylist(), read["text"].to_pylist(), strict=True)) == known
    assert read.num_rows == len(known)
    if kind == "auto":  # rows that were merged may be enough for a kind that changes did not call for
        optimize_once(table, kind, verify=False)
    again = plan_table(table.refresh(), Options(kind=kind))
    assert again is not None
    why = [(task.kind, getattr(task, "node_id", None), task.data.height, task.reasons) for task in again.tasks]
    assert not again, f"{kind} again: {why}, {again.dangling_deletes.height} dangling deletes"


def shape(table: KeyedTable) -> str:
    files = parse_file_names(table.refresh().file_list.frame(), "base")
    sizes = files.filter(IS_DATA).group_by("node_id").agg((pl.col("file_size_bytes") // 1024).sort()).sort("node_id")
    return f"{sizes.rows()} KiB, {files.filter(~IS_DATA).height} deletes, {table._pending().height} changes"
