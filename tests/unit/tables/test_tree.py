"""The tree over key hashes: its numbers, its relations, and what two nodes have in common."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyarctic.errors import UsageError
from pyarctic.tables.format.tree import ROOT, Node, assign_roots, bucket_mask, node_ids, node_masks

DEPTH = 12
HASHES = np.concatenate([np.arange(1 << 6), np.array([(1 << 31) - 1, 1 << 30, 12345])]).astype(np.int32)
nodes = st.integers(0, DEPTH).flatmap(
    lambda level: st.integers(0, (1 << level) - 1).map(lambda i: Node((1 << level) - 1, i))
)
hashes = st.integers(0, (1 << 31) - 1)


def held(node: Node, key_hash: int) -> bool:
    return bool(node.holds(np.array([key_hash], np.int32))[0])


def test_ids_number_the_tree_level_by_level() -> None:
    assert [(node.mask, node.index) for node in map(Node.of_id, range(1, 8))] == [
        (0, 0),
        (1, 0),
        (1, 1),
        (3, 0),
        (3, 1),
        (3, 2),
        (3, 3),
    ]
    assert ROOT.id == 1
    assert Node.of_id(1 << 31).mask == (1 << 31) - 1


def test_children_look_at_one_bit_more() -> None:
    left, right = Node(3, 2).children
    assert (left, right) == (Node(7, 2), Node(7, 6))
    assert left.sibling == right
    assert right.sibling == left
    assert ROOT.parent is None
    assert ROOT.sibling is None


@given(node=nodes)
def test_id_leads_back_to_the_node(node: Node) -> None:
    assert Node.of_id(node.id) == node


@given(node=nodes)
def test_children_divide_their_parent(node: Node) -> None:
    left, right = node.children
    assert left.parent == right.parent == node
    assert left.is_disjoint(right)
    assert (left.holds(HASHES) | right.holds(HASHES)).tolist() == node.holds(HASHES).tolist()
    assert not (left.holds(HASHES) & right.holds(HASHES)).any()


@given(some=nodes, other=nodes, key_hash=hashes)
def test_disjoint_nodes_have_no_key_in_common(some: Node, other: Node, key_hash: int) -> None:
    if some.is_disjoint(other):
        assert not (held(some, key_hash) and held(other, key_hash))
    else:
        lower = some if some.mask >= other.mask else other
        assert held(some, lower.index)
        assert held(other, lower.index)
    assert some.is_disjoint(other) == other.is_disjoint(some)


@given(some=nodes, other=nodes, key_hash=hashes)
def test_what_lies_within_holds_no_more(some: Node, other: Node, key_hash: int) -> None:
    if some.is_within(other):
        assert held(other, key_hash) or not held(some, key_hash)
        assert some == other or not other.is_within(some)
    climbed: Node | None = some
    while climbed is not None and climbed.mask > other.mask:
        climbed = climbed.parent
    assert some.is_within(other) == (climbed == other)


@given(node=nodes, deeper=st.integers(0, 4))
def test_nodes_below_divide_a_node(node: Node, deeper: int) -> None:
    mask = ((node.mask + 1) << deeper) - 1
    below = list(node.at(mask))
    assert len(below) == 1 << deeper
    assert all(found.is_within(node) and found.mask == mask for found in below)
    counted = sum((found.holds(HASHES).astype(int) for found in below), np.zeros(len(HASHES), int))
    assert counted.tolist() == node.holds(HASHES).astype(int).tolist()


def test_no_nodes_above_by_going_down() -> None:
    with pytest.raises(UsageError, match="node 4"):
        Node.of_id(4).at(1)


@given(key_hash=hashes, level=st.integers(0, 31))
def test_every_hash_has_one_node_at_a_level(key_hash: int, level: int) -> None:
    mask = bucket_mask(1 << level)
    (node_id,) = node_ids(np.array([key_hash], np.int32), mask).tolist()
    node = Node.of_id(node_id)
    assert node.mask == mask
    assert node.index == key_hash & mask
    assert held(node, key_hash)


def topmost(node: Node, others: list[Node]) -> Node:
    """The root of a node's sub-tree, by comparing it with every other node."""
    return min((other for other in others if node.is_within(other)), key=lambda other: other.mask)


@given(
    files=st.lists(st.tuples(st.integers(0, 1), st.sampled_from(["[]", '["a"]']), nodes), max_size=20),
    column=st.sampled_from(["node_id", "place"]),
)
def test_roots_are_the_topmost_nodes_with_files(files: list[tuple[int, str, Node]], column: str) -> None:
    rows = [(spec_id, partition, node.id) for spec_id, partition, node in files]
    frame = pl.DataFrame(rows, {"spec_id": pl.Int32, "partition": pl.String, column: pl.Int64}, orient="row")
    rooted = assign_roots(frame, column)
    assert rooted.drop("root").equals(frame)
    roots = [Node.of_id(node_id) for node_id in rooted["root"]]
    for (spec_id, partition, node), root in zip(files, roots, strict=True):
        beside = [other for *place, other in files if place == [spec_id, partition]]
        assert root == topmost(node, beside)
    keys = {(*file[:2], root) for file, root in zip(files, roots, strict=True)}
    assert all(one.is_disjoint(other) for *a, one in keys for *b, other in keys if a == b and one != other)


def test_masks_of_nodes() -> None:
    ids = np.array([*range(1, 70), (1 << 31) - 1, 1 << 31, (1 << 53) + 1, (1 << 62) - 1, 1 << 62])
    assert node_masks(ids).tolist() == [Node.of_id(int(node_id)).mask for node_id in ids]


@pytest.mark.parametrize("buckets", [0, -4, 3, 6, 12, (1 << 31) + 1, 1 << 32])
def test_buckets_must_be_a_power_of_two(buckets: int) -> None:
    with pytest.raises(UsageError, match=str(buckets)) as refused:
        bucket_mask(buckets)
    assert "power of two" in str(refused.value.hint)


@pytest.mark.parametrize(("mask", "index"), [(2, 0), (-1, 0), (3, 4), (3, -1), (5, 1)])
def test_what_is_no_node(mask: int, index: int) -> None:
    with pytest.raises(UsageError, match="no node"):
        Node(mask, index)


@pytest.mark.parametrize("node_id", [0, -1])
def test_ids_begin_at_the_root(node_id: int) -> None:
    with pytest.raises(UsageError, match=str(node_id)):
        Node.of_id(node_id)
