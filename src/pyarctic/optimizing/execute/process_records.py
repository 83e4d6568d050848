"""Records of running processes. By them, files of processes that were killed are found later: nobody else knows of them.

A process writes `JOB.json` to the folder `arctic-processes` beside the metadata of the table before its first task: all that
the names of its files depend on. `JOB.state` is renewed as long as it runs. Both are removed when it ends. A service keeps
its own account of its processes and writes no records, so that its files are never taken for leftovers.

Whoever removes files writes `JOB.claimed` first and reads the state afterwards. The process writes its state before every
request to the catalog, and looks for a claim afterwards. So either the request is in the state that is read, or the process
sees the claim and does not send it, however long any of them is suspended in between.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from pyiceberg.io import FileIO
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata

from pyarctic.errors import Conflict, Unavailable
from pyarctic.iceberg import list_folder, read_bytes, remove_quietly, write_bytes
from pyarctic.iceberg.manifest import FILE_SCHEMA
from pyarctic.optimizing.protocol.job import Job
from pyarctic.optimizing.protocol.task import KeyedTask, Task
from pyarctic.tables.format import parse_file_names

_FOLDER = "arctic-processes"
_RENEW_SECONDS = 600.0
_VERSION = 1
_MIN_SILENT_SECONDS = 3600.0
"""A process that has not said that it ended is not taken for dead sooner after its last renewal, whatever the table's
properties say."""


@dataclass(frozen=True, kw_only=True)
class ProcessState:
    """What changes while a process runs."""

    renewed_at: float
    """In seconds since 1970."""
    submitted: frozenset[int] = frozenset()
    """Ids of tasks that were, or were about to be, submitted to the catalog."""
    heads: frozenset[int | None] = frozenset()
    """The heads of the branch that these requests require."""
    ended: bool = False
    """It has ended, and may have left files: the outcome of a commit was unknown, or the catalog did not answer."""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The process of the operating system in which a process runs."""

    machine: str | None
    pid: int
    started: str | None

    @classmethod
    def current(cls) -> Self:
        """This process."""
        return cls(machine=_machine(), pid=os.getpid(), started=_start_of(os.getpid()))

    @property
    def is_here(self) -> bool:
        """Whether it is, or was, a process of this machine."""
        return self.machine is not None and self.machine == _machine()

    @property
    def may_run(self) -> bool:
        """Whether a process of this machine may run. Ids are used again, but not at the same time."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # it is another user's
            pass
        started = _start_of(self.pid)
        return started is None or started == self.started


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedProcess:
    """A process as its record describes it."""

    path: str
    """Of the record."""
    job: Job
    tasks: Sequence[Task]
    attempts: Sequence[int]
    owner: Owner
    state: ProcessState

    @property
    def has_ended(self) -> bool:
        """Whether it certainly does not run any more. Of another machine that is not known."""
        return self.state.ended or (self.owner.is_here and not self.owner.may_run)

    def is_dead(self, now: float, min_age_seconds: float) -> bool:
        """Whether it has been silent for that long, and is not known to run. It may be suspended on another machine."""
        min_silent_seconds = 0.0 if self.state.ended else _MIN_SILENT_SECONDS
        is_silent = now - self.state.renewed_at >= max(min_age_seconds, min_silent_seconds)
        return is_silent and (self.has_ended or not self.owner.is_here)

    def claim(self, io: FileIO) -> RecordedProcess | None:
        """Announce that its files are being removed. If it runs nevertheless, it notices before its next request. Gives its
        record as it is now, in which it may have noted a request before; None if it has none any more.

        A claim is not taken back: others may rely on it. A process that was silent for so long, and goes on at this moment,
        has to be run again."""
        write_bytes(io, _beside(self.path, "claimed"), b"", overwrite=True)
        return _read(io, self.path)

    def forget(self, io: FileIO) -> None:
        """Remove the record."""
        _remove_record(io, self.path)


class ProcessRecord:
    """The record of this process, from its first task to its end. A plan without tasks has none."""

    def __init__(self, io: FileIO, job: Job) -> None:
        self._io = io
        self._job = job
        self._path = f"{_folder(job.metadata)}/{job.id}.json"
        self._state = ProcessState(renewed_at=time.time())
        self._lock = threading.Lock()
        self._is_written = False
        self._end = threading.Event()

    def start(self, tasks: Sequence[Task], attempts: Iterable[int]) -> Self:
        """Write the record. `attempts` are the numbers that attempts at a task may have."""
        if tasks:
            document = {
                "version": _VERSION,
                "job": self._job.to_json(),
                "tasks": [_outline(task).to_json() for task in tasks],
                "attempts": list(attempts),
                "owner": vars(Owner.current()),
            }
            self._is_written = True
            write_bytes(self._io, self._path, json.dumps(document).encode())
            self._write_state()
            threading.Thread(target=self._renew, name="arctic-process-record", daemon=True).start()
        return self

    def note_submitted(self, tasks: Collection[int], head: int | None) -> None:
        """Note that a request is about to be sent which adds the files of these tasks and requires that head of the branch.
        Raises Conflict if another process has taken this one for dead: then their files may be gone."""
        if not self._is_written:
            return
        # First of all: whoever claims this process later sees it. Whoever has done so before is seen below.
        self._write_state(submitted=self._state.submitted | frozenset(tasks), heads=self._state.heads | {head})
        try:
            is_claimed = self._io.new_input(_beside(self._path, "claimed")).exists()
            is_claimed = is_claimed or not self._io.new_input(self._path).exists()
        except OSError as cause:
            raise Unavailable(f"cannot read {self._path}: {cause}", hint="Check the storage and try again.") from cause
        if is_claimed:
            raise Conflict(
                "another process has taken this one for dead, and may have removed its files",
                hint="Nothing was committed. It was stopped for long, or the clocks of the machines differ. Run it again.",
            )

    def finish(self, *, leaves_files: bool) -> None:
        """Remove the record, unless files have to stay that nobody may need later."""
        if not self._is_written:
            return
        # With the lock the state is not being written. The storage may be out of reach; the process is dead soon.
        with self._lock, contextlib.suppress(Exception):
            self._end.set()
            if leaves_files and self._io.new_input(self._path).exists():
                self._replace_state(ended=True)
            else:
                _remove_record(self._io, self._path)

    def _renew(self) -> None:
        while not self._end.wait(_RENEW_SECONDS):
            with contextlib.suppress(Exception):
                self._write_state()

    def _write_state(self, **changes: Any) -> None:
        with self._lock:
            if not self._end.is_set():
                self._replace_state(**changes)

    def _replace_state(self, **changes: Any) -> None:
        self._state = replace(self._state, renewed_at=time.time(), **changes)
        document = vars(self._state) | {"submitted": sorted(self._state.submitted), "heads": list(self._state.heads)}
        write_bytes(self._io, _beside(self._path, "state"), json.dumps(document).encode(), overwrite=True)


def recorded_processes(io: FileIO, metadata: TableMetadata) -> list[RecordedProcess]:
    """The processes that have a record beside a table's metadata. Records that cannot be read are left alone."""
    records = [path for path in list_folder(io, _folder(metadata)) or () if path.endswith(".json")]
    return [record for path in records if (record := _read(io, path)) is not None]


