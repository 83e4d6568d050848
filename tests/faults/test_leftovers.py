"""Processes that are ended by SIGTERM clean up; what killed ones leave is removed by a later one, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import UnauthorizedError
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from sqlalchemy.exc import OperationalError

import pyarctic
from pyarctic import config
from pyarctic.errors import Conflict, OutcomeUnknown, Unavailable
from pyarctic.iceberg import write_bytes
from pyarctic.optimizing import Options, Report
from pyarctic.optimizing.api import optimize_table
from pyarctic.optimizing.commit import committer as offering
from pyarctic.optimizing.commit import leftovers as leftover_files
from pyarctic.optimizing.execute import process_records
from pyarctic.optimizing.execute.process_records import ProcessRecord, ProcessState, RecordedProcess, recorded_processes
from pyarctic.tables import commit_outcomes
from tests.faults import spoiled
from tests.faults.lab import NAME, Lab, Point, content
from tests.faults.test_optimize_faults import (
    _OPTIMIZE,
    Spoilt,
    check_healed,
    check_unharmed,
    driver,
    full_name,
    handle_of,
    is_running,
    optimize_with_trap,
    properties_of,
    ready,
    records_of,
    wait_until,
)
from tests.support.fragmented_table import FIRST, SECOND, TASKS, name_begins
from tests.support.integrity import leftovers, missing, on_disk
from tests.support.optimizing import InProcessEngine, RecordingListener

_SECONDS = 60.0


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(process_records, "_MIN_SILENT_SECONDS", 0.0)
    yield
    config.reset()


def set_min_age(table: Table, age: str = "0s") -> None:
    with table.catalog.load_table(table.name()).transaction() as transaction:
        transaction.set_properties({"self-optimizing.leftovers.min-age": age})


def optimize(lab: Lab, table: Table) -> Report:
    pyarctic.catalog(NAME, **properties_of(lab))
    return pyarctic.optimize(full_name(table), "full")


def hanging_storage(lab: Lab) -> Spoilt:
    return Spoilt(lab, **{spoiled.HANG: f"^{name_begins(SECOND)}"})


def command(lab: Lab, storage: Spoilt, table: str, *options: str) -> tuple[str, ...]:
    configured = lab.folder / "arctic.yaml"
    configured.write_text(json.dumps({"catalogs": {NAME: storage.properties}}))
    words = ("table", "optimize", table, "--kind", "full", "--workers", "1", *options)
    return ("-m", "pyarctic.cli", "--config", str(configured), *words)


# ---- SIGTERM ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whom", ["the driver", "all processes"])
def test_sigterm_leaves_nothing_behind(lab: Lab, whom: str) -> None:
    table, before = ready(lab)
    files = on_disk(table)
    storage = hanging_storage(lab)
    with driver(*command(lab, storage, full_name(table), "--json")) as process:
        worker = storage.hanging()
        if whom == "the driver":
            process.send_signal(signal.SIGTERM)
        else:
            os.killpg(process.pid, signal.SIGTERM)
        _, told = process.communicate(timeout=_SECONDS)
    assert process.returncode == 143, told
    assert json.loads(told.splitlines()[-1])["code"] == "terminated"
    assert "Traceback" not in told
    assert not is_running(worker)
    assert on_disk(table) == files
    assert content(lab.loaded(table)) == before


def test_a_script_ends_by_the_signal_after_it_has_cleaned_up(lab: Lab) -> None:
    table, _ = ready(lab)
    files = on_disk(table)
    storage = hanging_storage(lab)
    with driver("-c", _OPTIMIZE, full_name(table), json.dumps(storage.properties)) as process:
        worker = storage.hanging()
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=_SECONDS)
    assert (process.returncode, told) == (-signal.SIGTERM, "")
    assert not is_running(worker)
    assert on_disk(table) == files


def test_whoever_handles_sigterm_goes_on_doing_so(lab: Lab) -> None:
    table, _ = ready(lab)
    received: list[int] = []
    previous = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        engine = InProcessEngine(before_commit=lambda: signal.raise_signal(signal.SIGTERM))
        report = optimize_table(handle_of(lab.catalog, table), engine, Options(kind="full"))
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert received == [signal.SIGTERM]
    assert report.tasks_committed == TASKS
    assert signal.getsignal(signal.SIGTERM) == previous


# ---- SIGKILL ------------------------------------------------------------------------------------------------------------


def test_what_a_killed_process_leaves_is_removed_later_and_nothing_else(lab: Lab) -> None:
    table, before = ready(lab)
    files = on_disk(table)
    storage = hanging_storage(lab)
    with driver(*command(lab, storage, full_name(table))) as process:
        worker = storage.hanging()
        process.kill()
        wait_until(lambda: not is_running(worker), seconds=10)
        process.communicate()
    left = on_disk(table) - files - records_of(table)
    assert {Path(path).name[:7] for path in left} == {f"{FIRST:05}-0"}
    # A service names files in the same way, but nobody has a record of it.
    [one, *_] = left
    of_a_service = Path(one).with_name(f"{FIRST:05}-0-11111111-2222-3333-4444-555555555555-00001.parquet")
    of_a_service.write_bytes(Path(one).read_bytes())
    assert optimize(lab, table).leftovers_removed == 0, "it may be alive for three days"
    assert left < on_disk(table)
    set_min_age(table)
    report = optimize(lab, table)
    assert report.leftovers_removed == len(left)
    assert f"{len(left)} files of killed processes were removed" in str(report)
    check_unharmed(lab, table, before, orphans={str(of_a_service)})
    assert optimize(lab, table).leftovers_removed == 0


def test_files_of_a_live_process_stay(lab: Lab) -> None:
    table, before = ready(lab)
    set_min_age(table)
    files = on_disk(table)
    storage = hanging_storage(lab)
    with driver(*command(lab, storage, full_name(table))) as process:
        worker = storage.hanging()
        written = on_disk(table) - files
        report = optimize(lab, table)
        assert (report.tasks_committed, report.leftovers_removed) == (TASKS, 0)
        assert written <= on_disk(table)
        process.kill()
        wait_until(lambda: not is_running(worker), seconds=10)
        process.communicate()
    left = written - records_of(table)
    left = {path for path in left if Path(path).exists()}
    assert optimize(lab, table).leftovers_removed == len(left) > 0
    check_unharmed(lab, table, before)


_OPTIMIZE_KEYED = """
import json, os, signal, sys, pyarctic
from pyarctic.optimizing import TaskEnded

