"""How deep files overlap, against a model that tries every key; and which of them are put together."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import hypothesis.strategies as st
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings

from pyarctic.optimizing.order.depth import Boxes, find_deep, find_possibly_deep, label_connected, measure_depths
from pyarctic.optimizing.order.overlaps import NO_SET, settle_overlaps

Interval = tuple[int, int]
Box = tuple[int, tuple[Interval, ...]]
"""A partition, and an interval for each dimension."""


def boxes_of(listed: list[Box], weight: list[int] | None = None) -> Boxes:
    listed = sorted(listed, key=lambda box: box[0])
    return Boxes(
        partition=np.array([partition for partition, _ in listed], np.int64),
        low=np.array([[low for low, _ in sides] for _, sides in listed], np.uint64),
        high=np.array([[high for _, high in sides] for _, sides in listed], np.uint64),
        weight=np.array(weight or [1] * len(listed), np.int64),
    )


def holds(box: tuple[Interval, ...], point: tuple[float, ...]) -> bool:
    """Whether a key lies within a box, not at its border; in a dimension without extent there is no border."""
    return all(low < at < high or low == at == high for (low, high), at in zip(box, point, strict=True))


def is_point(box: tuple[Interval, ...]) -> bool:
    return all(low == high for low, high in box)


def depth_at(listed: list[tuple[Interval, ...]], point: tuple[float, ...]) -> int:
    """Files that hold nothing but this key count as one."""
    found = [box for box in listed if holds(box, point)]
    return sum(not is_point(box) for box in found) + any(is_point(box) for box in found)


def places(listed: list[tuple[Interval, ...]], dimension: int) -> list[float]:
    ends = sorted({end for box in listed for end in box[dimension]})
    return [*map(float, ends), *((a + b) / 2 for a, b in pairwise(ends))]


def true_depth(listed: list[tuple[Interval, ...]]) -> int:
    points = product(*(places(listed, dimension) for dimension in range(len(listed[0]))))
    return max(depth_at(listed, point) for point in points)


def interval(most: int) -> st.SearchStrategy[Interval]:
    return st.tuples(st.integers(0, most), st.integers(0, most)).map(lambda pair: (min(pair), max(pair)))


def some_boxes(dimensions: int, most: int = 6) -> st.SearchStrategy[list[Box]]:
    sides = st.tuples(*[interval(most) for _ in range(dimensions)])
    return st.lists(st.tuples(st.integers(0, 2), sides), min_size=1, max_size=9)


def by_partition(listed: list[Box]) -> dict[int, list[tuple[Interval, ...]]]:
    return {number: [box for partition, box in listed if partition == number] for number, _ in sorted(listed)}


@given(some_boxes(1))
@settings(max_examples=300)
def test_depth_of_intervals_is_that_of_the_model(listed: list[Box]) -> None:
    partitions, found = measure_depths(boxes_of(listed))
    expected = {number: true_depth(group) for number, group in by_partition(listed).items()}
    assert dict(zip(partitions.tolist(), found.tolist(), strict=True)) == expected


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@given(data=st.data())
@settings(max_examples=100)
def test_depth_of_boxes_is_between_one_and_the_true_one(dimensions: int, data: st.DataObject) -> None:
    listed = data.draw(some_boxes(dimensions, 4))
    boxes = boxes_of(listed)
    partitions, found = measure_depths(boxes)
    truth = {number: true_depth(group) for number, group in by_partition(listed).items()}
    for number, depth in zip(partitions.tolist(), found.tolist(), strict=True):
        assert 1 <= depth <= truth[number]
        for threshold in range(2, 6):
            inside = boxes.partition == number
            assert find_deep(boxes, threshold)[inside].any() == (depth >= threshold)
            assert find_possibly_deep(boxes, threshold)[inside].any() >= (truth[number] >= threshold)


@given(some_boxes(1))
@settings(max_examples=200)
def test_deep_intervals_are_those_that_hold_a_deep_key(listed: list[Box]) -> None:
    boxes = boxes_of(listed)
    listed = sorted(listed, key=lambda box: box[0])
    for threshold in range(2, 5):
        expected = [
            any(
                depth_at(by_partition(listed)[number], (at,)) >= threshold and holds(box, (at,))
                for at in places(by_partition(listed)[number], 0)
            )
            for number, box in listed
        ]
        assert find_deep(boxes, threshold).tolist() == expected


@pytest.mark.parametrize("dimensions", [1, 2])
@given(data=st.data())
@settings(max_examples=150)
def test_linked_boxes_have_one_number(dimensions: int, data: st.DataObject) -> None:
    listed = sorted(data.draw(some_boxes(dimensions)), key=lambda box: box[0])
    labels = label_connected(boxes_of(listed)).tolist()
    for (number, one), label in zip(listed, labels, strict=True):
        for (other_number, other), other_label in zip(listed, labels, strict=True):
            if number == other_number and one is not other and overlap(one, other):
                assert label == other_label
            if number != other_number:
                assert label != other_label


def overlap(one: tuple[Interval, ...], other: tuple[Interval, ...]) -> bool:
    if is_point(one) and is_point(other):
        return False
    points = product(*(places([one, other], dimension) for dimension in range(len(one))))
    return any(holds(one, point) and holds(other, point) for point in points)


# -- sets -------------------------------------------------------------------------------------------------------------


def frame(listed: list[tuple[Interval, ...]]) -> pl.DataFrame:
    columns: dict[str, Any] = {"spec_id": 0, "partition": ["[]"] * len(listed), "is_measured": True}
    for number in range(len(listed[0])):
        columns[f"key_low_{number}"] = pl.Series([box[number][0] for box in listed], dtype=pl.UInt64)
        columns[f"key_high_{number}"] = pl.Series([box[number][1] for box in listed], dtype=pl.UInt64)
    return pl.DataFrame(columns)


@pytest.mark.parametrize("dimensions", [1, 2])
@given(data=st.data())
@settings(max_examples=150)
def test_what_is_settled_lies_below_the_threshold(dimensions: int, data: st.DataObject) -> None:
    """Wherever within the hull of a set its outputs come to lie: they do not overlap, so at most one holds a key."""
    listed = [box for _, box in data.draw(some_boxes(dimensions, 8))]
    threshold = data.draw(st.integers(2, 4))
    boxes = boxes_of([(0, box) for box in listed])
    too_deep = find_deep(boxes, threshold)
    items = np.full(len(listed), NO_SET)
    items[too_deep] = label_connected(boxes.take(too_deep))
    packed = np.array(data.draw(st.lists(st.booleans(), min_size=len(listed), max_size=len(listed)))) & ~too_deep
    items[packed] = len(listed) + 1
    weight = np.where(packed, data.draw(st.integers(1, 3)), 1)
    found = settle_overlaps(frame(listed), items, too_deep, weight, threshold)
    assert (found[too_deep] != NO_SET).all()
    if not (too_deep.any() or packed.any()):
        assert (found == NO_SET).all()
        return
    after = [box for box, name, pack in zip(listed, found, packed, strict=True) if name == NO_SET and not pack]
    sets = set(found.tolist()) - {NO_SET}
    after += [hull([box for box, own in zip(listed, found, strict=True) if own == name]) for name in sets]
    loose = [box for box, name, pack in zip(listed, found, packed, strict=True) if name == NO_SET and pack]
    after += [hull(loose)] * int(weight.max()) if loose else []
    # Points count as one wherever they are; hulls of sets are no files, and hold all of their ends.
    assert measure_depths(boxes_of([(0, box) for box in after]))[1].max() < threshold


def hull(listed: list[tuple[Interval, ...]]) -> tuple[Interval, ...]:
    return tuple(
        (min(box[number][0] for box in listed), max(box[number][1] for box in listed)) for number in range(len(listed[0]))
    )


def test_new_files_in_a_narrow_range_concern_only_their_neighbours() -> None:
    old = [((at, at + 9),) for at in range(0, 1000, 10)]
    new = [((502, 508),)] * 3
    boxes = boxes_of([(0, box) for box in [*old, *new]])
    assert measure_depths(boxes)[1].tolist() == [4]
    assert np.flatnonzero(find_deep(boxes, 4)).tolist() == [50, 100, 101, 102]
    items = np.where(find_deep(boxes, 4), 1, NO_SET)
    found = settle_overlaps(frame([*old, *new]), items, items == 1, np.ones(103, np.int64), 4)
    assert np.flatnonzero(found != NO_SET).tolist() == [50, 100, 101, 102]


def test_a_key_that_fills_many_files_is_no_reason() -> None:
    sorted_files: list[Box] = [(0, ((1, 5),)), *[(0, ((5, 5),))] * 20, (0, ((5, 9),))]
    assert measure_depths(boxes_of(sorted_files))[1].tolist() == [1]


def test_many_partitions_at_once() -> None:
    rng = np.random.default_rng(1)
    partition = np.sort(rng.integers(0, 20_000, 50_000))
    low = rng.integers(0, 50, (50_000, 2)).astype(np.uint64)
    boxes = Boxes(partition=partition, low=low, high=low + np.uint64(30), weight=np.ones(50_000, np.int64))
    partitions, found = measure_depths(boxes)
    assert len(partitions) == len(np.unique(partition))
    assert found.max() > 3
    assert find_deep(boxes, 4).any()
