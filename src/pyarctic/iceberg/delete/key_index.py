"""An index of keys, each with its latest version, that millions of rows can be looked up in.

Every key becomes a 64-bit code. A single column of integers, dates, times, short decimals or the bits of floats is its own
code. Other keys are hashed, and hashes only choose candidates: a match is confirmed by comparing the key columns. Codes are
sorted, each with a version such as the rank of the newest delete of its key. Dense codes, such as the sequential ids of a
database, are located with a bitmap; sparse codes by binary search, after a bitmap has ruled out most rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

Codes = npt.NDArray[np.int64]
Versions = npt.NDArray[np.integer[Any]]
Integers = npt.NDArray[np.int64]
Indices = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]

_MAX_EXACT_DECIMAL_DIGITS = 18
_MIN_BITS_PER_KEY = 8
_MAX_SLOTS_PER_KEY = 48
"""About nine bytes, as much as the key and its version."""
_BUILD_BLOCK_ROWS = 1 << 18
_FIBONACCI_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio: the upper bits of its multiples spread any run of numbers evenly."""
_CODE, _VERSION, _MIN_VERSION, _ROW = "__code", "__version", "__min_version", "__row"
"""Columns beside those of the keys, which may have any name a table gives its columns."""
_ONE, _WORD_SHIFT, _BIT_IN_WORD_MASK = np.uint64(1), np.uint64(6), np.uint64(63)


class KeyIndex:
    """Keys, each with the greatest version it was given with. Versions are non-negative integers.

    index = KeyIndex([encode_keys(keys)], versions)
    index.matches_since(rows, 5)  # True for rows whose key has version 5 or later
    """

    def __init__(
        self, codes: list[Codes], versions: Versions, rows: pl.DataFrame | None = None, null_version: int = -1
    ) -> None:
        """`codes` is emptied, so that memory holds them only once. `rows`: the keys themselves, if their codes are hashes.
        `null_version`: the version of the null key, which has no code."""
        self._ambiguous = False
        self._rows: pl.DataFrame | None = None
        self._null_version = null_version
        all_codes = np.concatenate(codes) if codes else np.empty(0, np.int64)
        codes.clear()
        self._codes, self._versions = self._sort_and_deduplicate(all_codes, versions, rows)
        self._locator: SparseCodes | DenseCodes
        self._locator = DenseCodes(self._codes) if are_dense(self._codes) else SparseCodes(self._codes)

    def _sort_and_deduplicate(self, codes: Codes, versions: Versions, rows: pl.DataFrame | None) -> tuple[Codes, Versions]:
        """Sort the codes and keep the greatest version of every key."""
        order = np.argsort(codes)
        codes, versions = codes[order], versions[order]
        first = np.ones(len(codes), dtype=bool)
        np.not_equal(codes[1:], codes[:-1], out=first[1:])
        if rows is not None:
            if not _equal_hashes_mean_equal_keys(rows, order, first):
                self._ambiguous = True
                rows = (
                    rows[order]
                    .with_columns(pl.Series(_VERSION, versions))
                    .group_by(rows.columns)
                    .agg(pl.col(_VERSION).max())
                )
                rows = rows.with_columns(pl.Series(_CODE, encode_keys(rows.drop(_VERSION)))).sort(_CODE)
                self._rows = rows.drop(_VERSION, _CODE)
                return rows[_CODE].to_numpy(), rows[_VERSION].to_numpy()
            self._rows = rows[order[first]]
        if not first.all():
            codes, versions = codes[first], np.maximum.reduceat(versions, np.flatnonzero(first))
        return codes, versions

    def __len__(self) -> int:
        """The number of keys; the null key is not counted."""
        return len(self._codes)

    @property
    def nbytes(self) -> int:
        """Memory of the index."""
        # Arrow counts all buffers of string columns, Polars only their characters.
        row_bytes = 0 if self._rows is None else int(self._rows.to_arrow(compat_level=pl.CompatLevel.newest()).nbytes)
        return self._codes.nbytes + self._versions.nbytes + self._locator.nbytes + row_bytes

    def matches_since(self, rows: pl.DataFrame, min_version: int | Versions) -> Mask:
        """True for rows whose key is indexed with `min_version` or a later one; there may be one for each row."""
        matches = np.zeros(rows.height, dtype=bool)
        if self._rows is None and rows.to_series().null_count():
            is_null = rows.to_series().is_null().to_numpy()
            min_of_nulls = min_version if isinstance(min_version, int) else min_version[is_null]
            min_of_others = min_version if isinstance(min_version, int) else min_version[~is_null]
            matches[is_null] = self._null_version >= min_of_nulls
            matches[np.flatnonzero(~is_null)[self._matching_rows(rows.drop_nulls(), min_of_others)]] = True
        else:
            matches[self._matching_rows(rows, min_version)] = True
        return matches

    def _matching_rows(self, rows: pl.DataFrame, min_version: int | Versions) -> Indices:
        candidates, locations = self._locator.locate(encode_keys(rows))
        if self._rows is not None and self._ambiguous:
            # Two keys share a hash, so that one location is not enough: join by the keys themselves.
            return self._matching_rows_by_keys(rows, self._rows, candidates, min_version)
        is_recent = self._versions[locations] >= (min_version if isinstance(min_version, int) else min_version[candidates])
        candidates, locations = candidates[is_recent], locations[is_recent]
        if self._rows is None:
            return candidates
        return candidates[_rows_equal(rows[candidates], self._rows[locations])]

    def _matching_rows_by_keys(
        self, rows: pl.DataFrame, keys: pl.DataFrame, candidates: Indices, min_version: int | Versions
    ) -> Indices:
        indexed = keys.with_columns(pl.Series(_VERSION, self._versions))
        min_versions = np.full(len(candidates), min_version) if isinstance(min_version, int) else min_version[candidates]
        lookups = rows[candidates].with_columns(pl.Series(_MIN_VERSION, min_versions)).with_row_index(_ROW)
        joined = lookups.join(indexed, on=rows.columns, nulls_equal=True).filter(pl.col(_VERSION) >= pl.col(_MIN_VERSION))
        matching: Indices = joined[_ROW].sort().to_numpy()
        return candidates[matching]


