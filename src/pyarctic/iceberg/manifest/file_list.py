"""The live files of a snapshot as one Polars frame, refreshed by reading only new manifests.

A manifest never changes once written, so its frame is cached under its path. A refresh reads the manifest list, loads
the new manifests and drops those that are gone. Two snapshots are compared by the manifests they do not share.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self
from uuid import UUID

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from pyarctic.errors import Damaged, NotFound
from pyarctic.iceberg.manifest.reader import (
    DATA,
    EQUALITY_DELETES,
    FILE_SCHEMA,
    POSITION_DELETES,
    FrameKey,
    ManifestReader,
    ManifestRef,
    read_metrics,
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

_SAVED_INDEX = b"pyarctic.file-list"


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


class FileList:
    """A table's live files at one snapshot. Immutable: `at` gives the list of another snapshot and shares the manifests that
    both have.

        FileList.of(metadata, io, metadata.current_snapshot()).frame()
    """

    def __init__(
        self,
        table_uuid: str,
        frames: Mapping[FrameKey, pl.DataFrame] | None = None,
        manifests: Mapping[str, ManifestRef] | None = None,
        snapshot_id: int | None = None,
    ) -> None:
        self.table_uuid = table_uuid
        self.snapshot_id = snapshot_id
        self._frames: Mapping[FrameKey, pl.DataFrame] = frames or {}
        self._manifests: Mapping[str, ManifestRef] = manifests or {}

    @classmethod
    def of(cls, metadata: TableMetadata, io: FileIO, snapshot: Snapshot | None) -> Self:
        """The files of a snapshot; None stands for the empty table."""
        return cls(str(metadata.table_uuid)).at(io, snapshot)

    def at(self, io: FileIO, snapshot: Snapshot | None) -> Self:
        """The files of `snapshot`, newer or older; only manifests that this list does not have are read."""
        reader = self.reader(io)
        manifests = {m.path: m for m in reader.manifests(snapshot)}
        frames = {(m.path, m.first_row_id): reader.files(m) for m in manifests.values()}
        return type(self)(self.table_uuid, frames, manifests, snapshot.snapshot_id if snapshot else None)

    def reader(self, io: FileIO) -> ManifestReader:
        """A manifest reader that has all manifests of this list cached."""
        return ManifestReader(io, self._frames)

    def __repr__(self) -> str:
        return f"<FileList of snapshot {self.snapshot_id}, {len(self._frames)} manifests>"

    def frame(self) -> pl.DataFrame:
        """All live files, data and deletes, as FILE_SCHEMA."""
        if not self._frames:
            return pl.DataFrame(schema=FILE_SCHEMA)
        return pl.concat(self._frames.values(), rechunk=False)

    def with_metrics(self, io: FileIO, files: pl.DataFrame, field_ids: Sequence[int]) -> pl.DataFrame:
        """`files` with column metrics of some fields, read from their manifests (see `read_metrics`)."""
        paths = files["manifest_path"].unique().to_list()
        metrics = [read_metrics(io, self._manifests[path], list(field_ids)) for path in paths]
        if not metrics or not field_ids:
            return files
        metrics_of_files = pl.concat(metrics).unique(["file_path", "content_offset"])
        return files.join(
            metrics_of_files, on=["file_path", "content_offset"], how="left", nulls_equal=True, maintain_order="left"
        )

    def save(self, path: str | Path) -> None:
        """Write the frames as one Parquet file, replacing it atomically."""
        path = Path(path)
        index = {
            "table_uuid": self.table_uuid,
            "manifests": [[*key, frame.height] for key, frame in self._frames.items()],
        }
        table = self.frame().to_arrow()
        table = table.replace_schema_metadata({_SAVED_INDEX: json.dumps(index).encode()})
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".writing")
        pq.write_table(table, temporary, compression="zstd", compression_level=1)
        temporary.replace(path)

    @classmethod
    def load(cls, path: str | Path, table_uuid: str | UUID) -> Self:
        """Load saved frames, to be moved to a snapshot with `at` before use. A file of another table is refused."""
        try:
            table = pq.read_table(path)
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
        frames: dict[FrameKey, pl.DataFrame] = {}
        start = 0
        for manifest, first_row_id, height in index["manifests"]:
            frames[manifest, first_row_id] = all_files.slice(start, height)
            start += height
        return cls(str(table_uuid), frames)


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
