"""What to commit next: pure functions of the log, the results and the table as it is now.

Deciding has two steps. `choose_next` needs the log and the results only, so that a table is not loaded for nothing. If it
gives a `Candidate`, the table is looked at (`TableNow`), and `decide_candidate` tells what becomes of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Self

from pyiceberg.table.metadata import TableMetadata

from pyarctic.iceberg.commit import RetryPolicy
from pyarctic.optimizing.commit.log import MOVED_FOR_NOW, CommitLog, CommitRecord, FinishedTask, Step
from pyarctic.optimizing.commit.units import CommitUnit
from pyarctic.optimizing.protocol.task import OPTIMIZING_KINDS

_POLL = timedelta(seconds=0.1)
_MAX_POLL = timedelta(seconds=1)
_POLL_SHARE = 0.05
"""The longer a wait takes, the less often the table is loaded: ten times a second at first, every second in the end."""
_JUST_NOW = timedelta(seconds=0.5)
_MOVED = ("moved", MOVED_FOR_NOW)
_RACES = (*_MOVED, "conflict")
"""Others committed first. The same units are tried again together."""
_MAX_CONFLICTS = 5
"""The catalog refused a commit so often, each time until the retries of the table were exhausted."""
_CONFLICT_WAIT = timedelta(seconds=0.2)
_LONGEST_CONFLICT_WAIT = _CONFLICT_WAIT * 2**_MAX_CONFLICTS
_TAKEN_DELETES = ("files-gone", "not-live")
"""Others may have removed the same dangling deletes."""


_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class CommitPolicy:
    """How many units are committed together, and how often."""

    interval: timedelta = timedelta(seconds=60)
    """The least time between two commits of a process while tasks are executed."""
    batch: int | None = 64
    """So many units are committed at once; None: only when the interval is over."""
    max_races: int | None = None
    """How often a commit may lose against others; None: until `race_time` is over."""
    race_time: timedelta = timedelta(minutes=5)

    @classmethod
    def of(cls, metadata: TableMetadata) -> Self:
        """The policy of a table without a service, by its properties."""
        retry = RetryPolicy.of(metadata)
        return cls(max_races=retry.max_retries, race_time=timedelta(seconds=retry.total_seconds))


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far the tasks of a process are."""

    results: Mapping[int, FinishedTask]
    """By the id of the task."""
    failed: AbstractSet[int] = frozenset()
    """Tasks that are not tried again."""
    started_at: datetime


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Units that may be committed now, or the removal of dangling deletes if there are none."""

    step: Step
    units: tuple[int, ...]
    removes_deletes: bool = True
    """Whether deletes that apply to nothing any more are removed in the same commit."""


@dataclass(frozen=True, kw_only=True)
class Settle:
    """Find out what became of an open commit."""

    record: CommitRecord


@dataclass(frozen=True, kw_only=True)
class Drop:
    """Give up units, for a reason each."""

    reasons: Mapping[int, str]


@dataclass(frozen=True, kw_only=True)
class Found:
    """Note that units are in the table already."""

    units: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Commit:
    """Commit units."""

    step: Step
    units: tuple[int, ...]
    removes_deletes: bool = True


@dataclass(frozen=True, kw_only=True)
class NotBefore:
    """Decide again at that time, or when there are more results."""

    at: datetime
    awaits_writers: bool = False


@dataclass(frozen=True, kw_only=True)
class Nothing:
    """Nothing can be done, unless there are more results."""


@dataclass(frozen=True, kw_only=True)
class TableNow:
    """What a decision needs to know of the table as it is now."""

    landed: AbstractSet[int] = frozenset()
    """Units whose files are in a snapshot, or that a summary names."""
    conflicts: Mapping[int, str] = field(default_factory=dict)
    """Units that cannot be committed any more, and why."""
    busy: AbstractSet[int] = frozenset()
    """Units in partitions where others change rows."""
    pause: timedelta = timedelta(0)
    """How long to wait for a pause of these writers at most."""
    last_statement_at: datetime | None = None
    """Their last statement in these partitions."""
    has_dangling_deletes: bool = False
    """Whether the plan's dangling deletes are still in the table."""


