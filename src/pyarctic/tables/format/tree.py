"""The Arctic tree: a binary tree over the hash of the primary key.

A node is the set of hashes whose low bits (`mask`) equal `index`. Its two children look at one bit more. So a node and its
ancestors and descendants may hold the same key; all others never do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from pyarctic.errors import UsageError

Hashes = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, order=True)
class Node:
    """One node. Its `id` numbers the tree level by level: the root is 1, the next two are 2 and 3, then 4 to 7."""

    mask: int
    index: int

    def __post_init__(self) -> None:
        if self.mask < 0 or self.mask & (self.mask + 1) or not 0 <= self.index <= self.mask:
            raise UsageError(
                f"no node of the tree: mask {self.mask}, index {self.index}",
                hint="A mask is a power of two less one; the index is at most the mask.",
            )

    @classmethod
    def of_id(cls, node_id: int) -> Self:
        if node_id < 1:
            raise UsageError(f"no node of the tree has the id {node_id}", hint="The root is 1.")
        mask = (1 << (node_id.bit_length() - 1)) - 1
        return cls(mask, node_id - mask - 1)

    @property
    def id(self) -> int:
        return self.mask + 1 + self.index

    @property
    def children(self) -> tuple[Self, Self]:
        mask = 2 * self.mask + 1
        return type(self)(mask, self.index), type(self)(mask, self.index + self.mask + 1)

    @property
    def parent(self) -> Self | None:
        mask = self.mask >> 1
        return type(self)(mask, self.index & mask) if self.mask else None

    @property
    def sibling(self) -> Self | None:
        half = (self.mask + 1) >> 1
        return type(self)(self.mask, self.index ^ half) if self.mask else None

    def is_within(self, other: Node) -> bool:
        """Whether it is that node, or lies below it."""
        return self.mask >= other.mask and self.index & other.mask == other.index

    def is_disjoint(self, other: Node) -> bool:
        """Whether the two never hold the same key."""
        return not self.is_within(other) and not other.is_within(self)

    def at(self, mask: int) -> Iterator[Self]:
        """The nodes of a deeper level that lie below it; itself at its own."""
        if mask < self.mask:
            raise UsageError(f"node {self.id} lies below the level of mask {mask}")
        return (type(self)(mask, index) for index in range(self.index, mask + 1, self.mask + 1))

    def holds(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Which hashes belong to it."""
        found: npt.NDArray[np.bool_] = (hashes & np.int32(self.mask)) == self.index
        return found


ROOT = Node(0, 0)


def bucket_mask(buckets: int, name: str = "the number of buckets") -> int:
    """The mask of the level with so many nodes."""
    if buckets < 1 or buckets & (buckets - 1) or buckets > 1 << 31:
        raise UsageError(f"{name} is {buckets}", hint="It must be a power of two: 1, 2, 4, 8 …")
    return buckets - 1


def node_ids(hashes: Hashes, mask: int) -> npt.NDArray[np.int64]:
    """The ids of the nodes that the hashes belong to, at the level of `mask`."""
    return (hashes & np.int32(mask)).astype(np.int64) + (mask + 1)


def disjoint_roots(ids: list[int]) -> list[Node]:
    """The nodes of these that lie below no other of them: what lies below two different ones has no key in common."""
    found: dict[int, Node] = {}
    masks = sorted({Node.of_id(node_id).mask for node_id in ids})
    for node in sorted({Node.of_id(node_id) for node_id in ids}):
        above = (Node(mask, node.index & mask).id for mask in masks if mask < node.mask)
        if not any(upper in found for upper in above):
            found[node.id] = node
    return list(found.values())


def root_above(roots: list[Node], node_id: int) -> Node:
    """The one of disjoint roots that a node lies below."""
    node = Node.of_id(node_id)
    return next(root for root in roots if node.is_within(root))
