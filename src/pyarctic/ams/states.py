"""The states of tables, processes, tasks, commits and optimizers, and the moves between them."""

from __future__ import annotations

from enum import StrEnum

from pyarctic.ams.machine import Machine


class TableState(StrEnum):
    """Whether a table is optimized."""

    ACTIVE = "active"
    PAUSED = "paused"
    DISABLED = "disabled"
    GONE = "gone"


class ProcessState(StrEnum):
    """How far one optimizing process of one table is."""

    WAITING = "waiting"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    PARTIAL = "partial"
    FAILED = "failed"
    CANCELLED = "cancelled"


class TaskState(StrEnum):
    """How far a task of a process is."""

    INIT = "init"
    PENDING = "pending"
    EXECUTING = "executing"
    FAILED = "failed"
    PREPARED = "prepared"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABANDONED = "abandoned"
    REPLACED = "replaced"
    CANCELLED = "cancelled"


class CommitState(StrEnum):
    """What became of a commit."""

    OPEN = "open"
    LANDED = "landed"
    REFUSED = "refused"


class OptimizerState(StrEnum):
    """Whether an optimizer executes tasks."""

    ACTIVE = "active"
    DRAINING = "draining"
    LOST = "lost"
    STOPPED = "stopped"


TABLES = Machine(
    "table",
    {
        TableState.ACTIVE: "It is looked at, and optimized when it needs it.",
        TableState.PAUSED: "Nothing new is planned; what is executed is finished and committed.",
        TableState.DISABLED: "Its settings or those of the service exclude it.",
        TableState.GONE: "The catalog does not have it any more.",
    },
    {
        (TableState.ACTIVE, TableState.PAUSED): "somebody pauses it, or five processes in a row failed",
        (TableState.PAUSED, TableState.PAUSED): "somebody pauses it for another time",
        (TableState.PAUSED, TableState.ACTIVE): "somebody resumes it, or the pause is over",
        (TableState.ACTIVE, TableState.DISABLED): "its settings exclude it",
        (TableState.PAUSED, TableState.DISABLED): "its settings exclude it",
        (TableState.DISABLED, TableState.ACTIVE): "its settings include it",
        (TableState.ACTIVE, TableState.GONE): "it was dropped or renamed",
        (TableState.PAUSED, TableState.GONE): "it was dropped or renamed",
        (TableState.DISABLED, TableState.GONE): "it was dropped or renamed",
        (TableState.GONE, TableState.ACTIVE): "it is there again",
        (TableState.GONE, TableState.PAUSED): "it is there again, and was paused before",
    },
)

PROCESSES = Machine(
    "process",
    {
        ProcessState.WAITING: "It is planned, and the queue of its group is full.",
        ProcessState.RUNNING: "Its tasks are executed and committed.",
        ProcessState.CANCELLING: "What has not landed is given up. An open commit is settled first.",
        ProcessState.SUCCEEDED: "All of it is in the table.",
        ProcessState.PARTIAL: "Some of it is in the table, the rest was given up.",
        ProcessState.FAILED: "Nothing of it is in the table.",
        ProcessState.CANCELLED: "It was cancelled before all of it was in the table.",
    },
    {
        (ProcessState.WAITING, ProcessState.RUNNING): "the queue has room",
        (ProcessState.WAITING, ProcessState.CANCELLING): "somebody cancels it, or its plan cannot be committed any more",
        (ProcessState.RUNNING, ProcessState.CANCELLING): "somebody cancels it, or its plan cannot be committed any more",
        (ProcessState.RUNNING, ProcessState.SUCCEEDED): "all units are in the table",
        (ProcessState.RUNNING, ProcessState.PARTIAL): "no unit is left, and some were given up",
        (ProcessState.RUNNING, ProcessState.FAILED): "all units were given up",
        (ProcessState.CANCELLING, ProcessState.CANCELLED): "all that has not landed is given up",
    },
)

