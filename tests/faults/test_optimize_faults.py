"""Healing while workers die, the driver dies, disks are full, files are broken, storage and catalog fail."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from sqlalchemy.exc import OperationalError

import pyarctic
from pyarctic import config
from pyarctic.config import parse_table_name
from pyarctic.errors import Damaged, OutcomeUnknown, Unavailable
from pyarctic.iceberg.commit import Change
from pyarctic.iceberg.write.parquet import DataFileWriter
from pyarctic.optimizing import Options, ProcessEvent, ProcessListener, Report, TaskEnded, optimize_table
from pyarctic.optimizing.commit import committer as offering
from pyarctic.optimizing.events import ignore_events
from pyarctic.optimizing.execute.task_runs import MAX_ATTEMPTS
from pyarctic.tables import ContentKind
from pyarctic.tables import Table as Handle
from tests.faults import spoiled
from tests.faults.lab import NAME, QUICK, SCHEMA, Content, Lab, Point, content
from tests.support import changes
from tests.support.fragmented_table import FIRST, SECOND, TASKS, THIRD, fragmented_table, name_begins
from tests.support.integrity import leftovers, local, missing, on_disk
from tests.support.optimizing import InProcessEngine

ROOT = Path(__file__).parents[2]
_PATIENCE_SECONDS = 60.0


@pytest.fixture(autouse=True)
def no_catalogs_after() -> Iterator[None]:
    yield
    config.reset()


def ready(lab: Lab, version: int = 2) -> tuple[Table, Content]:
    """A table that needs optimizing, and its rows."""
    table = fragmented_table(lab.catalog, "db.fragmented", version)
    return table, content(table)


class Spoilt:
    """The lab's catalog, with storage that misbehaves."""

    def __init__(self, lab: Lab, **how: str) -> None:
        self.signs = lab.folder / "signs"
        self.signs.mkdir()
        io = f"{spoiled.SpoiledFileIO.__module__}.{spoiled.SpoiledFileIO.__name__}"
        self.properties = {**properties_of(lab), "py-io-impl": io, spoiled.SIGNS: str(self.signs), **how}

    def optimize(self, table: Table, workers: int = 2, listener: ProcessListener = ignore_events) -> Report:
        pyarctic.catalog(NAME, **self.properties)
        return pyarctic.optimize(full_name(table), "full", workers=workers, listener=listener)

    def hanging(self) -> int:
        """Wait until a process hangs; gives its id."""
        wait_until(lambda: any(self._hanging()))
        return int(next(self._hanging()).read_text())

    def _hanging(self) -> Iterator[Path]:
        return self.signs.glob("*.parquet")

    @contextmanager
    def ending_those_who_hang(self) -> Iterator[list[int]]:
        """Kills every process that hangs; tells which."""
        ended: list[int] = []
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.02):
                for sign in self._hanging():
                    ended.append(int(sign.read_text()))
                    sign.unlink()
                    os.kill(ended[-1], signal.SIGKILL)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield ended
        finally:
            over.set()
            thread.join()


