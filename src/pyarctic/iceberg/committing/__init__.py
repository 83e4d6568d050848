"""Changing a table: one change, one snapshot, validated against whatever others did meanwhile.

`commit` takes a `Change` as data and answers with a value: `Committed`, `Conflict`, `Rejected` or `Unknown`.
"""

from pyarctic.iceberg.committing.change import (
    ROW_MAP_SCHEMA,
    Change,
    Committed,
    Conflict,
    ManifestRewrite,
    Once,
    Outcome,
    Rejected,
    Unknown,
    mergeable_manifests,
)
from pyarctic.iceberg.committing.commit import Listener, Step, commit
from pyarctic.iceberg.committing.proof import Proof
from pyarctic.iceberg.committing.references import referenced_files

__all__ = [
    "ROW_MAP_SCHEMA",
    "Change",
    "Committed",
    "Conflict",
    "Listener",
    "ManifestRewrite",
    "Once",
    "Outcome",
    "Proof",
    "Rejected",
    "Step",
    "Unknown",
    "commit",
    "mergeable_manifests",
    "referenced_files",
]