class EqualityIndex:
    """The deleted keys of equality delete files that have the same key columns."""

    def __init__(self, parts: Iterable[tuple[pl.DataFrame, Integers, Integers]]) -> None:
        """`parts`: rows of key columns, data sequence numbers of their delete files, and how many rows each of these has."""
        codes: list[Codes] = []
        frames: list[pl.DataFrame] = []
        sequences: list[Integers] = []
        counts: list[Integers] = []
        null_sequences: list[int] = []
        for rows, part_sequences, part_counts in parts:
            if not is_exact_code(rows.schema):
                frames.append(rows)
            elif rows.to_series().null_count():
                is_null = rows.to_series().is_null().to_numpy()
                files = np.repeat(np.arange(len(part_counts)), part_counts)
                null_sequences.append(int(part_sequences[files[is_null]].max()))
                rows = rows.drop_nulls()
                part_counts = np.bincount(files[~is_null], minlength=len(part_counts))
            codes.append(encode_keys(rows))
            sequences.append(part_sequences)
            counts.append(part_counts)
        # The version of a key is the rank of its newest delete among these: a byte or two instead of eight.
        all_sequences = np.concatenate([np.empty(0, np.int64), *sequences])
        self._sequences = np.unique(all_sequences)
        null_rank = int(self._rank_after(max(null_sequences))) - 1 if null_sequences else -1
        ranks = (self._rank_after(all_sequences) - 1).astype(np.min_scalar_type(len(all_sequences)))
        key_ranks = np.repeat(ranks, np.concatenate([np.empty(0, np.int64), *counts]))
        self._keys = KeyIndex(codes, key_ranks, pl.concat(frames) if frames else None, null_rank)

    @property
    def nbytes(self) -> int:
        """Memory of the index."""
        return self._keys.nbytes

    def is_deleted(self, rows: pl.DataFrame, data_sequence: int | Integers) -> Mask:
        """True for rows whose key was deleted after `data_sequence`; there may be one for each row."""
        min_rank = self._rank_after(data_sequence)
        if not rows.height or np.min(min_rank) == len(self._sequences):
            return np.zeros(rows.height, dtype=bool)
        return self._keys.matches_since(rows, int(min_rank) if isinstance(data_sequence, int) else min_rank)

    def _rank_after(self, sequence: int | Integers) -> Any:
        return np.searchsorted(self._sequences, sequence, side="right")


def are_dense(codes: Codes) -> bool:
    """Whether sorted codes lie so close together that a bit for every number between them is affordable."""
    return bool(len(codes)) and int(codes[-1]) - int(codes[0]) < _MAX_SLOTS_PER_KEY * len(codes)


