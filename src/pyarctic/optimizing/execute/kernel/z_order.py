"""Z-order: rows that are near each other in several columns are stored near each other, in files that share no key.

Files are the leaves of a tree that splits a sample by each column in turn, so that every file gets its share of the rows
however they are distributed. The tree decides which leaf a row belongs to, so the bounds of files never overlap, even if
the sample is inaccurate. Within a file rows follow the z-curve: the interleaved bits of all columns, most significant first.
Each value counts by its position among the quantiles of the sample, so that all columns have the same weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyarctic.optimizing.order.ranks import Ranks

Integers = npt.NDArray[np.int64]
_QUANTILES = 65_535
_EVEN_ERROR, _MAX_ERROR = 0.15, 0.25
"""How far the share of rows of a split may be off: up to the first, columns take turns; up to the second, the best wins."""
_MAX_SINGLE_FILE = 1.5
_OVERSIZE = 1.25
"""Sizes of files are estimates here, and sorted rows shrink more often than they grow."""


def expected_files(expected_bytes: float, target_bytes: int) -> int:
    """The number of files that rows are divided into."""
    size = expected_bytes / target_bytes
    return 1 if size < _MAX_SINGLE_FILE else max(round(size / _OVERSIZE), 2)


@dataclass(frozen=True, kw_only=True, eq=False)
class ClusterTree:
    """The tree, and the quantiles. Negative node numbers are leaves."""

    column: Integers
    split: Ranks
    """Lesser ranks belong to `below`, others to `above`."""
    below: Integers
    above: Integers
    files: Integers
    """The number of files of each leaf; more than one where the tree found no split."""
    quantiles: tuple[Ranks, ...]

    @classmethod
    def of(cls, sample: Ranks, files: int) -> Self:
        """`sample` has a row for each sampled row of the table, and the rank of every column."""
        builder = _TreeBuilder(sample, files)
        return cls(
            column=np.array([node[0] for node in builder.nodes], np.int64),
            split=np.array([node[1] for node in builder.nodes], np.uint64),
            below=np.array([node[2] for node in builder.nodes], np.int64),
            above=np.array([node[3] for node in builder.nodes], np.int64),
            files=np.array(builder.leaves, np.int64),
            quantiles=tuple(_quantiles(column) for column in sample.T),
        )

    def leaves(self, ranks: Ranks) -> npt.NDArray[np.int32]:
        """The leaf of every row."""
        nodes = np.full(len(ranks), 0 if len(self.column) else -1, np.int64)
        while len(rows := np.flatnonzero(nodes >= 0)):
            current = nodes[rows]
            is_below = ranks[rows, self.column[current]] < self.split[current]
            nodes[rows] = np.where(is_below, self.below[current], self.above[current])
        return (-1 - nodes).astype(np.int32)

    def keys(self, ranks: Ranks, leaves: npt.NDArray[np.int32]) -> pa.Array:
        """The sort keys of rows within their leaf: along the z-curve; column by column if the leaf makes several files,
        because ranges of the curve may overlap."""
        width = ranks.shape[1] * ranks.itemsize
        keys = np.zeros((len(ranks), width), np.uint8)
        on_curve = self.files[leaves] == 1
        columns = zip(ranks[on_curve].T, self.quantiles, strict=True)
        curve = interleave([spread(column, quantiles) for column, quantiles in columns])
        keys[on_curve, : curve.shape[1]] = curve
        keys[~on_curve] = np.ascontiguousarray(ranks[~on_curve].astype(">u8")).view(np.uint8).reshape(-1, width)
        return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(keys), [None, pa.py_buffer(keys)])


def spread(ranks: Ranks, quantiles: Ranks) -> npt.NDArray[np.uint16]:
    """Positions among the quantiles, scaled to 16 bits."""
    positions = np.searchsorted(quantiles, ranks, side="right")
    return (positions * _QUANTILES // max(len(quantiles), 1)).astype(np.uint16)


def interleave(columns: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.uint8]:
    """The interleaved bits of unsigned numbers, most significant first: a row of bytes for each row."""
    size = columns[0].dtype.itemsize
    octets = [np.ascontiguousarray(column.astype(f">u{size}")).view(np.uint8).reshape(-1, size) for column in columns]
    bits = np.stack([np.unpackbits(column, axis=1) for column in octets], axis=2)
    return np.packbits(bits.reshape(len(bits), 8 * size * len(columns)), axis=1)


def _quantiles(values: Ranks) -> Ranks:
    ordered = np.sort(values)
    return np.unique(ordered[:: max(-(-len(ordered) // _QUANTILES), 1)])


class _TreeBuilder:
    """Builds the tree from the root, depth first: leaves are numbered from left to right."""

    def __init__(self, sample: Ranks, files: int) -> None:
        self.nodes: list[tuple[int, int, int, int]] = []
        self.leaves: list[int] = []
        self._file_rows = len(sample) / files
        """Rows of the sample for each file. Every node compares its share with it, so that errors do not add up."""
        self._add_node(sample, files, 0)

    def _add_node(self, sample: Ranks, files: int, turn: int) -> int:
        """Add a node or a leaf with everything below it, and return its number."""
        chosen = self._choose_split(sample, files, turn) if files > 1 and len(sample) > 1 else None
        if chosen is None:
            self.leaves.append(files)
            return -len(self.leaves)
        column, split, files_below = chosen
        number = len(self.nodes)
        self.nodes.append((0, 0, 0, 0))
        is_below = sample[:, column] < split
        below = self._add_node(sample[is_below], files_below, turn + 1)
        above = self._add_node(sample[~is_below], files - files_below, turn + 1)
        self.nodes[number] = (column, int(split), below, above)
        return number

    def _choose_split(self, sample: Ranks, files: int, turn: int) -> tuple[int, np.uint64, int] | None:
        """Column, rank, and the number of files below it."""
        best: tuple[float, int, np.uint64, int] | None = None
        for step in range(sample.shape[1]):
            column = (turn + step) % sample.shape[1]
            values = np.sort(sample[:, column])
            median = values[len(values) * (files // 2) // files]
            next_value = values[min(int(np.searchsorted(values, median, side="right")), len(values) - 1)]
            for split in {median, next_value}:
                share = int(np.searchsorted(values, split)) / self._file_rows
                files_below = min(max(round(share), 1), files - 1)
                rest = len(values) / self._file_rows - share
                error = max(abs(share / files_below - 1), abs(rest / (files - files_below) - 1))
                if best is None or error < best[0]:
                    best = (error, column, split, files_below)
            if best is not None and best[0] <= _EVEN_ERROR:
                break
        if best is None or best[0] > _MAX_ERROR:
            return None
        return best[1], best[2], best[3]
