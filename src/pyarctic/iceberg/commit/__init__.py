"""Committing changes to a table: each change is one snapshot, validated against concurrent commits.

`commit` takes a `Change` (or a `ManifestRewrite`) and returns its outcome: `Committed`, `Conflict`, `Rejected` or `Unknown`.
A rewrite needs a `Proof` that it kept all rows, optionally with a `ContentHash`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.iceberg.commit.attempts import CommitListener, CommitStep, commit
    from pyarctic.iceberg.commit.change import (
        ROW_MAP_SCHEMA,
        Change,
        Committed,
        Conflict,
        ManifestRewrite,
        NumberedStep,
        Outcome,
        Rejected,
        Unknown,
        mergeable_manifests,
    )
    from pyarctic.iceberg.commit.conflict_rollback import ROLLBACK_ON_CONFLICT, rollback_targets
    from pyarctic.iceberg.commit.content_hash import ContentHash
    from pyarctic.iceberg.commit.proof import Proof
    from pyarctic.iceberg.commit.references import kept_metadata_files, referenced_files
    from pyarctic.iceberg.commit.retry import RetryPolicy
    from pyarctic.iceberg.commit.table_state import TableState

__all__ = [
    "ROLLBACK_ON_CONFLICT",
    "ROW_MAP_SCHEMA",
    "Change",
    "CommitListener",
    "CommitStep",
    "Committed",
    "Conflict",
    "ContentHash",
    "ManifestRewrite",
    "NumberedStep",
    "Outcome",
    "Proof",
    "Rejected",
    "RetryPolicy",
    "TableState",
    "Unknown",
    "commit",
    "kept_metadata_files",
    "mergeable_manifests",
    "referenced_files",
    "rollback_targets",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "attempts": ("CommitListener", "CommitStep", "commit"),
        "change": (
            "Change",
            "Committed",
            "Conflict",
            "ManifestRewrite",
            "NumberedStep",
            "Outcome",
            "ROW_MAP_SCHEMA",
            "Rejected",
            "Unknown",
            "mergeable_manifests",
        ),
        "conflict_rollback": ("ROLLBACK_ON_CONFLICT", "rollback_targets"),
        "content_hash": ("ContentHash",),
        "proof": ("Proof",),
        "references": ("kept_metadata_files", "referenced_files"),
        "retry": ("RetryPolicy",),
        "table_state": ("TableState",),
    },
)