def kill_after_a_task(event):
    if isinstance(event, TaskEnded):
        os.kill(os.getpid(), signal.SIGKILL)

pyarctic.catalog("lake", **json.loads(sys.argv[2]))
pyarctic.optimize(sys.argv[1], "full", workers=1, listener=kill_after_a_task)
"""


def test_a_keyed_table(lake: Catalog, tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("city", pa.string(), nullable=False)])
    table = pyarctic.create_table("lake.db.people", schema, ["id", "city"], ["city"])
    for round_ in range(2):
        rows = [{"id": number, "city": city} for number in range(round_, 5) for city in ("a", "b")]
        table.write(pa.Table.from_pylist(rows, schema=schema), mode="upsert")
    table.set({"self-optimizing.leftovers.min-age": "0s"})
    base = lake.load_table("db.people")
    files = on_disk(base)
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": tmp_path.as_uri()}
    with driver("-c", _OPTIMIZE_KEYED, table.name, json.dumps(properties)) as process:
        process.communicate(timeout=_SECONDS)
    assert process.returncode == -signal.SIGKILL
    left = on_disk(base) - files - records_of(base)
    assert left
    report = pyarctic.optimize(table.name, "full", InProcessEngine())
    assert report.leftovers_removed == len(left)
    assert leftovers(lake.load_table("db.people")) == []
    assert pyarctic.table(table.name).scan(store="base").count() == 10


# ---- open outcomes ------------------------------------------------------------------------------------------------------

_DOWN = OperationalError("the catalog", {}, Exception("it is down"))


@pytest.mark.parametrize("has_landed", [False, True])
def test_files_of_an_open_commit_are_removed_when_it_cannot_land_any_more(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, has_landed: bool
) -> None:
    monkeypatch.setattr(offering, "_MAX_SUBMITS", 2)
    table, before = ready(lab)
    set_min_age(table)
    files = on_disk(table)
    taken: list[Point] = []

    def trap(point: Point) -> BaseException | None:
        if point == ("commit", "after" if has_landed else "before"):
            taken.append(point)
        return _DOWN if taken and point[0] in ("load", "commit") else None

    with pytest.raises(OutcomeUnknown):
        optimize_with_trap(lab, table, trap)
    outputs = {path for path in on_disk(table) - files if path.endswith(".parquet")}
    assert len(outputs) == TASKS
    if not has_landed:
        # Nobody has committed since: the request may still arrive, and the files stay.
        nothing = optimize_table(handle_of(lab.catalog, table), InProcessEngine(), Options(where="part = 77"))
        assert (nothing.changed, nothing.leftovers_removed) == (False, 0)
        assert outputs < on_disk(table)
        report = optimize_table(handle_of(lab.catalog, table), InProcessEngine(), Options(kind="full"))
        assert (report.tasks_committed, report.leftovers_removed) == (TASKS, TASKS)
    else:
        lab_table = lab.loaded(table)
        lab_table.append(pa.table({"id": pa.array([9999], pa.int64()), "part": pa.array([0], pa.int32())}))
        report = optimize_table(handle_of(lab.catalog, table), InProcessEngine(), Options(kind="full"))
        assert report.leftovers_removed == 0
        before |= {(9999, 0)}
    found = lab.loaded(table)
    assert missing(found) == []
    assert content(found) == before
    assert records_of(table) == set()


def test_a_commit_that_may_be_dropped_does_not_settle_an_open_one(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offering, "_MAX_SUBMITS", 2)
    table, before = ready(lab)
    with lab.loaded(table).transaction() as transaction:
        transaction.set_properties({"self-optimizing.leftovers.min-age": "0s", "self-optimizing.writers-first": "true"})
        transaction.set_properties({"self-optimizing.writers-first.quiet-time": "1ms"})
    files = on_disk(table)
    with pytest.raises(OutcomeUnknown):
        optimize_with_trap(lab, table, lambda point: _DOWN if point == ("commit", "before") else None)
    outputs = {path for path in on_disk(table) - files if path.endswith(".parquet")}
    assert len(outputs) == TASKS
    report = optimize_table(handle_of(lab.catalog, table), InProcessEngine(), Options(kind="full"))
    assert (report.tasks_committed, report.leftovers_removed) == (TASKS, 0)
    assert outputs < on_disk(table)
    # A writer's commit is never dropped.
    lab.loaded(table).append(pa.table({"id": pa.array([9999], pa.int64()), "part": pa.array([0], pa.int32())}))
    report = optimize_table(handle_of(lab.catalog, table), InProcessEngine(), Options(where="part = 77"))
    assert (report.changed, report.leftovers_removed) == (False, TASKS)
    assert content(lab.loaded(table)) == before | {(9999, 0)}
    assert missing(lab.loaded(table)) == []


# ---- who is dead --------------------------------------------------------------------------------------------------------


def recorded(lab: Lab) -> RecordedProcess:
    """A record of this process, as another one reads it."""
    table, _ = ready(lab)
    read: list[RecordedProcess] = []

    def look() -> None:
        newest = lab.loaded(table)
        read.extend(recorded_processes(newest.io, newest.metadata))

    optimize_table(handle_of(lab.catalog, table), InProcessEngine(before_commit=look), Options(kind="full"))
    [process] = read
    assert len(process.tasks) == TASKS
    assert records_of(table) == set()
    return process


def test_who_is_dead(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_records, "_MIN_SILENT_SECONDS", 3600.0)
    process = recorded(lab)
    now = process.state.renewed_at
    assert not process.is_dead(now + 1e9, 0), "it runs"
    ended = replace(process, state=ProcessState(renewed_at=now, ended=True))
    assert [ended.is_dead(now + seconds, 60) for seconds in (59, 60)] == [False, True]
    same_id = replace(process, owner=replace(process.owner, started="1"))
    others = [replace(process, owner=replace(process.owner, machine=machine)) for machine in ("another one", None)]
    for silent in (same_id, *others):
        assert [silent.is_dead(now + seconds, 60) for seconds in (-5, 60, 3599, 3600)] == [False, False, False, True]
        assert [silent.is_dead(now + seconds, 7200) for seconds in (3600, 7200)] == [False, True]
    assert [each.has_ended for each in (process, ended, same_id, *others)] == [False, True, True, False, False]
    monkeypatch.setattr(process_records, "_machine", lambda: None)
    assert not others[1].has_ended, "two machines of unknown names are not the same"


def test_a_process_that_is_hidden_from_us_is_not_dead(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `hidepid`, where the processes of other users are not in /proc."""
    process = recorded(lab)
    monkeypatch.setattr(process_records, "_start_of", lambda _: None)
    assert not process.has_ended
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert replace(process, owner=replace(process.owner, pid=child)).has_ended


