"""What to plan while a table has unfinished tasks. Pure.

Of a native table a new plan leaves out the data files of unfinished tasks (`files_in_work`), so that a file is replaced by
one process at most. Of a keyed table each partition is looked at by itself, so that a busy one never delays another:

* Nothing is unfinished: evaluate it.
* A task is executing, or on its way into the table: leave it alone.
* All tasks wait: if there are newer changes, plan again. Waiting tasks are replaced in place if the new ones cover them node
  by node, so that they keep their turn; more tasks may be added. Otherwise they stay as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pyarctic.optimizing.protocol.task import KeyedTask, Task

TaskState = Literal[
    "init", "pending", "executing", "prepared", "committing", "committed", "failed", "abandoned", "replaced", "cancelled"
]
_FINISHED: frozenset[TaskState] = frozenset({"committed", "abandoned", "replaced", "cancelled"})
_IN_WORK: frozenset[TaskState] = frozenset({"executing", "prepared", "committing"})
Recheck = Literal["evaluate", "plan", "skip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedTask:
    """The state of a task of a partition."""

    id: int
    node_id: int
    state: TaskState


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """What to do with waiting tasks after planning again."""

    in_place: Mapping[int, KeyedTask]
    """Id of a waiting task → the task that replaces it."""
    extra: tuple[KeyedTask, ...]
    """Tasks that are added."""


def files_in_work(tracked: Iterable[tuple[Task, TaskState]]) -> frozenset[str]:
    """The data files of a native table's unfinished tasks, for `make_plan(in_work=…)`. Delete files may be shared."""
    unfinished = [task for task, state in tracked if state not in _FINISHED]
    return frozenset(path for task in unfinished for path in task.data["file_path"])


def choose_recheck(tracked: Iterable[TrackedTask], planned_sequence: int, newest_sequence: int | None) -> Recheck:
    """What to do with a partition. `planned_sequence`: the sequence number it will be merged up to when its unfinished tasks
    are done, even if they merge nothing. `newest_sequence`: that of its newest change that can be merged; None: there is
    none."""
    states = {task.state for task in tracked} - _FINISHED
    if not states:
        return "evaluate"
    if states & _IN_WORK:
        return "skip"
    return "plan" if newest_sequence is not None and newest_sequence > planned_sequence else "skip"


def replace_waiting(tracked: Iterable[TrackedTask], planned: Sequence[KeyedTask]) -> Replacement | None:
    """How newly planned tasks of a partition replace those that wait; None: they do not cover them, and are dropped."""
    by_node: dict[int, list[KeyedTask]] = defaultdict(list)
    for task in planned:
        by_node[task.node_id].append(task)
    in_place: dict[int, KeyedTask] = {}
    for waiting in tracked:
        if waiting.state in _FINISHED:
            continue
        if not by_node[waiting.node_id]:
            return None
        in_place[waiting.id] = by_node[waiting.node_id].pop(0)
    return Replacement(in_place=in_place, extra=tuple(task for tasks in by_node.values() for task in tasks))
