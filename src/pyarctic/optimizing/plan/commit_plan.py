"""The part of a plan that executing and committing need, as data: whoever has it can commit results of its tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import polars as pl

from pyarctic.optimizing.protocol.job import Job
from pyarctic.optimizing.protocol.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """What is merged into one partition of a keyed table."""

    path: str
    """The name of the partition in the list of merged sequences."""
    merged: int
    """The sequence number of the change store that it was merged up to when it was planned; -1: nothing was."""
    sequence: int
    """The one that it will be merged up to."""


@dataclass(frozen=True, kw_only=True, eq=False)
class KeyedPart:
    """What only plans of keyed tables have."""

    change_snapshot_id: int | None
    """The snapshot of the change store when it was planned."""
    change_sequence_number: int
    """The newest commit of the change store that was seen."""
    merges: Mapping[tuple[int, str], Merge]
    """By spec id and partition key. Partitions without changes and foreign files have none."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CommitPlan:
    """A plan without the evaluation that led to it. With the table, which still has the start snapshot (`load_start`), it is
    all that is needed to execute its tasks and to commit their results."""

    process_id: str
    job: Job
    tasks: tuple[Task, ...]
    dangling_deletes: pl.DataFrame
    """Delete files that applied to nothing when it was planned, as FILE_SCHEMA."""
    ignores_writers: bool
    """Whether commits do not wait for a pause of other writers."""
    marks_rollback: bool
    """Whether commits of merges are marked so that the catalog may roll them back in favour of a writer."""
    quiet_time: timedelta
    """How long after a statement its writer counts as active."""
    keyed: KeyedPart | None
    figures: Mapping[str, int]
    """What it is expected to read and write, as `Plan.figures`."""
