"""What calls for optimizing, and what is planned then: pure decisions over file lists."""

from __future__ import annotations

import gc
import json
import time
from datetime import timedelta
from typing import Any

import polars as pl
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import BucketTransform, IdentityTransform

from benchmarks.frames import files_and_deletes
from pyarctic.iceberg.manifest import FILE_SCHEMA, PartitionDecoder
from pyarctic.iceberg.write import NewFile
from pyarctic.iceberg.write.new_file import Metrics
from pyarctic.optimizing.evaluate.evaluation import evaluate
from pyarctic.optimizing.observe.destinations import destinations
from pyarctic.optimizing.observe.history import SNAPSHOT_TIMES
from pyarctic.optimizing.plan.explain import explain_plan
from pyarctic.optimizing.plan.plan import KeyedPlan, NativePlan
from pyarctic.optimizing.plan.planner import make_plan
from pyarctic.optimizing.protocol import Job, Task, TaskFailure, TaskResult
from pyarctic.optimizing.protocol.job import job_metadata
from pyarctic.optimizing.protocol.task import OptimizingKind
from tests.support.observations import KIB, MIB, NOW, SNAPSHOT, evaluated, file, listed, observed, only, table_metadata

FRAGMENT, UNDERSIZED, WELL, LARGE = 100 * KIB, 3 * MIB, 8 * MIB, 11 * MIB


def kind_of(
    rows: list[dict[str, Any]], properties: dict[str, str] | None = None, **more: Any
) -> tuple[str | None, list[str]]:
    found = only(evaluated(rows, properties, **more))
    return found["kind"], found["causes"]


def equality(records: int = 10, size: int = KIB, **more: Any) -> dict[str, Any]:
    return file(2, size=size, record_count=records, equality_ids=[1], **more)


def positions(about: dict[str, Any], records: int = 10, size: int = KIB) -> dict[str, Any]:
    return file(1, size=size, record_count=records, referenced_data_file=about["file_path"], partition=about["partition"])


# -- rules ------------------------------------------------------------------------------------------------------------


def test_a_healthy_partition_needs_nothing() -> None:
    assert kind_of([file(size=WELL), file(size=WELL), file(size=UNDERSIZED)]) == (None, [])


def test_small_files_at_their_number() -> None:
    assert kind_of([file(size=FRAGMENT) for _ in range(11)]) == (None, [])
    assert kind_of([file(size=FRAGMENT) for _ in range(12)]) == ("minor", ["small-files"])


def test_equality_delete_files_count_as_small_files() -> None:
    fragments = [file(size=FRAGMENT) for _ in range(10)]
    assert kind_of([*fragments, equality(1)])[1] == []
    assert kind_of([*fragments, equality(1), equality(1)]) == ("minor", ["small-files"])


def test_fragments_end_at_their_size() -> None:
    assert kind_of([file(size=MIB - 1) for _ in range(12)])[1] == ["small-files", "undersized-total"]
    assert "small-files" not in kind_of([file(size=MIB) for _ in range(12)])[1]


def test_size_of_equality_deletes() -> None:
    told = {"self-optimizing.minor.trigger.delete-size": "1MiB"}
    assert kind_of([file(), equality(1, MIB - 1)], told) == (None, [])
    assert kind_of([file(), equality(1, MIB)], told) == ("minor", ["equality-delete-size"])


def test_delete_ratio_at_its_share_and_not_below_the_least_size() -> None:
    data = file(record_count=1000)
    assert kind_of([data, positions(data, 99, 64 * KIB)]) == (None, [])
    assert kind_of([data, positions(data, 100, 64 * KIB)]) == ("major", ["delete-ratio"])
    assert kind_of([data, positions(data, 100, 64 * KIB - 1)]) == (None, [])


def test_undersized_files_that_make_a_whole_one() -> None:
    assert kind_of([file(size=4 * MIB - 1), file(size=4 * MIB)]) == (None, [])
    assert kind_of([file(size=2 * MIB) for _ in range(4)]) == ("major", ["undersized-total"])
    assert kind_of([file(size=5 * MIB), file(size=5 * MIB)]) == (None, []), "two files cannot become fewer"


