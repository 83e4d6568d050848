"""Overlap depth: how many files hold the same keys, and which files are connected by overlaps. Pure, over arrays.

Files overlap if there is a key that both may hold, and sorting their rows together could separate them: files that only
touch at a bound do not overlap, nor do files that each hold the same single key. So files that were sorted together do not
overlap, however often a key occurs, and are never sorted again because of it.

With one dimension the depth is exact, found by one sweep over all bounds. With more, it is measured at the middle of each
file's box: a lookup of a key that really exists opens so many files. That is never more than the greatest depth; plans are
checked against an upper limit of it (`find_possibly_deep`), so that nothing has to be rewritten twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from pyarctic.optimizing.order.ranks import Ranks

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_MAX_MIDDLES = 4096
"""In a partition with more files the depth is measured at the middle of this many."""
_BLOCK_PAIRS = 1 << 20
"""The number of pairs that are compared at a time."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Boxes:
    """Key ranges of files, sorted by partition. Only those of one partition can overlap."""

    partition: Integers
    low: Ranks
    """A row for each box, a column for each dimension."""
    high: Ranks
    weight: Integers
    """The number of files that overlap completely within a box."""

    def __len__(self) -> int:
        return len(self.partition)

    def take(self, rows: Mask | Integers) -> Self:
        """Some of the boxes."""
        return type(self)(partition=self.partition[rows], low=self.low[rows], high=self.high[rows], weight=self.weight[rows])

    def numbered_bounds(self) -> tuple[Integers, Integers]:
        """Low and high as even numbers that enumerate the bounds of each dimension: between any two is an odd number."""
        low, high = np.empty(self.low.shape, np.int64), np.empty(self.high.shape, np.int64)
        for column in range(self.low.shape[1]):
            partitions = np.concatenate([self.partition, self.partition])
            keys = np.concatenate([self.low[:, column], self.high[:, column]])
            order = np.lexsort((keys, partitions))
            differs = np.diff(keys[order], prepend=keys[order[:1]]) != 0
            differs |= np.diff(partitions[order], prepend=partitions[order[:1]]) != 0
            numbers = np.empty(len(keys), np.int64)
            numbers[order] = 2 * np.cumsum(differs)
            low[:, column], high[:, column] = np.split(numbers, 2)
        return low, high


def measure_depths(boxes: Boxes) -> tuple[Integers, Integers]:
    """The partitions, and the greatest depth in each."""
    partitions, starts = np.unique(boxes.partition, return_index=True)
    if not len(boxes):
        return partitions, np.empty(0, np.int64)
    if boxes.low.shape[1] == 1:
        low, high = boxes.numbered_bounds()
        depth = _sweep(low[:, 0], high[:, 0], boxes.weight)
        firsts = np.minimum.reduceat(low[:, 0], starts)
        return partitions, np.maximum.reduceat(depth, firsts)
    depth = np.ones(len(boxes), np.int64)
    for middles, rows, contains in _middle_blocks(boxes):
        depth[middles] = contains @ boxes.weight[rows]
    return partitions, np.maximum.reduceat(depth, starts)


def find_deep(boxes: Boxes, threshold: int) -> Mask:
    """The boxes with a key that at least `threshold` files hold."""
    is_deep = np.zeros(len(boxes), bool)
    if not len(boxes):
        return is_deep
    if boxes.low.shape[1] == 1:
        low, high = (bounds[:, 0] for bounds in boxes.numbered_bounds())
        return _contains_any(_sweep(low, high, boxes.weight) >= threshold, low, high)
    for _, rows, contains in _middle_blocks(boxes):
        is_too_deep = contains @ boxes.weight[rows] >= threshold
        is_deep[rows] |= contains[is_too_deep].any(axis=0)
    return is_deep


def find_possibly_deep(boxes: Boxes, threshold: int) -> Mask:
    """The boxes that could have a key that `threshold` files hold, wherever files are within them. Many boxes cannot have a
    point in common unless each of them overlaps with as many; so those that overlap with fewer are left out, repeatedly."""
    if not len(boxes) or boxes.low.shape[1] == 1:
        return find_deep(boxes, threshold)
    is_candidate = np.ones(len(boxes), bool)
    while is_candidate.any():
        candidates = boxes.take(is_candidate)
        overlapping = np.zeros(len(candidates), np.int64)
        for rows, columns, overlap in _overlap_blocks(candidates):
            overlapping[rows] += overlap @ candidates.weight[columns]
        is_left = overlapping >= threshold
        is_candidate[np.flatnonzero(is_candidate)] = is_left
        if is_left.all():
            break
    return is_candidate


