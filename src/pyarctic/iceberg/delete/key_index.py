"""Keys, arranged so that millions of rows can be asked whether theirs is among them.

Every key becomes a 64-bit code. A single column of integers, dates, times, short decimals or the bits of floats is its own
code. Other keys are hashed, and hashes only choose candidates: a row dies by comparison of its key columns. Codes lie
sorted, each with a mark such as the newest delete of its key. Where they are close together, as numbers are that a database
gave one after the other, a table of bits tells their places; else they are searched, and a table of bits turns most rows
away before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

Codes = npt.NDArray[np.int64]
Marks = npt.NDArray[np.integer[Any]]
Places = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]

_DIGITS_OF_64_BITS = 18
_LEAST_BITS_PER_KEY = 8
_MOST_SLOTS_PER_KEY = 48
"""About nine bytes, as much as the key and its mark."""
_BLOCK = 1 << 18
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio: the upper bits of its multiples spread any run of numbers evenly."""
_ONE, _WORD_SHIFT, _IN_WORD = np.uint64(1), np.uint64(6), np.uint64(63)


class KeyIndex:
    """Keys, each with the greatest of the marks it came with. Marks are numbers from zero on."""

    def __init__(self, codes: list[Codes], marks: Marks, rows: pl.DataFrame | None = None, null_mark: int = -1) -> None:
        """`codes` are taken out of the list, to be held once. `rows`: the keys themselves, if their codes are hashes.
        `null_mark`: that of the key null, which has no code."""
        self._ambiguous = False
        self._rows: pl.DataFrame | None = None
        self._null_mark = null_mark
        together = np.concatenate(codes) if codes else np.empty(0, np.int64)
        codes.clear()
        self._codes, self._marks = self._arranged(together, marks, rows)
        self._places: SearchedCodes | CloseCodes
        self._places = CloseCodes(self._codes) if are_close(self._codes) else SearchedCodes(self._codes)

    def _arranged(self, codes: Codes, marks: Marks, rows: pl.DataFrame | None) -> tuple[Codes, Marks]:
        """Sort, and leave of every key its greatest mark."""
        order = np.argsort(codes)
        codes, marks = codes[order], marks[order]
        first = np.ones(len(codes), dtype=bool)
        np.not_equal(codes[1:], codes[:-1], out=first[1:])
        if rows is not None:
            if not _repeats_are_equal(rows, order, first):
                self._ambiguous = True
                rows = rows[order].with_columns(pl.Series("mark", marks)).group_by(rows.columns).agg(pl.col("mark").max())
                rows = rows.with_columns(pl.Series("code", encode_keys(rows.drop("mark")))).sort("code")
                self._rows = rows.drop("mark", "code")
                return rows["code"].to_numpy(), rows["mark"].to_numpy()
            self._rows = rows[order[first]]
        if not first.all():
            codes, marks = codes[first], np.maximum.reduceat(marks, np.flatnonzero(first))
        return codes, marks

    @property
    def nbytes(self) -> int:
        # Arrow counts what strings hold in truth, Polars only their letters.
        rows = 0 if self._rows is None else int(self._rows.to_arrow(compat_level=pl.CompatLevel.newest()).nbytes)
        return self._codes.nbytes + self._marks.nbytes + self._places.nbytes + rows

    def marked(self, rows: pl.DataFrame, least: int | Marks) -> Mask:
        """True for rows whose key is here with this mark or a greater one; `least` may tell one for each row."""
        found = np.zeros(rows.height, dtype=bool)
        if self._rows is None and rows.to_series().null_count():
            null = rows.to_series().is_null().to_numpy()
            found[null] = self._null_mark >= (least if isinstance(least, int) else least[null])
            others = least if isinstance(least, int) else least[~null]
            found[np.flatnonzero(~null)[self._hits(rows.drop_nulls(), others)]] = True
        else:
            found[self._hits(rows, least)] = True
        return found

    def _hits(self, rows: pl.DataFrame, least: int | Marks) -> Places:
        asked, places = self._places.of(encode_keys(rows))
        if self._ambiguous:
            # Two keys share a hash: one place is not enough to look at, so join by the keys themselves.
            return self._hits_by_keys(rows, asked, least)
        enough = self._marks[places] >= (least if isinstance(least, int) else least[asked])
        asked, places = asked[enough], places[enough]
        return asked if self._rows is None else asked[_equal(rows[asked], self._rows[places])]

    def _hits_by_keys(self, rows: pl.DataFrame, asked: Places, least: int | Marks) -> Places:
        assert self._rows is not None  # noqa: S101  # only hashes are ambiguous
        known = self._rows.with_columns(pl.Series("mark", self._marks))
        wanted = pl.Series("least", np.full(len(asked), least) if isinstance(least, int) else least[asked])
        candidates = rows[asked].with_columns(wanted).with_row_index("row")
        joined = candidates.join(known, on=rows.columns, nulls_equal=True).filter(pl.col("mark") >= pl.col("least"))
        hit: Places = joined["row"].sort().to_numpy()
        return asked[hit]


