"""Commit units: the tasks of a plan that are committed together or not at all.

Of a native table every task is a unit, so that none waits for another or is lost because of it. Of a keyed table all tasks
of a partition are one: readers take changes beyond the merged sequence number of a partition from the change store and all
others from Base, so that either all of its tasks are in Base or none is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from pyarctic.optimizing.plan.commit_plan import CommitPlan, Merge
from pyarctic.optimizing.protocol.task import Action, KeyedTask, OptimizingKind, Task

Partition = tuple[int, str]
"""The id of a spec, and the partition in it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CommitUnit:
    """Tasks that are committed together."""

    id: int
    """The id of its first task."""
    tasks: tuple[Task, ...]
    partition: Partition | None = None
    """Of a keyed table."""
    merge: Merge | None = None
    """How far a keyed partition is merged; None: it has neither changes nor foreign files to merge."""

    @property
    def kind(self) -> OptimizingKind:
        """The kind of optimizing, which all its tasks have."""
        return self.tasks[0].kind

    @property
    def action(self) -> Action:
        """The action, which all its tasks have."""
        return self.tasks[0].action

    @property
    def keyed_tasks(self) -> list[KeyedTask]:
        """Its tasks, if they are those of a keyed table."""
        return [task for task in self.tasks if isinstance(task, KeyedTask)]

    @property
    def transaction_id(self) -> int:
        """The latest transaction in the new files of a keyed partition."""
        return max(task.transaction_id for task in self.keyed_tasks)


def units_of(plan: CommitPlan) -> Mapping[int, CommitUnit]:
    """The units of a plan, by their ids, in the order of their tasks."""
    if plan.keyed is None:
        return {task.id: CommitUnit(id=task.id, tasks=(task,)) for task in plan.tasks}
    by_partition: dict[Partition, list[Task]] = defaultdict(list)
    for task in plan.tasks:
        by_partition[task.spec_id, str(task.partition_key)].append(task)
    units = [
        CommitUnit(id=tasks[0].id, tasks=tuple(tasks), partition=partition, merge=plan.keyed.merges.get(partition))
        for partition, tasks in by_partition.items()
    ]
    return {unit.id: unit for unit in units}
