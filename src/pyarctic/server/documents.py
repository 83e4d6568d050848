"""What the interface shows of tables, processes, tasks, optimizers and events. Rows of the database never leave as they are:
hashes of secrets and figures of the inside stay there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict

from pyarctic.ams import (
    CommitRow,
    CommitState,
    OptimizerState,
    ProcessRow,
    ProcessState,
    TableRow,
    TableState,
    TaskRow,
    TaskState,
    UnitRow,
)
from pyarctic.config import parse_table_name
from pyarctic.server.paging import Page

Id = Annotated[str, BeforeValidator(str)]
"""An id of 64 bits as a text: numbers of JSON lose digits in many languages."""

MAX_NUMBER = (1 << 63) - 1
"""The largest number of 64 bits, which databases have."""


class Document(BaseModel):
    """A part of an answer."""

    model_config = ConfigDict(from_attributes=True, use_attribute_docstrings=True)


class TableDocument(Document):
    """A table that the service watches."""

    uuid: str
    name: str
    """`catalog.database.table`."""
    catalog: str
    database: str
    kind: str
    """`keyed`, `unkeyed` or `native`."""
    state: TableState
    group: str
    """The optimizer group that executes its tasks."""
    health: float | None
    """From 0 to 100, as of the last evaluation."""
    files: dict[str, int] | None
    """Numbers of files, rows and bytes, as of the last evaluation."""
    partitions: int | None
    base_snapshot_id: Id | None
    change_snapshot_id: Id | None
    looked_at: datetime | None
    next_look_at: datetime
    planned_at: datetime | None
    committed_at: datetime | None
    """When a commit of the service landed last."""
    plan_after: datetime | None
    """Nothing is planned before, because a process failed."""
    failed_in_a_row: int
    """Processes that failed since one that did not."""
    paused_by: str | None
    pause_reason: str | None
    paused_until: datetime | None
    problem: str | None
    """Why the last look failed."""

    @classmethod
    def of(cls, row: TableRow) -> Self:
        """The document of a row."""
        shown = {name: getattr(row, name, None) for name in cls.model_fields}
        figures = {name: row.figures.get(name) for name in ("health", "files", "partitions")}
        return cls.model_validate(shown | figures | {"database": ".".join(parse_table_name(row.name).namespace)})


class TablePage(Page[TableDocument]):
    """Tables, by name."""


class CatalogDocument(Document):
    """A catalog with tables that the service watches."""

    name: str
    tables: int
    states: dict[TableState, int]
    """The number of tables in each state."""


class CatalogPage(Page[CatalogDocument]):
    """Catalogs, by name."""


class RuleDocument(Document):
    """A rule that led to a process."""

    rule: str
    partitions: int
    """In how many of the planned partitions it was met."""


class ProcessDocument(Document):
    """One round of optimizing of one table."""

    id: str
    table: str
    table_uuid: str
    group: str
    kinds: list[str]
    """`minor`, `major`, `full`."""
    state: ProcessState
    trigger: str
    """What it was planned for: `periodic`, `reported` or `demanded`."""
    reasons: list[RuleDocument]
    expected: dict[str, Any]
    """What the plan reads and writes."""
    outcome: str | None
    """In words, when it has ended."""
    tasks: int
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None


class ProcessPage(Page[ProcessDocument]):
    """Processes, the newest first."""


class CommitDocument(Document):
    """A commit of a process."""

    snapshot_id: Id
    state: CommitState
    step: str
    """`merge`, `convert` or `dangling-deletes`."""
    units: list[int]
    """Each task of a native table is a unit; of a keyed table, all tasks of a partition."""
    reason: str | None
    """Why it was refused."""
    changed_at: datetime


class DroppedUnit(Document):
    """A commit unit that was given up: its outputs are removed."""

    unit: int
    reason: str


class ProcessDetail(ProcessDocument):
    """A process with what became of it."""

    task_states: dict[TaskState, int]
    """The number of tasks in each state."""
    commits: list[CommitDocument]
    dropped: list[DroppedUnit]

    @classmethod
    def of(
        cls, process: ProcessRow, tasks: Sequence[TaskRow], commits: Sequence[CommitRow], units: Sequence[UnitRow]
    ) -> Self:
        """A process, its tasks and commits, and the units that need none."""
        shown = [
            CommitDocument(
                snapshot_id=str(row.snapshot_id),
                state=row.state,
                step=row.record["step"],
                units=row.record["units"],
                reason=row.record.get("reason"),
                changed_at=row.changed_at,
            )
            for row in sorted(commits, key=lambda row: row.position)
        ]
        states = Counter(task.state for task in tasks)
        dropped = [DroppedUnit(unit=row.unit, reason=row.dropped) for row in units if row.dropped is not None]
        given = ProcessDocument.model_validate(process).model_dump()
        return cls(**given, task_states=dict(states), commits=shown, dropped=dropped)


class ProcessStarted(Document):
    """The answer to the wish for a process."""

    process: ProcessDocument | None
    """null: there is nothing to do."""
    reason: str | None
    """Why there is nothing to do."""


class TaskDocument(Document):
    """A task of a process."""

    id: str
    process_id: str
    number: int
    table_uuid: str
    group: str
    unit: int
    """The commit unit."""
    kind: str
    partition: str
    state: TaskState
    attempt: int | None
    """The number of the last attempt."""
    optimizer_id: str | None
    """The optimizer that has, or had, the last attempt."""
    retries: int
    failures: list[dict[str, Any]]
    """Of earlier attempts: `attempt`, `at`, `optimizer_id`, `code`, `detail`, `hint`."""
    input_files: int
    input_bytes: int
    rows_done: int
    bytes_done: int
    created_at: datetime
    queued_at: datetime | None
    handed_out_at: datetime | None
    acknowledged_at: datetime | None
    progressed_at: datetime | None
    retry_at: datetime | None
    prepared_at: datetime | None
    ended_at: datetime | None

    @classmethod
    def of(cls, row: TaskRow) -> Self:
        """The document of a row."""
        return cls.model_validate({name: getattr(row, name, None) for name in cls.model_fields} | {"id": row.key})


class TaskPage(Page[TaskDocument]):
    """Tasks: of a process by number, of all the newest first."""


class ExecutedAttempt(Document):
    """An attempt at a task that an optimizer has."""

    task_id: str
    attempt: int


class OptimizerDocument(Document):
    """An optimizer."""

    id: str
    group: str
    container: str | None
    state: OptimizerState
    parallelism: int
    memory_bytes: int | None
    version: str
    host: str
    heartbeat_seconds: float
    """The interval that it has announced."""
    registered_at: datetime
    heard_at: datetime
    ended_at: datetime | None


class OptimizerPage(Page[OptimizerDocument]):
    """Optimizers, the newest first."""


class OptimizerDetail(OptimizerDocument):
    """An optimizer with what it executes."""

    attempts: list[ExecutedAttempt]


class EventDocument(Document):
    """A move of an object to another state."""

    number: int
    """Grows: whoever has read up to one has missed nothing before it."""
    at: datetime
    kind: str
    """`table`, `process`, `task`, `commit` or `optimizer`."""
    key: str
    """The id of the object; of a table its name."""
    table: str | None
    before: str | None
    """null: the object is new."""
    after: str
    why: str
    by: str
    """The name of the token's holder, the id of an optimizer, or `service`."""


