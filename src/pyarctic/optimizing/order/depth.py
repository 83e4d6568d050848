"""How many files hold the same keys, and which belong together because of it. Pure, over arrays.

Files overlap if there is a key that both may hold, and sorting their rows together could part them: files that only touch
at a bound do not overlap, nor do files that hold one and the same key each. So what was sorted together does not overlap,
however often a key comes, and sorting it again is never called for.

With one dimension the depth is exact, found by one sweep over all bounds. With more, depth is told at the middle of each
file's box: whoever looks for a key that is really there meets so many files. That is never more than the greatest depth;
what is planned is checked against an upper limit of it (`deep_at_most`), so that nothing has to be done twice.
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
_MOST_MIDDLES = 4096
"""Of a partition with more files the depth is told at so many of their boxes."""
_BLOCK = 1 << 20
"""Pairs that are compared at a time."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Boxes:
    """Ranges of keys, sorted by partition. Only those of one partition can overlap."""

    partition: Integers
    low: Ranks
    """A row for each box, a column for each dimension."""
    high: Ranks
    weight: Integers
    """Files that lie on top of each other in a box."""

    def __len__(self) -> int:
        return len(self.partition)

    def taken(self, rows: Mask | Integers) -> Self:
        return type(self)(partition=self.partition[rows], low=self.low[rows], high=self.high[rows], weight=self.weight[rows])

    def places(self) -> tuple[Integers, Integers]:
        """Bounds as even numbers that count through those of each dimension: between any two is an odd one."""
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


def depths(boxes: Boxes) -> tuple[Integers, Integers]:
    """The partitions there are, and the greatest depth in each."""
    partitions, starts = np.unique(boxes.partition, return_index=True)
    if not len(boxes):
        return partitions, np.empty(0, np.int64)
    if boxes.low.shape[1] == 1:
        low, high = boxes.places()
        depth = _swept(low[:, 0], high[:, 0], boxes.weight)
        firsts = np.minimum.reduceat(low[:, 0], starts)
        return partitions, np.maximum.reduceat(depth, firsts)
    found = np.ones(len(boxes), np.int64)
    for middles, rows, holds in _held(boxes):
        found[middles] = holds @ boxes.weight[rows]
    return partitions, np.maximum.reduceat(found, starts)


def deep(boxes: Boxes, threshold: int) -> Mask:
    """The boxes with a key that so many hold."""
    result = np.zeros(len(boxes), bool)
    if not len(boxes):
        return result
    if boxes.low.shape[1] == 1:
        low, high = (places[:, 0] for places in boxes.places())
        return _touched(_swept(low, high, boxes.weight) >= threshold, low, high)
    for _, rows, holds in _held(boxes):
        too_deep = holds @ boxes.weight[rows] >= threshold
        result[rows] |= holds[too_deep].any(axis=0)
    return result


def deep_at_most(boxes: Boxes, threshold: int) -> Mask:
    """The boxes that could have a key so many hold, wherever within them files come to lie. Many boxes cannot meet in a
    point unless each of them overlaps with as many; so those that overlap with fewer are left out, again and again."""
    if not len(boxes) or boxes.low.shape[1] == 1:
        return deep(boxes, threshold)
    result = np.ones(len(boxes), bool)
    while result.any():
        few = boxes.taken(result)
        reached = np.zeros(len(few), np.int64)
        for rows, columns, overlap in _pairs(few):
            reached[rows] += overlap @ few.weight[columns]
        stays = reached >= threshold
        result[np.flatnonzero(result)] = stays
        if stays.all():
            break
    return result


def connected(boxes: Boxes) -> Integers:
    """A number for each box: the same for boxes that are linked by overlaps."""
    labels = np.arange(len(boxes))
    if not len(boxes):
        return labels
    if boxes.low.shape[1] == 1:
        low, high = (places[:, 0] for places in boxes.places())
        order = np.lexsort((high, low))
        before = np.concatenate([[-1], np.maximum.accumulate(high[order])[:-1]])
        labels[order] = np.cumsum(low[order] >= before)
        return labels
    while True:
        least = labels.copy()
        for rows, columns, overlap in _pairs(boxes):
            near = np.where(overlap, labels[columns], len(boxes)).min(axis=1)
            least[rows] = np.minimum(least[rows], near)
        least = least[least]
        if (least == labels).all():
            return labels
        labels = least


