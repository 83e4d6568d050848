"""Tasks of a keyed table: the files of both stores in one tree, divided where no key can be in two parts.

    sub-trees    Files of a node share keys with files above and below it. So the topmost nodes with files, or those at the
                 level that Base is written at, are the roots of sub-trees that have no key in common.
    key ranges   Within a sub-tree, files whose ranges of the first key column hang together make a group.
    targets      A group is written to all nodes of that level below its root. Files of nodes above them are read by each of
                 their tasks, which skips the rows of the others. So one task is one target of some groups.

All of it is frames with a row for each file. Only tasks are objects.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from pyarctic.iceberg.delete import PARTITION_KEY
from pyarctic.iceberg.manifest import FILE_SCHEMA, PartitionDecoder
from pyarctic.optimizing.evaluate.evaluation import TOO_LARGE, Observation
from pyarctic.optimizing.observe.changes import PendingChanges
from pyarctic.optimizing.plan.task_inputs import COPY_LEAST_ROWS, deletes_of, estimate_output, footer_bytes
from pyarctic.optimizing.protocol.tasks import KEY_SHARE, KeyedTask, OptimizingKind, Task
from pyarctic.optimizing.settings import Settings
from pyarctic.tables.read import split_by_key_ranges

_SUB_TREE = [*PARTITION_KEY, "root"]
_BIN = [*_SUB_TREE, "bin"]
_WRITTEN = pl.col("rewrite") & ~pl.col("share")
"""Files whose rows are expected to be written anew."""


@dataclass(frozen=True, kw_only=True, eq=False)
class KeyedPlan:
    """The tasks, and how they came about."""

    tasks: tuple[Task, ...]
    merges: pl.DataFrame
    """The partitions that are merged: `path`, `merged` (how far they were) and `sequence` (how far they will be)."""
    tree: pl.DataFrame
    """A row for each node with files: `base_files`, `insert_files`, `delete_files`, `bytes`, the `root` of its sub-tree, the
    number of key ranges (`groups`) in that, and the `mask` of the level it is written at."""

    @property
    def change_files(self) -> int:
        """Files of the change store that are merged."""
        return int(self.tree["insert_files"].sum()) + int(self.tree["delete_files"].sum())


def keyed_plan(base: pl.DataFrame, partitions: pl.DataFrame, observation: Observation) -> KeyedPlan:
    """`partitions`: those to be optimized. `base`: their data files in Base, with `rewrite`."""
    changes = observation.changes
    assert changes is not None  # noqa: S101  # of a keyed table
    files = _together(base, partitions, changes, observation)
    placed = _rooted(_placed(files, changes, observation.settings))
    grouped = _in_bins(split_by_key_ranges(placed, changes.key.fields[0]), observation.settings)
    merged = grouped.filter("is_change").group_by(PARTITION_KEY).agg(sequence=pl.col("data_sequence_number").max())
    merges = changes.partitions.join(merged, on=PARTITION_KEY, maintain_order="left")
    parts = _worthwhile(_targeted(grouped)).partition_by([*_BIN, "target"], maintain_order=True)
    return KeyedPlan(
        tasks=tuple(_task(part, observation) for part in parts),
        merges=merges.select(*PARTITION_KEY, "path", "merged", "sequence"),
        tree=_tree(grouped),
    )


def _together(
    base: pl.DataFrame, partitions: pl.DataFrame, changes: PendingChanges, observation: Observation
) -> pl.DataFrame:
    """The files of both stores. `rewrite`: whether rows of theirs are written."""
    due = partitions.select(*PARTITION_KEY, "kind", "causes").rename({"kind": "due", "causes": "due_causes"})
    bounded = base.join(changes.base_ranges, on="file_path", how="left", maintain_order="left")
    inserts = pl.col("kind") != "ED"
    new = changes.files.with_columns(
        rewrite=inserts, is_change=pl.lit(value=True), own_dead_rows=pl.lit(0, pl.Int64), shared_position_files=pl.lit(0)
    )
    old = bounded.with_columns(is_change=pl.lit(value=False))
    both = pl.concat([old, new], how="diagonal_relaxed").join(due, on=PARTITION_KEY, maintain_order="left")
    return estimate_output(both, observation.metadata).with_columns(share=_shareable(observation.settings))


def _shareable(settings: Settings) -> pl.Expr:
    """Files of inserts that need not be written anew if none of their rows is dead: as large as files of Base that stay."""
    if not settings.share_inserts:
        return pl.lit(value=False)
    large = {"minor": settings.fragment_bytes, "major": settings.min_target_bytes}
    enough = pl.col("file_size_bytes") >= pl.col("due").replace_strict(large, default=None, return_dtype=pl.Int64)
    known = (pl.col("file_format") == "PARQUET") & pl.col("key_metadata_bytes").is_null()
    return (pl.col("is_change") & pl.col("rewrite") & pl.col("keeps_order") & known & enough).fill_null(value=False)


def _placed(files: pl.DataFrame, changes: PendingChanges, settings: Settings) -> pl.DataFrame:
    """`mask`: the level of the tree that each partition is written at, deep enough that a node gets about the target size.
    `place`: the node of a file, or the one above it at that level."""
    own_mask = _mask_of(files["node_id"].to_numpy())
    files = files.with_columns(pl.Series("own_mask", own_mask))
    is_kept = (~pl.col("rewrite") & ~pl.col("is_change")) | pl.col("share")
    asked = pl.when(pl.col("is_change").any()).then(pl.col("file_size_bytes").filter(is_kept).sum()).otherwise(0)
    work = pl.col("expected_bytes").filter(_WRITTEN).sum() + KEY_SHARE * asked
    wanted = (work / settings.target_bytes).clip(lower_bound=1).log(2).ceil().cast(pl.Int64)
    # Rows written above files that stay would tie their nodes together; for rows written below them, each would be asked by
    # many tasks, and its deletes would be told by as many.
    stays = pl.col("own_mask").filter(is_kept).max()
    deepest = pl.min_horizontal(stays, pl.lit(changes.most_mask))
    highest = pl.min_horizontal(stays.fill_null(0), pl.lit(changes.least_mask))
    level = pl.max_horizontal(pl.min_horizontal(pl.lit(2).pow(wanted) - 1, deepest), pl.min_horizontal(highest, deepest))
    files = files.with_columns(mask=level.over(PARTITION_KEY).cast(pl.Int64))
    files = files.with_columns(share=pl.col("share") & (pl.col("own_mask") >= pl.col("mask")))  # others have several targets
    node, mask = files["node_id"].to_numpy(), files["mask"].to_numpy()
    above = ((node - own_mask - 1) & mask) + mask + 1
    return files.with_columns(pl.Series("place", np.where(own_mask > mask, above, node)))


def _mask_of(nodes: np.ndarray[tuple[int], np.dtype[np.int64]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    level = np.floor(np.log2(nodes)).astype(np.int64)
    masks: np.ndarray[tuple[int], np.dtype[np.int64]] = (np.int64(1) << level) - 1
    return masks


def _rooted(files: pl.DataFrame) -> pl.DataFrame:
    """`root`: the topmost node with files above a file's place, or that itself."""
    place = files["place"].to_numpy()
    masks = _mask_of(place)
    index = place - masks - 1
    known = files.select(*PARTITION_KEY, root="place").unique()
    files = files.with_columns(pl.lit(None, pl.Int64).alias("root"))
    for mask in np.unique(masks):
        above = np.where(masks >= mask, (index & mask) + mask + 1, 0)
        asked = files.select(*PARTITION_KEY, pl.Series("root", above))
        found = asked.join(known.with_columns(is_there=True), on=_SUB_TREE, how="left", maintain_order="left")["is_there"]
        files = files.with_columns(root=pl.coalesce("root", pl.when(found.fill_null(value=False)).then(pl.Series(above))))
    return files.with_columns(pl.Series("place_mask", masks))


