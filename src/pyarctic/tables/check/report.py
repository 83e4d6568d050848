"""The result of a check: findings, worst first, and repairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from pyarctic.iceberg.check import Severity
from pyarctic.tables.check.kinds import ALL_KINDS
from pyarctic.tables.format.file_names import Store

_SEVERITIES: tuple[Severity, ...] = ("damage", "warning", "note")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """All problems of one kind in one store."""

    code: str
    store: Store | None
    """None for tables with a single store, and for what concerns both."""
    problems: pl.DataFrame
    """As PROBLEM_SCHEMA of `pyarctic.iceberg.check`."""
    is_repairable: bool = False
    """Whether it can be repaired in this table."""

    @property
    def severity(self) -> Severity:
        return ALL_KINDS[self.code].severity

    @property
    def title(self) -> str:
        """What is wrong, in a few words."""
        return ALL_KINDS[self.code].title

    @property
    def hint(self) -> str:
        """What to do about it."""
        return ALL_KINDS[self.code].hint

    @property
    def repair(self) -> str | None:
        """How `repair` repairs it; None if it cannot."""
        return ALL_KINDS[self.code].repair if self.is_repairable else None

    @property
    def files(self) -> int:
        """How many files are concerned."""
        return self.problems["file_path"].drop_nulls().n_unique()

    @property
    def rows(self) -> int | None:
        """How many rows are concerned; None if it is not known."""
        counts = self.problems["rows"].drop_nulls()
        return int(counts.sum()) if len(counts) else None

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "code": self.code,
            "severity": self.severity,
            "store": self.store,
            "title": self.title,
            "files": self.files,
            "rows": self.rows,
            "hint": self.hint,
            "repair": self.repair,
            "problems": self.problems.drop("code").to_dicts(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What was done, or would be done, about a finding."""

    code: str
    store: Store | None
    files: int
    rows: int | None
    snapshot_id: int | None = None
    """The commit that did it; None if it was not done (yet)."""

    @property
    def action(self) -> str:
        return ALL_KINDS[self.code].repair or ""

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "code": self.code,
            "store": self.store,
            "action": self.action,
            "files": self.files,
            "rows": self.rows,
            "snapshot_id": None if self.snapshot_id is None else str(self.snapshot_id),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What a check found.

    report = arctic.check("demo.shop.orders", rows=True)
    print(report.is_damaged, [finding.code for finding in report.findings])
    """

    table: str
    kind: str
    rows_read: bool
    all_snapshots: bool
    files_checked: int
    findings: tuple[Finding, ...]
    repairs: tuple[Repair, ...] = ()

    @property
    def is_damaged(self) -> bool:
        """Whether there is damage that was not repaired."""
        return bool(self.damage)

    @property
    def damage(self) -> tuple[Finding, ...]:
        """The findings that are damage and were not repaired."""
        done = {(repair.code, repair.store) for repair in self.repairs if repair.snapshot_id is not None}
        return tuple(f for f in self.findings if f.severity == "damage" and (f.code, f.store) not in done)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "table": self.table,
            "kind": self.kind,
            "damaged": self.is_damaged,
            "rows_read": self.rows_read,
            "all_snapshots": self.all_snapshots,
            "files_checked": self.files_checked,
            "findings": [finding.to_dict() for finding in self.findings],
            "repairs": [repair.to_dict() for repair in self.repairs],
        }


def make_findings(problems: Mapping[Store | None, pl.DataFrame]) -> tuple[Finding, ...]:
    """Group problems by store and kind, the worst first."""
    findings = [
        Finding(code=str(code), store=store, problems=group)
        for store, frame in problems.items()
        for (code,), group in frame.group_by("code", maintain_order=True)
    ]
    return tuple(sorted(findings, key=lambda finding: _SEVERITIES.index(finding.severity)))
