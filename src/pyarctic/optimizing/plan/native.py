"""Tasks of tables without a primary key. Pure, and made of frames: a million files need no object each."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import polars as pl
from pyiceberg.table.metadata import TableMetadata

from pyarctic.iceberg.delete import GLOBAL_EQUALITY, PARTITION_KEY
from pyarctic.iceberg.manifest import FILE_SCHEMA, PartitionDecoder
from pyarctic.optimizing.evaluate.evaluation import Evaluation
from pyarctic.optimizing.evaluate.files import HAS_DELETES
from pyarctic.optimizing.observe.observation import Observation
from pyarctic.optimizing.order.overlaps import NO_SET
from pyarctic.optimizing.plan.bins import TASK_KEY, pack_tasks
from pyarctic.optimizing.plan.chosen_files import IS_DEEP, choose_files
from pyarctic.optimizing.plan.moves import pack_moves
from pyarctic.optimizing.plan.task_inputs import COPY_LEAST_ROWS, deletes_for, footer_bytes
from pyarctic.optimizing.protocol.task import OptimizingKind, Task

_CONVERT_ROWS = 20_000_000
"""The number of rows whose keys one task probes."""
_HAS_GLOBAL_DELETES = pl.col(f"{GLOBAL_EQUALITY}_to") > pl.col(f"{GLOBAL_EQUALITY}_from")


def plan_native_tasks(
    evaluation: Evaluation,
    partitions: pl.DataFrame,
    requested: pl.DataFrame,
    in_work: Collection[str],
    *,
    resolve_overlaps: bool,
    first_task: int,
) -> tuple[Task, ...]:
    """Plan the tasks of these partitions, except for files that are `in_work` elsewhere. Small files of other `requested`
    partitions may be rewritten together with rows that come to them."""
    observation = evaluation.observation
    files = _without_useless_rewrites(choose_files(evaluation, partitions), in_work)
    moves = pack_moves(files, evaluation, requested, in_work)
    moved = [path for task_files in moves for path in task_files["file_path"]]
    files = pack_tasks(files.filter(~pl.col("file_path").is_in(moved)), observation, resolve_overlaps=resolve_overlaps)
    tasks = [
        *(_move_task(task_files, observation) for task_files in moves),
        *_merge_tasks(files.filter("rewrite"), observation),
        *_convert_tasks(_without_needed_deletes(files, evaluation, in_work), evaluation, {*in_work, *moved}),
    ]
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
    expected_rows, expected_bytes = _expected_output(files, metadata)
    return Task(
        id=0,
        action="merge",
        kind=kind,
        partition=_partition_label(files, metadata),
        files=pl.concat([files.select(FILE_SCHEMA.names()), deletes_for(files, observation.matches)]),
        spec_id=first["spec_id"],
        partition_key=first["partition"],
        target_bytes=settings.target_bytes,
        expected_rows=expected_rows,
        expected_bytes=expected_bytes,
        sort=sort,
        z_order=order.z_order if order is not None and sort else (),
        ranges=max(round(expected_bytes / settings.task_bytes), 1) if is_set else 1,
        copy_least_rows=None if sort else COPY_LEAST_ROWS[kind],
        reasons=tuple(first["partition_causes"]),
    )


def _move_task(files: pl.DataFrame, observation: Observation) -> Task:
    """The task that writes the rows of files to the partitions of the current spec."""
    settings, metadata, order = observation.settings, observation.metadata, observation.order
    expected_rows, expected_bytes = _expected_output(files, metadata)
    is_unpartitioned = metadata.default_spec_id in PartitionDecoder(metadata).unpartitioned_specs()
    sort = order is not None and order.sorts
    return Task(
        id=0,
        action="merge",
        kind="full",
        partition=_partition_label(files, metadata),
        files=pl.concat([files.select(FILE_SCHEMA.names()), deletes_for(files, observation.matches)]),
        spec_id=metadata.default_spec_id,
        partition_key=PartitionDecoder.key_of((None,) * len(metadata.spec().fields)) if is_unpartitioned else None,
        target_bytes=settings.target_bytes,
        expected_rows=expected_rows,
        expected_bytes=expected_bytes,
        sort=sort,
        z_order=order.z_order if order is not None and sort else (),
        copy_least_rows=None if sort else COPY_LEAST_ROWS["full"],
        files_out=None if is_unpartitioned else _files_out(files),
        reasons=tuple(dict.fromkeys(cause for causes in files["partition_causes"] for cause in causes)),
    )


def _files_out(files: pl.DataFrame) -> tuple[int, int, int]:
    """How many files rows make that are moved. If that were more than there are, they stay in their partitions, unless
    one of these is lost."""
    least, expected, most = files.select("least_files", "expected_files", "most_files").row(0)
    if most > files.height and not files["partition_is_lost"].any():
        least, most = min(least, files.select(PARTITION_KEY).n_unique()), files.height
    return least, min(max(expected, least), most), most


def _expected_output(files: pl.DataFrame, metadata: TableMetadata) -> tuple[int, int]:
    """The number of rows of a task, and their size."""
    share_of_partition = pl.col("record_count") / pl.col("partition_records").clip(lower_bound=1)
    shared_deleted_rows = int(files.select((pl.col("shared_deleted_rows") * share_of_partition).sum()).item())
    rows = int(files["expected_rows"].sum())
    expected_rows = max(rows - shared_deleted_rows, 0)
    return expected_rows, int(files["expected_bytes"].sum() * expected_rows / max(rows, 1)) + footer_bytes(metadata)


def _partition_label(files: pl.DataFrame, metadata: TableMetadata) -> str:
    """The partitions of a task, for people."""
    first = files.row(0, named=True)
    path = PartitionDecoder(metadata).path(first["spec_id"], first["partition"])
    partitions = files.select(PARTITION_KEY).n_unique()
    return path + (f" and {partitions - 1} more" if partitions > 1 else "")


def _without_needed_deletes(files: pl.DataFrame, evaluation: Evaluation, in_work: Collection[str]) -> pl.DataFrame:
    """Files whose equality deletes no file needs that is in work elsewhere. As long as one does, the deletes cannot be
    removed, and positions beside them are refused."""
    in_need = evaluation.files.filter(pl.col("file_path").is_in(list(in_work)) & (pl.col("equality_files") > 0))
    if in_need.filter(_HAS_GLOBAL_DELETES).height:
        files = files.filter(~_HAS_GLOBAL_DELETES)
    return files.join(in_need.select(PARTITION_KEY).unique(), on=PARTITION_KEY, how="anti")


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
    partitions and can be removed only when none of them needs it any more, so all files that it applies to are probed, or
    none if positions cannot be written for one of them."""
    cannot_be_written = pl.col("spec_id").is_in(PartitionDecoder(evaluation.observation.metadata).unwritable_specs())
    kept = files.filter(~pl.col("rewrite") & (pl.col("equality_files") > 0))
    if files.filter(_HAS_GLOBAL_DELETES).is_empty():
        return kept.filter(~cannot_be_written)
    handled = pl.concat([kept.select("file_path"), files.filter("rewrite").select("file_path")])
    others = evaluation.files.filter(_HAS_GLOBAL_DELETES & ~pl.col("file_path").is_in(list(in_work)))
    others = others.join(handled, on="file_path", how="anti")
    probed = pl.concat([kept, others], how="diagonal")
    if probed.filter(_HAS_GLOBAL_DELETES & cannot_be_written).height:
        probed = probed.filter(~_HAS_GLOBAL_DELETES)
    return probed.filter(~cannot_be_written)


def _convert_task(files: pl.DataFrame, observation: Observation) -> Task:
    first = files.row(0, named=True)
    causes = sorted({cause for causes in files["partition_causes"].drop_nulls() for cause in causes})
    return Task(
        id=0,
        action="convert",
        kind="minor",
        partition=_partition_label(files, observation.metadata),
        files=pl.concat([files.select(FILE_SCHEMA.names()), deletes_for(files, observation.matches)]),
        spec_id=first["spec_id"],
        partition_key=first["partition"],
        target_bytes=observation.settings.target_bytes,
        expected_rows=int(files["record_count"].sum()),
        expected_bytes=0,
        reasons=tuple(causes),
    )