Choice = Candidate | Settle | Drop | NotBefore | Nothing
Decision = Commit | Drop | Found | NotBefore | Nothing


def choose_next(
    units: Mapping[int, CommitUnit], log: CommitLog, progress: Progress, policy: CommitPolicy, now: datetime
) -> Choice:
    """What may be committed next."""
    if log.open is not None:
        # Without some of its results it would be another commit that is sent under its snapshot id.
        is_complete = _is_complete((units[unit] for unit in log.open.units), progress)
        return Settle(record=log.open) if is_complete else Nothing()
    if now < (at := _next_try_at(log)) <= now + _LONGEST_CONFLICT_WAIT:  # beyond that the clock was set meanwhile
        return NotBefore(at=at)
    if reasons := _lost_units(units, log, progress, policy, now):
        return Drop(reasons=reasons)
    resolved = log.resolved_units
    left = [unit for unit in units.values() if unit.id not in resolved and not _has_failed(unit, progress)]
    ready = [unit for unit in left if _is_complete([unit], progress)]
    is_last = len(ready) == len(left)
    merges = [unit for unit in ready if unit.action == "merge"]
    if merges:
        return _choose_merges(merges, log, progress, policy, now, is_last=is_last)
    return _choose_last(ready, log, policy, now) if is_last else Nothing()


def _choose_last(ready: list[CommitUnit], log: CommitLog, policy: CommitPolicy, now: datetime) -> Candidate | Nothing:
    """What is committed after all merges."""
    # Positions of deleted rows are committed after merges, which make some of them needless.
    if ready:
        return _candidate("convert", ready, log)
    if any(record.step == "dangling-deletes" and not _may_race_again(record, policy, now) for record in log.records):
        return Nothing()
    return Candidate(step="dangling-deletes", units=())


def decide_candidate(candidate: Candidate, table: TableNow, log: CommitLog, progress: Progress, now: datetime) -> Decision:
    """What becomes of units that may be committed, with the table as it is now."""
    if landed := tuple(unit for unit in candidate.units if unit in table.landed):
        return Found(units=landed)
    if table.conflicts:
        return Drop(reasons=table.conflicts)
    if candidate.step == "dangling-deletes" and not table.has_dangling_deletes:
        return Nothing()
    if candidate.units and table.busy:
        quiet = tuple(unit for unit in candidate.units if unit not in table.busy)
        if quiet:  # a commit of its own: it need not wait
            return Commit(step=candidate.step, units=quiet, removes_deletes=candidate.removes_deletes)
        since = _waiting_since(candidate, log, progress, now)
        has_paused = table.last_statement_at is not None and table.last_statement_at >= since - _JUST_NOW
        if not has_paused and now < since + table.pause:
            wait = min(max(_POLL, (now - since) * _POLL_SHARE), _MAX_POLL)
            return NotBefore(at=min(now + wait, since + table.pause), awaits_writers=True)
    return Commit(step=candidate.step, units=candidate.units, removes_deletes=candidate.removes_deletes)


def _is_complete(units: Iterable[CommitUnit], progress: Progress) -> bool:
    return all(task.id in progress.results for unit in units for task in unit.tasks)


def _has_failed(unit: CommitUnit, progress: Progress) -> bool:
    return any(task.id in progress.failed for task in unit.tasks)


def _lost_units(
    units: Mapping[int, CommitUnit], log: CommitLog, progress: Progress, policy: CommitPolicy, now: datetime
) -> dict[int, str]:
    """Units that cannot be committed any more: a task has failed, or their commit was refused for good."""
    resolved = log.resolved_units
    reasons: dict[int, str] = {}
    for unit in units.values():
        if unit.id in resolved:
            continue
        failed = next((task.id for task in unit.tasks if task.id in progress.failed), None)
        refusals = log.refusals_of(unit.id)
        if failed is not None and len(unit.tasks) > 1:
            reasons[unit.id] = f"task {failed} of the same partition failed"
        elif refusals and (reason := _final_reason(refusals, policy, now)) is not None:
            reasons[unit.id] = reason
    return reasons