@contextmanager
def driver(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A process that optimizes, in a session of its own."""
    with subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


# ---- workers that die ---------------------------------------------------------------------------------------------------


def test_a_worker_that_dies_is_replaced_and_its_task_repeated(lab: Lab) -> None:
    table, before = ready(lab)
    storage = Spoilt(lab, **{spoiled.HANG: f"^{name_begins(FIRST, 0)}"})
    with storage.ending_those_who_hang() as ended:
        report = storage.optimize(table)
    assert len(ended) == 1
    assert not report.failures
    check_healed(lab, table, before, report)


def test_a_task_that_ends_every_worker_is_given_up_and_the_others_are_committed(lab: Lab) -> None:
    table, before = ready(lab, 3)
    storage = Spoilt(lab, **{spoiled.HANG: f"^{name_begins(SECOND)}"})
    with storage.ending_those_who_hang() as ended:
        report = storage.optimize(table)
    assert len(set(ended)) == MAX_ATTEMPTS
    [failure] = report.failures
    assert (failure.task, failure.attempt, failure.code) == (SECOND, MAX_ATTEMPTS - 1, "worker-lost")
    assert f"signal {int(signal.SIGKILL)}" in failure.detail
    assert "memory" in str(failure.hint)
    assert report.tasks_committed == 2
    check_unharmed(lab, table, before)


# ---- a driver that dies or is stopped -----------------------------------------------------------------------------------

_OPTIMIZE = """
import json, sys, pyarctic
pyarctic.catalog("lab", **json.loads(sys.argv[2]))
pyarctic.optimize(sys.argv[1], "full", workers=2)
"""


def test_workers_of_a_driver_that_died_end_and_remove_what_they_wrote(lab: Lab) -> None:
    table, before = ready(lab)
    files = on_disk(table)
    storage = Spoilt(lab, **{spoiled.HANG: f"^{name_begins(SECOND)}"})
    with driver("-c", _OPTIMIZE, full_name(table), json.dumps(storage.properties)) as process:
        worker = storage.hanging()
        process.kill()
        wait_until(lambda: not is_running(worker), seconds=10)
        _, told = process.communicate()
    assert told == "", "a worker that gives up says nothing"
    check_unharmed(lab, table, before, orphans=(orphans := on_disk(table) - files))
    # What stays is of the task that was done and not committed: no table knows of it, but the record of the process does.
    assert {Path(path).name[:7] for path in orphans - records_of(table)} == {f"{FIRST:05}-0"}
    pyarctic.catalog(NAME, **properties_of(lab))
    report = pyarctic.optimize(full_name(table), "full")
    check_healed(lab, table, before, report, orphans=orphans)


@pytest.mark.parametrize("whom", ["the driver", "the terminal"])
def test_ctrl_c_leaves_nothing_behind(lab: Lab, whom: str) -> None:
    table, before = ready(lab)
    files = on_disk(table)
    storage = Spoilt(lab, **{spoiled.HANG: f"^{name_begins(SECOND)}"})
    configured = lab.folder / "arctic.yaml"
    configured.write_text(json.dumps({"catalogs": {NAME: storage.properties}}))
    command = (
        "-m",
        "pyarctic.cli",
        "--config",
        str(configured),
        "table",
        "optimize",
        full_name(table),
        "--kind",
        "full",
        "--workers",
        "2",
    )
    with driver(*command) as process:
        worker = storage.hanging()
        if whom == "the driver":
            process.send_signal(signal.SIGINT)
        else:
            os.killpg(process.pid, signal.SIGINT)
        _, told = process.communicate(timeout=_PATIENCE_SECONDS)
    assert process.returncode == 130, told
    assert "interrupted" in told
    assert "Traceback" not in told
    assert not is_running(worker)
    assert on_disk(table) == files
    assert content(lab.loaded(table)) == before


def test_results_that_nobody_took_are_removed(lab: Lab) -> None:
    table, before = ready(lab)
    files = on_disk(table)
    storage = Spoilt(lab, **{spoiled.HANG: f"^{name_begins(THIRD)}"})
    with pytest.raises(_Enough):
        storage.optimize(table, 1, impatient := _Impatient(storage))
    assert impatient.worker is not None
    assert not is_running(impatient.worker)
    assert on_disk(table) == files
    assert content(lab.loaded(table)) == before


class _Enough(Exception):
    """Whoever wanted the outcomes does not want them any more."""


class _Impatient:
    """Listens until the first task has ended, and gives up when the third one hangs."""

    def __init__(self, storage: Spoilt) -> None:
        self._storage = storage
        self.worker: int | None = None

    def __call__(self, event: ProcessEvent) -> None:
        if isinstance(event, TaskEnded):
            self.worker = self._storage.hanging()
            raise _Enough


# ---- full disks ---------------------------------------------------------------------------------------------------------


def test_a_full_disk_is_told_and_harms_nothing(lab: Lab) -> None:
    table = large(lab, 20_000)
    before, files = changes.rows(table), on_disk(table)
    pyarctic.catalog(NAME, **properties_of(lab))
    with files_of_at_most(int(1.5 * largest_file(table))):
        report = pyarctic.optimize(full_name(table), "full")
    [failure] = report.failures
    assert failure.attempt == MAX_ATTEMPTS - 1, "it is tried again: somebody may make room"
    assert "File too large" in failure.detail
    assert on_disk(table) == files
    assert changes.rows(lab.loaded(table)).equals(before)


def test_a_full_disk_while_row_groups_are_copied(lab: Lab) -> None:
    table = large(lab, 25_000)
    before, files = changes.rows(table), on_disk(table)
    handle = handle_of(lab.catalog, table)
    with files_of_at_most(int(1.5 * largest_file(table))):
        report = optimize_table(handle, InProcessEngine(), Options(kind="minor"))
    [failure] = report.failures
    assert (failure.code, "File too large" in failure.detail) == ("unavailable", True)
    assert failure.hint
    assert on_disk(table) == files
    assert optimize_table(handle, InProcessEngine(), Options(kind="minor")).rows_copied == 50_000
    assert changes.rows(lab.loaded(table)).sort_by("id").equals(before.sort_by("id"))


def large(lab: Lab, rows: int) -> Table:
    """Two files of one partition with numbers that do not compress."""
    table = lab.empty()
    for seed in range(2):
        ids = np.random.default_rng(seed).integers(0, 1 << 62, rows)
        data = pa.table({"id": ids, "part": pa.array(np.zeros(rows), pa.int32())})
        table = changes.apply(table, partial(append_one_file, data=data))
    return table


def append_one_file(table: Table, data: pa.Table) -> Change:
    with DataFileWriter(changes.target(table, (0,))) as writer:
        for batch in data.to_batches():
            writer.write(batch)
    return Change(start=changes.head(table), add=tuple(writer.files))


def largest_file(table: Table) -> int:
    return int(max(changes.files(table)["file_size_bytes"]))


def test_a_full_spill_folder_is_told_and_harms_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    spill = lab.folder / "spill"
    spill.mkdir()
    monkeypatch.setenv("ARCTIC_SPILL_DIR", str(spill))
    order = SortOrder(SortField(2, IdentityTransform()))
    table = lab.catalog.create_table("db.sorted", SCHEMA, sort_order=order, properties={"format-version": "2", **QUICK})
    for number in range(2):
        ids = np.arange(100_000)
        data = pa.table({"id": ids, "part": pa.array(ids % 7 + number, pa.int32())})
        table = changes.apply(table, partial(changes.append, data=data))
    files = on_disk(table)
    # What is spilled is not compressed, files of the table are.
    with files_of_at_most(largest_file(table)):
        options = Options(kind="full", memory_bytes=4 << 20)
        report = optimize_table(handle_of(lab.catalog, table), InProcessEngine(), options)
    [failure] = report.failures
    assert (failure.code, "File too large" in failure.detail) == ("unavailable", True)
    assert failure.hint
    assert on_disk(table) == files
    assert list(spill.iterdir()) == []


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A disk on which larger files do not fit, for this process and those it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# ---- broken and missing files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["cut off", "overwritten", "missing"])
@pytest.mark.parametrize("chosen", ["data", "position-deletes", "equality-deletes", "deletion-vector"])
def test_a_broken_file_spoils_its_own_task_only(lab: Lab, chosen: ContentKind, damage: str) -> None:
    table, before = ready(lab, 3 if chosen == "deletion-vector" else 2)
    handle = handle_of(lab.catalog, table)
    path = handle.files(content=chosen).filter(partition="part=1")["file_path"][0]
    spoil(Path(local(path)), damage)
    report = optimize_table(handle, InProcessEngine(), Options(kind="full"))
    [failure] = report.failures
    assert (failure.task, failure.code) == (SECOND, "damaged")
    assert path in failure.detail
    assert failure.hint
    assert report.tasks_committed == 2
    found = lab.loaded(table)
    assert set(leftovers(found)) == set()
    sound = changes.rows(found, where="part = 0 or part = 2").to_pylist()
    assert {(row["id"], row["part"]) for row in sound} == {row for row in before if row[1] != 1}
    with pytest.raises(Damaged, match=Path(path).name):
        changes.rows(found, where="part = 1")


def spoil(file: Path, damage: str) -> None:
    data = file.read_bytes()
    match damage:
        case "cut off":
            file.write_bytes(data[:20])
        case "overwritten":
            file.write_bytes(bytes(len(data)))
        case "missing":
            file.unlink()


# ---- storage that fails for a moment ------------------------------------------------------------------------------------


def test_what_fails_for_a_moment_is_tried_again(lab: Lab) -> None:
    table, before = ready(lab)
    handle = handle_of(lab.catalog, table)
    read = Path(handle.files(content="data").filter(partition="part=0")["file_path"][0]).name
    storage = Spoilt(lab, **{spoiled.READ_ONCE: read, spoiled.WRITE_ONCE: f"^{name_begins(SECOND, 0)}"})
    report = storage.optimize(table)
    assert {sign.name for sign in storage.signs.iterdir()} == {f"read-{read}", "write"}
    assert not report.failures
    check_healed(lab, table, before, report)
    attempts = {Path(path).name[:7] for path in changes.files(lab.loaded(table))["file_path"]}
    assert attempts == {f"{FIRST:05}-1", f"{SECOND:05}-1", f"{THIRD:05}-0"}


# ---- a catalog that fails -----------------------------------------------------------------------------------------------

_DOWN = OperationalError("the catalog", {}, Exception("it is down"))


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who gives up soon."""
    monkeypatch.setattr(offering, "_MAX_SUBMITS", 2)


def test_a_catalog_that_is_down_before_the_commit_harms_nothing(lab: Lab, hasty: None) -> None:
    table, before = ready(lab)
    files = on_disk(table)
    with pytest.raises(Unavailable, match="cannot be reached") as raised:
        optimize_with_trap(lab, table, lambda point: _DOWN if point == ("load", "before") else None)
    assert raised.value.hint
    # Without an answer nobody can tell what a snapshot holds: outputs stay, row maps go.
    orphans = on_disk(table) - files
    assert len(orphans - records_of(table)) == TASKS
    check_unharmed(lab, table, before, orphans=orphans)


def test_a_catalog_that_is_down_at_the_commit_is_told_and_files_stay(lab: Lab, hasty: None) -> None:
    table, before = ready(lab)
    files = on_disk(table)
    with pytest.raises(OutcomeUnknown) as raised:
        optimize_with_trap(lab, table, lambda point: _DOWN if point == ("commit", "before") else None)
    assert "Run it again" in str(raised.value.hint)
    # Nobody can know that the request did not arrive.
    orphans = on_disk(table) - files
    assert {f"{task:05}-0" for task in (FIRST, SECOND, THIRD)} <= {Path(path).name[:7] for path in orphans}
    check_unharmed(lab, table, before, orphans=orphans)
    report = optimize_table(handle_of(lab.catalog, table), InProcessEngine(), Options(kind="full"))
    check_healed(lab, table, before, report, orphans=orphans)


def test_a_commit_whose_answer_is_lost_keeps_its_files_when_the_catalog_stays_down(lab: Lab, hasty: None) -> None:
    table, before = ready(lab)
    taken: list[Point] = []

    def trap(point: Point) -> BaseException | None:
        if point == ("commit", "after"):
            taken.append(point)
        return _DOWN if taken and point[0] in ("load", "commit") else None

    with pytest.raises(OutcomeUnknown):
        optimize_with_trap(lab, table, trap)
    check_unharmed(lab, table, before, orphans=(records := records_of(table)))
    assert len(records) == 2
    assert changes.files(lab.loaded(table)).height == TASKS, "it was taken"


def test_ctrl_c_while_the_catalog_takes_a_commit_removes_no_file_of_it(lab: Lab) -> None:
    table, before = ready(lab)
    with pytest.raises(KeyboardInterrupt):
        optimize_with_trap(lab, table, lambda point: KeyboardInterrupt() if point == ("commit", "after") else None)
    found = lab.loaded(table)
    assert changes.files(found).height == TASKS, "it was taken"
    assert missing(found) == []
    assert content(found) == before


def optimize_with_trap(lab: Lab, table: Table, trap: Callable[[Point], BaseException | None]) -> Report:
    """Heal with a catalog that fails as `trap` says, from right before the first commit on."""

    def sprung(point: Point) -> None:
        if (error := trap(point)) is not None:
            raise error

    with lab.trapped(lambda _: None) as catalog:
        handle = handle_of(catalog, table)
        engine = InProcessEngine(before_commit=lambda: setattr(catalog, "trap", sprung))
        return optimize_table(handle, engine, Options(kind="full"))


# ---- what tests share ---------------------------------------------------------------------------------------------------


def properties_of(lab: Lab) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{lab.folder}/catalog.db", "warehouse": (lab.folder / "warehouse").as_uri()}


def full_name(table: Table) -> str:
    return ".".join((NAME, *table.name()))


def handle_of(catalog: SqlCatalog, table: Table) -> Handle:
    return Handle(parse_table_name(full_name(table)), catalog.load_table(table.name()))


def check_healed(lab: Lab, table: Table, before: Content, report: Report, orphans: set[str] | None = None) -> None:
    assert report.tasks_committed == report.tasks_planned == TASKS
    assert report.after.delete_files == 0
    assert report.after.data_files == TASKS
    check_unharmed(lab, table, before, orphans)


def check_unharmed(lab: Lab, table: Table, before: Content, orphans: set[str] | None = None) -> None:
    """The rows are what they were, nothing is missing, and nothing lies about but what is known to."""
    found = lab.loaded(table)
    assert content(found) == before
    assert missing(found) == []
    assert set(leftovers(found)) == (orphans or set())


def records_of(table: Table) -> set[str]:
    """What processes wrote about themselves."""
    return {path for path in on_disk(table) if Path(path).parent.name == "arctic-processes"}


def is_running(process_id: int) -> bool:
    """Whether a process does anything: one that has ended may wait for its parent to notice."""
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(condition: Callable[[], bool], seconds: float = _PATIENCE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
