"""From an evaluation to tasks. Pure, and made of frames: a million files are planned without an object for each of them."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import polars as pl
from pyiceberg.transforms import VoidTransform

from pyarctic.iceberg.delete import GLOBAL_EQUALITY, PARTITION_KEY
from pyarctic.iceberg.manifest import FILE_SCHEMA, PartitionDecoder
from pyarctic.optimizing.evaluate.evaluation import Evaluation, Observation
from pyarctic.optimizing.evaluate.rules import GAINS
from pyarctic.optimizing.order.overlaps import NO_SET
from pyarctic.optimizing.plan.bins import TASK_KEY, pack_tasks
from pyarctic.optimizing.plan.keyed import KeyedPlan, keyed_plan
from pyarctic.optimizing.plan.task_inputs import COPY_LEAST_ROWS, deletes_of, footer_bytes
from pyarctic.optimizing.protocol.tasks import Action, OptimizingKind, Task

_CONVERT_ROWS = 20_000_000
"""Rows whose keys one task looks at."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """What is to be done, and what it is expected to come to."""

    evaluation: Evaluation
    partitions: pl.DataFrame
    """Those of the evaluation that were asked for, with the kind that was chosen for each, and why."""
    tasks: tuple[Task, ...]
    dangling_deletes: pl.DataFrame
    """Delete files that hit nothing and can go at once."""
    ignores_writers: bool
    left_out: int
    """Partitions that need optimizing and did not fit into this plan."""
    keyed: KeyedPlan | None = None
    """Of a keyed table: what the tasks of each partition merge together."""

    def __bool__(self) -> bool:
        return bool(self.tasks) or self.dangling_deletes.height > 0

    @property
    def observation(self) -> Observation:
        return self.evaluation.observation

    @property
    def held_back(self) -> pl.DataFrame:
        """Partitions that need optimizing and have to wait because of their writers."""
        return self.partitions.filter(pl.col("kind").is_not_null() & pl.col("is_busy"))

    def tasks_of(self, action: Action) -> list[Task]:
        return [task for task in self.tasks if task.action == action]

    def figures(self) -> dict[str, int]:
        """What the plan expects to read and write."""
        merges, converts = self.tasks_of("merge"), self.tasks_of("convert")
        return {
            "tasks": len(self.tasks),
            "data_files_in": sum(task.replaced.height for task in merges),
            "data_files_out": sum(expected_files(task) for task in merges),
            "change_files_in": 0 if self.keyed is None else self.keyed.change_files,
            "read_bytes": sum(task.input_bytes for task in merges),
            "written_bytes": sum(task.expected_bytes for task in merges),
            "rows_out": sum(task.expected_rows for task in merges),
            "data_files_converted": sum(task.data.height for task in converts),
            "idle_delete_files": self.dangling_deletes.height,
        }

    def to_json(self) -> dict[str, Any]:
        """The tasks with their inputs; without secrets, and to be read in any language."""
        return {
            "table": self.observation.table,
            "snapshot_id": str(self.observation.snapshot_id),
            "expected": self.figures(),
            "tasks": [task.to_json() for task in self.tasks],
            "idle_deletes": json.loads(self.dangling_deletes.select("file_path", "content_offset").write_json()),
        }


def expected_files(task: Task) -> int:
    """How many files a task is expected to write."""
    return max(round(task.expected_bytes / task.target_bytes), 1) if task.expected_rows else 0


def make_plan(
    evaluation: Evaluation,
    *,
    kind: OptimizingKind | None = None,
    only: pl.DataFrame | None = None,
    in_work: Collection[str] = (),
    ignore_writers: bool = False,
    first_task: int = 0,
) -> Plan:
    """Tasks for the partitions that need it, the worst ones first.

    `kind` overrules the choice for every partition that would gain by it. `only` (spec_id, partition) restricts the plan.
    Files `in_work` elsewhere are not planned again. Tasks are numbered from `first_task` on."""
    observation = evaluation.observation
    partitions = evaluation.partitions
    if kind is not None:
        causes = pl.when(pl.col("kind") == kind).then("causes").otherwise(pl.lit([f"asked for {kind}"]))
        partitions = partitions.with_columns(kind=pl.when(GAINS[kind]).then(pl.lit(kind)), causes=causes)
    if only is not None:
        partitions = partitions.join(only, on=PARTITION_KEY, how="semi", maintain_order="left")
    if ignore_writers:
        partitions = partitions.with_columns(is_busy=pl.lit(value=False))
    needy = partitions.filter(pl.col("kind").is_not_null()).sort(_urgency(observation), descending=True)
    if observation.changes is not None:
        needy = _undisturbed(needy, evaluation, in_work)
    taken, left_out = _within_limits(needy, observation)
    keyed = None
    if observation.changes is not None:
        keyed = keyed_plan(_chosen(evaluation, taken), taken, observation)
        merges, converts = list(keyed.tasks), []
    else:
        files = pack_tasks(_marked(evaluation, taken, in_work), observation, settle=kind != "minor")
        merges = _merge_tasks(files.filter("rewrite"), observation)
        converts = _convert_tasks(files, evaluation, in_work)
    numbered = [replace(task, id=number) for number, task in enumerate([*merges, *converts], first_task)]
    return Plan(
        evaluation=evaluation,
        partitions=partitions,
        tasks=tuple(numbered),
        dangling_deletes=evaluation.dangling_deletes.select(FILE_SCHEMA.names()),
        ignores_writers=ignore_writers,
        left_out=left_out,
        keyed=keyed,
    )


def _undisturbed(needy: pl.DataFrame, evaluation: Evaluation, in_work: Collection[str]) -> pl.DataFrame:
    """The partitions of a keyed table of which no file is in work, and which can be merged. What was merged is known for a
    partition as a whole, so that its tasks belong together."""
    changes = evaluation.observation.changes
    assert changes is not None  # noqa: S101  # of a keyed table
    both = pl.concat([frame.select(*PARTITION_KEY, "file_path") for frame in (evaluation.files, changes.files)])
    busy = both.filter(pl.col("file_path").is_in(list(in_work)))
    left = needy.join(busy, on=PARTITION_KEY, how="anti", maintain_order="left").filter(~pl.col("is_ambiguous"))
    return left.join(awaiting(evaluation), on=PARTITION_KEY, how="anti", maintain_order="left")


def awaiting(evaluation: Evaluation) -> pl.DataFrame:
    """The partitions of a keyed table that wait for an open transaction, Base and all: rows that are written together with
    later ones would be taken for later than it, or than changes that are held because of it."""
    changes = evaluation.observation.changes
    if changes is None or changes.oldest_open is None:
        return evaluation.files.select(PARTITION_KEY).clear()
    held = changes.partitions.select(*PARTITION_KEY, "oldest_held")
    files = evaluation.files.join(held, on=PARTITION_KEY, how="left", maintain_order="left")
    waits_for = pl.min_horizontal(pl.lit(changes.oldest_open + 1), "oldest_held")
    return files.filter(pl.col("transaction_id") >= waits_for).select(PARTITION_KEY).unique(maintain_order=True)


def _urgency(observation: Observation) -> pl.Expr:
    """How unwell a partition is, and how long it has waited: after a day the coldest comes before the worst."""
    waited = (pl.lit(observation.now) - pl.col("waiting_since")).dt.total_seconds() / 86_400
    return (100 - pl.col("health")) / 100 + waited.fill_null(0).clip(lower_bound=0)


def _within_limits(needy: pl.DataFrame, observation: Observation) -> tuple[pl.DataFrame, int]:
    """As many partitions as the limits of a plan allow; the first always. Busy ones cost next to nothing."""
    settings = observation.settings
    whole = pl.col("kind") == "full"

    def amount(what: str) -> pl.Expr:
        some = pl.sum_horizontal(f"small_{what}", f"deep_{what}")
        of_base = pl.when("is_busy").then(0).when(whole).then(f"data_{what}").otherwise(some)
        return of_base + pl.col(f"change_{what}")

    files, size = amount("files"), amount("bytes")
    before_files, before_bytes = files.cum_sum() - files, size.cum_sum() - size
    fits = (files.cum_sum() <= settings.plan_files) & (size.cum_sum() <= settings.plan_bytes)
    first = (before_files == 0) & (before_bytes == 0)
    taken = needy.filter(fits | first)
    return taken, needy.height - taken.height


_HIT = (pl.col("own_dead_rows") > 0) | (pl.col("equality_files") > 0) | (pl.col("shared_position_files") > 0)
"""Whether deletes hit a file."""
_DEEP = pl.col("overlap_set").is_not_null() & (pl.col("partition_kind") == "major")
"""Whether it lies too deep among others."""


def _marked(evaluation: Evaluation, taken: pl.DataFrame, in_work: Collection[str]) -> pl.DataFrame:
    """The data files of the chosen partitions, with `rewrite`: whether they are written anew."""
    files = _chosen(evaluation, taken)
    if in_work:
        files = files.filter(~pl.col("file_path").is_in(list(in_work)))
    kind = pl.col("partition_kind")
    alone = ~_DEEP & ((pl.col("rewrite") & ~_DEEP).sum().over(PARTITION_KEY) < 2)
    useless = alone & ~_HIT & (kind != "full")
    single_fragment = alone & (kind == "minor")
    return files.with_columns(rewrite=pl.col("rewrite") & ~useless & ~single_fragment & ~pl.col("partition_is_busy"))


def _chosen(evaluation: Evaluation, taken: pl.DataFrame) -> pl.DataFrame:
    """The data files of the chosen partitions, with `rewrite`: whether their size or their deletes ask for it."""
    settings = evaluation.observation.settings
    of_partition = pl.col("kind", "causes", "is_busy", "is_current_spec", "records").name.prefix("partition_")
    chosen = taken.select(*PARTITION_KEY, of_partition)
    files = evaluation.files.join(chosen, on=PARTITION_KEY, maintain_order="left")
    # Which file the deletes of keys and those about a whole partition hit is not known without reading them.
    for_all = pl.col("equality_records") + pl.col("shared_dead_rows")
    dead = pl.col("own_dead_rows") / pl.col("record_count") + for_all / pl.col("partition_records")
    worn = dead >= settings.major_delete_ratio
    kind = pl.col("partition_kind")
    many_deletes = pl.col("partition_causes").list.contains("delete-ratio")
    files = files.with_columns(
        rewrite=pl.when(kind == "full")
        .then(pl.lit(value=True))
        .when(kind == "major")
        .then(pl.col("is_small") | (worn & _HIT) | _DEEP)
        .otherwise(pl.col("is_fragment")),
    )
    # What stays must not call for the next round by itself.
    rest = ~pl.col("rewrite")
    rest_dead = (pl.col("own_dead_rows").filter(rest).sum() + for_all.max()).over(PARTITION_KEY)
    rest_rows = pl.col("record_count").filter(rest).sum().over(PARTITION_KEY)
    still_worn = many_deletes & (rest_dead >= settings.major_delete_ratio * rest_rows)
    return files.with_columns(rewrite=pl.col("rewrite") | (still_worn & _HIT))


def _merge_tasks(files: pl.DataFrame, observation: Observation) -> list[Task]:
    files = files.sort(*TASK_KEY, "data_sequence_number", "file_path", maintain_order=True)
    return [_merge_task(group, observation) for group in files.partition_by(TASK_KEY, maintain_order=True)]


def _merge_task(group: pl.DataFrame, observation: Observation) -> Task:
    settings, metadata = observation.settings, observation.metadata
    first = group.row(0, named=True)
    kind: OptimizingKind = first["partition_kind"]
    is_set = first["set"] != NO_SET
    if is_set and kind == "minor":  # small files that would overlap too deeply if they were only merged
        kind = "major"
    order = observation.order
    sort = order is not None and order.sorts and kind != "minor"
    part = int(group["record_count"].sum()) / max(first["partition_records"], 1)
    shared = int(group.select(pl.col("shared_dead_rows").max()).item() * part)
    rows = int(group["expected_rows"].sum())
    expected_rows = max(rows - shared, 0)
    expected_bytes = int(group["expected_bytes"].sum() * expected_rows / max(rows, 1)) + footer_bytes(metadata)
    return Task(
        id=0,
        action="merge",
        kind=kind,
        partition=PartitionDecoder(metadata).path(first["spec_id"], first["partition"]),
        files=pl.concat([group.select(FILE_SCHEMA.names()), deletes_of(group, observation.matches)]),
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


def _destination(first: dict[str, Any], observation: Observation) -> str | None:
    """The partition of the current spec that a file's rows belong to; None if that has to be asked of each row."""
    if first["partition_is_current_spec"]:
        return str(first["partition"])
    fields = observation.metadata.spec().fields
    if all(isinstance(field.transform, VoidTransform) for field in fields):
        return PartitionDecoder.key_of((None,) * len(fields))
    return None


