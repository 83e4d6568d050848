"""Reading the manifests of snapshots for a check: what is damaged becomes a problem, and the rest is read all the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import islice

import polars as pl
from pyiceberg.io import FileIO
from pyiceberg.table.snapshots import Snapshot

from pyarctic.errors import Damaged
from pyarctic.iceberg.check.partition_ranges import PartitionRanges
from pyarctic.iceberg.check.problems import Problem, damage_of
from pyarctic.iceberg.manifest.avro import parse_container
from pyarctic.iceberg.manifest.reader import (
    ADDED,
    DATA,
    DELETED,
    DELETES_MANIFEST,
    EXISTING,
    FILE_SCHEMA,
    FrameKey,
    ManifestRef,
    decode_manifest,
    describe_entries,
    read_manifest_list,
    refuse_encrypted,
)
from pyarctic.iceberg.read.live_rows import TableView
from pyarctic.iceberg.storage import read_bytes

METRICS = ["lower_bounds", "upper_bounds", "value_counts", "null_counts"]
"""Columns of manifests that are compared with footers."""
_MANIFESTS_AT_A_TIME = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFiles:
    """The live files of a snapshot, as FILE_SCHEMA."""

    snapshot: Snapshot
    files: pl.DataFrame
    is_complete: bool
    """Whether all its manifests could be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedManifest:
    """What a manifest says: its live files as FILE_SCHEMA with their METRICS; None if it cannot be read."""

    files: pl.DataFrame | None
    problems: list[Problem]


class CheckedManifests:
    """The manifests of snapshots. Each is read once, whatever the number of snapshots that share it."""

    def __init__(self, view: TableView) -> None:
        self._io = view.io
        self._ranges = PartitionRanges(view.metadata)
        self._refs: dict[int, list[ManifestRef] | None] = {}
        self._files: dict[FrameKey, pl.DataFrame | None] = {}
        self.problems: list[Problem] = []

    def manifests(self, snapshots: Sequence[Snapshot]) -> list[ManifestRef]:
        """All manifests of snapshots."""
        return list({_key(ref): ref for snapshot in snapshots for ref in self._read_list(snapshot) or ()}.values())

    def read(self, manifests: Iterable[ManifestRef], pool: Executor) -> Iterator[pl.DataFrame]:
        """The live files of manifests, with their METRICS; manifests that cannot be read are left out."""
        for some in _batched(manifests, _MANIFESTS_AT_A_TIME):
            for ref, checked in zip(some, pool.map(self._check, some), strict=True):
                self.problems += checked.problems
                # Metrics are most of a manifest: they are not kept.
                self._files[_key(ref)] = None if checked.files is None else checked.files.drop(METRICS)
                if checked.files is not None:
                    yield checked.files

    def _check(self, manifest: ManifestRef) -> CheckedManifest:
        return check_manifest(self._io, manifest, self._ranges)

    def snapshot_files(self, snapshot: Snapshot) -> SnapshotFiles:
        """The files of a snapshot whose manifests were read."""
        refs = self._read_list(snapshot)
        frames = [self._files[_key(ref)] for ref in refs or ()]
        readable = [frame for frame in frames if frame is not None]
        return SnapshotFiles(
            snapshot=snapshot,
            files=pl.concat([pl.DataFrame(schema=FILE_SCHEMA), *readable], rechunk=False),
            is_complete=refs is not None and len(readable) == len(frames),
        )

    def _read_list(self, snapshot: Snapshot) -> list[ManifestRef] | None:
        if snapshot.snapshot_id not in self._refs:
            refs = None
            try:
                refs = read_manifest_list(self._io, snapshot)
            except Damaged as error:
                self.problems.append(damage_of(error, snapshot.manifest_list))
            self._refs[snapshot.snapshot_id] = refs
        return self._refs[snapshot.snapshot_id]


def _key(manifest: ManifestRef) -> FrameKey:
    return manifest.path, manifest.first_row_id


def _batched(manifests: Iterable[ManifestRef], count: int) -> Iterator[list[ManifestRef]]:
    rest = iter(manifests)
    while some := list(islice(rest, count)):
        yield some


def check_manifest(io: FileIO, manifest: ManifestRef, ranges: PartitionRanges) -> CheckedManifest:
    """Read a manifest and compare it with its row of the manifest list."""
    refuse_encrypted(manifest)
    problems: list[Problem] = []
    try:
        data = read_bytes(io, manifest.path)
        if len(data) != manifest.length:
            detail = f"the manifest has {len(data)} bytes, its manifest list says {manifest.length}"
            problems.append(Problem("wrong-size", detail, manifest.path))
        if len(data) < manifest.length:  # cut off between two blocks it would be valid, with fewer files
            return CheckedManifest(files=None, problems=problems)
        raw = decode_manifest(parse_container(data, manifest.path), manifest, metrics=True)
        entries = describe_entries(raw).hstack(raw.frame.select(METRICS))
    except Damaged as error:
        return CheckedManifest(files=None, problems=[*problems, damage_of(error, manifest.path)])
    if wrong := [*_wrong_counts(manifest, entries), *ranges.find_wrong(raw)]:
        problems.append(Problem("wrong-manifest", "; ".join(wrong), manifest.path))
    live = entries.filter(pl.col("status") != DELETED).drop("status")
    return CheckedManifest(files=live, problems=problems)


def _wrong_counts(manifest: ManifestRef, entries: pl.DataFrame) -> Iterator[str]:
    """Counts of files and rows, and the least sequence number: planners skip manifests by them."""
    status, rows = pl.col("status"), pl.col("record_count")
    counted = entries.select(
        added_files=(status == ADDED).sum(),
        existing_files=(status == EXISTING).sum(),
        deleted_files=(status == DELETED).sum(),
        added_rows=rows.filter(status == ADDED).sum(),
        existing_rows=rows.filter(status == EXISTING).sum(),
        deleted_rows=rows.filter(status == DELETED).sum(),
    ).row(0, named=True)
    for name, count in counted.items():
        listed = getattr(manifest, name)
        if listed not in (None, count):
            yield f"{name.replace('_', ' ')}: {listed} in the list, {count} in the manifest"
    misplaced = entries.filter((pl.col("content") != DATA) != (manifest.content == DELETES_MANIFEST)).height
    if misplaced:
        kind = "deletes" if manifest.content == DELETES_MANIFEST else "data files"
        yield f"{misplaced} entries that are no {kind}, as the list says"
    least = entries.filter(status != DELETED)["data_sequence_number"].min()
    if isinstance(least, int) and manifest.min_sequence_number > least:
        yield f"least sequence number: {manifest.min_sequence_number} in the list, {least} in the manifest"
