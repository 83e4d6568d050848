"""Writes that are made once: each is a numbered step of a job, and the table records the last step of every job."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyarctic.errors import Rejected, UsageError
from pyarctic.iceberg.commit import NumberedStep
from pyarctic.tables.write.prepared import CommitNote, PreparedWrite

if TYPE_CHECKING:
    from pyarctic.tables.table import Table

_PREFIX = "arctic.once."
_JOB, _STEP = "arctic.once.job", "arctic.once.step"
_HINT = 'Write it as [[once=("my-job", 42)]]: a name of letters, digits, "-", "_" and ".", and a number from 0 on.'


def job_property(job: Any) -> str:
    """The table property that records the last step of a job."""
    if not isinstance(job, str) or not re.fullmatch(r"[\w.-]+", job):
        raise UsageError(f"{job!r} is not the name of a job", hint=_HINT)
    return _PREFIX + job


def parse_step(once: Any) -> NumberedStep:
    """The step that a user has given as a job and a number."""
    if not isinstance(once, tuple | list) or len(once) != 2:
        raise UsageError(f"once is a job and a number, not {once!r}", hint=_HINT)
    job, number = once
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise UsageError(f"the step of job {job!r} is a number from 0 on, not {number!r}", hint=_HINT)
    return NumberedStep(property=job_property(job), number=number)


def write_once(
    table: Table, prepared: PreparedWrite, step: NumberedStep, write: Callable[[CommitNote], int | None]
) -> int | None:
    """Call `write` unless this step of its job, or a later one, is in the table; None if it is. A step without rows is
    recorded by a snapshot without files."""
    last = table.last_step(step.property)
    if last is not None and last >= step.number:
        return None
    job = step.property.removeprefix(_PREFIX)
    note = CommitNote(summary={_JOB: job, _STEP: str(step.number)}, once=step)
    try:
        snapshot_id = write(note)
        if snapshot_id is None:
            committed = prepared.store._append(empty=True, once=step, snapshot_properties=note.summary)
            snapshot_id = committed.snapshot_id
    except Rejected as refusal:
        if refusal.facts.get("reason") != "done-already":
            raise
        return None  # another process was faster
    return snapshot_id