# ---- who was taken for dead ---------------------------------------------------------------------------------------------


def test_a_process_that_was_taken_for_dead_commits_nothing(lab: Lab) -> None:
    table, before = ready(lab)
    files = on_disk(table)

    def claim() -> None:
        newest = lab.loaded(table)
        [process] = recorded_processes(newest.io, newest.metadata)
        process.claim(newest.io)

    with pytest.raises(Conflict, match="taken this one for dead"):
        optimize_table(handle_of(lab.catalog, table), InProcessEngine(before_commit=claim), Options(kind="full"))
    assert content(lab.loaded(table)) == before
    assert on_disk(table) == files


_PARTS = pa.schema([("id", pa.int64()), ("part", pa.int64())])


def two_parts(**properties: str) -> None:
    names = {name.replace("_", "-").replace("--", "."): value for name, value in properties.items()}
    pyarctic.create_table("lake.db.parts", _PARTS, [], ["part"], {"commit.retry.min-wait-ms": "1", **names})
    for number in range(4):
        append(2 * number, 2 * number + 1)


def append(*ids: int) -> None:
    pyarctic.table("lake.db.parts").write(pa.table({"id": ids, "part": [number % 2 for number in ids]}, schema=_PARTS))


def optimize_part(part: int, listener: RecordingListener | None = None) -> Report:
    options = Options(kind="full", where=f"part = {part}")
    return optimize_table(pyarctic.table("lake.db.parts"), InProcessEngine(), options, listener)