def test_size_of_position_deletes_calls_for_full() -> None:
    told = {"self-optimizing.full.trigger.position-delete-size": "1MiB"}
    data = file()
    assert kind_of([data, positions(data, 1, MIB - 1)], told) == (None, [])
    assert kind_of([data, positions(data, 1, MIB)], told) == ("full", ["position-delete-size"])


def test_full_before_major_before_minor() -> None:
    data = file()
    fragments = [file(size=900 * KIB) for _ in range(12)]
    told = {"self-optimizing.full.trigger.position-delete-size": "1MiB"}
    assert kind_of(fragments)[0] == "major"
    assert kind_of([*fragments, data, positions(data, 1, MIB)], told) == (
        "full",
        ["small-files", "undersized-total", "position-delete-size"],
    )


def test_minor_interval_by_waiting_alone() -> None:
    told = {"self-optimizing.minor.trigger.interval": "1h"}
    rows = [file(size=FRAGMENT), file(size=FRAGMENT)]
    early = NOW + timedelta(minutes=60) - timedelta(milliseconds=1)
    assert kind_of(rows, told, now=early) == (None, [])
    assert kind_of(rows, told, now=NOW + timedelta(minutes=60)) == ("minor", ["minor-interval"])
    assert kind_of([file(size=FRAGMENT)], told, now=NOW + timedelta(days=9)) == (None, []), "one fragment stays one"
    assert kind_of([file(), equality()], told, now=NOW + timedelta(hours=1)) == ("minor", ["minor-interval"])


def test_minor_interval_begins_anew_with_optimizing() -> None:
    told = {"self-optimizing.minor.trigger.interval": "1h"}
    times = pl.DataFrame(
        [(SNAPSHOT, NOW - timedelta(hours=3), False, False, None), (78, NOW - timedelta(minutes=30), True, False, None)],
        SNAPSHOT_TIMES.names(),
        orient="row",
    ).cast(SNAPSHOT_TIMES)
    rows = [file(size=FRAGMENT), file(size=FRAGMENT), file(snapshot_id=78)]
    assert kind_of(rows, told, times=times)[0] is None
    assert kind_of(rows, told, times=times, now=NOW + timedelta(minutes=30))[0] == "minor"


def test_full_interval_only_when_there_is_something_to_gain() -> None:
    told = {"self-optimizing.full.trigger.interval": "1d"}
    data = file()
    deleted = [data, positions(data)]
    assert kind_of(deleted, told, now=NOW + timedelta(hours=23)) == (None, [])
    assert kind_of(deleted, told, now=NOW + timedelta(hours=24)) == ("full", ["full-interval"])
    assert kind_of([data], told, now=NOW + timedelta(days=30)) == (None, [])


def test_old_specs_and_large_files_are_for_full() -> None:
    told = {"self-optimizing.full.trigger.interval": "1d"}
    later = NOW + timedelta(days=2)
    assert kind_of([file(size=12 * MIB)], told, now=later)[0] is None, "half as much again is near enough"
    assert kind_of([file(size=12 * MIB + 1)], told, now=later)[0] == "full"


# -- plans ------------------------------------------------------------------------------------------------------------


def test_a_plan_takes_the_worst_first_within_its_limits() -> None:
    rows = [file(size=FRAGMENT, part="bad") for _ in range(30)]
    rows += [file(size=FRAGMENT, part="fair") for _ in range(14)] + [file(part="fair") for _ in range(14)]
    evaluation = evaluated(rows, {"self-optimizing.max-file-count": "30"})
    plan = make_plan(evaluation)
    assert [task.partition for task in plan.tasks] == ["part=bad"]
    assert plan.left_out == 1
    both = make_plan(evaluated(rows, {"self-optimizing.max-file-count": "44"}))
    assert {task.partition for task in both.tasks} == {"part=bad", "part=fair"}
    assert both.left_out == 0


