"""Repairs that lose no row, each by one commit."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from pyarctic.errors import ArcticError, OutcomeUnknown
from pyarctic.iceberg.check import find_dangling_deletes
from pyarctic.iceberg.commit import Change
from pyarctic.iceberg.delete import Positions
from pyarctic.iceberg.manifest import PartitionDecoder
from pyarctic.iceberg.write import NewFile, write_position_deletes
from pyarctic.tables.check.report import Finding
from pyarctic.tables.commit_outcomes import remove_outputs
from pyarctic.tables.format.file_names import StoreFileNames, StoreTarget, parse_file_names
from pyarctic.tables.table import Table

ROW_REPAIRS = ("duplicate-keys", "replaced-rows")
"""Findings that are repaired by deleting rows."""
REPAIRED_SUMMARY = "arctic.check.repaired"
"""In the summary of a snapshot: the code of what it repairs."""


def is_repairable(finding: Finding, table: Table) -> bool:
    """Whether a finding can be repaired; only the current snapshot can."""
    if finding.code in ROW_REPAIRS:  # vectors of keyed tables would have to be merged
        return table.format_version == 2
    if finding.code == "wrong-summary":
        return bool(finding.problems["detail"].str.starts_with(f"snapshot {table.view.snapshot_id}:").any())
    if finding.code == "dangling-deletes":
        return finding.problems.join(table.file_list.frame(), on="file_path", how="semi").height > 0
    return False


def repair(finding: Finding, table: Table, duplicates: Mapping[str, Mapping[str, Positions]]) -> int | None:
    """Repair a finding in the store it concerns; gives the snapshot, or None if nothing was left to do.

    Nothing is done if others have committed since the check: raises Rejected."""
    properties = {REPAIRED_SUMMARY: finding.code}
    if finding.code in ROW_REPAIRS:
        return _delete_rows(table, duplicates[finding.code], properties)
    start = table.view.snapshot_id
    if finding.code == "wrong-summary":
        change = Change(start=start, empty=True, recounts=True, alone=True, snapshot_properties=properties)
        return table.commit(change).snapshot_id
    dangling = find_dangling_deletes(table.view.metadata, table.file_list.frame())
    if dangling.is_empty():
        return None
    change = Change(start=start, remove=dangling, rewrites=True, alone=True, snapshot_properties=properties)
    return table.commit(change).snapshot_id


def _delete_rows(table: Table, rows: Mapping[str, Positions], properties: Mapping[str, str]) -> int | None:
    """Delete rows of base files by their positions."""
    view = table.view
    files = parse_file_names(table.file_list.frame(), "base").filter(pl.col("file_path").is_in(list(rows)))
    decoder, names = PartitionDecoder(view.metadata), StoreFileNames()
    written: list[NewFile] = []
    try:
        for row in files.iter_rows(named=True):
            target = StoreTarget(
                metadata=view.metadata,
                io=view.io,
                spec_id=row["spec_id"],
                partition=decoder.values(row["spec_id"], row["partition"]),
                names=names,
                node_id=row["node_id"],
                kind="PD",
                transaction_id=row["transaction_id"],
            )
            written.append(write_position_deletes(target, {row["file_path"]: rows[row["file_path"]]}))
        change = Change(start=view.snapshot_id, add=tuple(written), alone=True, snapshot_properties=properties)
        return table.commit(change).snapshot_id
    except OutcomeUnknown:
        raise
    except ArcticError:
        paths = [file.path for file in written]
        remove_outputs(table, paths, table_uuid=view.metadata.table_uuid, since=view.snapshot_id)
        raise
