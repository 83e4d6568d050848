"""Writers come first: who is at work in a partition is told by the rhythm of statements; its files are left alone."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pytest

from pyarctic.iceberg.manifest import PartitionDecoder
from pyarctic.optimizing.observe.history import STATEMENTS, writers_activity
from pyarctic.optimizing.plan.explain import explain_plan
from pyarctic.optimizing.plan.planner import make_plan
from tests.support.observations import KIB, NOW, evaluated, file

QUIET = timedelta(seconds=30)
KEY = PartitionDecoder.key_of(("a",))


def statements(*seconds_ago: float, key: str = KEY) -> pl.DataFrame:
    rows = [(number, NOW - timedelta(seconds=ago), 0, key) for number, ago in enumerate(seconds_ago)]
    return pl.DataFrame(rows, STATEMENTS.names(), orient="row").cast(STATEMENTS)


def busy_until(*seconds_ago: float) -> datetime | None:
    row = writers_activity(statements(*seconds_ago), QUIET, NOW).row(0, named=True)
    until = row["busy_until"]
    assert until is None or isinstance(until, datetime)
    return until


def test_without_statements_nobody_is_busy() -> None:
    assert writers_activity(statements(), QUIET, NOW).is_empty()


@pytest.mark.parametrize(("ago", "busy"), [(0, True), (31, True), (299.9, True), (300, False), (80_000, False)])
def test_a_single_statement_keeps_us_away_for_ten_quiet_times(ago: float, busy: bool) -> None:
    until = busy_until(ago)
    assert (until is not None) == busy
    if until is not None:
        assert until == NOW + timedelta(seconds=300 - ago)


@pytest.mark.parametrize(("first", "last", "busy"), [(700, 100, True), (100, 99, True), (700, 301, False)])
def test_two_statements_make_no_rhythm_and_count_like_one(first: float, last: float, busy: bool) -> None:
    assert (busy_until(last, first) is not None) == busy


def test_without_a_quiet_time_a_single_statement_keeps_nobody_away() -> None:
    activity = writers_activity(statements(0), timedelta(0), NOW)
    assert activity["busy_until"].to_list() == [None]


@pytest.mark.parametrize(
    ("since_last", "busy"),
    [
        (10, True),  # the quiet time
        (31, False),  # between two beats nobody is at work
        (299, False),
        (300, True),  # half a beat later the next statement may have begun
        (600, True),
        (1799, True),
        (1800, False),  # three beats were missed: the writer has stopped
    ],
)
def test_a_writer_with_a_rhythm_of_ten_minutes(since_last: float, busy: bool) -> None:
    assert (busy_until(*(since_last + 600 * beat for beat in range(4))) is not None) == busy


def test_a_fast_writer_is_always_busy() -> None:
    for since_last in (0.5, 3, 10, 29):
        until = busy_until(*(since_last + 5 * beat for beat in range(10)))
        assert until is not None
        assert until > NOW


def test_a_fast_writer_that_stopped_is_forgotten_after_the_quiet_time() -> None:
    assert busy_until(*(31 + 5 * beat for beat in range(10))) is None


def test_partitions_have_rhythms_of_their_own() -> None:
    other = PartitionDecoder.key_of(("b",))
    found = writers_activity(pl.concat([statements(1), statements(4000, key=other)]), QUIET, NOW)
    assert dict(found.select("partition", pl.col("busy_until").is_not_null()).iter_rows()) == {KEY: True, other: False}


# -- plans ------------------------------------------------------------------------------------------------------------


def busy_table(properties: dict[str, str] | None = None) -> Any:
    rows = [file(size=100 * KIB, part=part) for part in "ab" for _ in range(12)]
    rows += [file(2, size=KIB, part="a", record_count=5, equality_ids=[1])]
    return evaluated(rows, properties, activity=writers_activity(statements(1), QUIET, NOW))


def test_busy_partitions_wait_and_their_equality_deletes_are_converted() -> None:
    plan = make_plan(busy_table())
    merges = [task for task in plan.tasks if task.action == "merge"]
    converts = [task for task in plan.tasks if task.action == "convert"]
    assert {task.partition for task in merges} == {"part=b"}
    assert {task.partition for task in converts} == {"part=a"}
    assert converts[0].data.height == 12
    assert plan.held_back["partition"].to_list() == [KEY]


def test_the_explanation_says_who_waits_and_why() -> None:
    explanation = explain_plan(make_plan(busy_table()))
    waits = {row.partition: row.waits for row in explanation.partitions}
    assert waits["part=b"] is None
    assert "others change rows here" in str(waits["part=a"])
    assert "others change rows here" in str(explanation)


def test_writers_can_be_ignored() -> None:
    for evaluation, ignore in ((busy_table(), True), (busy_table({"self-optimizing.writers-first": "false"}), False)):
        plan = make_plan(evaluation, ignore_writers=ignore)
        assert {task.partition for task in plan.tasks if task.action == "merge"} == {"part=a", "part=b"}
        assert plan.held_back.is_empty()


def test_ignored_writers_are_not_said_to_be_waited_for() -> None:
    explanation = explain_plan(make_plan(busy_table(), ignore_writers=True))
    assert [row.waits for row in explanation.partitions] == [None, None]


def test_a_forced_kind_waits_as_well() -> None:
    for kind in ("minor", "major", "full"):
        plan = make_plan(busy_table(), kind=kind)
        assert {task.partition for task in plan.tasks if task.action == "merge"} == {"part=b"}
