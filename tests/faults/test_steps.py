"""Every step of a process in an operating system process of its own, killed and repeated in any order while others write.

`STEP_HISTORIES=500` runs more of them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

import pyarctic
from pyarctic.config.table_properties import MERGED_SEQUENCES_STORAGE
from pyarctic.iceberg.write import told_snapshot
from tests.faults.steps import Steps, clean, commit_results, make_plan, run_task
from tests.support import changes
from tests.support.integrity import missing, needed, on_disk
from tests.support.keyed_tables import CITIES, cities, made, opened

HISTORIES = int(os.environ.get("STEP_HISTORIES", "2"))
_MAX_BOUNDARIES = 14
_SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.int32())])


@dataclass(frozen=True, kw_only=True)
class Case:
    """A table that needs optimizing, its rows, and somebody who changes them."""

    table: str
    rows: dict[int, Any]
    write: Callable[[Random], None]

    def read(self) -> dict[int, Any]:
        found = pyarctic.table(self.table).scan().to_arrow().to_pylist()
        assert len({row["id"] for row in found}) == len(found)
        return {row["id"]: tuple(row.values()) for row in found}

    def stores(self) -> list[Any]:
        table = pyarctic.table(self.table)
        return [table._loaded, *([opened().change_store._loaded] if table.primary_key else [])]


def native(lake: Catalog, version: int) -> Case:
    """Small files in three partitions, with deletes. Others append and delete rows."""
    properties = {"commit.retry.min-wait-ms": "1"}
    pyarctic.create_table("lake.db.t", _SCHEMA, (), ("part",), properties, format="iceberg", format_version=version)
    rows: dict[int, Any] = {}

    def append(ids: range) -> None:
        rows.update({number: (number, number % 3) for number in ids})
        data = pa.table({"id": [*ids], "part": [number % 3 for number in ids]}, schema=_SCHEMA)
        changes.apply(lake.load_table("db.t"), partial(changes.append, data=data))

    def delete(number: int) -> None:
        if rows.pop(number, None) is not None:
            changes.apply(lake.load_table("db.t"), partial(changes.position_delete, where=f"id = {number}"))

    numbers = itertools.count(1000, 3)

    def write(random: Random) -> None:
        if random.random() < 0.5:
            first = next(numbers)
            append(range(first, first + 3))
        else:
            delete(random.choice([*rows]))

    for first in (0, 10, 20):
        append(range(first, first + 9))
    delete(1)
    return Case(table="lake.db.t", rows=rows, write=write)


def keyed(_lake: Catalog, storage: str = "summary") -> Case:
    """Changes of three partitions, some merged before. Others upsert and delete."""
    rows: dict[int, Any] = {}
    table = made(CITIES, ("city",))
    table.set({MERGED_SEQUENCES_STORAGE.name: storage})

    def upsert(text: str, *ids: int) -> None:
        given = [(number, "abc"[number % 3], text) for number in ids]
        rows.update({row[0]: row for row in given})
        opened().write(cities(*given), "upsert")

    def delete(number: int) -> None:
        city = rows.pop(number)[1]
        opened().write(cities((number, city, "")), "delete")

    def write(random: Random) -> None:
        if random.random() < 0.6:
            upsert(f"t{random.random()}", *random.sample(range(30), 3))
        elif rows:
            delete(random.choice([*rows]))

    upsert("first", *range(12))
    pyarctic.optimize(table.name, "full")
    upsert("second", *range(6, 18))
    delete(7)
    return Case(table="lake.db.t", rows=rows, write=write)


CASES: dict[str, Callable[[Catalog], Case]] = {
    "native v2": lambda lake: native(lake, 2),
    "native v3": lambda lake: native(lake, 3),
    "keyed": keyed,
    "keyed statistics": partial(keyed, storage="statistics"),
}


@pytest.mark.parametrize("seed", range(HISTORIES))
@pytest.mark.parametrize("kind", CASES)
def test_steps_may_be_killed_and_repeated_in_any_order(kind: str, seed: int, lake: Catalog, tmp_path: Path) -> None:
    random = Random(f"{kind} {seed}")
    case = CASES[kind](lake)
    folder = tmp_path / "process"
    folder.mkdir()
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": tmp_path.as_uri()}
    steps = Steps(folder=folder, catalog=properties, table=case.table)
    for _ in range(random.randint(3, 12)):
        if random.random() < 0.4:
            case.write(random)
        step, arguments = _any_step(steps, random)
        die_at = random.choice([None, random.randint(1, _MAX_BOUNDARIES)])
        steps.run(step, *arguments, die_at=die_at)
        assert case.read() == case.rows
        assert [path for store in case.stores() for path in missing(store)] == []
    _finish(steps)
    _check(steps, case)


def _any_step(steps: Steps, random: Random) -> tuple[Callable[..., None], tuple[Any, ...]]:
    if not steps.is_planned:
        return make_plan, ()
    tasks: list[tuple[Callable[..., None], tuple[Any, ...]]] = [(run_task, (task.id,)) for task in steps.plan.tasks]
    return random.choice([(make_plan, ()), *tasks, *tasks, (commit_results, ()), (commit_results, ()), (clean, ())])


def _finish(steps: Steps) -> None:
    """Every step to its end, and once more than needed."""
    for _ in range(2):
        assert steps.run(make_plan)
        for task in steps.plan.tasks:
            assert steps.run(run_task, task.id)
        assert steps.run(commit_results)
        assert steps.run(clean)


def _check(steps: Steps, case: Case) -> None:
    assert case.read() == case.rows
    log, plan = steps.log, steps.plan
    assert log.open is None
    assert len(log.committed_units) == len(set(log.committed_units))
    commits = {record.snapshot_id for record in log.records}
    files = {path for store in case.stores() for path in on_disk(store)}
    of_process = {path for path in files if plan.job.id in path or told_snapshot(path) in commits}
    live = {path for store in case.stores() for path in needed(store)}
    assert of_process - live == set(), "files of the process that nothing refers to"
    for store in case.stores():
        assert missing(store) == []
    numbers = [path.name.split("-")[1] for path in steps.folder.glob("result-*.json")]
    assert len(numbers) == len(set(numbers)), "a task was executed although it had a result"
