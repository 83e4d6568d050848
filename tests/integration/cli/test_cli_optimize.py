"""`arctic table explain`, `optimize` and `rollback` over a table of small files and deletes."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from rich.console import Console

import pyarctic
from pyarctic.cli.view.facts import format_span
from pyarctic.cli.view.progress import BarWatcher
from pyarctic.optimizing.events import CommitLanded
from pyarctic.optimizing.protocol import Progress, TaskFailure
from tests.support import changes
from tests.support.cli_library import Arctic
from tests.support.cli_orders import BY_CITY, SCHEMA, new_catalog, orders

NAME = "demo.shop.orders"
SETTINGS = {
    "format-version": "2",
    "self-optimizing.minor.trigger.file-count": "3",
    "self-optimizing.writers-first": "false",
    "self-optimizing.target-sice": "1MB",
}


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[SqlCatalog]:
    """Three small files in each of two cities, one file in a third, and a key that was deleted in Oslo."""
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("shop.orders", SCHEMA, partition_spec=BY_CITY, properties=SETTINGS)
    for number in range(3):
        cities: list[str | None] = ["Oslo", "Oslo", "Rome", *(["Bergen"] if number == 0 else [])]
        append(catalog, 10 * number, cities)
    keys = pa.table([pa.array([0], pa.int64())], schema=pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    changes.apply(table, lambda now: changes.equality_delete(now, keys, ("Oslo",)))
    yield catalog
    catalog.close()


def append(catalog: SqlCatalog, first: int, cities: list[str | None]) -> None:
    changes.apply(catalog.load_table("shop.orders"), lambda now: changes.append(now, orders(first, cities)))


def data_files(folder: Path) -> set[Path]:
    return set((folder / "warehouse").rglob("*.parquet"))


def test_explain(arctic: Arctic, lake: SqlCatalog) -> None:
    ran = arctic("table", "explain", NAME)
    assert (ran.code, ran.err) == (0, "")
    words = [line.split() for line in ran.out.splitlines()]
    assert ["Partitions", "3,", "2", "due"] in words
    assert ["Now", "2", "tasks"] in words
    assert ["Rules", "for", "city=Oslo"] in words
    assert ["small-files", "minor", "4", "3", "met", "now"] in [line[:6] for line in words]
    assert ["minor-interval", "minor"] in [line[:2] for line in words]
    assert ["full-interval", "full", "off", "off"] in [[*line[:2], *line[4:6]] for line in words]
    assert ["city=Rome", "minor", "small-files"] in [line[:3] for line in words]
    assert "city=Bergen" not in ran.out
    assert ["0", "merge", "minor", "city=Oslo", "3", "1"] in [line[:6] for line in words]
    assert ["Data", "files", "6", "→", "about", "2"] in words
    assert "did you mean self-optimizing.target-size?" in ran.out
    limited = arctic("table", "explain", NAME, "--limit", "1")
    assert "1 of 2 tasks; `arctic table explain --limit 0` shows all" in limited.err


def test_explain_gives_way_on_a_narrow_terminal(arctic: Arctic, lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    ran = arctic("table", "explain", NAME)
    assert max(len(line) for line in ran.out.splitlines()) <= 70
    assert "columns left out: " in ran.err
    assert "Equality deletes" in arctic("table", "explain", NAME, "--wide").out


def test_explain_as_json(arctic: Arctic, lake: SqlCatalog) -> None:
    ran = arctic("table", "explain", NAME, "--where", "city = 'Rome'", "--json")
    assert (ran.code, ran.err) == (0, "")
    found = pyarctic.explain(NAME, where="city = 'Rome'").to_dict()
    assert set(ran.json) == set(found)
    assert ran.json["snapshot_id"] == found["snapshot_id"]
    assert [task["partition"] for task in ran.json["tasks"]] == ["city=Rome"]
    for output_format in ("csv", "markdown"):
        assert "city=Rome" in arctic("table", "explain", NAME, "--format", output_format).out
    assert arctic("table", "explain", NAME, "--format", "name").out == f"{NAME}\n"


def test_a_table_without_data(arctic: Arctic, lake: SqlCatalog) -> None:
    lake.create_table("shop.empty", SCHEMA)
    ran = arctic("table", "explain", "demo.shop.empty")
    assert ran.code == 0
    assert "none yet" in ran.out
    assert "nothing to do" in ran.out
    assert arctic("table", "explain", "demo.shop.empty", "--json").json["snapshot_id"] is None
    ran = arctic("table", "optimize", "demo.shop.empty")
    assert (ran.code, "nothing to do" in ran.out, ran.err) == (0, True, "")
    ran = arctic("table", "rollback", "demo.shop.empty", "--yes")
    assert (ran.code, ran.out) == (1, "")


def test_a_table_that_no_rule_asks_to_optimize(arctic: Arctic, lake: SqlCatalog) -> None:
    table = lake.create_table("shop.few", SCHEMA, partition_spec=BY_CITY)
    for n in range(5):
        table.append(orders(n * 3, ["Oslo", "Rome", "Lima"]))
    ran = arctic("table", "optimize", "demo.shop.few")
    assert (ran.code, "nothing to do" in ran.out) == (0, True)
    assert ran.err.startswith("no rule is met yet: see `arctic table explain demo.shop.few`; --kind minor")
    ran = arctic("table", "optimize", "demo.shop.few", "--kind", "minor", "--where", "city = 'Oslo'")
    assert ran.code == 0, ran.err
    ran = arctic("table", "optimize", "demo.shop.few", "--kind", "minor", "--where", "city = 'Oslo'")
    assert (ran.code, "nothing to do" in ran.out, ran.err) == (0, True, "")


def test_an_unpartitioned_table_is_one_task(arctic: Arctic, lake: SqlCatalog) -> None:
    table = lake.create_table("shop.few", SCHEMA)
    for n in range(3):
        table.append(orders(n, ["Oslo"]))
    ran = arctic("table", "optimize", "demo.shop.few", "--kind", "minor")
    assert ran.code == 0, ran.err
    told = ran.err.splitlines()
    assert told[0] == "task 0 (whole table) done, 1 of 1"
    assert told[1].startswith("committed 1 task as snapshot ")


def test_a_dry_run_changes_nothing(arctic: Arctic, lake: SqlCatalog, tmp_path: Path) -> None:
    before = lake.load_table("shop.orders").metadata_location
    files = data_files(tmp_path)
    ran = arctic("table", "optimize", NAME, "--dry-run")
    assert (ran.code, ran.err) == (0, "dry run: nothing was changed\n")
    assert "city=Oslo" in ran.out
    ran = arctic("table", "optimize", NAME, "--dry-run", "--json")
    assert (ran.json["dry_run"], ran.json["tasks_planned"], ran.json["changed"]) == (True, 2, False)
    assert ran.err == "dry run: nothing was changed\n"
    assert lake.load_table("shop.orders").metadata_location == before
    assert data_files(tmp_path) == files


def test_optimize_and_roll_back(arctic: Arctic, lake: SqlCatalog) -> None:
    start = arctic("table", "show", NAME, "--json").json["current_snapshot_id"]
    ran = arctic("table", "optimize", NAME, "--workers", "1", "--verify")
    assert ran.code == 0, ran.err
    told = ran.err.splitlines()
    assert sorted(line.split(" done, ")[0] for line in told[:2]) == ["task 0 (city=Oslo)", "task 1 (city=Rome)"]
    assert told[1].endswith(" done, 2 of 2")
    assert told[2].startswith("committed 2 tasks as snapshot ")
    words = [line.split() for line in ran.out.splitlines()]
    assert ["Data", "files", "7", "3"] in words
    assert ["Equality", "delete", "files", "1", "0"] in words
    assert ["Rows", "written", "9", "8"] in words
    assert "optimized: minor on engine local" in ran.out
    assert arctic("table", "scan", NAME, "--count").out == "9\n"

    again = arctic("table", "optimize", NAME)
    assert (again.code, "nothing to do" in again.out, again.err) == (0, True, "")

    optimized = arctic("table", "show", NAME, "--json").json["current_snapshot_id"]
    planned = arctic("table", "rollback", NAME, "--dry-run", "--json")
    document = {"table": NAME, "from_snapshot_id": optimized, "to_snapshot_id": start, "snapshots": [optimized]}
    assert planned.json == {**document, "dry_run": True}
    assert planned.err == "dry run: nothing was changed\n"
    unasked = arctic("table", "rollback", NAME)
    assert (unasked.code, unasked.out) == (2, "")
    assert f"from snapshot {optimized} to {start}" in unasked.err
    assert "hint: Add --yes" in unasked.err
    assert arctic("table", "show", NAME, "--json").json["current_snapshot_id"] == optimized

    done = arctic("table", "rollback", NAME, "--to", start, "--yes", "--json")
    assert (done.code, done.json, done.err) == (0, {**document, "dry_run": False}, "")
    assert arctic("table", "show", NAME, "--json").json["current_snapshot_id"] == start
    assert arctic("table", "scan", NAME, "--count").out == "9\n"


def test_optimize_as_json(arctic: Arctic, lake: SqlCatalog) -> None:
    ran = arctic("table", "optimize", NAME, "--where", "city = 'Rome'", "--json", "--quiet")
    assert (ran.code, ran.err) == (0, "")
    assert (ran.json["changed"], ran.json["tasks_committed"], ran.json["kinds"]) == (True, 1, ["minor"])
    assert ran.json["after"]["data_files"] == 5
    assert [type(snapshot) for snapshot in ran.json["snapshot_ids"]] == [str]

    append(lake, 100, ["Rome"])
    refused = arctic("table", "rollback", NAME, "--yes")
    assert (refused.code, refused.out) == (4, "")
    assert refused.err.startswith(f"error[rejected]: {NAME}: snapshot ")
    assert "would be lost" in refused.err
    assert arctic("table", "rollback", NAME, "--dry-run").code == 4
    first = str(lake.load_table("shop.orders").metadata.snapshots[0].snapshot_id)
    assert arctic("table", "rollback", NAME, "--to", first, "--yes").code == 4
    assert arctic("table", "rollback", NAME, "--to", "5", "--yes").code == 1


def test_what_fails_is_told_and_the_rest_stays(arctic: Arctic, lake: SqlCatalog, tmp_path: Path) -> None:
    next(path for path in data_files(tmp_path) if "city=Rome" in str(path)).unlink()
    ran = arctic("table", "optimize", NAME)
    assert ran.code == 1
    assert "partly optimized" in ran.out
    assert "1 of 2 committed, 1 failed" in ran.out
    assert "Failed" in ran.out
    assert "(city=Rome) failed [damaged]: " in ran.err
    assert ran.err.splitlines()[-1] == "1 of 2 tasks failed; the other tasks are committed"
    ran = arctic("table", "optimize", NAME, "--json")
    assert ran.code == 1
    assert (ran.json["changed"], ran.json["failures"][0]["code"]) == (False, "damaged")
    assert ran.err.splitlines()[-1] == "1 of 1 task failed; nothing was changed"


def test_partitions_with_writers_are_held_back(arctic: Arctic, lake: SqlCatalog) -> None:
    with lake.load_table("shop.orders").transaction() as transaction:
        transaction.set_properties({"self-optimizing.writers-first": "true"})
    changes.apply(lake.load_table("shop.orders"), lambda now: changes.position_delete(now, "id = 1"))
    explained = arctic("table", "explain", NAME).out
    assert "Waiting" in explained
    assert "others change rows here" in explained
    ran = arctic("table", "optimize", NAME, "--where", "city = 'Oslo'", "--dry-run", "--json")
    assert ran.json["held_back"] == ["city=Oslo"]
    assert "1 partition held back for concurrent writers: city=Oslo" in ran.err
    ran = arctic("table", "optimize", NAME, "--ignore-writers", "--dry-run")
    assert ["merge", "minor", "city=Oslo"] in [line.split()[1:4] for line in ran.out.splitlines()]
    ran = arctic("table", "explain", NAME, "--ignore-writers")
    assert "Waiting" not in ran.out
    assert ["merge", "minor", "city=Oslo"] in [line.split()[1:4] for line in ran.out.splitlines()]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["explain", NAME, "--kind", "foo"], 2, "One of: auto, minor, major, full."),
        (["optimize", NAME, "--engine", "foo"], 2, "One of: local, spark."),
        (["optimize", NAME, "--workers", "0"], 2, "--workers"),
        (["optimize", NAME, "--where", "city >"], 2, "city >"),
        (["explain", NAME, "--where", "nope = 3"], 2, "nope"),
        (["rollback", NAME, "--to", "yesterday"], 2, "--to"),
        (["explain", "demo.shop.nope"], 1, "demo.shop.nope"),
        (["optimize", "demo.shop.nope"], 1, "demo.shop.nope"),
        (["rollback", "demo.shop.nope", "--yes"], 1, "demo.shop.nope"),
        (["rollback", NAME, "--yes"], 4, "not optimized"),
    ],
)
def test_mistakes(arctic: Arctic, lake: SqlCatalog, words: list[str], code: int, told: str) -> None:
    ran = arctic("table", *words)
    assert (ran.code, ran.out) == (code, "")
    assert told in ran.err
    assert "hint: " in ran.err


@pytest.mark.parametrize("command", ["explain", "optimize"])
def test_a_bad_property_is_named(arctic: Arctic, lake: SqlCatalog, command: str) -> None:
    with lake.load_table("shop.orders").transaction() as transaction:
        transaction.set_properties({"self-optimizing.target-size": "abc"})
    ran = arctic("table", command, NAME)
    assert (ran.code, ran.out) == (2, "")
    assert f"{NAME}: table property self-optimizing.target-size = 'abc' is not valid" in ran.err
    assert "Allowed is a size such as 128MB" in ran.err
    problem = json.loads(arctic("table", command, NAME, "--json").err)
    assert problem["facts"] == {"table": NAME, "key": "self-optimizing.target-size", "value": "abc"}


def test_what_was_asked_is_passed_on(arctic: Arctic, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def interrupted(*words: Any, **options: Any) -> None:
        del options["listener"]
        asked.append((words, options))
        raise KeyboardInterrupt

    monkeypatch.setattr(pyarctic, "optimize", interrupted)
    ran = arctic("table", "optimize", NAME, "--engine", "spark", "--kind", "major", "--verify", "--workers", "3")
    asked_for = {"kind": "major", "engine": "spark", "where": None, "dry_run": False, "verify": True, "workers": 3}
    assert asked == [((NAME,), {**asked_for, "ignore_writers": False})]
    assert (ran.code, ran.out) == (130, "")
    assert ran.err.splitlines() == [
        "interrupted: committed tasks are kept, the rest of the table is unchanged",
        "error[interrupted]: interrupted",
    ]


def test_an_interrupt_ends_the_run_and_its_workers(lake: SqlCatalog, tmp_path: Path) -> None:
    before = lake.load_table("shop.orders").metadata_location
    files = data_files(tmp_path)
    command = [sys.executable, "-m", "pyarctic.cli", "table", "optimize", NAME, "--workers", "2"]
    # Of its own group, so that only the command itself is interrupted and not the tests.
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path, start_new_session=True)
    while not (workers := children(running.pid)) and running.poll() is None:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, told = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "committed tasks are kept" in told
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]
    assert lake.load_table("shop.orders").metadata_location == before
    assert data_files(tmp_path) == files


def children(pid: int) -> list[int]:
    """The processes that this one started."""
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(word) for word in found.stdout.split()]


class Keyboard(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("typed", "code"), [("yes\n", 0), ("no\n", 1), ("\n", 1), ("", 130)])
def test_a_rollback_is_confirmed(
    arctic: Arctic, lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch, typed: str, code: int
) -> None:
    marked = {"arctic.process-id": "1"}
    table = changes.apply(lake.load_table("shop.orders"), lambda now: changes.rewrite(now, snapshot_properties=marked))
    optimized = changes.head(table)
    monkeypatch.setattr("sys.stdin", Keyboard(typed))
    ran = arctic("table", "rollback", NAME)
    assert ran.code == code, ran.err
    assert f"{NAME} will be rolled back from snapshot {optimized} to " in ran.err
    moved = changes.head(lake.load_table("shop.orders")) != optimized
    assert (moved, "rolled back" in ran.out) == (code == 0, code == 0)


def test_the_bar(lake: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyarctic.optimizing import Options
    from pyarctic.optimizing.api import plan_table

    monkeypatch.chdir(tmp_path)
    pyarctic.config.reset()
    plan = plan_table(pyarctic.table(NAME), Options())
    assert plan is not None
    screen = io.StringIO()
    bar = BarWatcher(NAME, Console(file=screen, force_terminal=True, width=120, color_system=None))
    total = sum(task.input_bytes for task in plan.tasks)
    with bar.display as drawn:
        bar.planned(plan)
        bar.progress(Progress(task=0, rows=1, bytes=10))
        assert (drawn.tasks[0].completed, drawn.tasks[0].total) == (10, total)
        bar.progress(Progress(task=0, rows=0, bytes=5))
        assert drawn.tasks[0].completed == 10
        bar.ended(0, None)
        assert drawn.tasks[0].completed == plan.tasks[0].input_bytes
        bar.ended(1, TaskFailure(task=1, attempt=0, code="damaged", detail="gone", hint="look"))
        assert drawn.tasks[0].finished
        bar(CommitLanded(snapshot_id=1, units=(0,), tasks=1))
        drawn.refresh()
        bar.planned(plan)
        assert (drawn.tasks[0].completed, drawn.tasks[0].finished) == (0, False)
    assert bar.failed == ["city=Rome"]
    shown = screen.getvalue()
    assert "2/2 tasks" in shown
    assert "task 1 (city=Rome) failed [damaged]: gone; look" in shown
    assert "committing to" in shown
    assert "committed 1 task as snapshot 1\n" in shown


def test_spans() -> None:
    assert [format_span(seconds) for seconds in (0, 0.2, 59, 5400, 86400, 90061)] == [
        "0 s",
        "0 s",
        "59 s",
        "1 h 30 min",
        "1 d",
        "1 d 1 h",
    ]
