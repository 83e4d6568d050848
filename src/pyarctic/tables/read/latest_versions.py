"""One row per key: the last word wins.

Every row has a mark, one number made of its transaction, its offset, and whether it inserts or deletes:

* changes: (transaction, offset); an insert comes after the delete of the same offset, its before-image;
* base rows: (transaction of their file, after all offsets).

A row is dead if a word of its key has a greater mark. That is the whole rule, for scans and for optimizing.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from pyarctic.config import spill_dir
from pyarctic.errors import Damaged, Unsupported
from pyarctic.iceberg.delete import Codes, KeyIndex, Mask, encode_keys, is_exact_code

Versions = npt.NDArray[np.int64]
OFFSET_BITS = 41
"""The offset and one bit for the kind. The other 22 are for transactions, which are numbered as they occur."""
MOST_OFFSET = (1 << (OFFSET_BITS - 1)) - 1
_SPILL_SHARE = 4
"""Words take this part of the memory before they are spilled: an index takes twice as much while it is made."""
_MOST_BUCKETS = 256
"""Each keeps two files open."""
_MARK, _FILE, _POSITION = "mark", "file", "position"
"""Beside key columns, which are named `key_0`, `key_1` …"""


def change_versions(rank: int, offsets: Versions, *, inserts: bool) -> Versions:
    """Marks of changed rows. `rank`: the number of their transaction among all that are looked at."""
    if len(offsets) and int(offsets.max()) > MOST_OFFSET:
        raise Unsupported(f"a change has the offset {offsets.max()}", hint=f"At most {MOST_OFFSET} can be told apart.")
    return (offsets << 1) + ((rank << OFFSET_BITS) | int(inserts))


def base_version(rank: int) -> int:
    """The mark of all rows of a base file."""
    return ((rank + 1) << OFFSET_BITS) - 1


class LatestVersions:
    """The last word of some keys."""

    def __init__(self, parts: list[tuple[pl.DataFrame, Versions]], *, check_ties: bool = False) -> None:
        """`parts`: key columns with their marks. They are taken out of the list. `check_ties`: refuse if the last word of a
        key was said twice, by two writers that did not know of each other."""
        codes: list[Codes] = []
        frames: list[pl.DataFrame] = []
        marks: list[Versions] = []
        null_mark = -1
        if check_ties and parts:
            _refuse_ties(parts)
        while parts:
            keys, own = parts.pop()
            if not is_exact_code(keys.schema):
                frames.append(keys)
            elif keys.to_series().null_count():
                null = keys.to_series().is_null().to_numpy()
                null_mark = max(null_mark, int(own[null].max()))
                keys, own = keys.drop_nulls(), own[~null]
            codes.append(encode_keys(keys))
            marks.append(own)
        together = np.concatenate(marks) if marks else np.empty(0, np.int64)
        marks.clear()
        self._index = KeyIndex(codes, together, pl.concat(frames) if frames else None, null_mark)

    def dead(self, keys: pl.DataFrame, marks: int | Versions) -> Mask:
        """True for rows with a greater last word than their own mark."""
        return self._index.matches_since(keys, marks + 1)


def _refuse_ties(parts: list[tuple[pl.DataFrame, Versions]]) -> None:
    words = pl.concat([keys.with_columns(pl.Series(_MARK, marks)) for keys, marks in parts])
    names = [name for name in words.columns if name != _MARK]
    last = words.group_by(names).agg(pl.col(_MARK).max(), (pl.col(_MARK) == pl.col(_MARK).max()).sum().alias("times"))
    tied = last.filter((pl.col("times") > 1) & (pl.col(_MARK) & 1 == 1))
    if tied.height:
        key = tied.select(names).row(0)
        raise Damaged(
            f"key {key if len(key) > 1 else key[0]!r} was inserted twice in one transaction by different writers",
            hint="Which row came last is not known. Write the key once more (upsert), or read store='change' to see both.",
            key=str(key),
        )


class KeyVersions:
    """Collects versions of keys, and then resolves rows. Versions beyond the memory budget are spilled, by hash of the key:
    `with KeyVersions(…) as versions: versions.add(…)`, then either `versions.index()`, or, if `versions.spilled`,
    `versions.ask(…)` for all rows and `versions.verdicts()`."""

    def __init__(self, memory_bytes: int, expected_rows: int, *, check_ties: bool = False) -> None:
        """`expected_rows`: how many words there will be."""
        self._memory = max(memory_bytes // _SPILL_SHARE, 1)
        self._expected = expected_rows
        self._check_ties = check_ties
        self._parts: list[tuple[pl.DataFrame, Versions]] = []
        self._rows = self._bytes = 0
        self._said: _Buckets | None = None
        self._asked: _Buckets | None = None
        self._folder: Path | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._parts.clear()
        for buckets in (self._said, self._asked):
            if buckets is not None:
                with contextlib.suppress(OSError):  # a full disk is full also for the rest
                    buckets.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def spilled(self) -> bool:
        return self._said is not None

    def add(self, keys: pl.DataFrame, marks: Versions) -> None:
        if not keys.height:
            return
        if self._said is not None:
            self._said.add(keys.with_columns(pl.Series(_MARK, marks)))
            return
        self._parts.append((keys, marks))
        self._rows += keys.height
        self._bytes += _size(keys) + marks.nbytes
        if self._bytes > self._memory:
            self._spill()

    def _spill(self) -> None:
        expected = max(self._expected, self._rows) * self._bytes / self._rows
        # Keys do not divide evenly, and the next ones may be longer.
        count = min(1 << int(np.ceil(np.log2(max(2 * expected / self._memory, 2)))), _MOST_BUCKETS)
        self._folder = Path(tempfile.mkdtemp(dir=spill_dir(), prefix="arctic-words-"))
        self._said = _Buckets(self._folder, "said", count)
        self._asked = _Buckets(self._folder, "asked", count)
        while self._parts:
            keys, marks = self._parts.pop(0)
            self._said.add(keys.with_columns(pl.Series(_MARK, marks)))

    def index(self) -> LatestVersions:
        """The last words, all in memory."""
        return LatestVersions(self._parts, check_ties=self._check_ties)

    def ask(self, file: int, position: int, keys: pl.DataFrame, marks: int | Versions) -> None:
        """Have the rows of a file judged later, from this position on."""
        assert self._asked is not None  # noqa: S101  # only what was spilled is asked so
        count = keys.height
        told = [
            pl.Series(_MARK, marks if not isinstance(marks, int) else np.full(count, marks)),
            pl.Series(_FILE, np.full(count, file, np.int32)),
            pl.Series(_POSITION, np.arange(position, position + count)),
        ]
        self._asked.add(keys.with_columns(told))

    def verdicts(self) -> Iterator[tuple[int, Versions]]:
        """Dead rows: the number of a file, and positions in it; a file may come several times."""
        assert self._said is not None  # noqa: S101
        assert self._asked is not None  # noqa: S101
        for number in range(self._said.count):
            parts = [
                (frame.drop(_MARK), frame[_MARK].to_numpy()) for frame in _compacted(self._said.frames(number), self._memory)
            ]
            words = LatestVersions(parts, check_ties=self._check_ties)
            for frame in self._asked.frames(number):
                keys = frame.drop(_MARK, _FILE, _POSITION)
                dead = frame.filter(words.dead(keys, frame[_MARK].to_numpy()))
                for (file,), rows in dead.group_by(_FILE):
                    yield int(str(file)), rows[_POSITION].to_numpy()


def _compacted(frames: Iterator[pl.DataFrame], memory_bytes: int) -> list[pl.DataFrame]:
    """Words of one bucket. If a key is very busy they do not fit; then only its last word is kept."""
    held: list[pl.DataFrame] = []
    size = 0
    for frame in frames:
        held.append(frame)
        size += _size(frame)
        if size > 2 * memory_bytes:
            names = [name for name in frame.columns if name != _MARK]
            # Two equal last words stay two, so that ties are noticed.
            everything = pl.concat(held)
            held = [everything.filter(pl.col(_MARK) == pl.col(_MARK).max().over(names))]
            size = _size(held[0])
    return held


class _Buckets:
    """Rows on disk, divided by the hash of their keys."""

    def __init__(self, folder: Path, name: str, count: int) -> None:
        self.count = count
        self._paths = [folder / f"{name}-{number:05d}.arrows" for number in range(count)]
        self._files: dict[int, tuple[pa.ipc.RecordBatchStreamWriter, pa.OSFile]] = {}

    def add(self, rows: pl.DataFrame) -> None:
        keys = rows.drop(_MARK, _FILE, _POSITION, strict=False)
        # Not the hash that an index sorts by: a bucket would hold a narrow range of it.
        places = (keys.hash_rows(seed=11) % self.count).to_numpy()
        order = np.argsort(places, kind="stable")
        bounds = np.searchsorted(places[order], np.arange(self.count + 1))
        taken = rows[order]
        for number in range(self.count):
            if bounds[number] < bounds[number + 1]:
                self._write(number, taken[bounds[number] : bounds[number + 1]])

    def _write(self, number: int, rows: pl.DataFrame) -> None:
        table = rows.to_arrow(compat_level=pl.CompatLevel.oldest()).combine_chunks()
        if number not in self._files:
            sink = pa.OSFile(str(self._paths[number]), "wb")
            self._files[number] = (pa.ipc.new_stream(sink, table.schema), sink)
        self._files[number][0].write_table(table)

    def frames(self, number: int) -> Iterator[pl.DataFrame]:
        """The rows of a bucket, in pieces."""
        self.close()
        if number in self._files:
            with pa.OSFile(str(self._paths[number]), "rb") as source, pa.ipc.open_stream(source) as reader:
                for batch in reader:
                    yield pl.DataFrame(pa.Table.from_batches([batch]))
            self._paths[number].unlink()

    def close(self) -> None:
        for writer, sink in self._files.values():
            if not sink.closed:
                writer.close()
                sink.close()


def _size(rows: pl.DataFrame) -> int:
    """Bytes in memory; Polars keeps 16 beside the letters of every longer text."""
    texts = sum(dtype in (pl.String, pl.Binary) for dtype in rows.dtypes)
    return int(rows.estimated_size()) + 16 * texts * rows.height