def _convert_tasks(files: pl.DataFrame, evaluation: Evaluation, in_work: Collection[str]) -> list[Task]:
    """Data files that stay and are hit by equality deletes. A global delete hits many partitions and can go only when none
    of them needs it any more, so all that it hits are asked."""
    observation = evaluation.observation
    if observation.metadata.format_version < 2:
        return []
    stays = files.filter(~pl.col("rewrite") & (pl.col("equality_files") > 0))
    rewritten = files.filter("rewrite")
    if stays.is_empty() and rewritten.filter(pl.col("equality_files") > 0).is_empty():
        return []
    hit_globally = pl.col(f"{GLOBAL_EQUALITY}_to") > pl.col(f"{GLOBAL_EQUALITY}_from")
    if files.filter(hit_globally).height:
        others = evaluation.files.filter(hit_globally & ~pl.col("file_path").is_in(list(in_work)))
        others = others.join(
            pl.concat([stays.select("file_path"), rewritten.select("file_path")]), on="file_path", how="anti"
        )
        stays = pl.concat([stays, others], how="diagonal")
    if stays.is_empty():
        return []
    stays = stays.sort(*PARTITION_KEY, "data_sequence_number", "file_path", maintain_order=True)
    number = (pl.col("record_count").cum_sum() - pl.col("record_count")) // _CONVERT_ROWS
    return [
        _convert_task(group, observation)
        for group in stays.with_columns(part=number).partition_by("part", maintain_order=True)
    ]


def _convert_task(group: pl.DataFrame, observation: Observation) -> Task:
    first = group.row(0, named=True)
    metadata = observation.metadata
    partitions = group.select(PARTITION_KEY).unique()
    path = PartitionDecoder(metadata).path(first["spec_id"], first["partition"])
    more = f" and {partitions.height - 1} more" if partitions.height > 1 else ""
    causes = sorted({cause for causes in group["partition_causes"].drop_nulls() for cause in causes})
    return Task(
        id=0,
        action="convert",
        kind="minor",
        partition=path + more,
        files=pl.concat([group.select(FILE_SCHEMA.names()), deletes_of(group, observation.matches)]),
        spec_id=first["spec_id"],
        partition_key=first["partition"],
        target_bytes=observation.settings.target_bytes,
        expected_rows=int(group["record_count"].sum()),
        expected_bytes=0,
        reasons=tuple(causes),
    )