def check_parts(lake: Catalog, *more: int) -> None:
    assert missing(lake.load_table("db.parts")) == []
    assert sorted(pyarctic.table("lake.db.parts").scan().to_arrow()["id"].to_pylist()) == sorted([*range(8), *more])


@pytest.mark.parametrize("moment", ["before it is noted", "after the check", "after a lost race"])
@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_a_process_that_was_suspended(lake: Catalog, monkeypatch: pytest.MonkeyPatch, moment: str, where: str) -> None:
    """It sleeps for days around its request. Others write, optimize and remove what they take for leftovers meanwhile."""
    two_parts()
    note = ProcessRecord.note_submitted
    machine = process_records._machine
    suspended: list[int] = []

    def sleep(record: ProcessRecord) -> None:
        suspended.append(1)
        state = Path(record._path.removeprefix("file://")).with_suffix(".state")
        document = json.loads(state.read_text())
        state.write_text(json.dumps(document | {"renewed_at": document["renewed_at"] - 4 * 86400}))
        append(99)
        with monkeypatch.context() as patch:
            patch.setattr(process_records, "_machine", machine if where == "here" else lambda: "another machine")
            report = optimize_part(1)
        is_removed = where == "elsewhere" and moment == "before it is noted"
        assert (report.tasks_committed, report.leftovers_removed > 0) == (1, is_removed)

    def note_and_sleep(record: ProcessRecord, tasks: Collection[int], head: int | None) -> None:
        if moment == "before it is noted" and not suspended:
            sleep(record)
        note(record, tasks, head)
        if moment == "after the check" and not suspended:
            sleep(record)
        elif moment == "after a lost race" and len(suspended) == 0:
            append(98)
            suspended.append(0)
        elif moment == "after a lost race" and len(suspended) == 1:
            sleep(record)

    monkeypatch.setattr(ProcessRecord, "note_submitted", note_and_sleep)
    if where == "here":
        assert optimize_part(0).tasks_committed == 1
    else:
        with pytest.raises(Conflict, match="taken this one for dead"):
            optimize_part(0)
    assert suspended[-1] == 1
    check_parts(lake, 99, *([98] if moment == "after a lost race" else []))
    assert records_of(lake.load_table("db.parts")) == set()


