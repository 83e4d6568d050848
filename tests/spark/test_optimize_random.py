"""Optimizing and Iceberg Java on one table: Java writes before, during and after each kind of it, and after each step both
read the rows of a model, with the same row ids.

`HISTORIES=50` tries fifty histories of every table instead of one; `FIRST_HISTORY` says where to begin.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any

import polars as pl
import pytest
from pyiceberg.table import Table

from pyarctic.iceberg.commit import Committed, commit
from pyarctic.optimizing import KindChoice, Options, optimize_table
from tests.oracle.compare import arctic_table
from tests.oracle.javaturns import JavaTurns
from tests.oracle.ourturns import OurTurns, Turn
from tests.oracle.session import Oracle
from tests.oracle.sharedtable import Layout, Row, SharedTable
from tests.support import changes
from tests.support.integrity import leftovers_of_ours, missing
from tests.support.optimizing import InProcessEngine, RecordingListener

pytestmark = pytest.mark.jvm

FIRST = int(os.environ.get("FIRST_HISTORY", "0"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("HISTORIES", "1")))
ROUNDS = 4 if "HISTORIES" in os.environ else 2
KINDS: tuple[KindChoice, ...] = ("auto", "minor", "major", "full")
TABLES: list[tuple[Layout, int]] = [("whole", 1), ("whole", 2), ("whole", 3), ("identity", 2), ("hashed", 3)]
if "HISTORIES" in os.environ:
    TABLES += [("identity", 3), ("hashed", 2)]
history_log = logging.getLogger(__name__)  # pytest shows it when a test fails
history_log.setLevel(logging.INFO)


class History:
    """Java's statements and our changes in random turns, and optimizing with Java in the middle of them."""

    def __init__(self, shared: SharedTable, seed: str) -> None:
        self._shared = shared
        self._random = Random(seed)
        self._ids = count(1)
        told: dict[str, Any] = {"shared": shared, "random": self._random, "fresh": self._fresh}
        self._ours, self._java = OurTurns(**told), JavaTurns(**told)
        self._meanwhile = 0
        self._took_files = False
        self.steps = 0

    def begin(self, layout: Layout, version: int, *, by_java: bool) -> None:
        random = self._random
        modes = {
            f"write.{statement}.mode": random.choice(["copy-on-write", "merge-on-read"]) if version > 1 else "copy-on-write"
            for statement in ("delete", "update", "merge")
        }
        properties = {
            **modes,
            "write.delete.granularity": random.choice(["file", "partition"]),
            "self-optimizing.writers-first": "false",
            "self-optimizing.target-size": random.choice(["2kb", "8kb", "100kb"]),
            "self-optimizing.fragment-ratio": random.choice(["1", "2"]),
            "self-optimizing.minor.trigger.file-count": random.choice(["2", "4"]),
            "self-optimizing.major.trigger.delete-size-lowest": "1",
        }
        history_log.info(f"{layout}, version {version}, {properties}")
        self._shared.create(layout, version, by_java=by_java, properties=properties)
        self._java_step(self._java.insert)
        if layout == "identity":
            self._shared.partition(by_java=by_java)
        self._java_step(self._java.insert)

    def play(self) -> None:
        for _ in range(self._random.randint(1, 4)):
            if self._random.random() < 0.6:
                self._java_step()
            else:
                self._our_step()
        self._optimize()

    def _java_step(self, statement: Callable[[str], str] | None = None) -> None:
        java = self._java
        chosen = statement or self._random.choice([java.insert, java.insert, java.delete, java.update, java.merge])
        history_log.info(f"Java: {chosen('main')}")
        self._checked()

    def _our_step(self) -> None:
        ours, table = self._ours, self._shared.load()
        plans: list[Callable[[Table, str], Turn | None]] = [ours.append]
        if table.format_version > 1:
            plans += [ours.equality_delete, ours.global_equality_delete, ours.position_delete]
        turn = self._random.choice(plans)(table, "main")
        if turn is None:
            return
        outcome = commit(table, turn.change)
        assert isinstance(outcome, Committed), (turn.name, outcome)
        for path in outcome.unused_files:
            table.io.delete(path)
        turn.effect(self._shared.rows["main"])
        history_log.info(f"ours: {turn.name}")
        self._checked()

    def _optimize(self) -> None:
        kind = self._random.choice(KINDS)
        self._meanwhile, self._took_files = self._random.choice([0, 1, 1, 2]), False
        engine = InProcessEngine(after_task=self._others, before_commit=self._others)
        onlooker = RecordingListener(self._others)
        options = Options(kind=kind, verify=True, memory_bytes=self._random.choice([16 << 10, 64 << 20]))
        report = optimize_table(arctic_table(self._shared.oracle, self._shared.name), engine, options, onlooker)
        history_log.info(
            f"optimizing ({kind}): {report.tasks_planned} tasks, {report.tasks_dropped} dropped, {report.rebased_rows} rows "
            f"rebased; {onlooker.messages}"
        )
        assert not report.failures
        assert self._took_files or not report.tasks_dropped, onlooker.messages
        self._checked()
        if report.changed:
            self._shared.check_summary()

    def _others(self) -> None:
        """Somebody commits in the middle of a round."""
        if not self._meanwhile or self._random.random() < 0.3:
            return
        self._meanwhile -= 1
        history_log.info("meanwhile:")
        before = self._files()
        if self._random.random() < 0.7:
            self._java_step()
        else:
            self._our_step()
        now = self._files()
        # Rows on their way to another partition spec get out of reach of equality deletes that arrive meanwhile.
        arrived = bool(now["equality"] - before["equality"]) and len(self._shared.load().specs()) > 1
        self._took_files |= bool(before["data"] - now["data"]) or arrived

    def _files(self) -> dict[str, set[str]]:
        listed = changes.files(self._shared.load())
        return {
            "data": set(listed.filter(pl.col("content") == 0)["file_path"]),
            "equality": set(listed.filter(pl.col("content") == 2)["file_path"]),
        }

    def _checked(self) -> None:
        self.steps += 1
        self._shared.check("main")

    def _fresh(self, number: int) -> list[Row]:
        ids = [next(self._ids) for _ in range(number)]
        return [(key, self._random.choice([0, 0, 1, 1, None]), f"{self._random.choice('ab')}{key}") for key in ids]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("layout", "version"), TABLES)
def test_optimizing(oracle: Oracle, layout: Layout, version: int, seed: int) -> None:
    shared = SharedTable(oracle, oracle.catalog, oracle.name, f"{oracle.namespace()}.t")
    history = History(shared, f"{layout}-{version}-{seed}")
    history.begin(layout, version, by_java=(version + seed + (layout == "hashed")) % 2 == 0)
    for _ in range(ROUNDS):
        history.play()
    table = shared.load()
    assert not missing(table)
    assert not leftovers_of_ours(table)
    history_log.info(f"{history.steps} steps")
