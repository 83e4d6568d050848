"""Health: what costs points, what does not, and what is said to cure it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import polars as pl
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import GeometryType, LongType, NestedField, StringType

from pyarctic.optimizing.evaluate.health import Health
from pyarctic.optimizing.observe.history import ACTIVITY
from pyarctic.optimizing.plan.planner import make_plan
from tests.support.observations import DEFAULTS, KIB, MIB, NOW, SPEC, evaluated, file

SMALL, WELL = 100 * KIB, 8 * MIB
HOURLY = {"self-optimizing.minor.trigger.interval": "1h"}


def health(rows: list[dict[str, Any]], properties: dict[str, str] | None = None, **more: Any) -> Health:
    return evaluated(rows, properties, **more).health


def equality(**more: Any) -> dict[str, Any]:
    return file(2, size=KIB, record_count=1, equality_ids=[1], **more)


def positions(data: dict[str, Any], records: int) -> dict[str, Any]:
    return file(1, size=KIB, record_count=records, referenced_data_file=data["file_path"], partition=data["partition"])


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([file(size=SMALL)], id="one small file"),
        pytest.param([file(size=SMALL) for _ in range(5)], id="a few small files"),
        pytest.param([file(size=SMALL, part=str(number)) for number in range(100)], id="one small file per partition"),
        pytest.param([file(size=WELL), file(size=SMALL)], id="one small file beside a good one"),
        pytest.param([file(size=SMALL, record_count=4), equality()], id="a small table with a delete"),
    ],
)
def test_what_no_rule_would_merge_costs_nothing(rows: list[dict[str, Any]]) -> None:
    assert health(rows) == Health.perfect()


def test_a_few_deleted_rows_of_a_small_table_cost_nothing() -> None:
    data = file(size=SMALL, record_count=4)
    assert health([data, positions(data, 1)]).score == 100


def test_small_files_that_are_due() -> None:
    found = health([*(file(size=SMALL) for _ in range(24)), *(file(size=WELL) for _ in range(6))])
    assert found.score == pytest.approx(100 - 40 * 23 / 30, abs=0.05)
    [deduction] = found.deductions
    assert (deduction.cause, deduction.points) == ("small-files", found.small_files)
    assert deduction.detail == "24 of 30 data files are small: 100.0 KiB on average"
    assert deduction.cure == "minor optimizing merges 24 files into 1"
    assert f"−{deduction.points:g} small-files: 24 of 30" in str(found)


def test_many_partitions_with_a_few_small_files_each_count_although_no_rule_is_met() -> None:
    rows = [file(size=SMALL, part=str(number)) for number in range(50) for _ in range(3)]
    found = health(rows)
    assert 70 < found.score < 80
    [deduction] = found.deductions
    assert deduction.cure == "run `optimize --kind major`, which merges 150 files into 50"


def test_a_rule_about_time_is_named_with_its_time() -> None:
    rows = [file(size=SMALL, part=str(number)) for number in range(50) for _ in range(3)]
    [deduction] = health(rows, HOURLY).deductions
    assert deduction.cure == "minor optimizing merges 150 files into 50 from 2026-03-01T13:00:00Z on"
    later = NOW + timedelta(microseconds=486_000)
    [deduction] = health(rows, HOURLY, committed_at=later).deductions
    assert deduction.cure.endswith("from 2026-03-01T13:00:01Z on")


def test_a_few_small_files_that_have_waited_long_enough_cost_little() -> None:
    found = health([file(size=SMALL) for _ in range(3)], HOURLY, committed_at=NOW - timedelta(hours=2))
    assert 90 < found.score < 100
    assert found.deductions[0].cure == "minor optimizing merges 3 files into 1"


def test_the_worst_deduction_comes_first() -> None:
    data = [file(size=SMALL, record_count=1000) for _ in range(12)]
    found = health([*data, *(equality() for _ in range(12)), positions(data[0], 600)])
    assert [deduction.cause for deduction in found.deductions] == ["equality-deletes", "small-files", "position-deletes"]
    assert found.score == pytest.approx(100 - sum(deduction.points for deduction in found.deductions), abs=0.11)
    equality_deletes, _, position_deletes = found.deductions
    assert equality_deletes.detail == "12,000 of 12,000 rows are compared with 12 equality delete files when they are read"
    assert equality_deletes.cure == "minor optimizing applies the equality deletes"
    assert position_deletes.detail == "600 of 12,000 rows are deleted by position, and are read nevertheless"
    assert position_deletes.cure == "run `optimize --kind major`, which removes 600 deleted rows"


def test_minor_optimizing_does_not_cure_files_that_are_no_fragments() -> None:
    """Partitions are due because of their equality deletes."""
    parts = [str(number) for number in range(20)]
    undersized = [file(size=2 * MIB, part=part) for part in parts for _ in range(3)]
    due = [equality(part=part) for part in parts for _ in range(12)]
    cures = {deduction.cause: deduction.cure for deduction in health([*undersized, *due]).deductions}
    assert cures == {
        "equality-deletes": "minor optimizing applies the equality deletes",
        "small-files": "run `optimize --kind major`, which merges 60 files into 20",
    }
    [waiting] = health([*undersized, *(file(size=SMALL, part=f"x{number % 20}") for number in range(60))], HOURLY).deductions
    assert waiting.cure == (
        "minor optimizing merges 60 files into 20 from 2026-03-01T13:00:00Z on; "
        "run `optimize --kind major`, which merges 60 files into 20"
    )


def test_partitions_that_wait_for_their_writers_say_until_when() -> None:
    rows = [file(size=SMALL) for _ in range(24)]
    until = NOW + timedelta(minutes=5)
    row = {"spec_id": 0, "partition": rows[0]["partition"], "busy_until": until, "last_statement_at": NOW, "statements": 3}
    activity = pl.DataFrame([dict.fromkeys(ACTIVITY) | row], schema=ACTIVITY)
    [deduction] = health(rows, activity=activity).deductions
    assert deduction.cure == "1 partition waits for writers until 2026-03-01T12:05:00Z"


def test_files_that_cannot_be_written_again_cost_nothing() -> None:
    """The value of their partition is lost."""
    lost = {"partition": "[false]"}
    rows = [file(size=SMALL) | lost for _ in range(24)]
    evaluation = evaluated([*rows, *(positions(row, 500) for row in rows)])
    assert evaluation.partitions["is_lost"].all()
    assert evaluation.health.score == 100
    assert not make_plan(evaluation, kind="full").tasks
    assert evaluation.partitions["kind"].to_list() == [None]


def test_files_whose_deletes_cannot_be_applied_cost_nothing() -> None:
    """Values of a column cannot be decoded: row groups are copied as they are, deleted rows included."""
    schema = Schema(
        NestedField(1, "id", LongType()), NestedField(2, "part", StringType()), NestedField(3, "g", GeometryType())
    )
    metadata = new_table_metadata(schema, SPEC, UNSORTED_SORT_ORDER, "file:///nowhere", {"format-version": "3", **DEFAULTS})
    rows = [file(size=SMALL) for _ in range(24)]
    deletes = [positions(row, 500) for row in rows]
    evaluation = evaluated([*rows, *deletes], metadata=metadata)
    assert evaluation.health.score == 100
    assert not make_plan(evaluation, kind="full").tasks
    partly = evaluated([*rows, *deletes[:12]], metadata=metadata)
    assert [deduction.cause for deduction in partly.health.deductions] == ["small-files"]
    assert make_plan(partly, kind="full").tasks


def test_health_is_a_json_document() -> None:
    told = health([file(size=SMALL) for _ in range(12)]).to_dict()
    assert list(told) == ["score", "small_files", "equality_deletes", "position_deletes", "deductions"]
    assert list(told["deductions"][0]) == ["cause", "points", "detail", "cure"]


@pytest.mark.parametrize("count", [1, 3, 11, 12, 40])
@pytest.mark.parametrize("deletes", [0, 1, 20])
def test_a_table_that_full_optimizing_would_not_change_is_healthy(count: int, deletes: int) -> None:
    data = [file(size=SMALL if number % 2 else WELL) for number in range(count)]
    evaluation = evaluated([*data, *(equality() for _ in range(deletes))])
    assert evaluation.health.score == 100 or make_plan(evaluation, kind="full").tasks
