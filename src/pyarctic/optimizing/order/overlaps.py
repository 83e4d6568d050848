"""Finding the files of a sorted table that overlap too deeply, and choosing which are rewritten together so that none does.

The measure of a partition is its greatest depth: how many files a lookup of one key must open. A mean would miss a few files
for a narrow range of keys, which is how sorted tables are usually written to.

The outputs of a set of files that is sorted together do not overlap, so at most one file of each set holds a key.
`settle_overlaps` relies on that: it predicts the depth from the hulls of what is planned, and joins sets that would be too
deep again, until none is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import polars as pl

from pyarctic.iceberg.delete import PARTITION_KEY
from pyarctic.optimizing.order.depth import (
    Boxes,
    Integers,
    Mask,
    find_deep,
    find_possibly_deep,
    label_connected,
    measure_depths,
)
from pyarctic.optimizing.order.key_bounds import IS_BOUNDED, high_column, low_column

_MAX_COMPARED = 8192
"""The number of boxes of one partition that are compared with each other; beyond it, all planned files make one set."""
NO_SET = -1


@dataclass(frozen=True, kw_only=True, eq=False)
class _FileBoxes:
    """The measured files of a frame, as boxes."""

    rows: Integers
    """The rows of the frame, in the order of the boxes."""
    boxes: Boxes

    @classmethod
    def of(cls, files: pl.DataFrame) -> Self:
        dimensions = sum(name.startswith(low_column(0)[:-1]) for name in files.columns)
        codes = files.select(pl.struct(PARTITION_KEY).rank("dense").cast(pl.Int64)).to_series().to_numpy()
        rows = files.select(pl.arg_where(pl.col("is_measured"))).to_series().to_numpy().astype(np.int64)
        rows = rows[np.argsort(codes[rows], kind="stable")]
        low, high = (
            np.column_stack([files[name(number)].to_numpy()[rows] for number in range(dimensions)]).astype(np.uint64)
            for name in (low_column, high_column)
        )
        return cls(rows=rows, boxes=Boxes(partition=codes[rows], low=low, high=high, weight=np.ones(len(rows), np.int64)))


def with_overlaps(files: pl.DataFrame, bounds: pl.DataFrame, spec_id: int, threshold: int | None) -> pl.DataFrame:
    """Files with `overlap_depth`, that of their partition, and `overlap_set`: the number of a connected set of files that
    overlap too deeply, else null.

    Partitions of older specs are not measured: their rows are rewritten to other partitions. Nor are files without bounds
    that optimizing wrote, because they would have none the next time either."""
    files = files.join(bounds, on="file_path", how="left", maintain_order="left")
    is_measured = (pl.col("spec_id") == spec_id) & (pl.col(IS_BOUNDED) | ~pl.col("optimized"))
    files = files.with_columns(is_measured=is_measured.fill_null(value=False))
    measured = _FileBoxes.of(files)
    partitions, depths = measure_depths(measured.boxes)
    depth_by_file = np.zeros(files.height, np.int64)
    depth_by_file[measured.rows] = depths[np.searchsorted(partitions, measured.boxes.partition)]
    sets = np.full(files.height, NO_SET)
    if threshold is not None:
        sets[measured.rows] = _connected_sets(measured.boxes, find_deep(measured.boxes, threshold))
    return files.with_columns(
        overlap_depth=pl.when("is_measured").then(pl.Series(depth_by_file)),
        overlap_set=pl.when(pl.Series(sets) != NO_SET).then(pl.Series(sets)),
    )


def _connected_sets(boxes: Boxes, chosen: Mask) -> Integers:
    sets = np.full(len(boxes), NO_SET)
    sets[chosen] = label_connected(boxes.take(chosen))
    return sets


def settle_overlaps(files: pl.DataFrame, items: Integers, planned: Mask, weight: Integers, threshold: int) -> Integers:
    """For each file of one partition the set with which it is sorted, or NO_SET: the planned sets, and what has to be joined
    so that no key is in too many files afterwards.

    `items` has a number for files that are rewritten together and NO_SET for those that are kept; `planned` says which of
    them are sets already, `weight` how many files with the same keys the others produce."""
    measured = _FileBoxes.of(files)
    rows, boxes = measured.rows, measured.boxes
    is_kept = items[rows] == NO_SET
    names = np.where(is_kept, items.max(initial=0) + 1 + np.arange(len(rows)), items[rows])
    is_set, weights = planned[rows], np.where(planned[rows] | is_kept, 1, weight[rows])
    while len(rows):
        present, index = np.unique(names, return_inverse=True)
        hulls = _hulls(boxes, index, weights)
        if hulls.low.shape[1] > 1 and len(hulls) > _MAX_COMPARED:
            names, is_set = np.where(is_kept, names, names[~is_kept].min(initial=0)), ~is_kept
            break
        is_deep = find_possibly_deep(hulls, threshold)
        labels = _connected_sets(hulls, is_deep)
        # Sets without any planned file are left as they are.
        is_planned = np.zeros(len(present), bool)
        is_planned[index[~is_kept]] = True
        is_deep &= np.isin(labels, labels[is_planned])
        if not is_deep.any():
            break
        # Connected items take the name of the first one, and become one set.
        first = np.full(labels.max() + 1, len(present))
        np.minimum.at(first, labels[is_deep], np.flatnonzero(is_deep))
        names = present[np.where(is_deep, first[labels], np.arange(len(present)))[index]]
        is_set, weights = is_set | is_deep[index], np.where(is_deep[index], 1, weights)
    result = np.where(planned, items, NO_SET)
    result[rows] = np.where(is_set, names, NO_SET)
    return result


def _hulls(boxes: Boxes, index: Integers, weight: Integers) -> Boxes:
    """The smallest box around all boxes with the same index, by index."""
    order = np.argsort(index, kind="stable")
    starts = np.flatnonzero(np.diff(index[order], prepend=-1))
    return Boxes(
        partition=boxes.partition[order][starts],
        low=np.minimum.reduceat(boxes.low[order], starts),
        high=np.maximum.reduceat(boxes.high[order], starts),
        weight=np.maximum.reduceat(weight[order], starts),
    )
