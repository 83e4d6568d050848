"""Optimizing on executors of a Spark session, and as SQL functions; Iceberg Java reads the same rows before and after."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyspark import cloudpickle

import pyarctic
import pyarctic.spark
from pyarctic import config
from pyarctic.errors import Damaged
from pyarctic.iceberg.manifest import FILE_SCHEMA
from pyarctic.optimizing.events import ProcessEvent, TaskEnded
from pyarctic.optimizing.execute import AttemptFuture
from pyarctic.optimizing.protocol import Job, Task, TaskFailure
from pyarctic.spark import SparkEngine
from pyarctic.spark.engine import task_function
from pyarctic.spark.sql_functions import EXPLAIN_COLUMNS, OPTIMIZE_COLUMNS
from tests.faults import spoiled
from tests.faults.test_optimize_faults import is_running, wait_until
from tests.oracle.compare import assert_same_rows, multiset
from tests.oracle.session import Oracle
from tests.support import changes
from tests.support.fragmented_table import FIRST, SECOND, TASKS, THIRD, fragmented_table, name_begins
from tests.support.integrity import leftovers_of_ours, local, missing, on_disk

pytestmark = pytest.mark.jvm


@pytest.fixture(autouse=True)
def no_catalogs_after() -> Iterator[None]:
    yield
    config.reset()


@pytest.fixture
def fragmented(oracle: Oracle, request: pytest.FixtureRequest) -> Table:
    """A table of the version that the test is called for, known to PyArctic."""
    table = fragmented_table(oracle.catalog, f"{oracle.namespace()}.t", getattr(request, "param", 2))
    declare(oracle)
    return table


def declare(oracle: Oracle, **more: str) -> None:
    url, warehouse = str(oracle.catalog.engine.url), oracle.catalog.properties["warehouse"]
    pyarctic.catalog(oracle.name, type="sql", uri=url, warehouse=warehouse, **more)


def short_name(table: Table) -> str:
    return ".".join(table.name())


def full_name(oracle: Oracle, table: Table) -> str:
    return f"{oracle.name}.{short_name(table)}"


def loaded(table: Table) -> Table:
    return table.catalog.load_table(table.name())


# ---- the engine ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fragmented", [2, 3], indirect=True)
def test_a_table_is_optimized_on_executors(oracle: Oracle, fragmented: Table) -> None:
    before = assert_same_rows(oracle, short_name(fragmented))
    report = pyarctic.optimize(full_name(oracle, fragmented), "full", oracle.spark, verify=True)
    assert report.engine == "spark"
    assert report.tasks_committed == report.tasks_planned == TASKS
    assert not report.failures
    assert (report.after.data_files, report.after.delete_files) == (TASKS, 0)
    assert report.peak_task_bytes > 0
    assert multiset(assert_same_rows(oracle, short_name(fragmented))) == multiset(before)
    found = loaded(fragmented)
    assert missing(found) == []
    assert leftovers_of_ours(found) == []


_EXECUTOR = """
import json, pickle, sys
import pyarrow as pa
run = pickle.load(sys.stdin.buffer)
early = [name for name in ("polars", "pyarctic") if name in sys.modules]
[answer] = run([pa.RecordBatch.from_pydict({"id": [0]})])
import polars
seen = {"early": early, "threads": polars.thread_pool_size(), "answer": json.loads(answer["answer"][0].as_py())}
json.dump(seen, sys.stdout)
"""


@pytest.mark.parametrize(("version", "told"), [(None, "the job has no field 'type'"), ("0.0.1", "the driver 0.0.1")])
def test_an_executor_has_one_thread_for_polars_and_tells_all_errors(
    monkeypatch: pytest.MonkeyPatch, version: str | None, told: str
) -> None:
    if version is not None:
        monkeypatch.setattr("pyarctic.spark.engine.__version__", version)
    task = json.dumps(_task().to_json())
    run = task_function(json.dumps({"id": "a job that is not whole"}), {}, task, 1000)
    function = cloudpickle.dumps(run)  # type: ignore[no-untyped-call]
    done = subprocess.run([sys.executable, "-c", _EXECUTOR], input=function, capture_output=True, check=True)
    seen = json.loads(done.stdout)
    failure = TaskFailure.from_json(seen["answer"]["failure"])
    assert (failure.task, failure.attempt) == (7, 1000)
    assert told in failure.detail
    assert seen["early"] == []
    assert seen["threads"] == 1


def _task() -> Task:
    return Task(
        id=7,
        action="merge",
        kind="full",
        partition="",
        files=pl.DataFrame(schema=FILE_SCHEMA),
        spec_id=0,
        partition_key=None,
        target_bytes=1,
        expected_rows=0,
        expected_bytes=0,
    )


def test_a_broken_file_spoils_its_own_task_only(oracle: Oracle, fragmented: Table) -> None:
    before = changes.rows(fragmented, where="part = 0 or part = 2")
    path = pyarctic.table(full_name(oracle, fragmented)).files(content="data").filter(partition="part=1")["file_path"][0]
    Path(local(path)).write_bytes(b"PAR1 no more")
    report = pyarctic.optimize(full_name(oracle, fragmented), "full", oracle.spark)
    [failure] = report.failures
    assert (failure.task, failure.attempt, failure.code) == (SECOND, 0, "damaged")
    assert path in failure.detail
    assert failure.hint
    assert report.tasks_committed == TASKS - 1
    found = loaded(fragmented)
    assert leftovers_of_ours(found) == []
    assert multiset(changes.rows(found, where="part = 0 or part = 2")) == multiset(before)
    with pytest.raises(Damaged, match=Path(path).name):
        changes.rows(found, where="part = 1")


# ---- stopping -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def signs(oracle: Oracle, tmp_path: Path) -> Path:
    """Where those who hang leave their signs; executors know the storage that makes them hang."""
    oracle.spark.sparkContext.addPyFile(spoiled.__file__)
    return tmp_path


def spoil(oracle: Oracle, signs: Path, hang: str) -> None:
    declare(oracle, **{"py-io-impl": "spoiled.SpoiledFileIO", spoiled.SIGNS: str(signs), spoiled.HANG: hang})


def hanging(signs: Path) -> int:
    """Wait until a task hangs; gives the id of its process."""
    wait_until(lambda: any(signs.glob("*.parquet")))
    return int(next(signs.glob("*.parquet")).read_text())


def test_ctrl_c_cancels_tasks_and_leaves_nothing(oracle: Oracle, fragmented: Table, signs: Path) -> None:
    files = on_disk(fragmented)
    spoil(oracle, signs, f"^{name_begins(SECOND)}")
    listener = _Interrupting(signs)
    with pytest.raises(KeyboardInterrupt):
        pyarctic.optimize(full_name(oracle, fragmented), "full", oracle.spark, listener=listener)
    assert listener.ended_tasks
    wait_until(lambda: not is_running(hanging(signs)), seconds=10)
    assert on_disk(fragmented) == files
    assert oracle.spark.range(3).count() == 3, "the session goes on"


class _Interrupting:
    """Somebody who looks on, and presses Ctrl-C after the first task when another one hangs."""

    def __init__(self, signs: Path) -> None:
        self._signs = signs
        self.ended_tasks: list[int] = []

    def __call__(self, event: ProcessEvent) -> None:
        if isinstance(event, TaskEnded):
            self.ended_tasks.append(event.task)
            hanging(self._signs)
            raise KeyboardInterrupt


def test_results_that_nobody_took_are_removed(oracle: Oracle, fragmented: Table, signs: Path) -> None:
    files = on_disk(fragmented)
    spoil(oracle, signs, f"^{name_begins(THIRD)}")
    engine = SparkEngine(oracle.spark, workers=1)
    with pytest.raises(_Enough):
        pyarctic.optimize(full_name(oracle, fragmented), "full", engine, listener=_Impatient(fragmented, signs))
    assert on_disk(fragmented) == files


class _Enough(Exception):
    """Whoever wanted the outcomes does not want them any more."""


class _Impatient:
    """Listens until the first task has ended, and gives up when the second one is done and the third hangs."""

    def __init__(self, table: Table, signs: Path) -> None:
        self._folder = Path(local(table.location()))
        self._signs = signs

    def __call__(self, event: ProcessEvent) -> None:
        if isinstance(event, TaskEnded):
            other = SECOND if event.task == FIRST else FIRST
            wait_until(lambda: any(self._folder.rglob(f"{name_begins(other, 0)}*-rowmap.parquet")))
            hanging(self._signs)
            raise _Enough


# ---- secrets ------------------------------------------------------------------------------------------------------------

_SECRET = "tell-nobody-5f1c"


def test_credentials_are_in_no_plan(oracle: Oracle, fragmented: Table) -> None:
    declare(oracle, **{"s3.secret-access-key": _SECRET})
    engine = _Listening(oracle)
    report = pyarctic.optimize(full_name(oracle, fragmented), "full", engine)
    assert not report.failures
    assert engine.had_the_secret
    assert engine.told
    assert _SECRET not in "".join(engine.told)
    assert _SECRET not in json.dumps(report.to_dict())
    # What Spark's pages and event log show of its queries and jobs.
    shown = [str(query) for query in queries(oracle)]
    assert any("answer" in text for text in shown), "the tasks are among them"
    assert not any(_SECRET in text for text in shown)


def queries(oracle: Oracle) -> Iterator[str]:
    listed = oracle.spark._jsparkSession.sharedState().statusStore().executionsList()
    for number in range(listed.size()):
        query = listed.apply(number)
        yield f"{query.description()} {query.details()} {query.physicalPlanDescription()}"


class _Listening:
    """Keeps what is told about the work in JSON."""

    name = "listening"

    def __init__(self, oracle: Oracle) -> None:
        self._engine = SparkEngine(oracle.spark)
        self.parallelism = self._engine.parallelism
        self.told: list[str] = []
        self.had_the_secret = False

    def prepare(self, tasks: Sequence[Task]) -> None:
        self._engine.prepare(tasks)

    def submit(self, job: Job, io: FileIO, task: Task, attempt: int, listen: Any) -> AttemptFuture:
        self.told += [json.dumps(job.to_json()), json.dumps(task.to_json())]
        self.had_the_secret = _SECRET in io.properties.values()
        return self._engine.submit(job, io, task, attempt, listen)


# ---- SQL ----------------------------------------------------------------------------------------------------------------


def names_of(columns: str) -> list[str]:
    return [column.split()[0] for column in columns.split(", ")]


def test_sql_functions(oracle: Oracle, fragmented: Table) -> None:
    pyarctic.spark.register(oracle.spark)
    name = full_name(oracle, fragmented)
    before = assert_same_rows(oracle, short_name(fragmented))

    explained = oracle.sql(f"select * from arctic_explain('{name}', kind => 'full')")
    assert explained.columns == names_of(EXPLAIN_COLUMNS)
    rows = explained.collect()
    assert {row["partition"] for row in rows} == {"part=0", "part=1", "part=2"}
    assert {row["kind"] for row in rows} == {"full"}
    assert len({row["rule"] for row in rows}) > 3

    dry = oracle.sql(f"select * from arctic_optimize('{name}', kind => 'full', dry_run => true)")
    assert dry.columns == names_of(OPTIMIZE_COLUMNS)
    [row] = dry.collect()
    assert (row["changed"], row["tasks_planned"], row["tasks_committed"]) == (False, TASKS, 0)
    assert loaded(fragmented).metadata.current_snapshot_id == fragmented.metadata.current_snapshot_id

    [row] = oracle.sql(f"select * from arctic_optimize('{name}', where => 'part = 1', kind => 'full')").collect()
    assert (row["changed"], row["tasks_committed"], row["tasks_failed"]) == (True, 1, 0)
    [row] = oracle.sql(f"select * from arctic_optimize('{name}', 'full')").collect()
    assert (row["tasks_committed"], row["delete_files_after"]) == (TASKS - 1, 0)
    assert row["table"] == name
    assert row["health_before"] <= row["health_after"] == 100
    assert json.loads(row["report"])["engine"] == "local"
    assert row["snapshot_ids"][-1] == loaded(fragmented).metadata.current_snapshot_id
    assert multiset(assert_same_rows(oracle, short_name(fragmented))) == multiset(before)
    assert leftovers_of_ours(loaded(fragmented)) == []


def test_sql_functions_say_what_is_wrong(oracle: Oracle, fragmented: Table) -> None:
    pyarctic.spark.register(oracle.spark)
    name = full_name(oracle, fragmented)
    wrong = {
        f"arctic_optimize('{name}x')": f"table {name}x does not exist",
        f"arctic_explain('{name}x')": f"table {name}x does not exist",
        f"arctic_optimize('{name}', kind => 'thorough')": "unknown kind of optimizing: 'thorough'",
    }
    for call, told in wrong.items():
        with pytest.raises(Exception, match=told):
            oracle.sql(f"select * from {call}").collect()
