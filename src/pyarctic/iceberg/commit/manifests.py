"""The manifests of a commit: of new files, without removed files, or rewritten.

Each is written once, even if several attempts need it: manifests of new files can always be reused, filtered ones as long
as the manifest they replace is in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TypeVar

import polars as pl

from pyarctic.iceberg.commit.change import no_files
from pyarctic.iceberg.commit.table_state import ChangeRejected, TableState
from pyarctic.iceberg.manifest.file_list import FILE_IDENTITY
from pyarctic.iceberg.manifest.reader import DATA, DELETED, ManifestRef, describe_entries, read_raw_manifests
from pyarctic.iceberg.write.manifest.entries import EntryBatch, new_entries
from pyarctic.iceberg.write.manifest.manifest_files import MAX_ENTRIES, MetadataFiles
from pyarctic.iceberg.write.manifest.splice import carry_entries
from pyarctic.iceberg.write.new_file import NewFile

Value = TypeVar("Value")
_ENTRY_IDENTITY = ["manifest_path", *FILE_IDENTITY]


class CommitManifests:
    """Writes the manifests of one commit and reuses them in later attempts."""

    def __init__(self, files: MetadataFiles) -> None:
        self._files = files
        self._results: dict[Hashable, object] = {}

    def encode_entries(self, add: Sequence[NewFile], state: TableState, snapshot_id: int) -> list[EntryBatch]:
        """Encode the entries of new files, by spec and content."""

        def encode() -> list[EntryBatch]:
            groups: dict[tuple[int, bool], list[NewFile]] = {}
            for file in add:
                groups.setdefault((file.spec_id, file.content == DATA), []).append(file)
            return [_encode_entries(state, files, snapshot_id).cluster() for files in groups.values()]

        return self._compute_once(("encoded", state.version, tuple(map(id, add))), encode)

    def write_new(self, batches: Sequence[EntryBatch], state: TableState, snapshot_id: int) -> list[ManifestRef]:
        """Write manifests of encoded entries of new files."""

        def write() -> list[ManifestRef]:
            return [manifest for batch in batches for manifest in self._files.write_manifests(batch, snapshot_id)]

        return self._compute_once(("new", state.version, tuple(map(id, batches))), write)

    def without_files(self, removed: pl.DataFrame, state: TableState, snapshot_id: int) -> list[ManifestRef]:
        """The table's manifests without some files. Manifests with removed files are rewritten: large ones separately, small
        ones together."""
        paths = set(removed["manifest_path"].unique())
        affected = [m for m in state.manifests if m.path in paths]
        # A manifest with removed entries only is not needed any more.
        kept = [m for m in state.manifests if m.path not in paths and (m.added_files != 0 or m.existing_files != 0)]
        small = [m for m in affected if _entry_count(m) < MAX_ENTRIES // 2]
        groups = [small] * bool(small) + [[m] for m in affected if _entry_count(m) >= MAX_ENTRIES // 2]
        return [m for group in groups for m in self._rewrite_without(group, removed, state, snapshot_id)] + kept

    def rewrite(self, manifests: Sequence[ManifestRef], state: TableState, snapshot_id: int) -> list[ManifestRef]:
        """Write the entries of manifests again, sorted by partition, in manifests of the right size."""

        def write() -> list[ManifestRef]:
            return self._write_together(list(_carry(manifests, no_files(), state, snapshot_id)), snapshot_id, cluster=True)

        return self._compute_once(("rewritten", state.version, tuple((m.path, m.first_row_id) for m in manifests)), write)

    def _rewrite_without(
        self, manifests: Sequence[ManifestRef], removed: pl.DataFrame, state: TableState, snapshot_id: int
    ) -> list[ManifestRef]:
        def write() -> list[ManifestRef]:
            batches = list(_carry(manifests, removed, state, snapshot_id))
            return self._write_together(batches, snapshot_id, cluster=len(manifests) > 1)

        paths = [manifest.path for manifest in manifests]
        removed_files = removed.filter(pl.col("manifest_path").is_in(paths)).select(_ENTRY_IDENTITY).sort(_ENTRY_IDENTITY)
        identity = (tuple((m.path, m.first_row_id) for m in manifests), tuple(removed_files.iter_rows()))
        return self._compute_once(("without", state.version, identity), write)

    def _write_together(self, batches: Sequence[EntryBatch], snapshot_id: int, *, cluster: bool) -> list[ManifestRef]:
        """Write entries of several manifests together, as far as they may be in one manifest."""
        groups: list[list[EntryBatch]] = []
        for batch in batches:
            group = next((group for group in groups if group[0].can_concat(batch)), None)
            if group is None:
                groups.append([batch])
            else:
                group.append(batch)
        combined = [EntryBatch.concat(group) if len(group) > 1 else group[0] for group in groups]
        combined = [batch.cluster() for batch in combined] if cluster else combined
        return [manifest for batch in combined for manifest in self._files.write_manifests(batch, snapshot_id)]

    def _compute_once(self, key: Hashable, make: Callable[[], Value]) -> Value:
        if key not in self._results:
            self._results[key] = make()
        return self._results[key]  # type: ignore[return-value]


def _carry(
    manifests: Sequence[ManifestRef], removed: pl.DataFrame, state: TableState, snapshot_id: int
) -> Iterator[EntryBatch]:
    """The entries of manifests, those of removed files with status DELETED."""
    for raw in read_raw_manifests(state.reader.io, manifests, everything=True):
        entries = describe_entries(raw).with_row_index("row")
        removed_entries = entries.filter(pl.col("status") != DELETED).join(
            removed, on=_ENTRY_IDENTITY, how="semi", nulls_equal=True
        )
        yield carry_entries(state.version, raw, entries["row"].is_in(removed_entries["row"].implode()), snapshot_id)


def _encode_entries(state: TableState, files: Sequence[NewFile], snapshot_id: int) -> EntryBatch:
    try:
        return new_entries(state.metadata, files, snapshot_id)
    except (TypeError, ValueError, OverflowError) as cause:
        raise ChangeRejected(
            "mismatch",
            f"partition values or metrics do not fit partition spec {files[0].spec_id}: {cause}",
            f"The spec is: {state.metadata.specs()[files[0].spec_id]}.",
            file=files[0].path,
        ) from cause


def _entry_count(manifest: ManifestRef) -> int:
    return (manifest.added_files or 0) + (manifest.existing_files or 0)