TASKS = Machine(
    "task",
    {
        TaskState.INIT: "It is planned and not queued.",
        TaskState.PENDING: "It waits for an optimizer.",
        TaskState.EXECUTING: "An optimizer has it.",
        TaskState.FAILED: "Its last attempt failed; it is tried again later.",
        TaskState.PREPARED: "Its result is stored and waits for a commit.",
        TaskState.COMMITTING: "A commit of its result is open.",
        TaskState.COMMITTED: "Its result is in the table.",
        TaskState.ABANDONED: "It is given up; its outputs are removed.",
        TaskState.REPLACED: "A newer plan has a task in its place.",
        TaskState.CANCELLED: "Its process was cancelled; its outputs are removed.",
    },
    {
        (TaskState.INIT, TaskState.PENDING): "its process runs",
        (TaskState.PENDING, TaskState.EXECUTING): "an optimizer gets it, as a new attempt",
        (TaskState.EXECUTING, TaskState.PREPARED): "the attempt has a result",
        (TaskState.EXECUTING, TaskState.FAILED): "the attempt failed, or takes too long",
        (TaskState.EXECUTING, TaskState.PENDING): "it was not acknowledged, or its optimizer is lost or stops",
        (TaskState.FAILED, TaskState.PENDING): "the retry interval is over",
        (TaskState.FAILED, TaskState.ABANDONED): "no retry is left",
        (TaskState.PREPARED, TaskState.COMMITTING): "a commit is stored and about to be sent",
        (TaskState.COMMITTING, TaskState.COMMITTED): "the commit landed",
        (TaskState.COMMITTING, TaskState.PREPARED): "the commit was refused, and is tried again",
        (TaskState.PREPARED, TaskState.COMMITTED): "it was found in the table",
        (TaskState.PREPARED, TaskState.ABANDONED): "its unit is given up",
        (TaskState.COMMITTING, TaskState.ABANDONED): "its unit is given up",
        (TaskState.PENDING, TaskState.ABANDONED): "its unit is given up",
        (TaskState.EXECUTING, TaskState.ABANDONED): "its unit is given up",
        (TaskState.INIT, TaskState.REPLACED): "a newer plan covers its node",
        (TaskState.PENDING, TaskState.REPLACED): "a newer plan covers its node",
        (TaskState.FAILED, TaskState.REPLACED): "a newer plan covers its node",
        (TaskState.INIT, TaskState.CANCELLED): "its process is cancelled",
        (TaskState.PENDING, TaskState.CANCELLED): "its process is cancelled",
        (TaskState.EXECUTING, TaskState.CANCELLED): "its process is cancelled",
        (TaskState.FAILED, TaskState.CANCELLED): "its process is cancelled",
        (TaskState.PREPARED, TaskState.CANCELLED): "its process is cancelled",
        (TaskState.COMMITTING, TaskState.CANCELLED): "its process is cancelled, and its commit was refused",
    },
)

COMMITS = Machine(
    "commit",
    {
        CommitState.OPEN: "It is decided; a request may be on its way.",
        CommitState.LANDED: "It is in the table.",
        CommitState.REFUSED: "No request of it can be accepted any more.",
    },
    {
        (CommitState.OPEN, CommitState.LANDED): "the table has its snapshot or its files",
        (CommitState.OPEN, CommitState.REFUSED): "the catalog refused it, or the branch has moved off the head it requires",
    },
)

OPTIMIZERS = Machine(
    "optimizer",
    {
        OptimizerState.ACTIVE: "It takes tasks.",
        OptimizerState.DRAINING: "It finishes what it executes, and takes nothing more.",
        OptimizerState.LOST: "It has not been heard of for too long. If it comes back, it registers again.",
        OptimizerState.STOPPED: "It has ended in good order.",
    },
    {
        (OptimizerState.ACTIVE, OptimizerState.DRAINING): "somebody asks for it, or it is about to end",
        (OptimizerState.ACTIVE, OptimizerState.LOST): "its heartbeat is overdue",
        (OptimizerState.DRAINING, OptimizerState.LOST): "its heartbeat is overdue",
        (OptimizerState.ACTIVE, OptimizerState.STOPPED): "it says that it ends",
        (OptimizerState.DRAINING, OptimizerState.STOPPED): "it has finished its last task",
    },
)

MACHINES = (TABLES, PROCESSES, TASKS, COMMITS, OPTIMIZERS)

ENDED_PROCESSES = frozenset({ProcessState.SUCCEEDED, ProcessState.PARTIAL, ProcessState.FAILED, ProcessState.CANCELLED})
ENDED_TASKS = frozenset({TaskState.COMMITTED, TaskState.ABANDONED, TaskState.REPLACED, TaskState.CANCELLED})
WAITING_TASKS = frozenset({TaskState.INIT, TaskState.PENDING, TaskState.FAILED})
WITH_RESULT = frozenset({TaskState.PREPARED, TaskState.COMMITTING})
WORKING_OPTIMIZERS = frozenset({OptimizerState.ACTIVE, OptimizerState.DRAINING})