# -- one dimension ----------------------------------------------------------------------------------------------------


def _swept(low: Integers, high: Integers, weight: Integers) -> Integers:
    """The depth at every place. Intervals do not hold their own ends: at a key where one file ends and the next begins,
    nothing could be parted. All that hold nothing but this key count as one."""
    places = int(high.max()) + 2
    is_point = low == high
    wide = np.flatnonzero(~is_point)
    steps = np.bincount(low[wide] + 1, weight[wide], places) - np.bincount(high[wide], weight[wide], places)
    points = np.zeros(places, np.int64)
    points[low[is_point]] = 1
    return np.cumsum(steps).astype(np.int64) + points


def _touched(places: Mask, low: Integers, high: Integers) -> Mask:
    """The intervals with one of these places within them."""
    before = np.concatenate([[0], np.cumsum(places)])
    return np.where(low == high, places[low], before[high] > before[np.minimum(low + 1, high)])


# -- boxes ------------------------------------------------------------------------------------------------------------


def _held(boxes: Boxes) -> Iterator[tuple[Integers, Integers, npt.NDArray[np.int64]]]:
    """Blocks: boxes in whose middle it is looked, boxes of their partitions, and which of these hold which middle."""
    low, high = boxes.places()
    middle = (low + high) // 2
    middle += (low < high) & (middle % 2 == 0)
    for rows in _neighbourhoods(boxes.partition):
        step = -(-len(rows) // _MOST_MIDDLES)
        for middles in _blocks(rows[::step], len(rows)):
            at, start, end = middle[middles, None], low[None, rows], high[None, rows]
            strictly, same = (start < at) & (at < end), (start == end) & (start == at)
            other = boxes.partition[middles, None] != boxes.partition[None, rows]
            # All that hold this one key and no other count as one: the box itself.
            holds = (strictly | same).all(axis=2) & strictly.any(axis=2) & ~other
            holds |= middles[:, None] == rows[None, :]
            yield middles, rows, holds.astype(np.int64)


def _pairs(boxes: Boxes) -> Iterator[tuple[Integers, Integers, Mask]]:
    """Blocks: boxes, boxes of their partitions, and which of them overlap; each overlaps with itself."""
    low, high = boxes.places()
    for rows in _neighbourhoods(boxes.partition):
        for some in _blocks(rows, len(rows)):
            low_a, high_a, low_b, high_b = low[some, None], high[some, None], low[None, rows], high[None, rows]
            same = (low_a == high_a) & (low_b == high_b) & (low_a == low_b)
            inner = np.maximum(low_a, low_b) < np.minimum(high_a, high_b)
            inner |= (low_a == high_a) & (low_b < low_a) & (low_a < high_b)
            inner |= (low_b == high_b) & (low_a < low_b) & (low_b < high_a)
            other = boxes.partition[some, None] != boxes.partition[None, rows]
            overlap = (same | inner).all(axis=2) & inner.any(axis=2) & ~other
            yield some, rows, overlap | (some[:, None] == rows[None, :])


def _neighbourhoods(partition: Integers) -> Iterator[Integers]:
    """Rows of whole partitions: many small ones together, as they are compared faster so."""
    starts = np.flatnonzero(np.diff(partition, prepend=-1))
    ends = np.append(starts[1:], len(partition))
    begin = 0
    while begin < len(partition):
        full = int(np.searchsorted(ends, begin + _MOST_MIDDLES // 4, side="right"))
        end = int(ends[max(full - 1, int(np.searchsorted(ends, begin, side="right")))])
        yield np.arange(begin, end)
        begin = end


def _blocks(rows: Integers, width: int) -> Iterator[Integers]:
    step = max(_BLOCK // max(width, 1), 1)
    for start in range(0, len(rows), step):
        yield rows[start : start + step]
