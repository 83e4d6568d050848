"""Tasks of a keyed table: the files of both stores in one tree, divided where no key can be in two parts.

    sub-trees    Files of a node share keys with files above and below it. So the topmost nodes with files, or those at the
                 level that the base store is written at, are the roots of sub-trees that have no key in common.
    key ranges   Within a sub-tree, files whose ranges of the first key column are connected make a key group.
    targets      A key group is written to all nodes of that level below its root. Files of nodes above them are read by each
                 of their tasks, which skips the rows of the others. So one task is one target of some key groups.

All of it is frames with a row for each file. Only tasks are objects.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import polars as pl

from pyarctic.iceberg.delete import PARTITION_KEY
from pyarctic.iceberg.manifest import FILE_SCHEMA, PartitionDecoder
from pyarctic.optimizing.evaluate.evaluation import Evaluation
from pyarctic.optimizing.evaluate.partitions import TOO_LARGE
from pyarctic.optimizing.observe.changes import PendingChanges
from pyarctic.optimizing.observe.observation import KeyedObservation
from pyarctic.optimizing.plan.chosen_files import choose_files
from pyarctic.optimizing.plan.task_inputs import COPY_LEAST_ROWS, deletes_for, estimate_output, footer_bytes
from pyarctic.optimizing.protocol.task import KEY_SHARE, KeyedTask, OptimizingKind
from pyarctic.optimizing.settings import Settings
from pyarctic.tables.format import assign_roots, node_masks
from pyarctic.tables.read import IS_FOREIGN, split_by_key_ranges

_SUB_TREE = [*PARTITION_KEY, "root"]
_KEY_GROUP = [*_SUB_TREE, "component"]
_TASK = [*_SUB_TREE, "bin", "target"]
_SUPERSEDES = pl.col("is_change") | IS_FOREIGN
"""Files whose rows may supersede those of others."""
_IS_WRITTEN = pl.col("rewrite") & ~pl.col("share")
"""Files whose rows are expected to be rewritten."""


@dataclass(frozen=True, kw_only=True, eq=False)
class KeyedTasks:
    """The tasks, and how they came about: `merges` and `tree` as in `KeyedPlan`."""

    tasks: tuple[KeyedTask, ...]
    merges: pl.DataFrame
    tree: pl.DataFrame


def select_mergeable_partitions(
    due: pl.DataFrame, evaluation: Evaluation, changes: PendingChanges, in_work: Collection[str]
) -> pl.DataFrame:
    """The partitions that can be merged now, and none of whose files is in work. The merged sequence number is that of a
    partition, so all its tasks belong together."""
    both_stores = pl.concat([files.select(*PARTITION_KEY, "file_path") for files in (evaluation.files, changes.files)])
    busy = both_stores.filter(pl.col("file_path").is_in(list(in_work)))
    waiting = waiting_partitions(evaluation, changes)
    free = due.join(busy, on=PARTITION_KEY, how="anti", maintain_order="left").filter(~pl.col("is_ambiguous"))
    return free.join(waiting, on=PARTITION_KEY, how="anti", maintain_order="left")


def waiting_partitions(evaluation: Evaluation, changes: PendingChanges) -> pl.DataFrame:
    """The partitions that wait as a whole for an open transaction: their rows would be written together with later ones, and
    would count as later than it, or than changes that are held because of it."""
    if changes.oldest_open is None:
        return evaluation.files.select(PARTITION_KEY).clear()
    held = changes.partitions.select(*PARTITION_KEY, "oldest_held")
    files = evaluation.files.join(held, on=PARTITION_KEY, how="left", maintain_order="left")
    waits_for = pl.min_horizontal(pl.lit(changes.oldest_open + 1), "oldest_held")
    return files.filter(pl.col("transaction_id") >= waits_for).select(PARTITION_KEY).unique(maintain_order=True)


def plan_keyed_tasks(
    evaluation: Evaluation, partitions: pl.DataFrame, observation: KeyedObservation, first_task: int
) -> KeyedTasks:
    """Plan the tasks of these partitions."""
    changes, settings = observation.changes, observation.settings
    files = _concat_stores(choose_files(evaluation, partitions), partitions, observation)
    in_tree = assign_roots(_with_levels(files, changes, settings), "place")
    grouped = _with_bins(split_by_key_ranges(in_tree, changes.key.fields[0]), settings)
    merges = changes.partitions.join(_merged_sequences(grouped), on=PARTITION_KEY, maintain_order="left")
    merges = merges.with_columns(sequence=pl.coalesce("sequence", pl.col("merged").clip(lower_bound=0)))
    by_task = _without_useless_targets(_with_targets(grouped)).partition_by(_TASK, maintain_order=True)
    return KeyedTasks(
        tasks=tuple(_task(number, task_files, observation) for number, task_files in enumerate(by_task, first_task)),
        merges=merges.select(*PARTITION_KEY, "path", "merged", "sequence"),
        tree=_tree(grouped),
    )


def _merged_sequences(files: pl.DataFrame) -> pl.DataFrame:
    """The sequence number that partitions are merged up to. It is null where foreign files alone are merged: it stays."""
    has_versions = files.filter(_SUPERSEDES)
    sequence = pl.col("data_sequence_number").filter("is_change").max()
    return has_versions.group_by(PARTITION_KEY).agg(sequence=sequence)


def _concat_stores(base: pl.DataFrame, partitions: pl.DataFrame, observation: KeyedObservation) -> pl.DataFrame:
    """The files of both stores. `rewrite`: whether their rows are written."""
    changes = observation.changes
    due = partitions.select(*PARTITION_KEY, "kind", "causes").rename({"kind": "due", "causes": "due_causes"})
    base_files = base.join(changes.base_ranges, on="file_path", how="left", maintain_order="left")
    base_files = base_files.with_columns(is_change=pl.lit(value=False))
    change_files = changes.files.with_columns(
        rewrite=pl.col("kind") != "ED",
        is_change=pl.lit(value=True),
        foreign_order=pl.lit(0, pl.Int64),
        own_deleted_rows=pl.lit(0, pl.Int64),
        shared_position_files=pl.lit(0),
    )
    both = pl.concat([base_files, change_files], how="diagonal_relaxed").join(due, on=PARTITION_KEY, maintain_order="left")
    return estimate_output(both, observation.metadata).with_columns(share=_is_shareable(observation.settings))


def _is_shareable(settings: Settings) -> pl.Expr:
    """Insert files that need not be rewritten if none of their rows is superseded: they are as large as kept base files."""
    if not settings.share_inserts:
        return pl.lit(value=False)
    min_bytes = {"minor": settings.fragment_bytes, "major": settings.min_target_bytes}
    is_large = pl.col("file_size_bytes") >= pl.col("due").replace_strict(min_bytes, default=None, return_dtype=pl.Int64)
    is_plain_parquet = (pl.col("file_format") == "PARQUET") & pl.col("key_metadata_bytes").is_null()
    is_insert = pl.col("is_change") & pl.col("rewrite")
    return (is_insert & pl.col("keeps_order") & is_plain_parquet & is_large).fill_null(value=False)


def _with_levels(files: pl.DataFrame, changes: PendingChanges, settings: Settings) -> pl.DataFrame:
    """`mask`: the level of the tree that each partition is written at, deep enough that a node gets about the target size.
    `place`: the node of a file, or the one above it at that level, with its mask as `place_mask`."""
    own_mask = node_masks(files["node_id"].to_numpy())
    files = files.with_columns(pl.Series("own_mask", own_mask))
    is_kept = (~pl.col("rewrite") & ~pl.col("is_change")) | pl.col("share")
    probed_bytes = pl.when(_SUPERSEDES.any()).then(pl.col("file_size_bytes").filter(is_kept).sum()).otherwise(0)
    work = pl.col("expected_bytes").filter(_IS_WRITTEN).sum() + KEY_SHARE * probed_bytes
    wanted_level = (work / settings.target_bytes).clip(lower_bound=1).log(2).ceil().cast(pl.Int64)
    # Rows written above kept files would tie their nodes together. Rows written below them would make many tasks probe each
    # kept file, and write its deletes.
    kept_mask = pl.col("own_mask").filter(is_kept).max()
    max_mask = pl.min_horizontal(kept_mask, pl.lit(changes.max_mask))
    min_mask = pl.min_horizontal(kept_mask.fill_null(0), pl.lit(changes.min_mask))
    wanted_mask = pl.min_horizontal(pl.lit(2).pow(wanted_level) - 1, max_mask)
    mask_of_partition = pl.max_horizontal(wanted_mask, pl.min_horizontal(min_mask, max_mask))
    files = files.with_columns(mask=mask_of_partition.over(PARTITION_KEY).cast(pl.Int64))
    # A file above the level has several targets, and cannot be shared by all.
    files = files.with_columns(share=pl.col("share") & (pl.col("own_mask") >= pl.col("mask")))
    node, mask = files["node_id"].to_numpy(), files["mask"].to_numpy()
    above = ((node - own_mask - 1) & mask) + mask + 1
    place = np.where(own_mask > mask, above, node)
    return files.with_columns(pl.Series("place", place), pl.Series("place_mask", node_masks(place)))


def _with_bins(files: pl.DataFrame, settings: Settings) -> pl.DataFrame:
    """`bin`: neighbouring key groups that make tasks of the right size. Files that neither change nor share keys with
    changes or foreign files are left out."""
    files = files.filter(pl.col("rewrite") | _SUPERSEDES.any().over(_KEY_GROUP))
    weight = pl.when(_IS_WRITTEN).then("expected_bytes").otherwise(KEY_SHARE * pl.col("file_size_bytes"))
    groups = (
        files.with_columns(weight=weight, targets=(pl.col("mask") + 1) / (_root_masks(files) + 1))
        .group_by(_KEY_GROUP)
        .agg(pl.col("weight").sum(), pl.col("targets").first())
        .sort(_KEY_GROUP)
    )
    total = pl.col("weight").sum().over(_SUB_TREE)
    before = (pl.col("weight").cum_sum() - pl.col("weight")).over(_SUB_TREE)
    bins = (total / pl.col("targets") / settings.task_bytes).round().clip(lower_bound=1)
    number = (before * bins / total.clip(lower_bound=1)).floor().clip(upper_bound=bins - 1)
    numbered = groups.select(*_KEY_GROUP, bin=number.cast(pl.Int64))
    return files.join(numbered, on=_KEY_GROUP, how="left", maintain_order="left", nulls_equal=True)


def _with_targets(files: pl.DataFrame) -> pl.DataFrame:
    """A row for each file and each node that its rows are written to, as `target`."""
    roots = files.select(*_SUB_TREE, "mask").unique(maintain_order=True)
    root_masks = _root_masks(roots)
    indexes_below = pl.int_ranges(pl.col("root") - root_masks - 1, pl.col("mask") + 1, root_masks + 1)
    targets = roots.with_columns(target_index=indexes_below).explode("target_index")
    pairs = files.join(targets.drop("mask"), on=_SUB_TREE, maintain_order="left")
    is_below = (pl.col("target_index") & pl.col("place_mask")) == pl.col("place") - pl.col("place_mask") - 1
    return pairs.filter(is_below).with_columns(target=pl.col("target_index") + pl.col("mask") + 1)


def _root_masks(files: pl.DataFrame) -> pl.Series:
    return pl.Series(node_masks(files["root"].to_numpy()))


def _without_useless_targets(files: pl.DataFrame) -> pl.DataFrame:
    """Without targets that have nothing to merge: a single file of their own, without deletes worth applying."""
    spans_targets = pl.col("rewrite") & (pl.col("place_mask") < pl.col("mask"))
    has_deletes = pl.col("rewrite") & ((pl.col("own_deleted_rows") > 0) | (pl.col("shared_position_files") > 0))
    is_needed = (
        _SUPERSEDES.any()
        | (pl.col("due") == "full").any()
        | (pl.col("rewrite").sum() > 1)
        | spans_targets.any()
        | ((pl.col("due") == "major") & has_deletes).any()
    )
    return files.filter(is_needed.over(_TASK))


def _task(number: int, files: pl.DataFrame, observation: KeyedObservation) -> KeyedTask:
    settings, metadata = observation.settings, observation.metadata
    first = files.row(0, named=True)
    kind: OptimizingKind = first["due"]
    base = files.filter(~pl.col("is_change")).sort("component", "data_sequence_number", "file_path", maintain_order=True)
    changes = files.filter("is_change").sort("data_sequence_number", "file_path", maintain_order=True)
    written = files.filter(_IS_WRITTEN)
    share_of_file = (pl.col("place_mask") + 1) / (pl.col("mask") + 1)
    expected_bytes = int(written.select((pl.col("expected_bytes") * share_of_file).sum()).item()) + footer_bytes(metadata)
    # Rows that make several files are sorted by their key, so that each file has a key range of its own.
    makes_several_files = expected_bytes > settings.target_bytes * TOO_LARGE
    sort = settings.sort and kind != "minor" and (makes_several_files or bool(metadata.sort_order().fields))
    transaction_ids = files.filter(pl.col("rewrite") | pl.col("is_change"))["transaction_id"]
    columns = FILE_SCHEMA.names()
    return KeyedTask(
        id=number,
        action="merge",
        kind=kind,
        partition=PartitionDecoder(metadata).path(first["spec_id"], first["partition"]),
        files=pl.concat([base.select(columns), deletes_for(base, observation.matches)]),
        spec_id=metadata.default_spec_id,
        partition_key=first["partition"],
        target_bytes=settings.target_bytes,
        expected_rows=int(written.select((pl.col("expected_rows") * share_of_file).sum()).item()),
        expected_bytes=expected_bytes,
        sort=sort,
        copy_least_rows=None if sort else COPY_LEAST_ROWS[kind],
        reasons=tuple(first["due_causes"]),
        node_id=first["target"],
        changes=changes.select(columns),
        kept=tuple(base.filter(~pl.col("rewrite"))["file_path"]),
        transaction_id=int(transaction_ids.max() or 0),  # type: ignore[arg-type]
        shareable=tuple(files.filter("share")["file_path"]),
        foreign=tuple(base.filter(IS_FOREIGN).sort("foreign_order")["file_path"]),
    )


def _tree(files: pl.DataFrame) -> pl.DataFrame:
    counts = {
        "base_files": ~pl.col("is_change"),
        "insert_files": pl.col("is_change") & pl.col("rewrite"),
        "delete_files": pl.col("is_change") & ~pl.col("rewrite"),
    }
    key_groups = pl.col("component").n_unique().over(_SUB_TREE).cast(pl.Int64)
    return (
        files.with_columns(groups=key_groups)
        .group_by(*PARTITION_KEY, "node_id", maintain_order=True)
        .agg(
            *(is_counted.sum().cast(pl.Int64).alias(name) for name, is_counted in counts.items()),
            pl.col("file_size_bytes").sum().alias("bytes"),
            pl.col("root", "groups", "mask").first(),
        )
        .sort(*PARTITION_KEY, "node_id")
    )
