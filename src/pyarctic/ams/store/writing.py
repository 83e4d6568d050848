"""What both stores do with rows before they keep them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyarctic.ams.machine import Transition
from pyarctic.ams.rows import EventRow, Row
from pyarctic.ams.store.port import KEYS, Broken


def key_of(row: Row) -> tuple[Any, ...]:
    """The key of a row."""
    return tuple(getattr(row, name) for name in KEYS[type(row)])


def by_kind(rows: Iterable[Row]) -> dict[type[Any], list[Any]]:
    """Rows that are written together. Events are not among them: their numbers are given by `record`."""
    kinds: dict[type[Any], list[Any]] = {}
    for row in rows:
        kinds.setdefault(type(row), []).append(row)
    if EventRow in kinds:
        raise TypeError("events are recorded, not written")
    return kinds


def event(number: int, move: Transition) -> EventRow:
    """The event of a move."""
    return EventRow(
        number=number,
        at=move.at,
        kind=move.kind,
        key=move.key,
        table=move.table,
        before=move.before,
        after=move.after,
        why=move.why,
        by=move.by,
    )


def broken(kind: type[Any], why: str, key: tuple[Any, ...] | None = None) -> Broken:
    """The error for a row that cannot be written as it is. `key`: None if it is one of many."""
    name = kind.__name__.removesuffix("Row").lower()
    which = f"a {name}" if key is None else f"{name} {'.'.join(map(str, key))}"
    return Broken(f"{which} {why}", kind=name, **({} if key is None else {"key": ".".join(map(str, key))}))


THERE_ALREADY = "is there already"
CHANGED = "is not there any more, or was changed by somebody else"
OPEN_TWICE = "is open, and another of the same table, too"
