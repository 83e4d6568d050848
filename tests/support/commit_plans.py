"""Comparing plans, which have frames and therefore no equality of their own."""

from __future__ import annotations

from dataclasses import fields

import polars as pl
from polars.testing import assert_frame_equal

from pyarctic.optimizing.plan.commit_plan import CommitPlan, KeyedPart
from pyarctic.optimizing.protocol import Job, Task


def assert_same_plan(ours: CommitPlan, theirs: CommitPlan) -> None:
    """In every field, rows of files in the same order, with all columns."""
    _assert_same_fields(ours, theirs)


def _assert_same_fields(ours: object, theirs: object) -> None:
    assert type(ours) is type(theirs)
    for entry in fields(ours):  # type: ignore[arg-type]  # plans, jobs and tasks are dataclasses
        mine, other = getattr(ours, entry.name), getattr(theirs, entry.name)
        if isinstance(mine, pl.DataFrame):
            assert_frame_equal(mine, other)
        elif isinstance(mine, Job | KeyedPart):
            _assert_same_fields(mine, other)
        elif entry.name == "tasks":
            for task, again in zip(mine, other, strict=True):
                assert isinstance(task, Task)
                _assert_same_fields(task, again)
        else:
            assert mine == other, entry.name
