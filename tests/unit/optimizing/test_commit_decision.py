"""What is committed next, by the log and the results alone."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyarctic.errors import ProtocolError
from pyarctic.iceberg.manifest import FILE_SCHEMA
from pyarctic.optimizing.commit.decision import (
    Candidate,
    Commit,
    CommitPolicy,
    Drop,
    Found,
    NotBefore,
    Nothing,
    Progress,
    Settle,
    TableNow,
    choose_next,
    decide_candidate,
)
from pyarctic.optimizing.commit.log import CommitLog, CommitRecord, FinishedTask
from pyarctic.optimizing.commit.units import CommitUnit
from pyarctic.optimizing.protocol.result import TaskResult
from pyarctic.optimizing.protocol.task import Action, OptimizingKind, Task

START = datetime(2026, 1, 1, tzinfo=UTC)
POLICY = CommitPolicy()
DELETES = pl.DataFrame({"file_path": ["d"]}).select(
    [pl.lit(None, dtype).alias(name) if name != "file_path" else pl.col(name) for name, dtype in FILE_SCHEMA.items()]
)

_LISTED = DELETES.with_columns(
    content=pl.lit(1, FILE_SCHEMA["content"]),
    file_format=pl.lit("PARQUET"),
    spec_id=pl.lit(0, FILE_SCHEMA["spec_id"]),
    partition=pl.lit("[]"),
    record_count=pl.lit(1, FILE_SCHEMA["record_count"]),
    file_size_bytes=pl.lit(9, FILE_SCHEMA["file_size_bytes"]),
)
"""With the columns that every listed file has."""


def task(number: int, kind: OptimizingKind = "major", action: Action = "merge") -> Task:
    return Task(
        id=number,
        action=action,
        kind=kind,
        partition="",
        files=pl.DataFrame(schema=FILE_SCHEMA),
        spec_id=0,
        partition_key=None,
        target_bytes=1,
        expected_rows=1,
        expected_bytes=1,
    )


def units(*tasks: Task) -> dict[int, CommitUnit]:
    return {each.id: CommitUnit(id=each.id, tasks=(each,)) for each in tasks}


def partitions(*groups: tuple[Task, ...]) -> dict[int, CommitUnit]:
    return {group[0].id: CommitUnit(id=group[0].id, tasks=group, partition=(0, str(group[0].id))) for group in groups}


def done(given_units: dict[int, CommitUnit], *tasks: int, at: datetime = START, failed: set[int] | None = None) -> Progress:
    by_id = {each.id: each for unit in given_units.values() for each in unit.tasks}
    return Progress(
        results={number: finished(by_id[number], at) for number in tasks}, failed=failed or set(), started_at=START
    )


def finished(of: Task, at: datetime) -> FinishedTask:
    result = TaskResult(task=of.id, attempt=0, add=(), rows_in=0, rows_deleted=0, rows_out=0)
    return FinishedTask(task=of, result=result, received_at=at)


def record(number: int, *of: int, **values: Any) -> CommitRecord:
    return CommitRecord(**{"snapshot_id": number, "step": "merge", "units": of, "changed_at": START, **values})


def refused(number: int, *of: int, code: str = "proof", **values: Any) -> CommitRecord:
    return record(number, *of, state="refused", code=code, reason=f"refused: {code}", **values)


def log(*records: CommitRecord) -> CommitLog:
    return CommitLog(records=records)


def choose(
    of: dict[int, CommitUnit], so_far: CommitLog, progress: Progress, after: float = 0.0, policy: CommitPolicy = POLICY
) -> Any:
    return choose_next(of, so_far, progress, policy, START + timedelta(seconds=after))


def test_units_wait_for_others_until_the_interval_is_over() -> None:
    three = units(task(0), task(1), task(2))
    assert choose(three, log(), done(three)) == Nothing()
    assert choose(three, log(), done(three, 0, 1), after=59) == NotBefore(at=START + timedelta(seconds=60))
    assert choose(three, log(), done(three, 0, 1), after=60) == Candidate(step="merge", units=(0, 1))


def test_a_batch_and_the_last_units_do_not_wait() -> None:
    three = units(task(0), task(1), task(2))
    assert choose(three, log(), done(three, 0, 1), policy=CommitPolicy(batch=2)) == Candidate(step="merge", units=(0, 1))
    assert choose(three, log(), done(three, 0, 1, 2)) == Candidate(step="merge", units=(0, 1, 2))
    assert choose(three, log(), done(three, 0, 1, failed={2})) == Candidate(step="merge", units=(0, 1))


def test_full_merges_of_a_native_table_have_commits_of_their_own() -> None:
    mixed = units(task(0, "full"), task(1, "minor"), task(2, "major"))
    assert choose(mixed, log(), done(mixed, 0, 1, 2)) == Candidate(step="merge", units=(1, 2))
    assert choose(mixed, log(record(1, 1, 2, state="landed")), done(mixed, 0, 1, 2)) == Candidate(step="merge", units=(0,))


def test_each_kind_of_a_keyed_table_has_commits_of_its_own() -> None:
    mixed = partitions((task(0, "major"),), (task(1, "minor"),))
    assert choose(mixed, log(), done(mixed, 0, 1)) == Candidate(step="merge", units=(1,))


def test_an_open_commit_is_settled_first() -> None:
    two = units(task(0), task(1))
    sent = record(7, 0, 1, heads=frozenset({1}))
    assert choose(two, log(sent), done(two, 0, 1)) == Settle(record=sent)
    assert choose(two, log(sent), done(two, 0)) == Nothing(), "a part of it under its snapshot id would be another commit"


def test_conversions_come_after_merges_and_dangling_deletes_last() -> None:
    mixed = units(task(0), task(1, "minor", "convert"))
    progress = done(mixed, 0, 1)
    assert choose(mixed, log(), done(mixed, 1)) == Nothing()
    assert choose(mixed, log(), progress) == Candidate(step="merge", units=(0,))
    merged = record(1, 0, state="landed")
    assert choose(mixed, log(merged), progress) == Candidate(step="convert", units=(1,))
    converted = record(2, 1, step="convert", state="landed")
    assert choose(mixed, log(merged, converted), progress) == Candidate(step="dangling-deletes", units=())
    removed = record(3, step="dangling-deletes", state="landed")
    assert choose(mixed, log(merged, converted, removed), progress) == Nothing()


def test_units_that_were_refused_together_are_tried_one_by_one() -> None:
    two = units(task(0), task(1))
    progress = done(two, 0, 1)
    together = refused(1, 0, 1)
    assert choose(two, log(together), progress) == Candidate(step="merge", units=(0,))
    alone = refused(2, 0)
    assert choose(two, log(together, alone), progress) == Drop(reasons={0: "refused: proof"})
    assert choose(two, log(together, alone).with_dropped({0: "x"}), progress) == Candidate(step="merge", units=(1,))


def test_units_are_tried_again_without_deletes_that_others_may_have_removed() -> None:
    two = units(task(0), task(1))
    progress = done(two, 0, 1)
    together = refused(1, 0, 1, code="files-gone", removed_deletes=DELETES)
    assert choose(two, log(together), progress) == Candidate(step="merge", units=(0, 1), removes_deletes=False)
    again = refused(2, 0, 1, code="files-gone")
    assert choose(two, log(together, again), progress) == Candidate(step="merge", units=(0,), removes_deletes=False)
    alone = refused(3, 0, code="files-gone")
    assert choose(two, log(together, again, alone), progress) == Drop(reasons={0: "refused: files-gone"})


def test_a_conversion_depends_on_the_deletes_that_it_removes() -> None:
    one = units(task(0, "minor", "convert"))
    alone = refused(1, 0, step="convert", code="files-gone", removed_deletes=DELETES)
    assert choose(one, log(alone), done(one, 0)) == Drop(reasons={0: "refused: files-gone"})


def test_a_lost_race_is_run_again_together_until_its_time_is_over() -> None:
    two = units(task(0), task(1))
    progress, moved = done(two, 0, 1), refused(1, 0, 1, code="moved")
    assert choose(two, log(moved), progress, after=299) == Candidate(step="merge", units=(0, 1))
    assert choose(two, log(moved), progress, after=300) == Drop(
        reasons=dict.fromkeys((0, 1), "others kept committing first")
    )
    assert isinstance(choose(two, log(moved), progress, policy=CommitPolicy(max_races=0)), Drop)


def test_a_catalog_that_refuses_is_asked_again_after_a_while_and_five_times_at_most() -> None:
    one = units(task(0))
    conflicts = [refused(number, 0, code="conflict") for number in range(5)]
    for number in range(1, 5):
        wait = 0.2 * 2 ** (number - 1)
        assert choose(one, log(*conflicts[:number]), done(one, 0)) == NotBefore(at=START + timedelta(seconds=wait))
        assert choose(one, log(*conflicts[:number]), done(one, 0), after=wait) == Candidate(step="merge", units=(0,))
    assert choose(one, log(*conflicts), done(one, 0), after=60) == Drop(reasons={0: "refused: conflict"})


def test_what_was_never_sent_does_not_count() -> None:
    two = units(task(0), task(1))
    unsent = refused(1, 0, 1, code="not-sent")
    assert choose(two, log(unsent), done(two, 0, 1)) == Candidate(step="merge", units=(0, 1))


def test_what_others_have_rolled_back_is_not_sent_again() -> None:
    two = units(task(0), task(1))
    lost = refused(1, 0, 1, code="history-lost", was_in_table=True)
    assert choose(two, log(lost), done(two, 0, 1)) == Drop(reasons=dict.fromkeys((0, 1), "refused: history-lost"))


def test_a_failed_task_takes_its_partition_with_it() -> None:
    two = partitions((task(0), task(1)), (task(2),))
    assert choose(two, log(), done(two, 0, failed={1})) == Drop(reasons={0: "task 1 of the same partition failed"})
    dropped = log().with_dropped({0: "x"})
    assert choose(two, dropped, done(two, 0, 2, failed={1})) == Candidate(step="merge", units=(2,))


BOTH = Candidate(step="merge", units=(0, 1))


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (TableNow(), Commit(step="merge", units=(0, 1))),
        (TableNow(landed=frozenset({1})), Found(units=(1,))),
        (TableNow(conflicts={0: "gone"}), Drop(reasons={0: "gone"})),
        (TableNow(busy=frozenset({1}), pause=timedelta(seconds=9)), Commit(step="merge", units=(0,))),
        (
            TableNow(busy=frozenset({0, 1}), pause=timedelta(seconds=9)),
            NotBefore(at=START + timedelta(seconds=2.1), awaits_writers=True),
        ),
        (TableNow(busy=frozenset({0, 1}), pause=timedelta(seconds=2)), Commit(step="merge", units=(0, 1))),
        (
            TableNow(busy=frozenset({0, 1}), pause=timedelta(seconds=9), last_statement_at=START),
            Commit(step="merge", units=(0, 1)),
        ),
    ],
    ids=["quiet", "landed", "conflict", "one is busy", "all are busy", "waited enough", "a statement has just ended"],
)
def test_what_becomes_of_units_that_may_be_committed(table: TableNow, expected: Any) -> None:
    two = units(task(0), task(1))
    assert decide_candidate(BOTH, table, log(), done(two, 0, 1), START + timedelta(seconds=2)) == expected


def test_times_of_a_clock_that_was_set_back_are_not_waited_for() -> None:
    two = units(task(0), task(1))
    busy = TableNow(busy=frozenset({0, 1}), pause=timedelta(seconds=9))
    later = replace(done(two, 0, 1, at=START + timedelta(days=1)), started_at=START + timedelta(days=1))
    assert decide_candidate(BOTH, busy, log(), later, START) == Commit(step="merge", units=(0, 1))
    three = units(task(0), task(1), task(2))
    assert choose(three, log(), replace(later, results=done(three, 0, 1).results)) == BOTH


def test_a_commit_of_dangling_deletes_is_made_only_if_there_are_any() -> None:
    last = Candidate(step="dangling-deletes", units=())
    progress = done({})
    assert decide_candidate(last, TableNow(), log(), progress, START) == Nothing()
    assert decide_candidate(last, TableNow(has_dangling_deletes=True), log(), progress, START) == Commit(
        step="dangling-deletes", units=()
    )


OUTCOMES = ("landed", "proof", "files-gone", "moved", "conflict", "not-sent", "open-landed", "open-moved", "rolled-back")


@given(
    actions=st.lists(st.sampled_from(["merge", "convert"]), min_size=1, max_size=6),
    keyed=st.booleans(),
    failed=st.sets(st.integers(0, 5)),
    outcomes=st.lists(st.sampled_from(OUTCOMES), max_size=30),
)
def test_every_unit_comes_to_one_end(actions: list[Action], keyed: bool, failed: set[int], outcomes: list[str]) -> None:
    """Whatever the catalog answers: no unit is committed twice or forgotten, and deciding ends."""
    tasks = [task(number, action="merge" if keyed else action) for number, action in enumerate(actions)]
    of = partitions(*zip(tasks[::2], [*tasks[1::2], *tasks[:1]], strict=False)) if keyed else units(*tasks)
    progress = done(of, *(each.id for unit in of.values() for each in unit.tasks if each.id not in failed), failed=failed)
    so_far, answers, now = CommitLog(), iter(outcomes), START
    for number in range(200):
        choice = choose_next(of, so_far, progress, POLICY, now)
        match choice:
            case Nothing():
                break
            case NotBefore():
                assert choice.at > now
                now = choice.at
            case Drop():
                assert so_far.resolved_units.isdisjoint(choice.reasons)
                so_far = so_far.with_dropped(choice.reasons)
            case Settle():
                code = str(choice.record.reason)
                state = {"state": "landed"} if code == "open-landed" else {"state": "refused", "code": "moved"}
                so_far = so_far.with_record(replace(choice.record, **state))  # type: ignore[arg-type]
            case Candidate():
                assert so_far.resolved_units.isdisjoint(choice.units)
                deletes = DELETES if choice.removes_deletes else DELETES.clear()
                made = record(number, *choice.units, step=choice.step, removed_deletes=deletes, changed_at=now)
                so_far = so_far.with_record(_answered(made, next(answers, "landed")))
    else:
        pytest.fail("it goes on for ever")
    for unit in of.values():
        is_failed = any(each.id in failed for each in unit.tasks)
        assert unit.id in so_far.resolved_units or (is_failed and len(unit.tasks) == 1)
        assert so_far.committed_units.count(unit.id) <= 1


def _answered(made: CommitRecord, outcome: str) -> CommitRecord:
    if outcome == "landed":
        return replace(made, state="landed")
    if outcome.startswith("open"):
        return replace(made, heads=frozenset({1}), reason=outcome)
    return replace(made, state="refused", code=outcome, reason=outcome, was_in_table=outcome == "rolled-back")


def test_a_record_is_the_same_after_it_was_stored() -> None:
    made = refused(2**62, 3, 4, code="moved", heads=frozenset({None, 2**61}), was_in_table=True, rebased_rows=5)
    given = replace(made, removed_deletes=_LISTED)
    stored = CommitRecord.from_json(json.loads(json.dumps(given.to_json())))
    assert stored.removed_deletes.equals(given.removed_deletes)
    empty = given.removed_deletes.clear()
    same = [vars(replace(each, removed_deletes=empty)) | {"removed_deletes": None} for each in (stored, given)]
    assert same[0] == same[1]


@pytest.mark.parametrize(
    ("field", "value", "fault"),
    [
        ("step", "x", "step of the commit must be one of merge, convert, dangling-deletes, not 'x'"),
        ("heads", [1], "the field 'heads' of the commit must be a list of whole numbers as texts"),
        ("changed_at", "today", "the field 'changed_at' of the commit must be a time as in ISO 8601"),
        ("changed_at", "2026-01-01", "the field 'changed_at' of the commit must be a time with its zone"),
    ],
)
def test_wrong_fields_of_a_stored_record_are_named(field: str, value: Any, fault: str) -> None:
    document = record(1, 0).to_json()
    with pytest.raises(ProtocolError, match=re.escape(fault)):
        CommitRecord.from_json(document | {field: value})