def test_a_plan_is_limited_by_bytes_and_takes_the_first_always() -> None:
    rows = [file(size=900 * KIB, part=part) for part in "ab" for _ in range(20)]
    plan = make_plan(evaluated(rows, {"self-optimizing.max-plan-size": "1MiB"}))
    assert len({task.partition for task in plan.tasks}) == 1
    assert plan.left_out == 1


@pytest.mark.parametrize(
    ("files", "parallelism", "tasks"),
    [
        (12, 1, 1),  # 36 MiB: less than four target sizes, one task
        (12, 2, 2),
        (12, 4, 4),  # a target size is 8 MiB: no task is smaller
        (12, 16, 4),
        (40, 1, 4),  # 120 MiB in tasks of about four target sizes, 32 MiB
        (40, 2, 4),
        (40, 3, 3),
    ],
)
def test_tasks_are_equal_shares_of_the_workers(files: int, parallelism: int, tasks: int) -> None:
    rows = [file(size=UNDERSIZED) for _ in range(files)]
    plan = make_plan(evaluated(rows), kind="major", parallelism=parallelism)
    assert len(plan.tasks) == tasks
    sizes = [task.input_bytes for task in plan.tasks]
    assert max(sizes) - min(sizes) <= 2 * UNDERSIZED
    assert sum(task.data.height for task in plan.tasks) == files


def test_the_workers_share_all_partitions() -> None:
    """Each partition is a task of its own, and nobody waits for a large one."""
    rows = [file(part=part, size=UNDERSIZED) for part in "abcd" for _ in range(10)]
    assert len(make_plan(evaluated(rows), kind="major", parallelism=4).tasks) == 4


def test_what_does_not_fit_leaves_room_for_what_does() -> None:
    """A partition larger than a plan is taken alone, and never blocks the others for good."""
    rows = [file(size=FRAGMENT, part="huge") for _ in range(50)] + [file(size=FRAGMENT, part="small") for _ in range(12)]
    plan = make_plan(evaluated(rows, {"self-optimizing.max-file-count": "20"}))
    assert plan.tasks
    assert plan.left_out == 1


def test_a_cold_partition_is_taken_after_waiting() -> None:
    times = pl.DataFrame(
        [(SNAPSHOT, NOW - timedelta(days=2), False, False, None), (78, NOW, False, False, None)],
        SNAPSHOT_TIMES.names(),
        orient="row",
    ).cast(SNAPSHOT_TIMES)
    cold = [file(size=FRAGMENT, part="cold") for _ in range(12)] + [file(part="cold") for _ in range(30)]
    hot = [file(size=FRAGMENT, part="hot", snapshot_id=78) for _ in range(30)]
    told = {"self-optimizing.max-file-count": "30"}
    plan = make_plan(evaluated([*hot, *cold], told, times=times))
    assert {task.partition for task in plan.tasks} == {"part=cold"}
    fresh = make_plan(evaluated([*hot, *cold], told))
    assert {task.partition for task in fresh.tasks} == {"part=hot"}


def test_files_in_work_are_not_planned_again() -> None:
    rows = [file(size=FRAGMENT) for _ in range(20)]
    busy = [row["file_path"] for row in rows[:15]]
    plan = make_plan(evaluated(rows), in_work=busy)
    assert {path for task in plan.tasks for path in task.data["file_path"]} == {row["file_path"] for row in rows[15:]}
    assert not make_plan(evaluated(rows), in_work=[row["file_path"] for row in rows[1:]]).tasks


def test_a_restricted_plan() -> None:
    rows = [file(size=FRAGMENT, part=part) for part in "abc" for _ in range(12)]
    keys = pl.DataFrame(
        {"spec_id": [0], "partition": [PartitionDecoder.key_of(("b",))]}, schema_overrides={"spec_id": pl.Int32}
    )
    plan = make_plan(evaluated(rows), only=keys)
    assert {task.partition for task in plan.tasks} == {"part=b"}