class EqualityIndex:
    """Deleted keys of some equality delete files with equal key columns."""

    def __init__(self, parts: Iterable[tuple[pl.DataFrame, int]]) -> None:
        """`parts`: rows of key columns, with the sequence number of the deletes that name them."""
        codes: list[Codes] = []
        frames: list[pl.DataFrame] = []
        sequences: list[int] = []
        null_sequences: list[int] = []
        for rows, sequence in parts:
            if not is_exact_code(rows.schema):
                frames.append(rows)
            elif rows.to_series().null_count():
                null_sequences.append(sequence)
                rows = rows.drop_nulls()
            codes.append(encode_keys(rows))
            sequences.append(sequence)
        # A key knows the rank of its newest delete among these: a byte or two instead of eight.
        self._sequences = np.unique(np.array(sequences, np.int64))
        null_rank = self._rank_after(max(null_sequences)) - 1 if null_sequences else -1
        ranks = np.array([self._rank_after(sequence) - 1 for sequence in sequences], np.min_scalar_type(len(sequences)))
        key_ranks = np.repeat(ranks, [len(part) for part in codes])
        self._keys = KeyIndex(codes, key_ranks, pl.concat(frames) if frames else None, null_rank)

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes

    def dead(self, rows: pl.DataFrame, data_sequence: int) -> Mask:
        """True for rows whose key was deleted after `data_sequence`."""
        least_rank = self._rank_after(data_sequence)
        if least_rank == len(self._sequences):
            return np.zeros(rows.height, dtype=bool)
        return self._keys.marked(rows, least_rank)

    def _rank_after(self, sequence: int) -> int:
        return int(np.searchsorted(self._sequences, sequence, side="right"))


def are_close(codes: Codes) -> bool:
    """Whether so many numbers lie between sorted codes that a bit for each of them is not too much."""
    return bool(len(codes)) and int(codes[-1]) - int(codes[0]) < _MOST_SLOTS_PER_KEY * len(codes)


class CloseCodes:
    """Places of sorted codes: a bit for every number from the first to the last, and how many codes there are before each
    word of bits."""

    def __init__(self, codes: Codes) -> None:
        self._first = codes[:1].view(np.uint64)
        slots = codes.view(np.uint64) - self._first
        words, bits = slots >> _WORD_SHIFT, _ONE << (slots & _IN_WORD)
        starts = np.flatnonzero(np.diff(words, prepend=words[:1] + _ONE))
        beyond = int(words[-1]) + 1
        self._words = np.zeros(beyond + 1, np.uint64)
        self._words[words[starts].view(np.int64)] = np.bitwise_or.reduceat(bits, starts)
        self._before = np.cumsum(np.bitwise_count(self._words), dtype=np.uint32) - np.bitwise_count(self._words)
        self._beyond = np.uint64(beyond << 6)
        self.nbytes = self._words.nbytes + self._before.nbytes

    def of(self, codes: Codes) -> tuple[Places, Places]:
        """Which codes are here, and where."""
        # What is less than the first one wraps around, and is beyond the last one too.
        slots = np.minimum(codes.view(np.uint64) - self._first, self._beyond)
        words = self._words[(slots >> _WORD_SHIFT).view(np.int64)]
        asked = np.flatnonzero((words >> (slots & _IN_WORD)) & _ONE)
        slots, words = slots[asked], words[asked]
        below = words & ((_ONE << (slots & _IN_WORD)) - _ONE)
        places = self._before[(slots >> _WORD_SHIFT).view(np.int64)] + np.bitwise_count(below)
        return asked, places.astype(np.intp)


