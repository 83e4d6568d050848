"""State machines: one table of legal moves each. Every move becomes an event that is stored with the new state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Generic, TypeVar

from pyarctic.errors import ArcticError

State = TypeVar("State", bound=StrEnum)
Row = TypeVar("Row")


class InvalidTransition(ArcticError):
    """A move that the machine does not have. It is a fault of the service, or a request that comes too late."""

    code = "invalid-transition"
    title = "This is not possible in the current state"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A move of one object, as it is stored and shown."""

    kind: str
    """The name of the machine."""
    key: str
    """Which object it is."""
    table: str | None = None
    """The table that it concerns."""
    before: str | None
    """None: the object is new."""
    after: str
    why: str
    by: str = "service"
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Generic[Row]):
    """What a step of a machine came to. Everything is stored before anybody acts on it."""

    row: Row
    transitions: tuple[Transition, ...] = ()


@dataclass(frozen=True, slots=True)
class Machine(Generic[State]):
    """A machine: its states with a sentence each, and the moves with what causes them."""

    name: str
    states: Mapping[State, str]
    moves: Mapping[tuple[State, State], str] = field(default_factory=dict)

    @property
    def first(self) -> State:
        """The state of a new object."""
        return next(iter(self.states))

    @property
    def ended(self) -> tuple[State, ...]:
        """States without a way out."""
        return tuple(state for state in self.states if all(before != state for before, _ in self.moves))

    def move(
        self, key: str, before: State | None, after: State, why: str, at: datetime, *, table: str | None, by: str = "service"
    ) -> Transition:
        """The move of an object to another state; raises InvalidTransition if there is none. `before` is None for a new
        one."""
        if before is not None and (before, after) not in self.moves:
            possible = [str(to) for from_, to in self.moves if from_ == before]
            raise InvalidTransition(
                f"{self.name} {key} is {before}, and cannot become {after}",
                hint=f"From {before} it can become: {', '.join(possible)}." if possible else "It has ended.",
                kind=self.name,
                key=key,
                before=str(before),
                after=str(after),
            )
        return Transition(kind=self.name, key=key, table=table, before=before, after=after, why=why, by=by, at=at)

    def to_mermaid(self) -> str:
        """A diagram of the machine for documents."""
        lines = ["stateDiagram-v2", f"    [*] --> {self.first}"]
        lines += [f"    {before} --> {after}: {why}" for (before, after), why in self.moves.items()]
        lines += [f"    {state} --> [*]" for state in self.ended]
        return "\n".join(lines)
