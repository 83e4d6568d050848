"""What must hold in the database of a service and in the tables that it has optimized, whatever happened to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

from pyiceberg.table import Table as IcebergTable

from pyarctic.ams.rows import ClaimRow, CommitRow, EventRow, ProcessRow, ResultRow, TaskRow, UnitRow
from pyarctic.ams.states import ENDED_PROCESSES, ENDED_TASKS, MACHINES, CommitState, TaskState
from pyarctic.ams.store import Store, Transaction
from pyarctic.optimizing.commit import CommitRecord
from pyarctic.optimizing.execute.attempt_files import parse_attempt_file
from pyarctic.optimizing.observe.history import PROCESS, TASKS
from pyarctic.optimizing.protocol import unpack
from tests.support.integrity import local, needed


def unfinished(view: Transaction) -> list[str]:
    """What has not come to its end."""
    processes = [row.id for row in view.find(ProcessRow) if row.state not in ENDED_PROCESSES]
    tasks = [row.key for row in view.find(TaskRow) if row.state not in ENDED_TASKS]
    commits = [str(row.snapshot_id) for row in view.find(CommitRow) if row.state is CommitState.OPEN]
    claims = [row.key for row in view.find(ClaimRow)]
    return [
        f"{kind} {key} has not ended"
        for kind, keys in (("process", processes), ("task", tasks), ("commit", commits), ("claim", claims))
        for key in keys
    ]


def all_events(store: Store) -> list[EventRow]:
    events: list[EventRow] = []
    while more := store.events_after(events[-1].number if events else 0):
        events += more
    return events


def broken_stories(events: Iterable[EventRow]) -> Iterator[str]:
    """Events that do not go on where the last one of their object ended, or that are no move of its machine."""
    machines = {machine.name: machine for machine in MACHINES}
    states: dict[tuple[str, str], str] = {}
    for event in events:
        key, moves = (event.kind, event.key), machines[event.kind].moves
        if event.before != states.get(key):
            yield f"event {event.number}: {key} was {states.get(key)}, and goes on from {event.before}"
        if event.before is not None and (event.before, event.after) not in {(str(a), str(b)) for a, b in moves}:
            yield f"event {event.number}: {key} cannot move from {event.before} to {event.after}"
        states[key] = event.after


def wrong_ends(view: Transaction, events: Sequence[EventRow]) -> Iterator[str]:
    """Rows whose states are not those that their last events tell."""
    last = {(event.kind, event.key): event.after for event in events}
    rows: list[tuple[str, str, StrEnum]] = [("process", row.id, row.state) for row in view.find(ProcessRow)]
    rows += [("task", row.key, row.state) for row in view.find(TaskRow)]
    rows += [("commit", str(row.snapshot_id), row.state) for row in view.find(CommitRow)]
    for kind, key, state in rows:
        if last.get((kind, key)) != str(state):
            yield f"{kind} {key} is {state}, but its last event says {last.get((kind, key))}"


def double_commits(view: Transaction, tables: Iterable[IcebergTable]) -> Iterator[str]:
    """Units that landed twice, as the database or the snapshots of these tables tell; and snapshots that no landed commit
    of the database tells of."""
    resolved = [(row.process_id, row.unit) for row in view.find(UnitRow)]
    landed = view.find(CommitRow, state=CommitState.LANDED)
    told = [(row.process_id, unit) for row in landed for unit in CommitRecord.from_json(row.record).units]
    yield from (f"unit {key} is resolved {times} times" for key, times in Counter(resolved + told).items() if times > 1)
    known, ids = {row.snapshot_id for row in landed}, {row.id for row in view.find(ProcessRow)}
    found_tasks: Counter[tuple[str, int]] = Counter()
    for table in tables:
        for snapshot in table.metadata.snapshots:
            summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
            process = summary.get(PROCESS)
            if process not in ids:
                continue
            if snapshot.snapshot_id not in known:
                yield f"snapshot {snapshot.snapshot_id} of process {process} is no landed commit"
            found_tasks.update((process, task) for task in _ids(summary.get(TASKS, "")))
    committed = {(row.process_id, row.number) for row in view.find(TaskRow, state=TaskState.COMMITTED)}
    yield from (f"task {key} is in {times} snapshots" for key, times in found_tasks.items() if times > 1)
    yield from (f"task {key} is in the table and not committed" for key in found_tasks.keys() - committed)


def _ids(text: str) -> Iterator[int]:
    """Of ranges such as `1-3,5`."""
    for part in filter(None, text.replace(" ", "").split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def strange_outputs(view: Transaction, tables: Iterable[IcebergTable]) -> Iterator[str]:
    """Files of attempts that a table needs although their results were not accepted."""
    accepted = {local(str(path)) for row in view.find(ResultRow) for path in _paths_in(unpack(row.data))}
    jobs = {row.job_id for row in view.find(ProcessRow)}
    for path in {path for table in tables for path in needed(table)}:
        if any(parse_attempt_file(job, path) is not None for job in jobs if job in path) and path not in accepted:
            yield f"{path} is of an attempt that was not accepted"


def _paths_in(document: object) -> Iterator[str]:
    """All texts of a document that may be paths."""
    if isinstance(document, str):
        yield document
    elif isinstance(document, dict):
        for value in document.values():
            yield from _paths_in(value)
    elif isinstance(document, list | tuple):
        for value in document:
            yield from _paths_in(value)