def _final_reason(refusals: Sequence[CommitRecord], policy: CommitPolicy, now: datetime) -> str | None:
    """Why a unit that was refused is not tried again; None: it is."""
    last = refusals[-1]
    if last.was_in_table:  # what others have rolled back is not submitted again
        return last.reason
    if last.code in _RACES:
        races = [record for record in refusals if record.code in _RACES]
        is_over = now - races[0].changed_at >= policy.race_time
        if is_over or (policy.max_races is not None and len(races) > policy.max_races):
            return "others kept committing first" if last.code in _MOVED else last.reason
        return last.reason if len([race for race in races if race.code == "conflict"]) >= _MAX_CONFLICTS else None
    is_tried_again = len(last.units) > 1 or _were_deletes_taken(last)
    return None if is_tried_again else last.reason


def _next_try_at(log: CommitLog) -> datetime:
    """When to try again after the catalog has refused a commit."""
    conflicts = list(takewhile(lambda record: record.code == "conflict", reversed(log.records)))
    if not conflicts:
        return _LONG_AGO
    return conflicts[0].changed_at + _CONFLICT_WAIT * float(2 ** (len(conflicts) - 1))


def _may_race_again(record: CommitRecord, policy: CommitPolicy, now: datetime) -> bool:
    return record.code in _RACES and policy.max_races is None and now - record.changed_at < policy.race_time


def _choose_merges(
    merges: list[CommitUnit], log: CommitLog, progress: Progress, policy: CommitPolicy, now: datetime, *, is_last: bool
) -> Candidate | NotBefore:
    refused = [unit for unit in merges if log.refusals_of(unit.id)]
    if refused:
        return _candidate("merge", refused, log)
    due_at = _latest([progress.started_at, *(record.changed_at for record in log.records)], now) + policy.interval
    # The kind of a snapshot is that of all its files.
    by_kind = [group for kind in OPTIMIZING_KINDS if (group := [unit for unit in merges if _commit_kind(unit) == kind])]
    for group in by_kind:
        if is_last or now >= due_at or (policy.batch is not None and len(group) >= policy.batch):
            return _candidate("merge", group, log)
    return NotBefore(at=due_at)


def _commit_kind(unit: CommitUnit) -> str:
    """Units of a kind are committed together; minor and major ones of a native table, too."""
    return unit.kind if unit.partition is not None or unit.kind == "full" else "minor"


def _candidate(step: Step, units: list[CommitUnit], log: CommitLog) -> Candidate:
    """All units that were not refused yet. After a lost race they are tried together again, and without deletes that others
    may have removed; after other refusals one by one."""
    fresh = tuple(unit.id for unit in units if not log.refusals_of(unit.id))
    if fresh:
        return Candidate(step=step, units=fresh)
    refusals = log.refusals_of(units[0].id)
    last = refusals[-1]
    is_together = last.code in _RACES or _were_deletes_taken(last)
    again = tuple(unit.id for unit in units if unit.id in last.units) if is_together else (units[0].id,)
    return Candidate(step=step, units=again, removes_deletes=not any(map(_were_deletes_taken, refusals)))


def _were_deletes_taken(refused: CommitRecord) -> bool:
    """Whether others may have removed deletes that a refused commit would have removed. A conversion depends on them: it has
    listed the rows of those that were there."""
    return refused.step == "merge" and refused.code in _TAKEN_DELETES and refused.removed_deletes.height > 0


def _waiting_since(candidate: Candidate, log: CommitLog, progress: Progress, now: datetime) -> datetime:
    received = [finished.received_at for unit in candidate.units if (finished := progress.results.get(unit)) is not None]
    return _latest([*received, *(record.changed_at for record in log.records)], now)


def _latest(times: Iterable[datetime], now: datetime) -> datetime:
    """The last of these times. Later ones than now are of a clock that was set meanwhile."""
    return max((time for time in times if time <= now), default=_LONG_AGO)