def _read(io: FileIO, path: str) -> RecordedProcess | None:
    try:
        state = json.loads(read_bytes(io, _beside(path, "state")))
        document = json.loads(read_bytes(io, path))
        if document["version"] != _VERSION:
            return None
        return RecordedProcess(
            path=path,
            job=Job.from_json(document["job"]),
            tasks=[Task.from_json(task) for task in document["tasks"]],
            attempts=[int(number) for number in document["attempts"]],
            owner=Owner(**document["owner"] | {"pid": int(document["owner"]["pid"])}),
            state=ProcessState(
                renewed_at=float(state["renewed_at"]),
                submitted=frozenset(state["submitted"]),
                heads=frozenset(state["heads"]),
                ended=bool(state["ended"]),
            ),
        )
    except Exception:  # noqa: BLE001  # it is being written or removed, or of another version
        return None


def _remove_record(io: FileIO, path: str) -> None:
    """The claim goes last: a process that sees neither a claim nor that its record is gone would go on."""
    if not remove_quietly(io, [path]):
        remove_quietly(io, [_beside(path, "state"), _beside(path, "claimed")])


def _folder(metadata: TableMetadata) -> str:
    return load_location_provider(metadata.location, metadata.properties).new_metadata_location(_FOLDER)


def _beside(path: str, suffix: str) -> str:
    return f"{path.removesuffix('.json')}.{suffix}"


def _outline(task: Task) -> Task:
    """The part of a task that the names of its files depend on: of its inputs, only the nodes of base files."""
    if not isinstance(task, KeyedTask):
        return replace(task, files=task.files.clear(), reasons=())
    nodes = parse_file_names(task.data, "base").unique("node_id").select(FILE_SCHEMA.names())
    return replace(task, files=nodes, changes=task.changes.clear(), kept=(), shareable=(), foreign=(), reasons=())


def _machine() -> str | None:
    """Identifies the running system whose process ids we see; None if that is not known."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot_id} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def _start_of(process_id: int) -> str | None:
    """When a process of this machine started; None if that is hidden from us, and "" if it has ended."""
    try:
        state, *fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "" if state == "Z" else fields[18]
