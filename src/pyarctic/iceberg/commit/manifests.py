"""Manifests of a commit: of new files, without removed files, merged.

Each is written once, however many attempts use it: new manifests always fit, filtered ones as long as the manifest they
replace is in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

import polars as pl

from pyarctic.iceberg.commit.change import no_files
from pyarctic.iceberg.commit.table_state import Refusal, TableState
from pyarctic.iceberg.manifest.file_list import FILE_IDENTITY
from pyarctic.iceberg.manifest.reader import DATA, DELETED, ManifestRef, describe_entries, read_raw_manifest
from pyarctic.iceberg.write.manifest.entries import EntryBatch, new_entries
from pyarctic.iceberg.write.manifest.manifest_files import MAX_ENTRIES, MetadataFiles
from pyarctic.iceberg.write.manifest.splice import carried_entries
from pyarctic.iceberg.write.new_file import NewFile

Value = TypeVar("Value")


class ManifestWork:
    """Writes manifests of one commit, and remembers them."""

    def __init__(self, files: MetadataFiles) -> None:
        self._files = files
        self._kept: dict[Hashable, object] = {}

    def encoded(self, add: Sequence[NewFile], state: TableState, snapshot_id: int) -> list[EntryBatch]:
        """Entries of new files, by spec and content."""

        def encode() -> list[EntryBatch]:
            groups: dict[tuple[int, bool], list[NewFile]] = {}
            for file in add:
                groups.setdefault((file.spec_id, file.content == DATA), []).append(file)
            return [_encoded(state, files, snapshot_id).clustered() for files in groups.values()]

        return self._once(("encoded", state.version, tuple(map(id, add))), encode)

    def of_new_files(self, batches: Sequence[EntryBatch], state: TableState, snapshot_id: int) -> list[ManifestRef]:
        """Manifests of encoded entries."""

        def write() -> list[ManifestRef]:
            return [manifest for batch in batches for manifest in self._files.write_manifests(batch, snapshot_id)]

        return self._once(("new", state.version, tuple(map(id, batches))), write)

    def without(self, removed: pl.DataFrame, state: TableState, snapshot_id: int) -> list[ManifestRef]:
        """The table's manifests, those with removed files written anew: large ones each for itself, small ones together."""
        leaving = {str(path): group for (path,), group in removed.group_by("manifest_path")}
        touched = [m for m in state.manifests if m.path in leaving]
        # One of removed entries only has done its duty.
        kept = [m for m in state.manifests if m.path not in leaving and (m.added_files != 0 or m.existing_files != 0)]
        small = [m for m in touched if _entries(m) < MAX_ENTRIES // 2]
        groups = [small] * bool(small) + [[m] for m in touched if _entries(m) >= MAX_ENTRIES // 2]
        return [m for group in groups for m in self._group_without(group, leaving, state, snapshot_id)] + kept

    def rewritten(self, manifests: Sequence[ManifestRef], state: TableState, snapshot_id: int) -> list[ManifestRef]:
        """The entries of some manifests, sorted by partition, in manifests of the right size."""

        def write() -> list[ManifestRef]:
            batches = [self._carried(manifest, no_files(), state, snapshot_id).clustered() for manifest in manifests]
            return self._joined(batches, snapshot_id)

        return self._once(("rewritten", state.version, tuple((m.path, m.first_row_id) for m in manifests)), write)

    def _group_without(
        self, manifests: Sequence[ManifestRef], leaving: Mapping[str, pl.DataFrame], state: TableState, snapshot_id: int
    ) -> list[ManifestRef]:
        def write() -> list[ManifestRef]:
            batches = [self._carried(manifest, leaving[manifest.path], state, snapshot_id) for manifest in manifests]
            return self._joined(batches, snapshot_id)

        going = (leaving[manifest.path].select(FILE_IDENTITY).sort(FILE_IDENTITY) for manifest in manifests)
        identity = tuple((m.path, m.first_row_id, *files.iter_rows()) for m, files in zip(manifests, going, strict=True))
        return self._once(("without", state.version, identity), write)

    def _carried(self, manifest: ManifestRef, leaving: pl.DataFrame, state: TableState, snapshot_id: int) -> EntryBatch:
        """The entries of a manifest, some of them as removed."""
        raw = read_raw_manifest(state.reader.io, manifest, metrics=True, everything=True)
        entries = describe_entries(raw).with_row_index("row")
        hit = entries.filter(pl.col("status") != DELETED).join(leaving, on=FILE_IDENTITY, how="semi", nulls_equal=True)
        return carried_entries(state.version, raw, entries["row"].is_in(hit["row"].implode()), snapshot_id)

    def _joined(self, batches: Sequence[EntryBatch], snapshot_id: int) -> list[ManifestRef]:
        """Write entries of several manifests together, as far as they may stand in one."""
        groups: list[list[EntryBatch]] = []
        for batch in batches:
            group = next((group for group in groups if group[0].can_join(batch)), None)
            if group is None:
                groups.append([batch])
            else:
                group.append(batch)
        whole = [EntryBatch.joined(group).clustered() if len(group) > 1 else group[0] for group in groups]
        return [manifest for batch in whole for manifest in self._files.write_manifests(batch, snapshot_id)]

    def _once(self, key: Hashable, make: Callable[[], Value]) -> Value:
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]  # type: ignore[return-value]


def _encoded(state: TableState, files: Sequence[NewFile], snapshot_id: int) -> EntryBatch:
    try:
        return new_entries(state.metadata, files, snapshot_id)
    except (TypeError, ValueError, OverflowError) as cause:
        raise Refusal(
            "mismatch",
            f"partition values or metrics do not fit partition spec {files[0].spec_id}: {cause}",
            f"The spec is: {state.metadata.specs()[files[0].spec_id]}.",
            file=files[0].path,
        ) from cause


def _entries(manifest: ManifestRef) -> int:
    return (manifest.added_files or 0) + (manifest.existing_files or 0)