def _in_bins(files: pl.DataFrame, settings: Settings) -> pl.DataFrame:
    """`bin`: key ranges that are neighbours and make tasks of the right size. Files that neither change nor are asked about
    changes are left out."""
    group = [*_SUB_TREE, "component"]
    files = files.filter(pl.col("rewrite") | pl.col("is_change").any().over(group))
    weight = pl.when(_WRITTEN).then("expected_bytes").otherwise(KEY_SHARE * pl.col("file_size_bytes"))
    root_mask = pl.Series(_mask_of(files["root"].to_numpy())) if files.height else pl.Series([], dtype=pl.Int64)
    groups = (
        files.with_columns(weight=weight, targets=(pl.col("mask") + 1) / (root_mask + 1))
        .group_by(group)
        .agg(pl.col("weight").sum(), pl.col("targets").first())
        .sort(group)
    )
    total = pl.col("weight").sum().over(_SUB_TREE)
    before = (pl.col("weight").cum_sum() - pl.col("weight")).over(_SUB_TREE)
    parts = (total / pl.col("targets") / settings.task_bytes).round().clip(lower_bound=1)
    number = (before * parts / total.clip(lower_bound=1)).floor().clip(upper_bound=parts - 1)
    binned = groups.select(*group, bin=number.cast(pl.Int64))
    return files.join(binned, on=group, how="left", maintain_order="left", nulls_equal=True)