class SearchedCodes:
    """Places of sorted codes that may be any numbers."""

    def __init__(self, codes: Codes) -> None:
        self._codes = codes
        self._table = BitTable(codes)
        self.nbytes = self._table.nbytes

    def of(self, codes: Codes) -> tuple[Places, Places]:
        """Which codes are here, and where."""
        known = self._codes
        if not len(codes) or not len(known) or codes.max() < known[0] or codes.min() > known[-1]:
            return np.empty(0, np.intp), np.empty(0, np.intp)
        asked = self._table.may_hold(codes)
        # A search for ascending codes stays near where the last one ended; one for codes in any order misses the caches.
        asked = asked[np.argsort(codes[asked])]
        places = np.searchsorted(known, codes[asked])
        places[places == len(known)] = 0
        same = known[places] == codes[asked]
        return asked[same], places[same]


class BitTable:
    """Says of most codes that are not in a set that they are not. One bit of a table stands for many codes."""

    def __init__(self, codes: Codes) -> None:
        size = max(int(len(codes) * _LEAST_BITS_PER_KEY - 1).bit_length(), 3)
        self._shift = np.uint64(64 - size)
        marked = np.zeros(1 << size, dtype=bool)
        for start in range(0, len(codes), _BLOCK):
            marked[self._slots(codes[start : start + _BLOCK]).view(np.int64)] = True
        self._bits = np.packbits(marked, bitorder="little")
        self.nbytes = self._bits.nbytes

    def may_hold(self, codes: Codes) -> Places:
        """The places of the codes that may be in the set."""
        slots = self._slots(codes)
        octets = self._bits[(slots >> np.uint64(3)).view(np.int64)]
        return np.flatnonzero((octets >> (slots & np.uint64(7)).astype(np.uint8)) & np.uint8(1))

    def _slots(self, codes: Codes) -> npt.NDArray[np.uint64]:
        slots: npt.NDArray[np.uint64] = (codes.view(np.uint64) * _SPREAD) >> self._shift
        return slots


def is_exact_code(schema: pl.Schema) -> bool:
    """Whether keys of these columns need no hash, because a value fits into 64 bits."""
    if len(schema) != 1:
        return False
    (type_,) = schema.dtypes()
    if isinstance(type_, pl.Decimal):
        return type_.precision <= _DIGITS_OF_64_BITS
    return type_.is_integer() or type_.is_temporal() or type_ == pl.Boolean


def encode_keys(rows: pl.DataFrame) -> Codes:
    """The codes of keys; those that are their own codes must not be null."""
    if is_exact_code(rows.schema):
        return rows.to_series().to_physical().cast(pl.Int64).to_numpy()
    return hash_rows(rows).to_numpy().view(np.int64)


def hash_rows(rows: pl.DataFrame) -> pl.Series:
    """Row hashes; equal rows have equal hashes, nulls included."""
    return rows.hash_rows(seed=7)


def _equal(some: pl.DataFrame, others: pl.DataFrame) -> Mask:
    """Which rows have the same values; null equals null."""
    same = some.select(pl.all_horizontal(pl.col(name).eq_missing(others[name]) for name in some.columns))
    return same.to_series().to_numpy()


def _repeats_are_equal(rows: pl.DataFrame, order: Places, first: Mask) -> bool:
    """Whether all rows of one hash have one key. `order`: rows by hash; `first`: where in it a hash comes first."""
    repeats = np.flatnonzero(~first)
    firsts = np.flatnonzero(first)[np.cumsum(first)[repeats] - 1]
    return bool(_equal(rows[order[repeats]], rows[order[firsts]]).all())
