"""The machines: every state can be reached, is explained, and is left only by moves that there are."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import pytest

from pyarctic.ams import states
from pyarctic.ams.machine import InvalidTransition, Machine
from pyarctic.ams.states import (
    ENDED_PROCESSES,
    ENDED_TASKS,
    MACHINES,
    OPTIMIZERS,
    TASKS,
    WAITING_TASKS,
    WITH_RESULT,
    OptimizerState,
    TaskState,
)

NOW = datetime(2026, 7, 1, tzinfo=UTC)
every_machine = pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
every_move = pytest.mark.parametrize(
    ("machine", "before", "after"),
    [(machine, before, after) for machine in MACHINES for before in machine.states for after in machine.states],
    ids=lambda value: value.name if isinstance(value, Machine) else str(value),
)


@every_machine
def test_every_state_can_be_reached(machine: Machine[Any]) -> None:
    reached = {machine.first}
    while more := {after for before, after in machine.moves if before in reached} - reached:
        reached |= more
    assert reached == set(machine.states)


@every_machine
def test_every_state_is_explained_in_sentences(machine: Machine[Any]) -> None:
    kind: type[StrEnum] = type(machine.first)
    assert list(machine.states) == list(kind)
    for text in machine.states.values():
        assert text.endswith(".")
        assert text[0].isupper()


@every_machine
def test_every_move_has_a_reason_that_fits_a_diagram(machine: Machine[Any]) -> None:
    for (before, after), why in machine.moves.items():
        assert before != after or (before, after) == ("paused", "paused")
        assert {before, after} <= set(machine.states)
        assert why
        assert not set(why) & set(":;\n"), "Mermaid would read more than text"
        assert f"    {before} --> {after}: {why}" in machine.to_mermaid().splitlines()


def test_there_are_machines_for_all_states() -> None:
    kinds = {kind for kind in vars(states).values() if isinstance(kind, type) and issubclass(kind, StrEnum)} - {StrEnum}
    assert kinds == {type(machine.first) for machine in MACHINES}
    assert len({machine.name for machine in MACHINES}) == len(MACHINES)


def test_what_has_ended_has_no_moves() -> None:
    ended = {state for machine in MACHINES for state in machine.ended}
    assert ended == ENDED_PROCESSES | ENDED_TASKS | {"landed", "refused", "lost", "stopped"}
    assert WAITING_TASKS | WITH_RESULT | ENDED_TASKS | {TaskState.EXECUTING} == set(TaskState)


@every_move
def test_moves(machine: Machine[Any], before: StrEnum, after: StrEnum) -> None:
    if (before, after) in machine.moves:
        move = machine.move("7", before, after, "because", NOW, table="t", by="ada")
        assert (move.kind, move.key, move.before, move.after, move.table) == (machine.name, "7", before, after, "t")
        assert (move.why, move.by, move.at) == ("because", "ada", NOW)
        return
    with pytest.raises(InvalidTransition) as told:
        machine.move("7", before, after, "because", NOW, table=None)
    possible = [str(to) for from_, to in machine.moves if from_ == before]
    assert told.value.hint == (f"From {before} it can become: {', '.join(possible)}." if possible else "It has ended.")


def test_a_new_object_has_no_state_before() -> None:
    move = OPTIMIZERS.move("o1", None, OptimizerState.ACTIVE, "it has registered", NOW, table=None)
    assert (move.before, move.after, move.by) == (None, "active", "service")


def test_an_invalid_transition_survives_another_process() -> None:
    with pytest.raises(InvalidTransition) as told:
        TASKS.move("p.1", TaskState.PENDING, TaskState.COMMITTED, "because", NOW, table=None)
    copy = pickle.loads(pickle.dumps(told.value))
    assert str(copy) == "task p.1 is pending, and cannot become committed"
    assert copy.facts == told.value.facts == {"kind": "task", "key": "p.1", "before": "pending", "after": "committed"}
    assert copy.hint == "From pending it can become: executing, abandoned, replaced, cancelled."
