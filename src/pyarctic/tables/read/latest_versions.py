"""One row per key: the latest version wins.

Every row has a version, one number made of its transaction, its offset, and whether it inserts or deletes:

* changes: (transaction, offset); an insert comes after the delete of the same offset, which is its before-image;
* base rows: (transaction of their file, after all offsets).

A row is superseded if its key has a greater version. Scans and optimizing both use this rule and no other.
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
"""The offset and one bit for the kind. The other 22 bits are for transactions, which are numbered by their rank."""
MAX_OFFSET = (1 << (OFFSET_BITS - 1)) - 1
_MEMORY_DIVISOR = 4
"""Versions take a quarter of the memory before they are spilled: an index needs twice as much while it is built."""
_MAX_BUCKETS = 256
"""Each keeps two files open."""
_VERSION, _FILE, _POSITION = "version", "file", "position"
"""Columns beside the key columns, which are named `key_0`, `key_1` …"""


def change_versions(rank: int, offsets: Versions, *, inserts: bool) -> Versions:
    """The versions of changed rows. `rank`: the position of their transaction among all that are compared."""
    if len(offsets) and int(offsets.max()) > MAX_OFFSET:
        raise Unsupported(f"a change has the offset {offsets.max()}", hint=f"The greatest supported offset is {MAX_OFFSET}.")
    return (offsets << 1) + ((rank << OFFSET_BITS) | int(inserts))


def base_version(rank: int) -> int:
    """The version of all rows of a base file."""
    return ((rank + 1) << OFFSET_BITS) - 1


class LatestVersions:
    """An index of the latest version of every key, in memory."""

    def __init__(self, parts: list[tuple[pl.DataFrame, Versions]], *, check_ties: bool = False) -> None:
        """`parts`: key columns with their versions; the list is emptied, to save memory. `check_ties`: refuse a key whose
        latest version exists twice, written by two writers that did not know of each other."""
        codes: list[Codes] = []
        frames: list[pl.DataFrame] = []
        versions: list[Versions] = []
        null_version = -1
        if check_ties:
            _refuse_ties(parts)
        while parts:
            keys, key_versions = parts.pop()
            if not is_exact_code(keys.schema):
                frames.append(keys)
            elif keys.to_series().null_count():
                is_null = keys.to_series().is_null().to_numpy()
                null_version = max(null_version, int(key_versions[is_null].max()))
                keys, key_versions = keys.drop_nulls(), key_versions[~is_null]
            codes.append(encode_keys(keys))
            versions.append(key_versions)
        all_versions = np.concatenate(versions) if versions else np.empty(0, np.int64)
        versions.clear()
        self._index = KeyIndex(codes, all_versions, pl.concat(frames) if frames else None, null_version)
        self.has_repeated_keys = len(all_versions) > len(self._index)
        """Whether a key other than null has several versions."""

    def find_superseded(self, keys: pl.DataFrame, versions: int | Versions) -> Mask:
        """True for rows whose key has a greater version than their own."""
        return self._index.matches_since(keys, versions + 1)


def _refuse_ties(parts: list[tuple[pl.DataFrame, Versions]]) -> None:
    if not parts:
        return
    rows = pl.concat([keys.with_columns(pl.Series(_VERSION, versions)) for keys, versions in parts])
    key_names = [name for name in rows.columns if name != _VERSION]
    version = pl.col(_VERSION)
    latest = rows.group_by(key_names).agg(version.max(), (version == version.max()).sum().alias("count"))
    is_insert = version & 1 == 1
    tied = latest.filter((pl.col("count") > 1) & is_insert)
    if tied.height:
        key = tied.select(key_names).row(0)
        raise Damaged(
            f"key {key if len(key) > 1 else key[0]!r} was inserted twice in one transaction by different writers",
            hint="Which row came last is not known. Write the key once more (upsert), or read [[store='change']] to see "
            "both.",
            key=str(key if len(key) > 1 else key[0]),
            keys=tied.height,
        )


class KeyVersions:
    """Collects versions of keys, then finds superseded rows. Versions beyond the memory budget are spilled to disk, in
    buckets by the hash of the key.

    `with KeyVersions(…) as versions: versions.add(…)`, then either `versions.index()`, or, if `versions.spilled`,
    `versions.add_probes(…)` for all rows and `versions.superseded_rows()`."""

    def __init__(self, memory_bytes: int, expected_rows: int, *, check_ties: bool = False) -> None:
        """`expected_rows`: how many versions there will be."""
        self._memory = max(memory_bytes // _MEMORY_DIVISOR, 1)
        self._expected = expected_rows
        self._check_ties = check_ties
        self._parts: list[tuple[pl.DataFrame, Versions]] = []
        self._rows = self._bytes = 0
        self._spill: _Spill | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._parts.clear()
        if self._spill is not None:
            self._spill.remove()

    @property
    def spilled(self) -> bool:
        return self._spill is not None

    def add(self, keys: pl.DataFrame, versions: Versions) -> None:
        """Add versions of some keys."""
        if not keys.height:
            return
        if self._spill is not None:
            self._spill.versions.add(keys.with_columns(pl.Series(_VERSION, versions)))
            return
        self._parts.append((keys, versions))
        self._rows += keys.height
        self._bytes += _memory_size(keys) + versions.nbytes
        if self._bytes > self._memory:
            self._start_spilling()

    def _start_spilling(self) -> None:
        expected_bytes = max(self._expected, self._rows) * self._bytes / self._rows
        # Keys do not divide evenly, and the next ones may be longer.
        count = min(1 << int(np.ceil(np.log2(max(2 * expected_bytes / self._memory, 2)))), _MAX_BUCKETS)
        self._spill = _Spill(count)  # before it is written to: it is removed also if that fails
        while self._parts:
            keys, versions = self._parts.pop(0)
            self._spill.versions.add(keys.with_columns(pl.Series(_VERSION, versions)))

    def index(self) -> LatestVersions:
        """The latest versions, all in memory."""
        return LatestVersions(self._parts, check_ties=self._check_ties)

    def check_ties(self) -> None:
        """Raise Damaged if a key has its latest version twice; nothing is compared."""
        if self._spill is None:
            _refuse_ties(self._parts)
        else:
            for _ in self.superseded_rows():
                pass

    def add_probes(self, file: int, position: int, keys: pl.DataFrame, versions: int | Versions) -> None:
        """Add rows of a file, from `position` on, whose versions are to be compared later."""
        count = keys.height
        columns = [
            pl.Series(_VERSION, versions if not isinstance(versions, int) else np.full(count, versions)),
            pl.Series(_FILE, np.full(count, file, np.int32)),
            pl.Series(_POSITION, np.arange(position, position + count)),
        ]
        self._require_spill().probes.add(keys.with_columns(columns))

    def superseded_rows(self) -> Iterator[tuple[int, Versions]]:
        """The probes that are superseded: the number of a file, and positions in it; a file may come several times."""
        spill = self._require_spill()
        for bucket in range(spill.versions.count):
            parts = [
                (frame.drop(_VERSION), frame[_VERSION].to_numpy())
                for frame in _compact(spill.versions.frames(bucket), self._memory)
            ]
            latest = LatestVersions(parts, check_ties=self._check_ties)
            for probes in spill.probes.frames(bucket):
                keys = probes.drop(_VERSION, _FILE, _POSITION)
                superseded = probes.filter(latest.find_superseded(keys, probes[_VERSION].to_numpy()))
                for (file,), rows in superseded.group_by(_FILE):
                    yield int(str(file)), rows[_POSITION].to_numpy()

    def _require_spill(self) -> _Spill:
        if self._spill is None:
            raise RuntimeError("versions in memory are used by their index")
        return self._spill


class _Spill:
    """Versions and probes on disk, in a temporary folder."""

    def __init__(self, count: int) -> None:
        self._folder = Path(tempfile.mkdtemp(dir=spill_dir(), prefix="arctic-versions-"))
        self.versions = _Buckets(self._folder, "versions", count)
        self.probes = _Buckets(self._folder, "probes", count)

    def remove(self) -> None:
        for buckets in (self.versions, self.probes):
            with contextlib.suppress(OSError):  # if the disk is full, closing fails for the remaining files, too
                buckets.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _compact(frames: Iterator[pl.DataFrame], memory_bytes: int) -> list[pl.DataFrame]:
    """The versions of one bucket. If they do not fit because a key has very many, only its latest version is kept."""
    held: list[pl.DataFrame] = []
    size = 0
    for frame in frames:
        held.append(frame)
        size += _memory_size(frame)
        if size > 2 * memory_bytes:
            key_names = [name for name in frame.columns if name != _VERSION]
            # Two equal latest versions are both kept, so that ties are noticed.
            held = [pl.concat(held).filter(pl.col(_VERSION) == pl.col(_VERSION).max().over(key_names))]
            size = _memory_size(held[0])
    return held


class _Buckets:
    """Rows on disk, divided by the hash of their keys."""

    def __init__(self, folder: Path, name: str, count: int) -> None:
        self.count = count
        self._paths = [folder / f"{name}-{bucket:05d}.arrows" for bucket in range(count)]
        self._files: dict[int, tuple[pa.ipc.RecordBatchStreamWriter, pa.OSFile]] = {}

    def add(self, rows: pl.DataFrame) -> None:
        keys = rows.drop(_VERSION, _FILE, _POSITION, strict=False)
        # Not the hash that an index sorts by: a bucket would hold a narrow range of it.
        buckets = (keys.hash_rows(seed=11) % self.count).to_numpy()
        order = np.argsort(buckets, kind="stable")
        bounds = np.searchsorted(buckets[order], np.arange(self.count + 1))
        ordered = rows[order]
        for bucket in range(self.count):
            if bounds[bucket] < bounds[bucket + 1]:
                self._write(bucket, ordered[bounds[bucket] : bounds[bucket + 1]])

    def _write(self, bucket: int, rows: pl.DataFrame) -> None:
        table = rows.to_arrow(compat_level=pl.CompatLevel.oldest()).combine_chunks()
        if bucket not in self._files:
            sink = pa.OSFile(str(self._paths[bucket]), "wb")
            self._files[bucket] = (pa.ipc.new_stream(sink, table.schema), sink)
        self._files[bucket][0].write_table(table)

    def frames(self, bucket: int) -> Iterator[pl.DataFrame]:
        """The rows of a bucket in batches; its file is removed after that."""
        self.close()
        if bucket in self._files:
            with pa.OSFile(str(self._paths[bucket]), "rb") as source, pa.ipc.open_stream(source) as reader:
                for batch in reader:
                    yield pl.DataFrame(pa.Table.from_batches([batch]))
            self._paths[bucket].unlink()

    def close(self) -> None:
        for writer, sink in self._files.values():
            if not sink.closed:
                writer.close()
                sink.close()


def _memory_size(rows: pl.DataFrame) -> int:
    """Bytes in memory; Polars keeps 16 bytes for every text beside its characters."""
    texts = sum(dtype in (pl.String, pl.Binary) for dtype in rows.dtypes)
    return int(rows.estimated_size()) + 16 * texts * rows.height