def test_a_commit_before_a_request_does_not_settle_it(lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process commits. Another one sends a request on top of that, gets no answer, and ends. Then the first one ends."""
    monkeypatch.setattr(offering, "_MAX_SUBMITS", 2)
    two_parts(self_optimizing__writers_first="false", self_optimizing__leftovers__min_age="0s")
    accept: Any = SqlCatalog.commit_table
    lost: list[Any] = []

    def lose(*request: Any) -> None:
        lost.append(request)
        raise TimeoutError

    def send_a_request() -> None:
        if not lost:
            with monkeypatch.context() as patch:
                patch.setattr(SqlCatalog, "commit_table", lose)
                with pytest.raises(OutcomeUnknown):
                    optimize_part(0)

    report = optimize_part(1, RecordingListener(send_a_request))
    assert (report.tasks_committed, report.leftovers_removed) == (1, 0)
    accept(*lost[0])
    check_parts(lake)
    append(98, 99)
    assert optimize_part(1).leftovers_removed == 0
    check_parts(lake, 98, 99)
    assert records_of(lake.load_table("db.parts")) == set()


# ---- records ------------------------------------------------------------------------------------------------------------


def end_without_cleaning(lake: Catalog) -> set[str]:
    """A process cannot remove its files; gives their paths, with the record."""
    two_parts(self_optimizing__leftovers__min_age="0s")
    table = lake.load_table("db.parts")
    files = on_disk(table)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", raising(UnauthorizedError("no")))
        patch.setattr(PyArrowFileIO, "delete", raising(PermissionError("no")))
        with pytest.raises(Unavailable):
            optimize_part(0)
    return {path for path in on_disk(table) - files if "/metadata/" not in path or "arctic-processes" in path}


def raising(error: Exception) -> Any:
    def fail(*_: Any) -> None:
        raise error

    return fail


def test_files_that_could_not_be_removed_are_removed_later(lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    left = end_without_cleaning(lake)
    data = {path for path in left if path.endswith(".parquet")}
    assert data < left
    append(98, 99)  # nothing can be accepted any more
    with monkeypatch.context() as patch:
        patch.setattr(commit_outcomes, "remove_quietly", lambda _, paths: set(paths))
        assert optimize_part(1).leftovers_removed == 0
    assert data < on_disk(lake.load_table("db.parts"))
    assert optimize_part(1).leftovers_removed == len(data)
    assert records_of(lake.load_table("db.parts")) == set()
    check_parts(lake, 98, 99)


@pytest.mark.parametrize(
    "spoilt",
    [{"version": 2}, {"owner": {"host": "x"}}, {"owner": {"machine": None, "pid": "me", "started": None}}, {"tasks": 7}],
)
def test_a_record_that_is_not_understood_is_left_alone(lake: Catalog, spoilt: dict[str, Any]) -> None:
    left = end_without_cleaning(lake)
    [record] = [Path(path) for path in left if path.endswith(".json")]
    record.write_text(json.dumps(json.loads(record.read_text()) | spoilt))
    append(98, 99)
    report = optimize_part(1)
    assert (report.changed, report.leftovers_removed) == (True, 0)
    assert left <= on_disk(lake.load_table("db.parts"))


def test_a_failed_removal_does_not_fail_the_process(lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    left = end_without_cleaning(lake)
    monkeypatch.setattr(leftover_files, "find_job_files", raising(RuntimeError("an error of the storage's client")))
    append(98, 99)
    report = optimize_part(1)
    assert (report.changed, report.leftovers_removed) == (True, 0)
    assert left <= on_disk(lake.load_table("db.parts"))


def test_the_claim_stays_as_long_as_the_record(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    table, before = ready(lab)
    delete = PyArrowFileIO.delete

    def not_the_record(io: PyArrowFileIO, path: Any) -> None:
        if str(path).endswith(".json"):
            raise PermissionError
        delete(io, path)

    def claim_and_forget() -> None:
        newest = lab.loaded(table)
        [process] = recorded_processes(newest.io, newest.metadata)
        process.claim(newest.io)
        with monkeypatch.context() as patch:
            patch.setattr(PyArrowFileIO, "delete", not_the_record)
            process.forget(newest.io)

    with pytest.raises(Conflict, match="taken this one for dead"):
        optimize_table(handle_of(lab.catalog, table), InProcessEngine(before_commit=claim_and_forget), Options(kind="full"))
    assert content(lab.loaded(table)) == before


@pytest.mark.parametrize("leaves_files", [False, True])
def test_a_finished_record_is_not_renewed(lab: Lab, monkeypatch: pytest.MonkeyPatch, leaves_files: bool) -> None:
    """The state is being written when the process ends, and storage is slow."""
    monkeypatch.setattr(process_records, "_RENEW_SECONDS", 0.01)
    table, _ = ready(lab)
    finish = ProcessRecord.finish
    is_renewing = threading.Event()

    def write_slowly(io: FileIO, path: str, data: bytes, *, overwrite: bool = False) -> None:
        if threading.current_thread().name == "arctic-process-record":
            is_renewing.set()
            time.sleep(0.2)
        write_bytes(io, path, data, overwrite=overwrite)

    def finish_meanwhile(record: ProcessRecord, **_: bool) -> None:
        is_renewing.clear()
        assert is_renewing.wait(10)
        finish(record, leaves_files=leaves_files)

    monkeypatch.setattr(process_records, "write_bytes", write_slowly)
    monkeypatch.setattr(ProcessRecord, "finish", finish_meanwhile)
    optimize_table(handle_of(lab.catalog, table), InProcessEngine(), Options(kind="full"))
    time.sleep(0.3)
    newest = lab.loaded(table)
    assert [process.state.ended for process in recorded_processes(newest.io, newest.metadata)] == [True] * leaves_files
    assert bool(records_of(table)) == leaves_files


def test_a_process_that_commits_while_it_is_taken_for_dead(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was stopped for long, and goes on after another one has read its record and before that one claims it."""
    table, before = ready(lab)
    monkeypatch.setattr(process_records, "_machine", lambda: None)
    monkeypatch.setattr(process_records, "_MIN_SILENT_SECONDS", 0.2)
    claim, note_submitted = RecordedProcess.claim, ProcessRecord.note_submitted

    def take_for_dead(record: ProcessRecord, tasks: Collection[int], head: int | None) -> None:
        def go_on(process: RecordedProcess, io: FileIO) -> RecordedProcess | None:
            note_submitted(record, tasks, head)
            return claim(process, io)

        time.sleep(0.3)
        with monkeypatch.context() as patches:
            patches.setattr(RecordedProcess, "claim", go_on)
            leftover_files.remove_leftovers(handle_of(lab.catalog, table), timedelta())

    monkeypatch.setattr(ProcessRecord, "note_submitted", take_for_dead)
    optimize_table(handle_of(lab.catalog, table), InProcessEngine(), Options(kind="full"))
    assert not missing(lab.loaded(table))
    assert content(lab.loaded(table)) == before


def test_a_long_process_renews_its_record(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_records, "_RENEW_SECONDS", 0.05)
    table, before = ready(lab)
    moments: set[float] = set()

    def has_been_renewed() -> bool:
        newest = lab.loaded(table)
        moments.update(process.state.renewed_at for process in recorded_processes(newest.io, newest.metadata))
        return len(moments) > 2

    engine = InProcessEngine(before_commit=lambda: wait_until(has_been_renewed, seconds=10))
    report = optimize_table(handle_of(lab.catalog, table), engine, Options(kind="full"))
    check_healed(lab, table, before, report)