def _targeted(files: pl.DataFrame) -> pl.DataFrame:
    """A row for each file and each node that rows of it are written to, as `target`."""
    roots = files.select(*_SUB_TREE, "mask").unique(maintain_order=True)
    masks = pl.Series(_mask_of(roots["root"].to_numpy())) if roots.height else pl.Series([], dtype=pl.Int64)
    below = pl.int_ranges(pl.col("root") - masks - 1, pl.col("mask") + 1, masks + 1)
    targets = roots.with_columns(target_index=below).explode("target_index")
    both = files.join(targets.drop("mask"), on=_SUB_TREE, maintain_order="left")
    within = (pl.col("target_index") & pl.col("place_mask")) == pl.col("place") - pl.col("place_mask") - 1
    return both.filter(within).with_columns(target=pl.col("target_index") + pl.col("mask") + 1)


def _worthwhile(files: pl.DataFrame) -> pl.DataFrame:
    """Without targets that have nothing to merge: a single file of their own, without deletes worth applying."""
    part = [*_BIN, "target"]
    reaches_out = pl.col("rewrite") & (pl.col("place_mask") < pl.col("mask"))
    hit = pl.col("rewrite") & ((pl.col("own_dead_rows") > 0) | (pl.col("shared_position_files") > 0))
    needed = (
        pl.col("is_change").any()
        | (pl.col("due") == "full").any()
        | (pl.col("rewrite").sum() > 1)
        | reaches_out.any()
        | ((pl.col("due") == "major") & hit).any()
    )
    return files.filter(needed.over(part))


def _task(part: pl.DataFrame, observation: Observation) -> Task:
    settings, metadata = observation.settings, observation.metadata
    first = part.row(0, named=True)
    kind: OptimizingKind = first["due"]
    base = part.filter(~pl.col("is_change")).sort("component", "data_sequence_number", "file_path", maintain_order=True)
    new = part.filter("is_change").sort("data_sequence_number", "file_path", maintain_order=True)
    written = part.filter(_WRITTEN)
    share = (pl.col("place_mask") + 1) / (pl.col("mask") + 1)
    expected_bytes = int(written.select((pl.col("expected_bytes") * share).sum()).item()) + footer_bytes(metadata)
    # Rows that make several files are sorted by their key, so that each file has a range of its own.
    divides = expected_bytes > settings.target_bytes * TOO_LARGE
    sort = settings.sort and kind != "minor" and (divides or bool(metadata.sort_order().fields))
    columns = FILE_SCHEMA.names()
    return Task(
        id=0,
        action="merge",
        kind=kind,
        partition=PartitionDecoder(metadata).path(first["spec_id"], first["partition"]),
        files=pl.concat([base.select(columns), deletes_of(base, observation.matches)]),
        spec_id=metadata.default_spec_id,
        partition_key=first["partition"],
        target_bytes=settings.target_bytes,
        expected_rows=int(written.select((pl.col("expected_rows") * share).sum()).item()),
        expected_bytes=expected_bytes,
        sort=sort,
        copy_least_rows=None if sort else COPY_LEAST_ROWS[kind],
        reasons=tuple(first["due_causes"]),
        keyed=KeyedTask(
            node_id=first["target"],
            changes=new.select(columns),
            kept=tuple(base.filter(~pl.col("rewrite"))["file_path"]),
            transaction_id=int(part.filter(pl.col("rewrite") | pl.col("is_change"))["transaction_id"].max() or 0),  # type: ignore[arg-type]
            shareable=tuple(part.filter("share")["file_path"]),
        ),
    )


def _tree(files: pl.DataFrame) -> pl.DataFrame:
    of_kind = {
        "base_files": ~pl.col("is_change"),
        "insert_files": pl.col("is_change") & pl.col("rewrite"),
        "delete_files": pl.col("is_change") & ~pl.col("rewrite"),
    }
    groups = pl.col("component").n_unique().over(_SUB_TREE).cast(pl.Int64)
    return (
        files.with_columns(groups=groups)
        .group_by(*PARTITION_KEY, "node_id", maintain_order=True)
        .agg(
            *(which.sum().cast(pl.Int64).alias(name) for name, which in of_kind.items()),
            pl.col("file_size_bytes").sum().alias("bytes"),
            pl.col("root", "groups", "mask").first(),
        )
        .sort(*PARTITION_KEY, "node_id")
    )
