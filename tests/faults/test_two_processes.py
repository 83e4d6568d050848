"""Two processes over one table, planned on the same snapshot with different tasks: their commits take turns, die and arrive
late. Each unit is committed once, whoever comes first with deletes that both would remove.

`STEP_HISTORIES=100` runs more of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from tests.faults.kept import Kept, dying
from tests.faults.test_foreign_history import check, with_upper_nodes
from tests.faults.test_steps import HISTORIES, Case, native
from tests.support import changes


def with_dangling_deletes(lake: Catalog, version: int) -> Case:
    """Equality deletes that apply to nothing, in a partition without data."""
    case = native(lake, version)
    for number in (2, 5):
        keys = pa.table({"id": pa.array([number], pa.int64())})
        changes.apply(lake.load_table("db.t"), partial(changes.equality_delete, keys=keys, partition=(9,)))
    return case


TABLES: dict[str, tuple[Callable[[Catalog], Case], tuple[str, str]]] = {
    "native v2": (lambda lake: with_dangling_deletes(lake, 2), ("part = 0", "part != 0")),
    "native v3": (lambda lake: with_dangling_deletes(lake, 3), ("part = 0", "part != 0")),
    "keyed": (with_upper_nodes, ("city = 'a'", "city != 'a'")),
}


@pytest.mark.parametrize("seed", range(HISTORIES))
@pytest.mark.parametrize("kind", TABLES)
def test_two_processes_take_turns(kind: str, seed: int, lake: Catalog) -> None:
    random = Random(f"two {kind} {seed}")
    make, conditions = TABLES[kind]
    case = make(lake)
    processes = [Kept.planned(case.table, where) for where in conditions]
    assert all(process.plan.dangling_deletes.height for process in processes) or kind == "keyed"
    late: list[Callable[[], Any]] = []
    for _ in range(random.randint(4, 8)):
        if random.random() < 0.2:
            case.write(random)
        if late and random.random() < 0.4:
            with contextlib.suppress(Exception):  # it lands, or the catalog refuses it
                late.pop(random.randrange(len(late)))()
        process = random.choice(processes)
        tasks = process.tasks_of(random.choice(process.units)) if random.random() < 0.5 else None
        match random.choice(["commit", "die", "clean"]):
            case "commit":
                process.commit(tasks)
            case "die":
                landed = random.random() < 0.5
                with dying(landed=landed) as held:
                    process.commit(tasks)
                late += held
            case "clean":
                process.clean()
        assert case.read() == case.rows
    for process in processes:
        process.commit()
    for let_through in late:
        with contextlib.suppress(Exception):
            let_through()
    for process in processes:
        process.commit()
        process.clean()
        unknown = set(process.units) - set(process.log.committed_units) - set(process.log.dropped)
        assert not unknown
        check(process, case)
    removed = [record.removed_deletes for process in processes for record in process.log.landed]
    paths = [path for frame in removed for path in frame["file_path"]]
    assert len(paths) == len(set(paths)), "two commits have removed one delete file"
