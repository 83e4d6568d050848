"""The live files of a snapshot as one Polars frame, refreshed by reading only new manifests.

A manifest never changes once written, so its frame is cached under its path. A refresh reads the manifest list, loads
the new manifests and drops those that are gone. Two snapshots are compared by the manifests they do not share.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from uuid import UUID

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from pyarctic.errors import Damaged, NotFound
from pyarctic.iceberg.manifest.reader import (
    DATA,
    DELETED,
    EQUALITY_DELETES,
    FILE_SCHEMA,
    POSITION_DELETES,
    FrameKey,
    ManifestRef,
    RawManifests,
    describe_entries,
    metric_of_field,
    read_manifest_list,
    read_raw_manifests,
)

FILE_IDENTITY = ["file_path", "content_offset", "content_size_bytes"]
"""Several deletion vectors share one Puffin file, so a path alone does not identify an entry."""

IS_VECTOR = (pl.col("content") == POSITION_DELETES) & (pl.col("file_format") == "PUFFIN")
IS_DATA = pl.col("content") == DATA
CONTENT_KIND = (
    pl.when(IS_VECTOR)
    .then(pl.lit("deletion-vector"))
    .when(IS_DATA)
    .then(pl.lit("data"))
    .when(pl.col("content") == EQUALITY_DELETES)
    .then(pl.lit("equality-deletes"))
    .otherwise(pl.lit("position-deletes"))
)
"""The content of a file as text: "data", "position-deletes", "equality-deletes" or "deletion-vector"."""

_SAVED_INDEX = b"pyarctic.file-list.2"


def snapshot_by_id(metadata: TableMetadata, snapshot_id: int) -> Snapshot:
    """The snapshot with this id; raises NotFound."""
    snapshot = metadata.snapshot_by_id(snapshot_id)
    if snapshot is None:
        raise NotFound(
            f"snapshot {snapshot_id} does not exist (any more)",
            hint="`arctic table snapshots` lists the existing ones; older ones may have been expired.",
            snapshot_id=snapshot_id,
        )
    return snapshot


def ancestors(metadata: TableMetadata, snapshot: Snapshot | None) -> Iterator[Snapshot]:
    """A snapshot and its ancestors that are not expired. PyIceberg looks through all snapshots for each of them."""
    by_id = {other.snapshot_id: other for other in metadata.snapshots}
    while snapshot is not None:
        yield snapshot
        snapshot = by_id.get(snapshot.parent_snapshot_id or -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameSlice:
    """The files of one manifest: consecutive rows of a frame that has those of many. Thousands of small frames would take
    more memory than their rows, and long to join."""

    frame: pl.DataFrame
    start: int
    height: int


def _concat_slices(slices: Iterable[FrameSlice]) -> pl.DataFrame:
    """The rows of all slices, those of a frame together; adjacent slices of a frame are one."""
    frames: dict[int, pl.DataFrame] = {}
    ranges: dict[int, list[list[int]]] = {}
    for part in slices:
        key, end = id(part.frame), part.start + part.height
        frames[key] = part.frame
        of_frame = ranges.setdefault(key, [])
        if of_frame and of_frame[-1][1] == part.start:
            of_frame[-1][1] = end
        else:
            of_frame.append([part.start, end])
    parts = [frames[key].slice(start, end - start) for key, of_frame in ranges.items() for start, end in of_frame]
    return pl.concat([pl.DataFrame(schema=FILE_SCHEMA), *parts], rechunk=False)


@dataclass(frozen=True, slots=True)
class ReadManifests:
    """Manifests of any snapshots of a table, and lists of them. It only grows."""

    slices: dict[FrameKey, FrameSlice] = field(default_factory=dict)
    lists: dict[int, list[ManifestRef]] = field(default_factory=dict)


class ManifestReader:
    """Reads manifests and caches their file lists: a manifest never changes once it is written."""

    def __init__(
        self, io: FileIO, cached: Mapping[FrameKey, FrameSlice] | None = None, kept: ReadManifests | None = None
    ) -> None:
        """`kept`: what earlier readers have read; this one adds to it."""
        kept = kept or ReadManifests()
        kept.slices.update(cached or {})
        self.io = io
        self._slices = kept.slices
        self._lists = kept.lists

    def manifests(self, snapshot: Snapshot | None) -> list[ManifestRef]:
        """The manifests of a snapshot; None stands for the empty table."""
        if snapshot is None:
            return []
        if snapshot.snapshot_id not in self._lists:
            self._lists[snapshot.snapshot_id] = read_manifest_list(self.io, snapshot)
        return self._lists[snapshot.snapshot_id]

    def files(self, manifest: ManifestRef) -> pl.DataFrame:
        """The live files of a manifest as FILE_SCHEMA."""
        return self.files_of([manifest])

    def files_of(self, manifests: Iterable[ManifestRef]) -> pl.DataFrame:
        """The live files of several manifests."""
        return _concat_slices(self.slices(manifests).values())

    def slices(self, manifests: Iterable[ManifestRef]) -> dict[FrameKey, FrameSlice]:
        """The live files of each manifest; manifests that are not cached are read."""
        wanted = {(manifest.path, manifest.first_row_id): manifest for manifest in manifests}
        for raw in read_raw_manifests(self.io, [ref for key, ref in wanted.items() if key not in self._slices]):
            self._slices |= _live_files(raw)
        return {key: self._slices[key] for key in wanted}


def _live_files(raw: RawManifests) -> dict[FrameKey, FrameSlice]:
    entries = describe_entries(raw)
    is_live = (entries["status"] != DELETED).to_numpy()
    live = entries.filter(is_live).drop("status")
    heights = np.bincount(raw.manifest_numbers[is_live], minlength=len(raw.refs))
    starts = np.cumsum(heights) - heights
    return {
        (ref.path, ref.first_row_id): FrameSlice(frame=live, start=start, height=height)
        for ref, start, height in zip(raw.refs, starts.tolist(), heights.tolist(), strict=True)
    }


class FileList:
    """A table's live files at one snapshot. Immutable: `at` gives the list of another snapshot and shares the manifests that
    both have.

        FileList.of(metadata, io, metadata.current_snapshot()).frame()
    """

    def __init__(
        self,
        table_uuid: str,
        slices: Mapping[FrameKey, FrameSlice] | None = None,
        manifests: Mapping[str, ManifestRef] | None = None,
        snapshot_id: int | None = None,
    ) -> None:
        self.table_uuid = table_uuid
        self.snapshot_id = snapshot_id
        self._slices: Mapping[FrameKey, FrameSlice] = slices or {}
        self._manifests: Mapping[str, ManifestRef] = manifests or {}

    @classmethod
    def of(cls, metadata: TableMetadata, io: FileIO, snapshot: Snapshot | None) -> Self:
        """The files of a snapshot; None stands for the empty table."""
        return cls(str(metadata.table_uuid)).at(io, snapshot)

    @classmethod
    def of_frame(cls, table_uuid: str, files: pl.DataFrame) -> Self:
        """These files, of any manifests."""
        return cls(table_uuid, {("", None): FrameSlice(frame=files, start=0, height=files.height)})

    def at(self, io: FileIO, snapshot: Snapshot | None) -> Self:
        """The files of `snapshot`, newer or older; only manifests that this list does not have are read."""
        reader = self.reader(io)
        manifests = {m.path: m for m in reader.manifests(snapshot)}
        slices = reader.slices(manifests.values())
        return type(self)(self.table_uuid, slices, manifests, snapshot.snapshot_id if snapshot else None)

    def reader(self, io: FileIO, kept: ReadManifests | None = None) -> ManifestReader:
        """A manifest reader that has all manifests of this list cached."""
        return ManifestReader(io, self._slices, kept)

    def __repr__(self) -> str:
        return f"<FileList of snapshot {self.snapshot_id}, {len(self._slices)} manifests>"

    def frame(self) -> pl.DataFrame:
        """All live files, data and deletes, as FILE_SCHEMA."""
        return _concat_slices(self._slices.values())

    def with_metrics(self, io: FileIO, files: pl.DataFrame, field_ids: Sequence[int]) -> pl.DataFrame:
        """`files` with column metrics of some fields, read from their manifests (see `read_metrics`)."""
        paths = files["manifest_path"].unique().to_list()
        if not paths or not field_ids:
            return files
        metrics = read_metrics(io, [self._manifests[path] for path in paths], list(field_ids))
        metrics_of_files = metrics.unique(["file_path", "content_offset"])
        return files.join(
            metrics_of_files, on=["file_path", "content_offset"], how="left", nulls_equal=True, maintain_order="left"
        )

    def save(self, path: str | Path) -> None:
        """Write the frames as one Parquet file, replacing it atomically."""
        path = Path(path)
        index = {
            "table_uuid": self.table_uuid,
            "manifests": [[*key, part.height] for key, part in self._slices.items()],
        }
        parts = [part.frame.slice(part.start, part.height) for part in self._slices.values()]
        table = pl.concat([pl.DataFrame(schema=FILE_SCHEMA), *parts]).to_arrow()
        table = table.replace_schema_metadata({_SAVED_INDEX: json.dumps(index).encode()})
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".writing")
        pq.write_table(table, temporary, compression="zstd", compression_level=1, write_page_checksum=True)
        temporary.replace(path)

    @classmethod
    def load(cls, path: str | Path, table_uuid: str | UUID) -> Self:
        """Load saved frames, to be moved to a snapshot with `at` before use. A file of another table is refused."""
        try:
            table = pq.read_table(path, page_checksum_verification=True)
            index = json.loads((table.schema.metadata or {})[_SAVED_INDEX])
            all_files = pl.DataFrame(table).cast(FILE_SCHEMA)
        except (OSError, KeyError, ValueError, pa.ArrowException, pl.exceptions.PolarsError) as cause:
            raise Damaged(
                f"saved file list cannot be read: {path}", hint="Delete it; it will be rebuilt.", file=str(path)
            ) from cause
        if index["table_uuid"] != str(table_uuid):
            raise Damaged(
                f"saved file list belongs to table {index['table_uuid']}: {path}",
                hint="Delete it; it will be rebuilt.",
                file=str(path),
            )
        slices: dict[FrameKey, FrameSlice] = {}
        start = 0
        for manifest, first_row_id, height in index["manifests"]:
            slices[manifest, first_row_id] = FrameSlice(frame=all_files, start=start, height=height)
            start += height
        return cls(str(table_uuid), slices)


def changed_files(reader: ManifestReader, since: Snapshot | None, until: Snapshot | None) -> pl.DataFrame:
    """The net difference of two snapshots by file: FILE_SCHEMA and `change` = "added" | "removed".

    None stands for the empty table. A file that was added and removed in between is not reported; one that was removed and
    added again with another sequence number is both removed and added.
    """
    identity = [*FILE_IDENTITY, "data_sequence_number"]
    before = {m.path: m for m in reader.manifests(since)}
    after = {m.path: m for m in reader.manifests(until)}
    removed = reader.files_of(ref for path, ref in before.items() if path not in after)
    added = reader.files_of(ref for path, ref in after.items() if path not in before)
    return pl.concat(
        [
            frame.join(other, on=identity, how="anti", nulls_equal=True).with_columns(pl.lit(change).alias("change"))
            for frame, other, change in ((added, removed, "added"), (removed, added, "removed"))
        ]
    )


def files_changed_by(reader: ManifestReader, snapshot: Snapshot) -> pl.DataFrame:
    """The files that a snapshot added or removed, as it says itself: the one before may be expired. Manifests in which it
    removed files are read again every time."""
    written = [manifest for manifest in reader.manifests(snapshot) if manifest.added_snapshot_id == snapshot.snapshot_id]
    with_removals = read_raw_manifests(reader.io, [manifest for manifest in written if manifest.deleted_files != 0])
    frames = [describe_entries(raw).drop("status") for raw in with_removals]
    files = pl.concat([reader.files_of(manifest for manifest in written if manifest.deleted_files == 0), *frames])
    return files.filter(pl.col("snapshot_id") == snapshot.snapshot_id)


def read_metrics(io: FileIO, manifests: Iterable[ManifestRef], field_ids: list[int]) -> pl.DataFrame:
    """Column metrics of the live entries for the given fields: file_path, content_offset and, per field id,
    `lower_<id>`, `upper_<id>` (Iceberg's single-value bytes), `nulls_<id>`, `nans_<id>`, `values_<id>`, `bytes_<id>`.
    """
    columns = [
        metric_of_field(name, field_id).alias(f"{short}_{field_id}")
        for field_id in field_ids
        for name, short in (
            ("lower_bounds", "lower"),
            ("upper_bounds", "upper"),
            ("null_counts", "nulls"),
            ("nan_counts", "nans"),
            ("value_counts", "values"),
            ("column_sizes", "bytes"),
        )
    ]
    frames = [raw.frame for raw in read_raw_manifests(io, manifests, metrics=True)]
    is_live = pl.col("status") != DELETED
    return pl.concat([frame.filter(is_live).select("file_path", "content_offset", *columns) for frame in frames])