def test_kinds_take_other_files() -> None:
    rows = [
        *(file(size=FRAGMENT) for _ in range(3)),
        *(file(size=2 * MIB) for _ in range(3)),
        file(size=WELL),
        file(size=LARGE),
    ]
    taken = {
        kind: sum(task.data.height for task in make_plan(evaluated(rows), kind=kind).tasks)
        for kind in ("minor", "major", "full")
    }
    assert taken == {"minor": 3, "major": 6, "full": 8}


def test_a_lone_small_file_is_left_alone() -> None:
    for kind in ("minor", "major", "full"):
        assert not make_plan(evaluated([file(size=FRAGMENT), file(size=WELL)]), kind=kind)


def evolved(spec: PartitionSpec) -> TableMetadata:
    metadata = table_metadata()
    return metadata.model_copy(update={"partition_specs": [*metadata.partition_specs, spec], "default_spec_id": 1})


def plan_of_evolved(spec: PartitionSpec, rows: list[dict[str, Any]], kind: OptimizingKind) -> NativePlan | KeyedPlan:
    metadata, files = evolved(spec), listed(rows)
    return make_plan(evaluate(observed(files, metadata=metadata, destinations=destinations(metadata, files))), kind=kind)


def test_full_moves_rows_to_the_current_spec() -> None:
    by_bucket = PartitionSpec(PartitionField(1, 1001, BucketTransform(4), "id_bucket"), spec_id=1)
    rows = [file(size=WELL) for _ in range(5)]
    (task,) = plan_of_evolved(by_bucket, rows, "full").tasks
    assert (task.spec_id, task.partition_key, task.files_out) == (1, None, (1, 5, 5))
    unpartitioned = PartitionSpec(spec_id=1)
    (task,) = plan_of_evolved(unpartitioned, rows[:1], "full").tasks
    assert (task.spec_id, task.partition_key) == (1, PartitionDecoder.key_of(()))


def test_files_of_former_specs_are_merged_where_they_are() -> None:
    """Moving their rows would make more files."""
    by_bucket = PartitionSpec(PartitionField(1, 1001, BucketTransform(64), "id_bucket"), spec_id=1)
    rows = [file(size=FRAGMENT) for _ in range(14)]
    for kind in ("minor", "major", "full"):
        (task,) = plan_of_evolved(by_bucket, rows, kind).tasks
        assert (task.spec_id, task.partition_key) == (0, rows[0]["partition"])
    assert not plan_of_evolved(by_bucket, [file(size=WELL)], "full").tasks


def test_tasks_carry_the_deletes_of_their_files_and_no_others() -> None:
    one, two = file(size=FRAGMENT, part="a"), file(size=FRAGMENT, part="b")
    rows = [one, two, file(size=FRAGMENT, part="a"), file(size=FRAGMENT, part="b")]
    deletes = [positions(one), positions(two), equality(part="b")]
    plan = make_plan(evaluated([*rows, *deletes]), kind="full")
    of = {task.partition: set(task.deletes["file_path"]) for task in plan.tasks}
    assert of == {"part=a": {deletes[0]["file_path"]}, "part=b": {deletes[1]["file_path"], deletes[2]["file_path"]}}


def test_minor_converts_equality_deletes_of_files_that_stay() -> None:
    rows = [file(size=WELL), file(size=WELL), equality()]
    plan = make_plan(evaluated(rows), kind="minor")
    (task,) = plan.tasks
    assert task.action == "convert"
    assert task.data.height == 2


def test_dangling_deletes_are_a_plan_of_their_own() -> None:
    plan = make_plan(evaluated([file(data_sequence_number=5), equality()]))
    assert plan
    assert not plan.tasks
    assert plan.dangling_deletes.height == 1


# -- as JSON ----------------------------------------------------------------------------------------------------------

SECRET = "s3cr3t-do-not-tell"


