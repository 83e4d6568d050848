"""The commits of a process as data: what was decided, sent, and what became of it.

A record is stored before the first request of its commit, with the snapshot id, and again before every request, with the
head of the branch that the request requires. So whoever goes on after a crash knows which requests may still be accepted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, Protocol, Self, cast, get_args

import polars as pl

from pyarctic.iceberg.manifest import FILE_SCHEMA
from pyarctic.optimizing.protocol.result import TaskResult
from pyarctic.optimizing.protocol.task import Task
from pyarctic.optimizing.protocol.task_files import ListedFiles
from pyarctic.optimizing.protocol.wire import Fields, id_to_text, to_document

RecordState = Literal["open", "landed", "refused"]
Step = Literal["merge", "convert", "dangling-deletes"]
TABLE_GONE = "table-gone"
"""The code of a commit that was given up because its table is gone: if that comes back, its requests may do so, too."""
MOVED_FOR_NOW = "moved-for-now"
"""The code of a commit that was too late, and will not be if others set the branch back to the head that it requires."""
_IN_DOUBT = (TABLE_GONE, MOVED_FOR_NOW)


def no_files() -> pl.DataFrame:
    """An empty file list."""
    return pl.DataFrame(schema=FILE_SCHEMA)


@dataclass(frozen=True, kw_only=True)
class FinishedTask:
    """A task and its result."""

    task: Task
    result: TaskResult
    received_at: datetime


@dataclass(frozen=True, kw_only=True, eq=False)
class CommitRecord:
    """One commit of a process, or the attempt at one."""

    snapshot_id: int
    step: Step
    units: tuple[int, ...]
    """The ids of its units; none if only dangling deletes are removed."""
    removed_deletes: pl.DataFrame = field(default_factory=no_files)
    """Delete files that it removes, as rows of a file list."""
    heads: frozenset[int | None] = frozenset()
    """The heads of the branch that its requests require. None: the table without a snapshot."""
    state: RecordState = "open"
    """`open`: a request may be on its way. `refused`: it is proved that none can be accepted any more."""
    changed_at: datetime
    """When it got its state."""
    code: str | None = None
    """Why it was refused, as `Rejected.code`; `conflict`: others kept committing first; `not-sent`: no request was sent."""
    reason: str | None = None
    was_in_table: bool = False
    """It was refused because others have rolled it back, or took the table's name: a snapshot may refer to its files."""
    rebased_rows: int = 0
    """Rows that others deleted during the rewrite and whose deletes were translated."""

    @property
    def was_sent(self) -> bool:
        """Whether a request of it may have been sent."""
        return bool(self.heads)

    def refused(self, now: datetime, code: str, reason: str | None = None, *, was_in_table: bool = False) -> Self:
        """This record after it was refused."""
        return replace(self, state="refused", changed_at=now, code=code, reason=reason, was_in_table=was_in_table)

    def to_json(self) -> dict[str, Any]:
        """This record as a JSON document."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        values |= {
            "snapshot_id": id_to_text(self.snapshot_id),
            "units": list(self.units),
            "removed_deletes": ListedFiles().write_files(self.removed_deletes),
            "heads": sorted(map(id_to_text, self.heads), key=str),
            "changed_at": self.changed_at.isoformat(),
        }
        return to_document("commit", values)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The record of a JSON document."""
        given = Fields.of(document, "commit")
        return cls(
            snapshot_id=given.id("snapshot_id"),
            step=cast("Step", given.one_of("step", get_args(Step))),
            units=given.numbers("units"),
            removed_deletes=ListedFiles().read_files(given, "removed_deletes"),
            heads=frozenset(given.optional_ids("heads")),
            state=cast("RecordState", given.one_of("state", get_args(RecordState))),
            changed_at=given.time("changed_at"),
            code=given.optional_text("code"),
            reason=given.optional_text("reason"),
            was_in_table=given.flag("was_in_table"),
            rebased_rows=given.optional_number("rebased_rows") or 0,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class CommitLog:
    """All commits of a process so far, and what else became of its units."""

    records: tuple[CommitRecord, ...] = ()
    """In the order of decisions."""
    dropped: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    """Units that are given up, and why."""
    found: frozenset[int] = frozenset()
    """Units that are in the table by a commit that has no record here."""

    @property
    def open(self) -> CommitRecord | None:
        """The commit whose outcome is not known. There is one at most."""
        return next((record for record in self.records if record.state == "open"), None)

    @property
    def in_doubt(self) -> list[CommitRecord]:
        """Commits whose requests may still be accepted, as far as anybody can tell."""
        return [each for each in self.records if each.was_sent and (each.state == "open" or each.code in _IN_DOUBT)]

    @property
    def landed(self) -> list[CommitRecord]:
        """The commits that are in the table."""
        return [record for record in self.records if record.state == "landed"]

    @property
    def committed_units(self) -> list[int]:
        """Units that these commits have brought into the table, in their order."""
        return [unit for record in self.landed for unit in record.units]

    @cached_property
    def resolved_units(self) -> frozenset[int]:
        """Units for which nothing is left to do."""
        return frozenset({*self.committed_units, *self.dropped, *self.found})

    @property
    def removed_deletes(self) -> pl.DataFrame:
        """Delete files that these commits have removed."""
        return pl.concat([no_files(), *(record.removed_deletes for record in self.landed)])

    def refusals_of(self, unit: int) -> Sequence[CommitRecord]:
        """The refused commits of a unit, the latest last. Those that were never sent do not count."""
        return self._refusals.get(unit, ())

    @cached_property
    def _refusals(self) -> Mapping[int, Sequence[CommitRecord]]:
        refusals: dict[int, list[CommitRecord]] = defaultdict(list)
        for record in self.records:
            if record.state == "refused" and record.code != "not-sent":
                for unit in record.units:
                    refusals[unit].append(record)
        return refusals

    def with_record(self, record: CommitRecord) -> Self:
        """This log with a new record, or with the new state of one."""
        others = tuple(each for each in self.records if each.snapshot_id != record.snapshot_id)
        return replace(self, records=(*others, record))

    def with_dropped(self, reasons: Mapping[int, str]) -> Self:
        """This log with units that are given up."""
        return replace(self, dropped=MappingProxyType({**self.dropped, **reasons}))

    def with_found(self, units: Iterable[int]) -> Self:
        """This log with units that were found in the table."""
        return replace(self, found=self.found.union(units))


BeforeSubmit = Callable[[Collection[int], int | None], None]
"""Is called before every request with the ids of its tasks and the head of the branch that it requires. If it raises an
error, the request is not sent."""


def ignore_requests(_tasks: Collection[int], _head: int | None) -> None:
    """Nobody keeps account of requests."""


class LogStore(Protocol):
    """Where the log of a process is kept. If a method raises an error, what was to follow does not happen. It must do so for
    whoever is not the one to commit any more: the new one may have settled the record and removed its files."""

    def save_record(self, record: CommitRecord) -> None:
        """Store a record, or its new state, before anything is done about it."""

    def save_dropped(self, reasons: Mapping[int, str]) -> None:
        """Store that units are given up, before their files are removed."""

    def save_found(self, units: Sequence[int]) -> None:
        """Store that units were found in the table."""


class UnsavedLog:
    """Keeps nothing: the log lives as long as the process."""

    def save_record(self, record: CommitRecord) -> None: ...
    def save_dropped(self, reasons: Mapping[int, str]) -> None: ...
    def save_found(self, units: Sequence[int]) -> None: ...
