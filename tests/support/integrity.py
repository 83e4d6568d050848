"""Whether a table is whole: every file it needs is there, nothing else lies about, and what its snapshots tell is true."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import polars as pl
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataV1
from pyiceberg.table.snapshots import Snapshot

from pyarctic.iceberg.commit import Change, ManifestRewrite
from pyarctic.iceberg.manifest import FileList
from pyarctic.iceberg.manifest.file_list import IS_DATA, IS_VECTOR, ManifestReader
from pyarctic.iceberg.manifest.reader import EQUALITY_DELETES, POSITION_DELETES
from tests.support.changes import rows

_ROWS = pl.col("record_count")
_TOTALS = {
    "total-data-files": IS_DATA.sum(),
    "total-delete-files": (~IS_DATA).sum(),
    "total-records": _ROWS.filter(IS_DATA).sum(),
    "total-position-deletes": _ROWS.filter(pl.col("content") == POSITION_DELETES).sum(),
    "total-equality-deletes": _ROWS.filter(pl.col("content") == EQUALITY_DELETES).sum(),
    "total-files-size": pl.when(IS_VECTOR).then("content_size_bytes").otherwise("file_size_bytes").sum(),
}


def missing(table: Table) -> list[str]:
    """Files that some snapshot of the table needs and that do not exist."""
    return sorted(path for path in needed(table) if not Path(path).is_file())


def leftovers(table: Table, change: Change | ManifestRewrite | None = None) -> list[str]:
    """Files in the table's folder that nothing in its metadata names; without those that the maker of a change wrote, who
    may remove what of them was not needed."""
    own = {file.path.removeprefix("file://") for file in change.add} if isinstance(change, Change) else set()
    return sorted(on_disk(table) - needed(table) - own)


def leftovers_of_ours(table: Table, change: Change | ManifestRewrite | None = None) -> list[str]:
    """Those that Java did not write: its local files have a checksum file beside them."""
    return [path for path in leftovers(table, change) if not Path(path).with_name(f".{Path(path).name}.crc").exists()]


def needed(table: Table) -> set[str]:
    """What the current metadata names, back to its oldest snapshot."""
    metadata, reader = table.metadata, ManifestReader(table.io)
    named = {table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    named |= {file.statistics_path for file in metadata.statistics}
    for snapshot in metadata.snapshots:
        manifests = reader.manifests(snapshot)
        named |= {snapshot.manifest_list, *(manifest.path for manifest in manifests)}
        named |= set(reader.files_of(manifests)["file_path"])
    return set(map(local, named))


def on_disk(table: Table) -> set[str]:
    """All files in the table's folder; those with a dot in front are Java's checksums."""
    folder = Path(local(table.location()))
    return {str(path) for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")}


def local(location: str) -> str:
    """Java writes `file:/x`, PyIceberg `file:///x`."""
    return re.sub(r"^file:/+", "/", location)


def untrue_totals(table: Table) -> list[str]:
    """What summaries of snapshots tell and their file lists do not, for every snapshot there is."""
    untrue = []
    for snapshot, files in file_lists(table):
        told = snapshot.summary.additional_properties if snapshot.summary else {}
        true = files.select(**_TOTALS).row(0, named=True)
        untrue += [
            f"snapshot {snapshot.snapshot_id}: {name} is {told.get(name)}, but there are {count}"
            for name, count in true.items()
            if told.get(name) != str(count)
        ]
    return untrue


def file_lists(table: Table) -> Iterator[tuple[Snapshot, pl.DataFrame]]:
    files = FileList(str(table.metadata.table_uuid))
    for snapshot in table.metadata.snapshots:
        files = files.at(table.io, snapshot)
        yield snapshot, files.frame()


def sequence_numbers_differ(table: Table) -> bool:
    """No two snapshots have one sequence number; the table's is the newest."""
    numbers = [snapshot.sequence_number for snapshot in table.metadata.snapshots]
    assert not isinstance(table.metadata, TableMetadataV1)
    newest = max(chain((number or 0 for number in numbers), [0]))
    return len(set(numbers)) == len(numbers) and newest <= table.metadata.last_sequence_number


def row_ids_differ(table: Table) -> bool:
    """In version 3 every row has an id that no other row has."""
    ids = pl.DataFrame(pl.from_arrow(rows(table, ["_row_id"])))["_row_id"]
    return ids.null_count() == 0 and ids.n_unique() == len(ids)
