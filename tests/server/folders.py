"""Files on disk, and files that a table refers to."""

from __future__ import annotations

from pathlib import Path

from pyiceberg.table import Table


def files_in(folder: Path) -> set[str]:
    """All data and delete files."""
    return {path.name for path in folder.rglob("*") if path.suffix in (".parquet", ".puffin")}


def live_files(table: Table) -> set[str]:
    """Those that any snapshot refers to."""
    return {
        Path(entry.data_file.file_path).name
        for snapshot in table.metadata.snapshots
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    }
