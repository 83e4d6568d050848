"""A management service in the process of a test: its clock stands still, and its loops take turns when the test says so."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pyarctic.ams.handing import HandedTask, Registration
from pyarctic.ams.rows import ProcessRow, TableRow, TaskRow
from pyarctic.ams.service import Ams
from pyarctic.ams.settings import ServiceSettings
from pyarctic.ams.store import MemoryStore, Store
from pyarctic.iceberg import storage_properties
from pyarctic.optimizing.execute.kernel import JobContext, execute
from pyarctic.optimizing.protocol import TaskResult
from pyarctic.tables import open_table


@dataclass
class StoppedClock:
    """Time goes on only when somebody waits, or says so."""

    time: datetime = field(default_factory=lambda: datetime.now(UTC))
    seconds: float = 0.0

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)
        self.seconds += seconds

    def set(self, **duration: float) -> None:
        """Somebody sets the clock of the machine."""
        self.time += timedelta(**duration)


AT_ONCE = ServiceSettings(commit_interval=timedelta(0), dead_attempt_grace=timedelta(seconds=30))


class Desk:
    """The service, and somebody who does the work of its optimizers."""

    def __init__(self, store: Store | None = None, settings: ServiceSettings = AT_ONCE) -> None:
        self.clock = StoppedClock()
        self.store = store or MemoryStore()
        self.settings = settings
        self.ams = self.start()
        self.optimizer, self.secret = self.ams.optimizers.register(Registration(parallelism=4, host="test"))

    def start(self) -> Ams:
        """The service, as after a restart."""
        self.ams = Ams(self.store, self.settings, clock=self.clock)
        return self.ams

    def wait(self, **duration: float) -> None:
        self.clock.sleep(timedelta(**duration).total_seconds())

    # ---- turns of its loops ---------------------------------------------------------------------------------------------

    def look(self) -> list[ProcessRow]:
        """Look at all tables that are due."""
        planned = [self.ams.looks.look(row.uuid) for row in self.ams.looks.due()]
        return [process for process in planned if process is not None]

    def discover(self) -> None:
        self.ams.looks.discover()

    def commit(self) -> None:
        for uuid in self.ams.commits.due():
            self.ams.commits.commit(uuid)

    def keep(self) -> None:
        self.ams.keeper.keep()

    def clean(self) -> None:
        for uuid in {row.table_uuid for row in self.ams.cleaning.due()}:
            self.ams.cleaning.clean(uuid)

    def settle(self, turns: int = 30) -> None:
        """Let everybody work until nothing is unfinished, and all files are looked through for the last time."""
        for _ in range(turns):
            self.ams.optimizers.heartbeat(self.optimizer.id, [])
            self.look()
            self.work()
            self.commit()
            self.keep()
            self.clean()
            self.wait(seconds=31)
            if not self.unfinished() and all(row.clean_at is None for row in self.processes()):
                return
        raise AssertionError(f"it does not come to rest: {self.unfinished()}")

    # ---- an optimizer ---------------------------------------------------------------------------------------------------

    def poll(self, slots: int = 100) -> list[HandedTask]:
        return self.ams.optimizers.poll(self.optimizer.id, slots)

    def execute(self, handed: HandedTask) -> dict[str, Any]:
        """The result of a task, as JSON that came from elsewhere."""
        context = JobContext.open(handed.plan.job.to_json(), storage_properties(open_table(handed.plan.job.table).view.io))
        task = next(task for task in handed.plan.tasks if task.id == handed.row.number)
        result = execute(context, task, attempt=handed.attempt)
        assert isinstance(result, TaskResult)
        document: dict[str, Any] = json.loads(json.dumps(result.to_json()))
        return document

    def report(self, handed: HandedTask, document: Mapping[str, Any]) -> None:
        self.ams.optimizers.complete(handed.row.key, handed.attempt, document)

    def fail(self, handed: HandedTask, code: str = "unavailable") -> None:
        failure = {
            "type": "failure",
            "version": 1,
            "job": handed.plan.job.id,
            "task": handed.row.number,
            "attempt": handed.attempt,
            "code": code,
            "detail": "it did not work",
            "hint": None,
            "retryable": True,
            "partition": None,
        }
        self.ams.optimizers.fail(handed.row.key, handed.attempt, failure)

    def work(self) -> int:
        """Execute and report everything that waits."""
        done = 0
        while handed := self.poll():
            for each in handed:
                self.report(each, self.execute(each))
                done += 1
        return done

    # ---- what is known --------------------------------------------------------------------------------------------------

    def table(self, name: str) -> TableRow:
        with self.store.read() as view:
            [row] = view.find(TableRow, name=name)
        return row

    def processes(self) -> Sequence[ProcessRow]:
        with self.store.read() as view:
            return sorted(view.find(ProcessRow), key=lambda row: row.created_at)

    def unfinished(self) -> list[ProcessRow]:
        return [row for row in self.processes() if row.ended_at is None]

    def tasks(self, process_id: str | None = None) -> Sequence[TaskRow]:
        with self.store.read() as view:
            return view.find(TaskRow) if process_id is None else view.find(TaskRow, process_id=process_id)

    def story(self, key: str) -> list[tuple[str | None, str]]:
        """The moves of an object."""
        return [(event.before, event.after) for event in self.store.events_after(0) if event.key == key]


class DirectService:
    """The worker protocol without HTTP: documents go through JSON all the same."""

    def __init__(self, ams: Ams) -> None:
        self.ams = ams
        self.id = ""

    def register(self, *, parallelism: int, **more: Any) -> dict[str, Any]:
        row, secret = self.ams.optimizers.register(Registration(parallelism=parallelism, **more))
        self.id = row.id
        return {"id": row.id, "secret": secret, "heartbeat_timeout_seconds": 60, "protocol_version": 1}

    def heartbeat(self, attempts: Iterable[tuple[str, int]]) -> dict[str, Any]:
        state, stop = self.ams.optimizers.heartbeat(self.id, list(attempts))
        return {"state": str(state), "stop": [{"task_id": task, "attempt": attempt} for task, attempt in stop]}

    def poll(self, slots: int = 1, wait_seconds: float = 30.0) -> list[dict[str, Any]]:  # noqa: ARG002
        handed = [json.loads(json.dumps(each.to_json())) for each in self.ams.optimizers.poll(self.id, slots)]
        if not handed:
            self.ams.core.clock.sleep(0)
        return handed

    def acknowledge(self, task_id: str, attempt: int) -> None:
        self.ams.optimizers.acknowledge(task_id, attempt)

    def progress(self, task_id: str, attempt: int, rows: int, size: int) -> None:
        self.ams.optimizers.progress(task_id, attempt, rows, size)

    def complete(self, task_id: str, attempt: int, result: Mapping[str, Any]) -> None:
        self.ams.optimizers.complete(task_id, attempt, json.loads(json.dumps(result)))

    def fail(self, task_id: str, attempt: int, failure: Mapping[str, Any]) -> None:
        self.ams.optimizers.fail(task_id, attempt, json.loads(json.dumps(failure)))

    def storage(self, task_id: str, attempt: int) -> dict[str, str]:
        return self.ams.optimizers.storage_of(task_id, attempt)

    def stop(self) -> None:
        self.ams.optimizers.stop(self.id)
