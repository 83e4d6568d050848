"""Which files of a sorted table overlap too deeply, and which are rewritten together so that none does any more.

The measure of a partition is its greatest depth: how many files somebody must open who looks for one key. A mean would not
see a few files that came for a narrow range of keys, which is how sorted tables are written to.

A set of files that is sorted together comes out as files that do not overlap, so of each set one file at most holds a key.
`settle_overlaps` relies on that: it predicts the depth from the hulls of what is planned, and joins sets that would be too
deep again, until none is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import polars as pl

from pyarctic.iceberg.delete import PARTITION_KEY
from pyarctic.optimizing.order.depth import Boxes, Integers, Mask, connected, deep, deep_at_most, depths
from pyarctic.optimizing.order.key_bounds import IS_BOUNDED, high_column, low_column

_MOST_COMPARED = 8192
"""Boxes of one partition that are compared with each other; of more, all that are planned are put together."""
NO_SET = -1


@dataclass(frozen=True, kw_only=True, eq=False)
class _Reaches:
    """The files of a frame that can be measured, as boxes."""

    rows: Integers
    """Of the frame, in the order of the boxes."""
    boxes: Boxes

    @classmethod
    def of(cls, files: pl.DataFrame) -> Self:
        columns = sum(name.startswith(low_column(0)[:-1]) for name in files.columns)
        codes = files.select(pl.struct(PARTITION_KEY).rank("dense").cast(pl.Int64)).to_series().to_numpy()
        rows = files.select(pl.arg_where(pl.col("is_measured"))).to_series().to_numpy().astype(np.int64)
        rows = rows[np.argsort(codes[rows], kind="stable")]
        low, high = (
            np.column_stack([files[name(number)].to_numpy()[rows] for number in range(columns)]).astype(np.uint64)
            for name in (low_column, high_column)
        )
        return cls(rows=rows, boxes=Boxes(partition=codes[rows], low=low, high=high, weight=np.ones(len(rows), np.int64)))


def with_overlaps(files: pl.DataFrame, reach: pl.DataFrame, spec_id: int, threshold: int | None) -> pl.DataFrame:
    """Files with `overlap_depth`, that of their partition, and `overlap_set`: a number for those of a set that lies too
    deep, else null.

    Partitions of older specs are not measured: what is rewritten of them goes to others. Nor are files without bounds that
    optimizing wrote itself, because they would have none the next time either."""
    files = files.join(reach, on="file_path", how="left", maintain_order="left")
    measured = (pl.col("spec_id") == spec_id) & (pl.col(IS_BOUNDED) | ~pl.col("optimized"))
    files = files.with_columns(is_measured=measured.fill_null(value=False))
    found = _Reaches.of(files)
    partitions, depth = depths(found.boxes)
    by_file = np.zeros(files.height, np.int64)
    by_file[found.rows] = depth[np.searchsorted(partitions, found.boxes.partition)]
    sets = np.full(files.height, NO_SET)
    if threshold is not None:
        sets[found.rows] = _sets(found.boxes, deep(found.boxes, threshold))
    return files.with_columns(
        overlap_depth=pl.when("is_measured").then(pl.Series(by_file)),
        overlap_set=pl.when(pl.Series(sets) != NO_SET).then(pl.Series(sets)),
    )


def _sets(boxes: Boxes, chosen: Mask) -> Integers:
    sets = np.full(len(boxes), NO_SET)
    sets[chosen] = connected(boxes.taken(chosen))
    return sets


def settle_overlaps(files: pl.DataFrame, items: Integers, planned: Mask, weight: Integers, threshold: int) -> Integers:
    """For each file of one partition the set with which it is sorted, or NO_SET: those that are planned, and what has to be
    put together so that no key is in too many files afterwards.

    `items` has a number for files that are rewritten together and NO_SET for those that stay; `planned` tells which of
    them are sets already, `weight` how many files with the same keys come of the others."""
    found = _Reaches.of(files)
    at, boxes = found.rows, found.boxes
    stays = items[at] == NO_SET
    names = np.where(stays, items.max(initial=0) + 1 + np.arange(len(at)), items[at])
    is_set, heavy = planned[at], np.where(planned[at] | stays, 1, weight[at])
    while len(at):
        present, place = np.unique(names, return_inverse=True)
        hulls = _hulls(boxes, place, heavy)
        if hulls.low.shape[1] > 1 and len(hulls) > _MOST_COMPARED:
            names, is_set = np.where(stays, names, names[~stays].min(initial=0)), ~stays
            break
        too_deep = deep_at_most(hulls, threshold)
        linked = _sets(hulls, too_deep)
        # What nothing is planned for stays as it is.
        is_planned = np.zeros(len(present), bool)
        is_planned[place[~stays]] = True
        too_deep &= np.isin(linked, linked[is_planned])
        if not too_deep.any():
            break
        # What is linked takes the name of its first, and becomes one set.
        first = np.full(linked.max() + 1, len(present))
        np.minimum.at(first, linked[too_deep], np.flatnonzero(too_deep))
        names = present[np.where(too_deep, first[linked], np.arange(len(present)))[place]]
        is_set, heavy = is_set | too_deep[place], np.where(too_deep[place], 1, heavy)
    result = np.where(planned, items, NO_SET)
    result[at] = np.where(is_set, names, NO_SET)
    return result


def _hulls(boxes: Boxes, place: Integers, weight: Integers) -> Boxes:
    """The least box around all that have one place, by place."""
    order = np.argsort(place, kind="stable")
    starts = np.flatnonzero(np.diff(place[order], prepend=-1))
    return Boxes(
        partition=boxes.partition[order][starts],
        low=np.minimum.reduceat(boxes.low[order], starts),
        high=np.maximum.reduceat(boxes.high[order], starts),
        weight=np.maximum.reduceat(weight[order], starts),
    )
