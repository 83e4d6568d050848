"""Snapshots that were expired, as older metadata files still have them.

A table keeps its last metadata files, a hundred by default. The one that was written with a snapshot has the history before
it. Nothing but metadata is read here: manifests and data files of expired snapshots may be gone.
"""

from __future__ import annotations

from io import BytesIO

from pyiceberg.io import FileIO
from pyiceberg.serializers import Compressor, FromByteStream
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from pyarctic.errors import Damaged
from pyarctic.iceberg.manifest.file_list import ancestors
from pyarctic.iceberg.storage import read_bytes


def load_history_of(metadata: TableMetadata, io: FileIO, oldest: Snapshot) -> TableMetadata | None:
    """Older metadata in which `oldest`, a snapshot whose ancestors were expired, has some of them; None: there is none."""
    # A commit has the time of its snapshot. The first file since then has most of the history.
    for entry in metadata.metadata_log:
        if entry.timestamp_ms < oldest.timestamp_ms:
            continue
        older = _load(io, entry.metadata_file)
        if older is None or older.table_uuid != metadata.table_uuid:
            continue
        known = older.snapshot_by_id(oldest.snapshot_id)
        if known is not None:
            return older if sum(1 for _ in ancestors(older, known)) > 1 else None
    return None


def _load(io: FileIO, location: str) -> TableMetadata | None:
    """A metadata file; None: it was removed, as old ones are, or is no metadata."""
    try:
        stream = BytesIO(read_bytes(io, location))
        return FromByteStream.table_metadata(stream, compression=Compressor.get_compressor(location))
    except (Damaged, ValueError):
        return None


class SnapshotHistory:
    """The snapshots of a table, also those that were expired, as far as older metadata files have them. These files are
    loaded when they are needed."""

    def __init__(self, metadata: TableMetadata, io: FileIO) -> None:
        self._io = io
        self._oldest: TableMetadata | None = metadata
        self._snapshots = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}

    def find(self, snapshot_id: int) -> Snapshot | None:
        """A snapshot by its id; None: nothing is known of it."""
        while snapshot_id not in self._snapshots and self._load_older():
            pass
        return self._snapshots.get(snapshot_id)

    def parent_of(self, snapshot: Snapshot) -> Snapshot | None:
        """The snapshot before another one; None: nothing is known of it, or there is none."""
        # PyIceberg also removes the id of a parent that it expires; older metadata has it.
        while snapshot.parent_snapshot_id not in self._snapshots and not self.is_first(snapshot) and self._load_older():
            snapshot = self._snapshots[snapshot.snapshot_id]
        return self._snapshots.get(snapshot.parent_snapshot_id or -1)

    @staticmethod
    def is_first(snapshot: Snapshot) -> bool:
        """Whether a snapshot is the first one of its table."""
        return (snapshot.sequence_number or 0) <= 1

    def sequence_number(self, snapshot_id: int) -> int:
        """The sequence number of a snapshot that was found."""
        return self._snapshots[snapshot_id].sequence_number or 0

    def _load_older(self) -> bool:
        """Add the snapshots of an older metadata file; False: there is no other."""
        newer, self._oldest = self._oldest, None
        history = list(ancestors(newer, newer.current_snapshot())) if newer is not None else []
        if newer is None or not history or self.is_first(history[-1]):
            return False
        self._oldest = load_history_of(newer, self._io, history[-1])
        if self._oldest is None:
            return False
        self._snapshots |= {snapshot.snapshot_id: snapshot for snapshot in self._oldest.snapshots}
        return True
