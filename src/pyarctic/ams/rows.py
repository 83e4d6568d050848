"""What the service knows, as rows of its database. A row is replaced as a whole; large documents have rows of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from pyarctic.ams.states import CommitState, OptimizerState, ProcessState, TableState, TaskState

Document = Mapping[str, Any]
"""JSON, without secrets."""
_MISSED_HEARTBEATS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A table of a catalog."""

    uuid: str
    """As the catalog gives it: a table that is dropped and created again is another one."""
    name: str
    catalog: str
    kind: str
    """keyed, unkeyed or native."""
    state: TableState
    group: str = "default"
    base_snapshot_id: int | None = None
    """The snapshots that were evaluated last."""
    change_snapshot_id: int | None = None
    base_sequence: int | None = None
    """The newest sequence numbers that are known of, also from reported commits."""
    change_sequence: int | None = None
    figures: Document = field(default_factory=dict)
    """Health and files, as of the last evaluation."""
    looked_at: datetime | None = None
    next_look_at: datetime
    look_seconds: float
    """The interval of periodic looks: longer if nothing changes, shorter if something does."""
    trigger: str | None = None
    """What the next look is for, if it is not a periodic one."""
    must_plan: bool = False
    """Whether the last look found something to do that could not be planned then."""
    planned_at: datetime | None = None
    """When a process was planned last."""
    committed_at: datetime | None = None
    """When a commit of the service landed last."""
    failed_in_a_row: int = 0
    """Processes that were abandoned, since one that was not."""
    plan_after: datetime | None = None
    """Nothing is planned before: an earlier process failed."""
    paused_by: str | None = None
    pause_reason: str | None = None
    paused_until: datetime | None = None
    problem: str | None = None
    """Why the last look failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow:
    """One optimizing process of one table."""

    id: str
    table_uuid: str
    table: str
    group: str
    kinds: tuple[str, ...]
    state: ProcessState
    trigger: str
    """What it was planned for: periodic, reported or demanded."""
    job_id: str
    commits_at_once: bool = False
    """Whether results are committed without waiting for the interval."""
    reasons: tuple[Document, ...] = ()
    """The rules that were met."""
    expected: Document = field(default_factory=dict)
    actual: Document = field(default_factory=dict)
    outcome: str | None = None
    """In words, when it has ended."""
    tasks: int
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    clean_at: datetime | None = None
    """When files that nobody needs are looked for next. None: they are removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """A task of a process."""

    process_id: str
    number: int
    """Its id in the plan."""
    table_uuid: str
    group: str
    unit: int
    """The commit unit that it belongs to."""
    kind: str
    partition: str
    state: TaskState
    version: int = 0
    """Grows with every change: whoever changes a row must have seen the last one."""
    attempt: int | None = None
    """The number of the last attempt."""
    optimizer_id: str | None = None
    """Who has the last attempt."""
    retries: int = 0
    failures: tuple[Document, ...] = ()
    input_files: int
    input_bytes: int
    rows_done: int = 0
    bytes_done: int = 0
    created_at: datetime
    queued_at: datetime | None = None
    handed_out_at: datetime | None = None
    acknowledged_at: datetime | None = None
    progressed_at: datetime | None = None
    retry_at: datetime | None = None
    prepared_at: datetime | None = None
    ended_at: datetime | None = None

    @property
    def key(self) -> str:
        """Its id in the API."""
        return f"{self.process_id}.{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitRow:
    """A commit unit that needs no commit any more: it was dropped, or found in the table."""

    process_id: str
    unit: int
    dropped: str | None
    """Why. None: it was found in the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRow:
    """A commit of a process."""

    snapshot_id: int
    process_id: str
    table_uuid: str
    state: CommitState
    record: Document
    """As `CommitRecord.to_json`."""
    position: int
    """In the log of the process."""
    changed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerRow:
    """An optimizer that has registered."""

    id: str
    group: str
    container: str | None = None
    state: OptimizerState
    parallelism: int
    memory_bytes: int | None = None
    version: str
    host: str
    token_hash: str
    heartbeat_seconds: float
    """The interval that it has announced."""
    registered_at: datetime
    heard_at: datetime
    ended_at: datetime | None = None

    def heartbeat_timeout(self, least: timedelta) -> timedelta:
        """After so long without a heartbeat it is lost: `least`, or three of them."""
        return max(least, timedelta(seconds=_MISSED_HEARTBEATS * self.heartbeat_seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRow:
    """What one unfinished process of a table has: a data file that it replaces, or a partition of a keyed table."""

    table_uuid: str
    key: str
    process_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """The plan of a process (`CommitPlan.to_bytes`). It is removed some time after the process has ended."""

    process_id: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRow:
    """The result of a task, compressed JSON. It is removed with the plan."""

    process_id: str
    number: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """A move of an object. Numbers grow, and whoever has read up to one misses nothing before it."""

    number: int
    at: datetime
    kind: str
    key: str
    table: str | None
    before: str | None
    after: str
    why: str
    by: str


Row = TableRow | ProcessRow | TaskRow | UnitRow | CommitRow | OptimizerRow | ClaimRow | PlanRow | ResultRow | EventRow