class EventPage(Page[EventDocument]):
    """Events."""


class HealthDocument(Document):
    """The health of a table as it is now."""

    table: str
    observed_at: datetime
    health: dict[str, Any]
    """The score from 0 to 100, and what it lost points for."""


class WaitingProcess(Document):
    """A process of a table that has not ended."""

    id: str
    state: ProcessState
    kinds: list[str]
    waits_for: list[str]
    """What has to happen before it ends, in words."""


class Hindrance(Document):
    """Why a table is not optimized right now."""

    code: str
    """`paused`, `disabled`, `gone`, `failed-before`, `in-work`, `queue-full`, `no-optimizer` or `look-failed`."""
    text: str
    until: datetime | None = None


class ServiceView(Document):
    """What the service knows of a table, and the library does not."""

    state: TableState
    group: str
    looked_at: datetime | None
    next_look_at: datetime
    processes: list[WaitingProcess]
    """Those that have not ended."""
    hindrances: list[Hindrance]
    """Why it is not optimized right now; empty if nothing is in the way."""


class ExplanationDocument(Document):
    """What optimizing a table would do now, why, and what is in the way."""

    service: ServiceView
    plan: dict[str, Any]
    """As `arctic table explain --json` shows it: health, rules with thresholds and measures, partitions, tasks, cost."""
