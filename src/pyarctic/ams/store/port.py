"""What the service asks of its database. One conformance suite (`tests/contract`) holds for every implementation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from pyarctic.ams.machine import Transition
from pyarctic.ams.rows import (
    ClaimRow,
    CommitRow,
    EventRow,
    OptimizerRow,
    PlanRow,
    ProcessRow,
    ResultRow,
    Row,
    TableRow,
    TaskRow,
    UnitRow,
)
from pyarctic.errors import ArcticError

R = TypeVar("R", bound=Row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Who leads the services of a database."""

    number: int
    """Grows with every change of the holder. 0: nobody has held it."""
    holder: str
    """Names a process."""
    url: str
    """Where the holder is reached."""
    seconds: float
    """For so long it holds, as of the clock of the database; not, if it is not positive."""


class Broken(ArcticError):
    """A transaction that would break what always holds: the database refuses it as a whole. Somebody else was first, or it
    is a fault of the service.

    * An attempt number of a task is given out once: a task row is replaced only by one that has seen its last version.
    * A table has one open commit at most.
    * A file or partition of a table is claimed by one unfinished process at most.
    * There is one row with a key at most.

    The transaction is undone, also if the caller goes on after this error."""

    code = "conflict"
    title = "Somebody else was first"
    retryable = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which rows are wanted: all of these fields have one of these values."""

    where: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    order: str | None = None
    """The field that they are ordered by; by default the first of their key. Rows that are equal in it are ordered by their
    key. None comes before everything else."""
    descending: bool = False
    """The whole order is turned around."""
    after: Any = None
    """Only rows whose ordering field is beyond this value, in the order that is asked for. Page by a field whose values
    differ: rows equal to the last one are left out, too."""
    limit: int | None = None


class Transaction(Protocol):
    """Reads and writes that take effect together or not at all. It sees its own writes. All writes of a store are
    serialized: what was read in a transaction does not change before its end."""

    def get(self, kind: type[R], *key: Any) -> R | None:
        """The row with that key (`KEYS`)."""
        ...

    def find(self, kind: type[R], query: Query | None = None, /, **where: Any) -> Sequence[R]:
        """Rows that match. `where`: fields and their values; a set, list or tuple means any of them. Documents are not
        searched."""
        ...

    def insert(self, *rows: Row) -> None:
        """Add rows; raises Broken if there is one with that key. Events are added by `record` only."""
        ...

    def update(self, *rows: Row) -> None:
        """Replace rows; raises Broken if one is not there, or if a task has another version than the one before."""
        ...

    def delete(self, kind: type[Any], query: Query | None = None, /, **where: Any) -> int:
        """Remove rows that match, and tell how many. A query without a limit."""
        ...

    def record(self, transitions: Iterable[Transition]) -> None:
        """Store moves as events, in this order."""
        ...


class Store(Protocol):
    """The database. Transactions of one store may be asked for by many threads."""

    def begin(self, lease: int | None = None) -> AbstractContextManager[Transaction]:
        """A transaction. It ends with the block, and is undone by an exception. Others wait for it; a thread that has one
        cannot begin another. `lease`: raises NotLeading unless the lease has this number."""
        ...

    def read(self) -> AbstractContextManager[Transaction]:
        """The database as it is now, for reading only: later transactions are not seen. It does not wait for writers."""
        ...

    def lease(self) -> Lease:
        """Who leads, as of now."""
        ...

    def hold_lease(self, holder: str, url: str, seconds: float) -> Lease:
        """Take the lease if nobody holds it, or prolong it if this holder does; and tell who holds it."""
        ...

    def release_lease(self, number: int) -> None:
        """Give a lease up, if it is still this one, so that others need not wait for its end."""
        ...

    def events_after(self, number: int, limit: int = 1000) -> Sequence[EventRow]:
        """The next events after a number."""
        ...

    def close(self) -> None:
        """Give up all connections."""
        ...


KEYS: Mapping[type[Any], tuple[str, ...]] = {
    TableRow: ("uuid",),
    ProcessRow: ("id",),
    TaskRow: ("process_id", "number"),
    UnitRow: ("process_id", "unit"),
    CommitRow: ("snapshot_id",),
    OptimizerRow: ("id",),
    ClaimRow: ("table_uuid", "key"),
    PlanRow: ("process_id",),
    ResultRow: ("process_id", "number"),
    EventRow: ("number",),
}
"""The fields that identify a row."""
