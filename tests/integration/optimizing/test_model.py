"""Random histories with optimizing processes, others writing in the middle of them: no row is lost, doubled, altered or
brought back to life, rows keep their ids, and nobody's deletes make a round come to nothing.

`HISTORIES=500 pytest tests/unit/optimizing/test_model.py` tries more of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from pyiceberg.catalog import Catalog

import pyarctic
from pyarctic import config
from pyarctic.optimizing import KindChoice, Options, Report, optimize_table
from pyarctic.optimizing.commit.decision import CommitPolicy
from pyarctic.optimizing.plan import native as plan
from tests.models.optimized_table import SORTS, SPECS, OptimizedTable
from tests.support.integrity import leftovers, missing, untrue_totals
from tests.support.optimizing import InProcessEngine, RecordingListener, optimize

HISTORIES = int(os.environ.get("HISTORIES", "4"))
KINDS: tuple[KindChoice, ...] = ("auto", "minor", "major", "full")
Lake = tuple[Catalog, Iterator[int]]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    folder = tmp_path_factory.mktemp("lake")
    catalog = pyarctic.catalog("model", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=folder.as_uri())
    catalog.create_namespace("n")
    yield catalog, count(1)
    config.reset()


def properties(random: Random) -> dict[str, str]:
    """Sizes about those of the files, so that there are fragments, undersized and large ones."""
    return {
        "self-optimizing.writers-first": "false",
        "commit.retry.min-wait-ms": "1",
        "self-optimizing.target-size": str(random.choice([6 << 10, 16 << 10, 64 << 10, 1 << 20])),
        "write.target-file-size-bytes": str(random.choice([8 << 10, 64 << 10, 1 << 20])),
        "self-optimizing.fragment-ratio": str(random.choice([1, 2, 8])),
        "self-optimizing.minor.trigger.file-count": str(random.choice([2, 5])),
        "self-optimizing.major.trigger.delete-size-lowest": "1",
        "self-optimizing.full.trigger.position-delete-size": str(random.choice([100, 1 << 20])),
        "self-optimizing.max-task-size-bytes": str(random.choice([16 << 10, 1 << 20])),
        "write.delete.granularity": random.choice(["file", "partition"]),
        "write.parquet.row-group-limit": str(random.choice([20, 300, 100_000])),
        "self-optimizing.sort.trigger.overlap-depth": random.choice(["2", "4", "-1"]),
        **random.choice([{}, {}, {"self-optimizing.z-order": random.choice(["id", "s, f", "k, t, n.a"])}]),
    }


class Round:
    """One process over a table, with others at work at three moments: after a task, before a commit, after a commit."""

    def __init__(self, table: OptimizedTable) -> None:
        self._table = table
        self._random = table.random
        self.kind = self._random.choice(KINDS)
        self._left = self._random.choice([0, 0, 1, 1, 2, 3])

    def run(self) -> Report:
        table = self._table
        table.replaced, table.moved_deletes = set(), False
        divides = self._random.random() < 0.5
        engine = InProcessEngine(after_task=self._others, before_commit=self._others, divides=divides)
        listener = RecordingListener(self._others)
        memory = self._random.choice([16 << 10, 64 << 20])
        options = Options(kind=self.kind, verify=self._random.random() < 0.7, memory_bytes=memory)
        table.log.append(f"optimizing ({self.kind}, {memory >> 10} KiB) begins")
        report = optimize_table(pyarctic.table(f"model.{table.name}"), engine, options, listener)
        table.log.append(
            f"optimizing ends: {report.tasks_planned} planned, {report.tasks_committed} committed, {report.tasks_dropped} "
            f"dropped, {report.rows_copied} rows copied, {report.rebased_rows} rebased; {listener.messages}"
        )
        assert not report.failures, report.failures
        self._check_dropped(engine, listener)
        self._check_summaries(report)
        return report

    def _others(self) -> None:
        if not self._left or self._random.random() < 0.3:
            return
        self._left -= 1
        table = self._table
        writers = [table.append, table.position_delete, table.position_delete, table.equality_delete, table.upsert]
        writers += [table.overwrite, table.remove_file, table.rewrite_manifests, table.remove_unused_deletes, self._healer]
        table.log.append("  meanwhile:")
        self._random.choice(writers)()
        table.check()

    def _healer(self) -> None:
        """Somebody else optimizes the same table."""
        table = self._table
        kind = self._random.choice(KINDS)
        before = set(files(table))
        report = optimize(pyarctic.table(f"model.{table.name}"), kind)
        table.replaced |= before - set(files(table))
        table.moved_deletes |= report.changed
        table.log.append(f"another process ({kind}): {report.tasks_committed} tasks")

    def _check_dropped(self, engine: InProcessEngine, listener: RecordingListener) -> None:
        """A task is lost only if a file of its was replaced; or, if its rows go to another partition or deletes are
        converted, when equality deletes came or went."""
        dropped = [int(text.split()[1]) for text in listener.messages if "was dropped" in text]
        if len(listener.plans) > 1:  # tasks are numbered anew
            return
        for number in dropped:
            task = next(task for task in engine.tasks if task.id == number)
            lost = set(task.data["file_path"]) & self._table.replaced
            moves = task.partition_key is None or set(task.data["spec_id"]) != {task.spec_id}
            excused = self._table.moved_deletes and (moves or task.action == "convert")
            excused |= task.action == "convert" and bool(self._table.replaced)
            assert lost or excused, f"task {number} ({task.action}) was done in vain: {listener.messages}"

    def _check_summaries(self, report: Report) -> None:
        table = self._table.load()
        for snapshot_id in report.snapshot_ids:
            snapshot = table.metadata.snapshot_by_id(snapshot_id)
            assert snapshot is not None
            assert snapshot.summary is not None
            told = snapshot.summary.additional_properties
            assert told["arctic.process-id"] == report.process_id
            if "deleted-data-files" in told:
                rows = [int(told[f"arctic.rows-{name}"] or 0) for name in ("in", "deleted", "out")]
                assert rows[0] - rows[1] == rows[2]


def files(table: OptimizedTable) -> list[str]:
    return list(pyarctic.table(f"model.{table.name}").file_list.frame()["file_path"])


def check_health(table: OptimizedTable) -> None:
    """Nothing counts that full optimizing would not improve, and every deduction has a cure."""
    explained = pyarctic.explain(f"model.{table.name}", kind="full")
    assert explained.tasks or explained.health.score == 100, explained.health
    assert all(deduction.cure for deduction in explained.health.deductions)


def play(table: OptimizedTable, version: int) -> None:
    """One history."""
    random = table.random
    table.create(version, random.choice(sorted(SPECS)), random.choice(sorted(SORTS)), properties(random))
    table.append()
    steps = [table.append, table.append, table.append_many, table.upsert, table.equality_delete, table.equality_delete]
    steps += [table.position_delete, table.position_delete, table.overwrite, table.change_schema, table.upgrade]
    if random.random() < 0.5:
        steps.append(table.change_spec)
    for _ in range(random.randint(2, 3)):
        for _ in range(random.randint(1, 5)):
            random.choice(steps)()
        table.check()
        check_health(table)
        Round(table).run()
        table.check()
        check_health(table)
    assert not missing(table.load())
    assert not leftovers(table.load())
    assert not untrue_totals(table.load())


@pytest.mark.parametrize("version", [1, 2, 3])
@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=HISTORIES, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_optimizing_equals_model(version: int, lake: Lake, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, numbers = lake
    table = OptimizedTable(catalog, f"n.t{next(numbers)}", Random(seed))
    monkeypatch.setattr(plan, "COPY_LEAST_ROWS", dict.fromkeys(("minor", "major", "full"), table.random.choice([1, 30])))
    policy = CommitPolicy(batch=table.random.choice([1, 2, 64]))
    monkeypatch.setattr(CommitPolicy, "of", lambda _metadata: policy)
    try:
        play(table, version)
    finally:
        note("\n".join(table.log))