class DenseCodes:
    """Locates sorted codes by a bit for every number from the first to the last, and the count of codes before each word of
    bits."""

    def __init__(self, codes: Codes) -> None:
        self._first_code = codes[:1].view(np.uint64)
        slots = codes.view(np.uint64) - self._first_code
        words, bits = slots >> _WORD_SHIFT, _ONE << (slots & _BIT_IN_WORD_MASK)
        starts = np.flatnonzero(np.diff(words, prepend=words[:1] + _ONE))
        word_count = int(words[-1]) + 1
        self._words = np.zeros(word_count + 1, np.uint64)
        self._words[words[starts].view(np.int64)] = np.bitwise_or.reduceat(bits, starts)
        self._codes_before_word = np.cumsum(np.bitwise_count(self._words), dtype=np.uint32) - np.bitwise_count(self._words)
        self._out_of_range_slot = np.uint64(word_count << 6)
        self.nbytes = self._words.nbytes + self._codes_before_word.nbytes

    def locate(self, codes: Codes) -> tuple[Indices, Indices]:
        """Which of the given codes are indexed, and their positions in the index."""
        # Codes below the first one wrap around to slots after the last one.
        slots = np.minimum(codes.view(np.uint64) - self._first_code, self._out_of_range_slot)
        words = self._words[(slots >> _WORD_SHIFT).view(np.int64)]
        present = np.flatnonzero((words >> (slots & _BIT_IN_WORD_MASK)) & _ONE)
        slots, words = slots[present], words[present]
        lower_bits = words & ((_ONE << (slots & _BIT_IN_WORD_MASK)) - _ONE)
        locations = self._codes_before_word[(slots >> _WORD_SHIFT).view(np.int64)] + np.bitwise_count(lower_bits)
        return present, locations.astype(np.intp)


class SparseCodes:
    """Locates sorted codes that may be any numbers, by binary search."""

    def __init__(self, codes: Codes) -> None:
        self._codes = codes
        self._bitmap = MembershipBitmap(codes)
        self.nbytes = self._bitmap.nbytes

    def locate(self, codes: Codes) -> tuple[Indices, Indices]:
        """Which of the given codes are indexed, and their positions in the index."""
        indexed = self._codes
        if not len(codes) or not len(indexed) or codes.max() < indexed[0] or codes.min() > indexed[-1]:
            return np.empty(0, np.intp), np.empty(0, np.intp)
        candidates = self._bitmap.may_contain(codes)
        # Searching for ascending codes stays near the previous match; searching in any order misses the CPU caches.
        candidates = candidates[np.argsort(codes[candidates])]
        locations = np.searchsorted(indexed, codes[candidates])
        locations[locations == len(indexed)] = 0
        is_equal = indexed[locations] == codes[candidates]
        return candidates[is_equal], locations[is_equal]


class MembershipBitmap:
    """A Bloom filter with one hash function: rules out most codes that are not in a set."""

    def __init__(self, codes: Codes) -> None:
        size = max(int(len(codes) * _MIN_BITS_PER_KEY - 1).bit_length(), 3)
        self._shift = np.uint64(64 - size)
        occupied = np.zeros(1 << size, dtype=bool)
        for start in range(0, len(codes), _BUILD_BLOCK_ROWS):
            occupied[self._slots(codes[start : start + _BUILD_BLOCK_ROWS]).view(np.int64)] = True
        self._bits = np.packbits(occupied, bitorder="little")
        self.nbytes = self._bits.nbytes

    def may_contain(self, codes: Codes) -> Indices:
        """The indices of the codes that may be in the set."""
        slots = self._slots(codes)
        octets = self._bits[(slots >> np.uint64(3)).view(np.int64)]
        return np.flatnonzero((octets >> (slots & np.uint64(7)).astype(np.uint8)) & np.uint8(1))

    def _slots(self, codes: Codes) -> npt.NDArray[np.uint64]:
        slots: npt.NDArray[np.uint64] = (codes.view(np.uint64) * _FIBONACCI_MULTIPLIER) >> self._shift
        return slots


def is_exact_code(schema: pl.Schema) -> bool:
    """Whether keys of these columns need no hash, because every value fits into 64 bits."""
    if len(schema) != 1:
        return False
    (type_,) = schema.dtypes()
    if isinstance(type_, pl.Decimal):
        return type_.precision <= _MAX_EXACT_DECIMAL_DIGITS
    return type_.is_integer() or type_.is_temporal() or type_ == pl.Boolean


def encode_keys(rows: pl.DataFrame) -> Codes:
    """The 64-bit codes of keys. Keys with exact codes must not be null."""
    if is_exact_code(rows.schema):
        return rows.to_series().to_physical().cast(pl.Int64).to_numpy()
    return hash_rows(rows).to_numpy().view(np.int64)


def hash_rows(rows: pl.DataFrame) -> pl.Series:
    """Row hashes; equal rows have equal hashes, nulls included."""
    return rows.hash_rows(seed=7)


def _rows_equal(left: pl.DataFrame, right: pl.DataFrame) -> Mask:
    """Which rows have the same values; null equals null."""
    is_equal = left.select(pl.all_horizontal(pl.col(name).eq_missing(right[name]) for name in left.columns))
    return is_equal.to_series().to_numpy()


def _equal_hashes_mean_equal_keys(rows: pl.DataFrame, order: Indices, first: Mask) -> bool:
    """Whether rows of the same hash have the same key. `order`: rows sorted by hash; `first`: True at the first row of each
    hash, in that order."""
    repeats = np.flatnonzero(~first)
    firsts = np.flatnonzero(first)[np.cumsum(first)[repeats] - 1]
    return bool(_rows_equal(rows[order[repeats]], rows[order[firsts]]).all())
