"""Whether to look at a partition of a keyed table again while tasks of it are known. Pure; partitions do not concern each
other, so that a busy one never delays another.

* Nothing unfinished: evaluate it.
* A task is in somebody's hands, or on its way into the table: leave it alone.
* All wait: if there are newer changes, plan anew. Waiting tasks are replaced in place if the new ones cover them node by
  node, so that they keep their turn; what is more is added. Otherwise they stay as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pyarctic.optimizing.protocol.tasks import Task

TaskState = Literal["init", "pending", "executing", "prepared", "committing", "committed", "failed", "cancelled"]
_FINISHED: frozenset[TaskState] = frozenset({"committed", "cancelled"})
_IN_WORK: frozenset[TaskState] = frozenset({"executing", "prepared", "committing"})
Look = Literal["evaluate", "plan", "skip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTask:
    """A task of a partition, as far as it got."""

    id: int
    node_id: int
    state: TaskState


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """What becomes of waiting tasks after planning anew."""

    in_place: Mapping[int, Task]
    """Id of a waiting task → the task that takes its place."""
    extra: tuple[Task, ...]


def next_look(known: Iterable[KnownTask], planned_sequence: int, newest_sequence: int | None) -> Look:
    """What to do about a partition. `planned_sequence`: how far it will be merged when its unfinished tasks are done, though
    they may merge nothing. `newest_sequence`: that of its newest change that can be merged; None: there is none."""
    states = {task.state for task in known} - _FINISHED
    if not states:
        return "evaluate"
    if states & _IN_WORK:
        return "skip"
    return "plan" if newest_sequence is not None and newest_sequence > planned_sequence else "skip"


def replacement(known: Iterable[KnownTask], planned: Sequence[Task]) -> Replacement | None:
    """How newly planned tasks of a partition replace those that wait; None: they do not cover them, and are given up."""
    by_node: dict[int, list[Task]] = defaultdict(list)
    for task in planned:
        assert task.keyed is not None  # noqa: S101  # of a keyed table
        by_node[task.keyed.node_id].append(task)
    in_place: dict[int, Task] = {}
    for waiting in known:
        if waiting.state in _FINISHED:
            continue
        if not by_node[waiting.node_id]:
            return None
        in_place[waiting.id] = by_node[waiting.node_id].pop(0)
    return Replacement(in_place=in_place, extra=tuple(task for tasks in by_node.values() for task in tasks))
