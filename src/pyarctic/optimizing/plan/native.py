"""Tasks of tables without a primary key. Pure, and made of frames: a million files need no object each."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import polars as pl
from pyiceberg.transforms import VoidTransform

from pyarctic.iceberg.delete import GLOBAL_EQUALITY, PARTITION_KEY
from pyarctic.iceberg.manifest import FILE_SCHEMA, PartitionDecoder
from pyarctic.optimizing.evaluate.evaluation import Evaluation
from pyarctic.optimizing.observe.observation import Observation
from pyarctic.optimizing.order.overlaps import NO_SET
from pyarctic.optimizing.plan.bins import TASK_KEY, pack_tasks
from pyarctic.optimizing.plan.chosen_files import HAS_DELETES, IS_DEEP, choose_files
from pyarctic.optimizing.plan.task_inputs import COPY_LEAST_ROWS, deletes_for, footer_bytes
from pyarctic.optimizing.protocol.task import OptimizingKind, Task

_CONVERT_ROWS = 20_000_000
"""The number of rows whose keys one task probes."""


def plan_native_tasks(
    evaluation: Evaluation, partitions: pl.DataFrame, in_work: Collection[str], *, resolve_overlaps: bool, first_task: int
) -> tuple[Task, ...]:
    """Plan the tasks of these partitions, except for files that are `in_work` elsewhere."""
    observation = evaluation.observation
    files = _without_useless_rewrites(choose_files(evaluation, partitions), in_work)
    files = pack_tasks(files, observation, resolve_overlaps=resolve_overlaps)
    tasks = [*_merge_tasks(files.filter("rewrite"), observation), *_convert_tasks(files, evaluation, in_work)]
    return tuple(replace(task, id=number) for number, task in enumerate(tasks, first_task))


def _without_useless_rewrites(files: pl.DataFrame, in_work: Collection[str]) -> pl.DataFrame:
    """A file without deletes is not rewritten alone, unless everything is, nor is a single fragment."""
    if in_work:
        files = files.filter(~pl.col("file_path").is_in(list(in_work)))
    kind = pl.col("partition_kind")
    is_alone = ~IS_DEEP & ((pl.col("rewrite") & ~IS_DEEP).sum().over(PARTITION_KEY) < 2)
    is_useless = is_alone & ~HAS_DELETES & (kind != "full")
    is_single_fragment = is_alone & (kind == "minor")
    rewrite = pl.col("rewrite") & ~is_useless & ~is_single_fragment & ~pl.col("partition_is_busy")
    return files.with_columns(rewrite=rewrite)


def _merge_tasks(files: pl.DataFrame, observation: Observation) -> list[Task]:
    files = files.sort(*TASK_KEY, "data_sequence_number", "file_path", maintain_order=True)
    return [_merge_task(task_files, observation) for task_files in files.partition_by(TASK_KEY, maintain_order=True)]


def _merge_task(files: pl.DataFrame, observation: Observation) -> Task:
    settings, metadata = observation.settings, observation.metadata
    first = files.row(0, named=True)
    kind: OptimizingKind = first["partition_kind"]
    is_set = first["set"] != NO_SET
    if is_set and kind == "minor":  # small files that would overlap too deeply if they were only merged
        kind = "major"
    order = observation.order
    sort = order is not None and order.sorts and kind != "minor"
    share_of_partition = int(files["record_count"].sum()) / max(first["partition_records"], 1)
    shared_deleted_rows = int(files.select(pl.col("shared_deleted_rows").max()).item() * share_of_partition)
    rows = int(files["expected_rows"].sum())
    expected_rows = max(rows - shared_deleted_rows, 0)
    expected_bytes = int(files["expected_bytes"].sum() * expected_rows / max(rows, 1)) + footer_bytes(metadata)
    return Task(
        id=0,
        action="merge",
        kind=kind,
        partition=PartitionDecoder(metadata).path(first["spec_id"], first["partition"]),
        files=pl.concat([files.select(FILE_SCHEMA.names()), deletes_for(files, observation.matches)]),
        spec_id=metadata.default_spec_id,
        partition_key=_destination(first, observation),
        target_bytes=settings.target_bytes,
        expected_rows=expected_rows,
        expected_bytes=expected_bytes,
        sort=sort,
        z_order=order.z_order if order is not None and sort else (),
        ranges=max(round(expected_bytes / settings.task_bytes), 1) if is_set else 1,
        copy_least_rows=None if sort else COPY_LEAST_ROWS[kind],
        reasons=tuple(first["partition_causes"]),
    )


def _destination(file: dict[str, Any], observation: Observation) -> str | None:
    """The partition of the current spec that a file's rows belong to; None if it depends on the row."""
    if file["partition_is_current_spec"]:
        return str(file["partition"])
    fields = observation.metadata.spec().fields
    if all(isinstance(field.transform, VoidTransform) for field in fields):
        return PartitionDecoder.key_of((None,) * len(fields))
    return None


def _convert_tasks(files: pl.DataFrame, evaluation: Evaluation, in_work: Collection[str]) -> list[Task]:
    """Tasks for kept data files that equality deletes apply to."""
    if evaluation.observation.metadata.format_version < 2 or files.filter(pl.col("equality_files") > 0).is_empty():
        return []
    probed = _files_to_probe(files, evaluation, in_work)
    if probed.is_empty():
        return []
    probed = probed.sort(*PARTITION_KEY, "data_sequence_number", "file_path", maintain_order=True)
    part = (pl.col("record_count").cum_sum() - pl.col("record_count")) // _CONVERT_ROWS
    parts = probed.with_columns(part=part).partition_by("part", maintain_order=True)
    return [_convert_task(task_files, evaluation.observation) for task_files in parts]


def _files_to_probe(files: pl.DataFrame, evaluation: Evaluation, in_work: Collection[str]) -> pl.DataFrame:
    """The data files whose keys are probed: those that are kept and have equality deletes. A global delete applies to many
    partitions and can be removed only when none of them needs it any more, so all files that it applies to are probed."""
    kept = files.filter(~pl.col("rewrite") & (pl.col("equality_files") > 0))
    has_global_deletes = pl.col(f"{GLOBAL_EQUALITY}_to") > pl.col(f"{GLOBAL_EQUALITY}_from")
    if files.filter(has_global_deletes).is_empty():
        return kept
    handled = pl.concat([kept.select("file_path"), files.filter("rewrite").select("file_path")])
    others = evaluation.files.filter(has_global_deletes & ~pl.col("file_path").is_in(list(in_work)))
    others = others.join(handled, on="file_path", how="anti")
    return pl.concat([kept, others], how="diagonal")


def _convert_task(files: pl.DataFrame, observation: Observation) -> Task:
    first = files.row(0, named=True)
    partitions = files.select(PARTITION_KEY).unique()
    path = PartitionDecoder(observation.metadata).path(first["spec_id"], first["partition"])
    more = f" and {partitions.height - 1} more" if partitions.height > 1 else ""
    causes = sorted({cause for causes in files["partition_causes"].drop_nulls() for cause in causes})
    return Task(
        id=0,
        action="convert",
        kind="minor",
        partition=path + more,
        files=pl.concat([files.select(FILE_SCHEMA.names()), deletes_for(files, observation.matches)]),
        spec_id=first["spec_id"],
        partition_key=first["partition"],
        target_bytes=observation.settings.target_bytes,
        expected_rows=int(files["record_count"].sum()),
        expected_bytes=0,
        reasons=tuple(causes),
    )