def test_a_plan_as_json_holds_no_secret() -> None:
    properties = {"s3.secret-access-key": SECRET, "my.password": SECRET, "write.parquet.compression-codec": "zstd"}
    metadata = table_metadata(properties)
    data = [file(size=FRAGMENT) for _ in range(12)]
    plan = make_plan(evaluate(observed(listed([*data, positions(data[0])]), metadata=metadata)))
    text = json.dumps(plan.to_json())
    assert SECRET not in text
    assert json.loads(text)["snapshot_id"] == str(SNAPSHOT)
    job = json.dumps(job_of(metadata).to_json())
    assert SECRET not in job
    assert "write.parquet.compression-codec" in job
    assert SECRET not in json.dumps(explain_plan(plan).to_dict())


def job_of(metadata: Any) -> Job:
    return Job(
        id="j", table="c.d.t", metadata=job_metadata(metadata), snapshot_id=SNAPSHOT, sequence_number=7, memory_bytes=1 << 20
    )


def test_tasks_jobs_and_results_survive_json() -> None:
    data = [
        file(size=FRAGMENT, part=part, first_row_id=4, split_offsets=[4, 100])
        for part in ("ä\"'\\", None)
        for _ in range(12)
    ]
    data = [{name: value for name, value in row.items() if name in FILE_SCHEMA.names()} for row in data]
    plan = make_plan(evaluated([*data, positions(data[0]), equality(part=None)]))
    for task in plan.tasks:
        back = Task.from_json(json.loads(json.dumps(task.to_json())))
        left_out = ["snapshot_id", "file_sequence_number", "sort_order_id", "manifest_path"]
        assert back.files.drop(left_out).equals(task.files.drop(left_out), null_equal=True)
        assert task.to_json()["keyed"] is None
        same = [name for name in task.to_json() if name not in ("files", "keyed", "type", "version")]
        assert [getattr(back, name) for name in same] == [getattr(task, name) for name in same]
    job = job_of(table_metadata())
    assert Job.from_json(json.loads(json.dumps(job.to_json()))).to_json() == job.to_json()
    metrics = Metrics(value_counts={1: 3}, lower_bounds={1: b"\0\xff"}, upper_bounds={1: b"z"})
    new = NewFile(
        content=0,
        path="p",
        file_format="PARQUET",
        spec_id=0,
        partition=("ä",),
        record_count=3,
        file_size_bytes=9,
        metrics=metrics,
        split_offsets=(4,),
        equality_ids=(1,),
        data_sequence_number=7,
    )
    result = TaskResult(task=1, attempt=2, add=(new,), rows_in=4, rows_deleted=1, rows_out=3, hash_in="x", row_map="m")
    assert TaskResult.from_json(json.loads(json.dumps(result.to_json())), job.metadata) == result
    failure = TaskFailure(task=1, attempt=0, code="damaged", detail="d", hint="h")
    assert TaskFailure.from_json(json.loads(json.dumps(failure.to_json()))) == failure


# -- many files -------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(120)
def test_a_million_files_are_planned_without_an_object_for_each() -> None:
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"), spec_id=1)
    metadata = table_metadata()
    metadata = metadata.model_copy(update={"partition_specs": [spec], "default_spec_id": 1})
    frame = files_and_deletes(1_000_000, 100_000)
    frame = frame.with_columns(
        record_count=pl.lit(1000, pl.Int64),
        file_size_bytes=pl.lit(FRAGMENT, pl.Int64),
        snapshot_id=pl.lit(SNAPSHOT, pl.Int64),
    ).select(FILE_SCHEMA.names())
    gc.collect()
    before = len(gc.get_objects())
    started = time.process_time()
    plan = make_plan(evaluate(observed(frame.cast(FILE_SCHEMA), metadata=metadata)))
    seconds = time.process_time() - started
    gc.collect()
    grown = len(gc.get_objects()) - before
    assert plan.evaluation.files.height == 1_000_000
    assert 5_000 < sum(task.data.height for task in plan.tasks) <= 10_000
    assert plan.left_out > 900
    assert grown < 1_000_000 / 10, f"{grown} objects"
    assert seconds < 15, f"{seconds:.1f} s of CPU"