def label_connected(boxes: Boxes) -> Integers:
    """A number for each box: the same for boxes that are connected by overlaps."""
    labels = np.arange(len(boxes))
    if not len(boxes):
        return labels
    if boxes.low.shape[1] == 1:
        low, high = (bounds[:, 0] for bounds in boxes.numbered_bounds())
        order = np.lexsort((high, low))
        before = np.concatenate([[-1], np.maximum.accumulate(high[order])[:-1]])
        labels[order] = np.cumsum(low[order] >= before)
        return labels
    while True:
        smallest = labels.copy()
        for rows, columns, overlap in _overlap_blocks(boxes):
            neighbours = np.where(overlap, labels[columns], len(boxes)).min(axis=1)
            smallest[rows] = np.minimum(smallest[rows], neighbours)
        smallest = smallest[smallest]
        if (smallest == labels).all():
            return labels
        labels = smallest


# -- one dimension ----------------------------------------------------------------------------------------------------


def _sweep(low: Integers, high: Integers, weight: Integers) -> Integers:
    """The depth at every numbered bound. Intervals do not contain their own ends: at a key where one file ends and the next
    begins, sorting could separate nothing. All intervals that consist of only this key count as one."""
    count = int(high.max()) + 2
    is_point = low == high
    wide = np.flatnonzero(~is_point)
    steps = np.bincount(low[wide] + 1, weight[wide], count) - np.bincount(high[wide], weight[wide], count)
    points = np.zeros(count, np.int64)
    points[low[is_point]] = 1
    return np.cumsum(steps).astype(np.int64) + points


def _contains_any(marked: Mask, low: Integers, high: Integers) -> Mask:
    """The intervals that contain a marked bound."""
    before = np.concatenate([[0], np.cumsum(marked)])
    return np.where(low == high, marked[low], before[high] > before[np.minimum(low + 1, high)])


# -- boxes ------------------------------------------------------------------------------------------------------------


def _middle_blocks(boxes: Boxes) -> Iterator[tuple[Integers, Integers, npt.NDArray[np.int64]]]:
    """Blocks: boxes whose middle is measured, boxes of their partitions, and which of these contain which middle."""
    low, high = boxes.numbered_bounds()
    middle = (low + high) // 2
    middle += (low < high) & (middle % 2 == 0)
    for rows in _partition_groups(boxes.partition):
        step = -(-len(rows) // _MAX_MIDDLES)
        for measured in _blocks(rows[::step], len(rows)):
            point, start, end = middle[measured, None], low[None, rows], high[None, rows]
            is_inside, is_same = (start < point) & (point < end), (start == end) & (start == point)
            other_partition = boxes.partition[measured, None] != boxes.partition[None, rows]
            # All boxes that consist of only this key count as one: the box itself.
            contains = (is_inside | is_same).all(axis=2) & is_inside.any(axis=2) & ~other_partition
            contains |= measured[:, None] == rows[None, :]
            yield measured, rows, contains.astype(np.int64)


def _overlap_blocks(boxes: Boxes) -> Iterator[tuple[Integers, Integers, Mask]]:
    """Blocks: boxes, boxes of their partitions, and which of them overlap; each overlaps with itself."""
    low, high = boxes.numbered_bounds()
    for rows in _partition_groups(boxes.partition):
        for block in _blocks(rows, len(rows)):
            low_a, high_a, low_b, high_b = low[block, None], high[block, None], low[None, rows], high[None, rows]
            is_same_point = (low_a == high_a) & (low_b == high_b) & (low_a == low_b)
            shares_inside = np.maximum(low_a, low_b) < np.minimum(high_a, high_b)
            shares_inside |= (low_a == high_a) & (low_b < low_a) & (low_a < high_b)
            shares_inside |= (low_b == high_b) & (low_a < low_b) & (low_b < high_a)
            other_partition = boxes.partition[block, None] != boxes.partition[None, rows]
            overlap = (is_same_point | shares_inside).all(axis=2) & shares_inside.any(axis=2) & ~other_partition
            yield block, rows, overlap | (block[:, None] == rows[None, :])


def _partition_groups(partition: Integers) -> Iterator[Integers]:
    """Rows of complete partitions: small partitions are compared together, which is faster."""
    starts = np.flatnonzero(np.diff(partition, prepend=-1))
    ends = np.append(starts[1:], len(partition))
    begin = 0
    while begin < len(partition):
        full = int(np.searchsorted(ends, begin + _MAX_MIDDLES // 4, side="right"))
        end = int(ends[max(full - 1, int(np.searchsorted(ends, begin, side="right")))])
        yield np.arange(begin, end)
        begin = end


def _blocks(rows: Integers, width: int) -> Iterator[Integers]:
    step = max(_BLOCK_PAIRS // max(width, 1), 1)
    for start in range(0, len(rows), step):
        yield rows[start : start + step]
